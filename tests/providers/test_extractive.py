"""Tests the extractive provider: deterministic, one lookup a question, and answers only from its context."""

import json
from typing import Any

import pytest

from cayu import (
    AgentSpec,
    CayuApp,
    Environment,
    EnvironmentSpec,
    KnowledgeAccessScope,
    Message,
    ResumeRequest,
    RunRequest,
    run_to_completion,
)
from cayu.messages import ToolCallPart, ToolResultPart
from cayu.providers import ExtractiveModelProvider, ModelRequest, ModelStreamEvent, ToolDescription
from cayu.providers.extractive import NOTHING_FOUND
from cayu.storage import InMemoryKnowledgeStore, handbook_entries, handbook_questions
from cayu.tools import KnowledgeSearchTool

LOOKUP = ToolDescription(name="search_knowledge", description="", input_schema=KnowledgeSearchTool.spec.input_schema)
QUESTION = Message.text("user", "How long may a sample stay in the cold room?")
FACT = "A sample may stay in the cold room for 72 hours. The door is green."
CALLED = Message(role="assistant", content=(ToolCallPart(id="lookup", name="search_knowledge"),))


def told(content: str, structured: Any = None, is_error: bool = False) -> Message:
    part = ToolResultPart(
        tool_call_id="lookup", name="search_knowledge", content=content, structured=structured, is_error=is_error
    )
    return Message(role="tool", content=(part,))


async def stream(*messages: Message, tools: tuple[ToolDescription, ...] = (), sentences: int = 2) -> Any:
    asked = ModelRequest(model="m", messages=messages, tools=tools)
    return [event async for event in ExtractiveModelProvider(sentences=sentences).stream(asked)]


async def answer(*messages: Message, sentences: int = 2, tools: tuple[ToolDescription, ...] = ()) -> str:
    events: list[ModelStreamEvent] = await stream(*messages, tools=tools, sentences=sentences)
    assert [event.kind for event in events] == ["text_delta", "completed"]
    return events[0].text


async def test_it_looks_up_once_and_then_answers() -> None:
    events = await stream(QUESTION, tools=(LOOKUP,))
    assert events[0] == ModelStreamEvent.tool_call("search_knowledge", {"query": QUESTION.plain_text}, "lookup")
    assert events[1].payload["finish_reason"] == "tool_calls"
    assert "72 hours" in await answer(QUESTION, CALLED, told(FACT), tools=(LOOKUP,))
    assert await answer(QUESTION, CALLED, told("nothing"), tools=(LOOKUP,)) == NOTHING_FOUND


async def test_a_new_question_is_looked_up_again() -> None:
    said = (QUESTION, CALLED, told(FACT), Message.text("assistant", FACT), Message.text("user", "And the door?"))
    events = await stream(*said, tools=(LOOKUP,))
    assert events[0].arguments == {"query": "And the door?"}


