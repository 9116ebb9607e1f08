"""Tests the scripted provider: the place in the script follows from the request, so it survives its process."""

from typing import Any

import pytest

from cayu import AgentSpec, CayuApp, Message, ResumeRequest, RunRequest, run_to_completion
from cayu.errors import ProviderError
from cayu.messages import ToolCallPart
from cayu.providers import ModelProvider, ModelRequest, ModelStreamEvent, ScriptedModelProvider


def request(*texts: str) -> ModelRequest:
    """A conversation that alternates between user and assistant."""
    roles = ("user", "assistant")
    return ModelRequest(
        model="m", messages=tuple(Message.text(roles[index % 2], text) for index, text in enumerate(texts))
    )


async def answer(provider: ModelProvider, asked: ModelRequest) -> list[ModelStreamEvent]:
    return [event async for event in provider.stream(asked)]


async def text(provider: ModelProvider, asked: ModelRequest) -> str:
    return "".join(event.text for event in await answer(provider, asked) if event.kind == "text_delta")


async def test_the_batch_is_the_one_that_is_due() -> None:
    provider = ScriptedModelProvider(["one", "two"])
    assert await text(provider, request("q")) == "one"
    assert await text(provider, request("q", "one", "q")) == "two"
    assert await text(provider, request("q")) == "one", "asking again gives the same answer again"
    assert await text(ScriptedModelProvider(["one", "two"]), request("q", "one", "q")) == "two"
    assert [len(asked.messages) for asked in provider.requests] == [1, 3, 1]


async def test_a_batch_may_be_text_events_or_a_function() -> None:
    thinking = [ModelStreamEvent.thinking("hm", "sig"), ModelStreamEvent.text_delta("hello")]
    provider = ScriptedModelProvider([lambda asked: f"you said {asked.messages[-1].plain_text}", thinking])
    assert await text(provider, request("hi")) == "you said hi"
    assert [event.kind for event in await answer(provider, request("a", "b", "c"))] == [
        "thinking",
        "text_delta",
        "completed",
    ]


@pytest.mark.parametrize(
    "batch,reason",
    [("text", "stop"), ([], "stop"), ([ModelStreamEvent.tool_call("look", {"q": 1}, "id")], "tool_calls")],
)
async def test_a_missing_end_is_added(batch: Any, reason: str) -> None:
    events = await answer(ScriptedModelProvider([batch]), request("q"))
    assert events[-1] == ModelStreamEvent.completed(reason)
    assert [event.kind for event in events].count("completed") == 1


@pytest.mark.parametrize(
    "end", [ModelStreamEvent.completed("length", {"input_tokens": 3}), ModelStreamEvent.error("overloaded")]
)
async def test_an_end_of_one_s_own_is_kept(end: ModelStreamEvent) -> None:
    assert await answer(ScriptedModelProvider([[end]]), request("q")) == [end]


async def test_the_script_ends_or_repeats_its_last_batch() -> None:
    with pytest.raises(ProviderError) as caught:
        await answer(ScriptedModelProvider(["one"]), request("q", "one", "q"))
    assert caught.value.code == "script_ended"
    assert await text(ScriptedModelProvider(["one"], repeat_last=True), request("q", "one", "q")) == "one"
    with pytest.raises(ProviderError):
        await answer(ScriptedModelProvider([], repeat_last=True), request("q"))


async def test_only_the_assistant_s_answers_count() -> None:
    call = Message(role="assistant", content=(ToolCallPart(id="a", name="look"),))
    asked = ModelRequest(
        model="m",
        messages=(Message.text("system", "be kind"), Message.text("user", "q"), call, Message.text("user", "q")),
    )
    assert await text(ScriptedModelProvider(["one", "two"]), asked) == "two"


async def test_input_tokens_are_roughly_words() -> None:
    assert await ScriptedModelProvider([]).count_input_tokens(request("a b c", "d")) == 4


def test_two_scripts_behave_alike() -> None:
    one, other = ScriptedModelProvider(["a"], name="x"), ScriptedModelProvider(["b"])
    assert one.execution_profile_identity == other.execution_profile_identity
    assert (one.name, other.name) == ("x", "scripted")


async def test_one_script_serves_many_sessions() -> None:
    app = CayuApp()
    app.register_provider(ScriptedModelProvider(["one", "two"]))
    app.register_agent(AgentSpec(name="ann", model="m"))
    said = Message.text("user", "hi")
    for id in ("a", "b"):
        outcome = await run_to_completion(app, RunRequest(agent_name="ann", messages=(said,), session_id=id))
        assert outcome.final_text == "one"
    for id in ("b", "a"):
        assert (await run_to_completion(app, ResumeRequest(session_id=id, messages=(said,)))).final_text == "two"