@pytest.mark.parametrize(
    "name,schema,arguments",
    [
        ("lookup_handbook", {"type": "object", "properties": {}}, {}),
        ("find", {"type": "object", "properties": {"q": {}, "n": {}}, "required": ["q"]}, {"q": QUESTION.plain_text}),
        ("look_up", {"type": "object", "properties": {"question": {}, "query": {}}}, {"query": QUESTION.plain_text}),
    ],
)
async def test_it_knows_a_lookup_tool_when_it_sees_one(
    name: str, schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    other = ToolDescription(name="pay", description="", input_schema={"type": "object", "properties": {"text": {}}})
    tool = ToolDescription(name=name, description="", input_schema=schema)
    assert (await stream(QUESTION, tools=(other, tool)))[0] == ModelStreamEvent.tool_call(name, arguments, "lookup")


@pytest.mark.parametrize("required", [["id"], ["query", "namespace"]])
async def test_it_leaves_tools_alone_that_need_what_it_has_not(required: list[str]) -> None:
    schema = {"type": "object", "properties": {name: {} for name in required}, "required": required}
    tool = ToolDescription(name="search", description="", input_schema=schema)
    assert await answer(QUESTION, tools=(tool,)) == NOTHING_FOUND


@pytest.mark.parametrize(
    "context",
    [
        [Message.text("system", FACT)],
        [Message.text("user", FACT)],
        [Message.text("system", "You are kind."), Message.text("user", f"Remember this. {FACT}")],
    ],
)
async def test_without_a_tool_it_answers_from_its_context(context: list[Message]) -> None:
    assert await answer(*context, QUESTION, sentences=1) == "A sample may stay in the cold room for 72 hours."


@pytest.mark.parametrize("messages", [(), (QUESTION,), (Message.text("system", "The door is green."), QUESTION)])
async def test_it_says_that_it_found_nothing(messages: tuple[Message, ...]) -> None:
    assert await answer(*messages) == NOTHING_FOUND


async def test_a_failed_lookup_is_no_evidence() -> None:
    assert await answer(QUESTION, CALLED, told(FACT, is_error=True), tools=(LOOKUP,)) == NOTHING_FOUND


async def test_its_own_words_are_no_evidence() -> None:
    said = (Message.text("user", "Tell me."), Message.text("assistant", FACT), QUESTION)
    assert await answer(*said) == NOTHING_FOUND


async def test_evidence_is_read_from_text_and_from_data() -> None:
    data = {"hits": [{"entry": {"title": "Cold room", "text": FACT}, "score": 0.4}]}
    for result in (told(FACT), told(json.dumps(data)), told("see data", data), told("{broken " + FACT)):
        assert "72 hours" in await answer(QUESTION, CALLED, result)


async def test_it_quotes_no_more_sentences_than_asked_for() -> None:
    text = " ".join(f"The cold room number {number} holds a sample." for number in range(9))
    for count in (1, 2, 4):
        assert (await answer(Message.text("system", text), QUESTION, sentences=count)).count("cold room") == count


async def test_the_usage_counts_words() -> None:
    events = await stream(Message.text("system", FACT), QUESTION)
    words = len(FACT.split()) + len(QUESTION.plain_text.split())
    assert events[-1].payload["usage"] == {"input_tokens": words, "output_tokens": len(events[0].text.split())}


def test_the_declaration_says_how_many_sentences_it_quotes() -> None:
    one, two = ExtractiveModelProvider(sentences=1), ExtractiveModelProvider(sentences=2)
    assert one.execution_profile_identity != two.execution_profile_identity
    assert two.execution_profile_identity == ExecutionTwin().execution_profile_identity


class ExecutionTwin(ExtractiveModelProvider):
    """The same provider, made elsewhere."""


def application() -> CayuApp:
    app = CayuApp()
    app.register_provider(ExtractiveModelProvider())
    app.register_agent(AgentSpec(name="reader", model="extractive"), tools=[KnowledgeSearchTool()])
    return app


async def handbook() -> InMemoryKnowledgeStore:
    store = InMemoryKnowledgeStore()
    for entry in handbook_entries():
        await store.create_entry(entry)
    return store


async def test_it_answers_the_questions_of_the_handbook() -> None:
    store = await handbook()
    app = application()
    for namespace in {question.namespace for question in handbook_questions()}:
        bound = store.bind(KnowledgeAccessScope(allowed_namespaces=(namespace,)))
        app.register_environment(Environment(EnvironmentSpec(name=namespace), knowledge_store=bound))
    wrong = []
    for question in handbook_questions():
        request = RunRequest(
            agent_name="reader",
            messages=(Message.text("user", question.question),),
            environment_name=question.namespace,
        )
        outcome = await run_to_completion(app, request)
        assert [(call.tool_name, call.state) for call in outcome.tool_calls] == [("search_knowledge", "completed")]
        assert outcome.model_steps == 2
        if question.answer.lower() not in outcome.final_text.lower():
            wrong.append(question.id)
    assert len(wrong) <= 5, wrong


async def test_the_same_run_gives_the_same_words() -> None:
    store = await handbook()
    texts = set()
    for _ in range(3):
        app = application()
        bound = store.bind(KnowledgeAccessScope(allow_all_namespaces=True))
        app.register_environment(Environment(EnvironmentSpec(name="all"), knowledge_store=bound), default=True)
        outcome = await run_to_completion(app, RunRequest(agent_name="reader", messages=(QUESTION,)))
        again = ResumeRequest(session_id=outcome.session_id, messages=(QUESTION,))
        texts.add((outcome.final_text, (await run_to_completion(app, again)).final_text))
    assert len(texts) == 1
    assert "72 hours" in texts.pop()[0]


async def test_it_knows_only_what_the_scope_lets_it_read() -> None:
    app = application()
    bound = (await handbook()).bind(KnowledgeAccessScope(allowed_namespaces=("people",)))
    app.register_environment(Environment(EnvironmentSpec(name="people"), knowledge_store=bound), default=True)
    outcome = await run_to_completion(app, RunRequest(agent_name="reader", messages=(QUESTION,)))
    assert "72 hours" not in outcome.final_text
