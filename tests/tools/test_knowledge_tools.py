"""Tests the built-in knowledge tools: the environment's store and scope, never one of the model's choosing."""

from typing import Any

import pytest

from cayu import (
    AgentSpec,
    CayuApp,
    Environment,
    EnvironmentSpec,
    KnowledgeAccessScope,
    KnowledgeEntry,
    Message,
    RunOutcome,
    RunRequest,
    ToolContext,
    run_to_completion,
)
from cayu.errors import MissingBinding
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.recall import MemoryAttributionBounds, MemoryExposure, attribute, memory_alias
from cayu.storage import InMemoryKnowledgeStore
from cayu.tools import KnowledgeReadTool, KnowledgeSearchTool, Tool, ToolResult
from cayu.tools.spec import InputValidator

SCOPE = KnowledgeAccessScope(allowed_namespaces=("lab",), required_labels={"team": "red"})
TOOLS: list[Tool] = [KnowledgeSearchTool(), KnowledgeReadTool()]
ARGUMENTS = {"search_knowledge": {"query": "cold room"}, "read_knowledge": {"id": "mine"}}


async def knowledge() -> InMemoryKnowledgeStore:
    store = InMemoryKnowledgeStore()
    for id, namespace, team in (("mine", "lab", "red"), ("theirs", "lab", "blue"), ("safe", "safe", "red")):
        await store.create_entry(
            KnowledgeEntry(
                id=id,
                text=f"The cold room of {id}.",
                title="Cold room",
                namespace=namespace,
                labels={"team": team},
                source_id="4.2",
            )
        )
    return store


async def call(name: str, arguments: dict[str, Any]) -> RunOutcome:
    """Run one call of a built-in tool in an environment that binds the knowledge."""
    app = CayuApp()
    app.register_provider(ScriptedModelProvider([[ModelStreamEvent.tool_call(name, arguments)], "done"]))
    app.register_agent(AgentSpec(name="ann", model="m"), tools=TOOLS)
    environment = Environment(
        EnvironmentSpec(name="lab"), knowledge_store=await knowledge(), knowledge_access_scope=SCOPE
    )
    app.register_environment(environment)
    request = RunRequest(agent_name="ann", messages=(Message.text("user", "go"),), environment_name="lab")
    return await run_to_completion(app, request)


@pytest.mark.requirement("A033")
async def test_search_sees_what_the_scope_of_the_environment_allows() -> None:
    outcome = await call("search_knowledge", {"query": "cold room"})
    hits = outcome.tool_calls[0].structured["hits"]
    assert hits == [
        {
            "id": "mine",
            "revision": 1,
            "title": "Cold room",
            "text": "The cold room of mine.",
            "namespace": "lab",
            "source_id": "4.2",
            "score": hits[0]["score"],
        }
    ]
    content = outcome.tool_calls[0].content
    assert content is not None
    assert "mine" in content
    assert "theirs" not in content


@pytest.mark.requirement("A027", "A033")
@pytest.mark.parametrize("namespace,found", [("lab", 1), ("safe", 0), ("none", 0)])
async def test_a_namespace_narrows_and_does_not_authorise(namespace: str, found: int) -> None:
    outcome = await call("search_knowledge", {"query": "cold room", "namespace": namespace})
    call_ = outcome.tool_calls[0]
    assert call_.is_error is False
    assert len(call_.structured["hits"]) == found


@pytest.mark.requirement("A033")
@pytest.mark.parametrize("id", ["theirs", "safe", "nothing"])
async def test_reading_outside_the_scope_is_like_reading_nothing(id: str) -> None:
    read = (await call("read_knowledge", {"id": "mine"})).tool_calls[0]
    assert (read.is_error, read.structured["text"]) == (False, "The cold room of mine.")
    outside = (await call("read_knowledge", {"id": id})).tool_calls[0]
    assert (outside.state, outside.is_error, outside.content) == (
        "completed",
        True,
        "There is no entry with this id.",
    )


async def test_the_limit_is_the_model_s_within_bounds() -> None:
    assert (await call("search_knowledge", {"query": "cold", "limit": 1})).tool_calls[0].state == "completed"
    for limit in (0, 21, "many"):
        refused = (await call("search_knowledge", {"query": "cold", "limit": limit})).tool_calls[0]
        assert refused.state == "failed"
        assert refused.code == "invalid_arguments"


WIDENING: list[dict[str, Any]] = [
    {"tenant": "acme"},
    {"scope": {"allow_all_namespaces": True}},
    {"access_scope": {"allow_all_namespaces": True}},
    {"visibility": "restricted"},
    {"allowed_visibilities": ["restricted"]},
    {"labels": {"team": "blue"}},
    {"namespaces": ["safe"]},
]


@pytest.mark.requirement("A029")
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.spec.name)
def test_no_input_speaks_of_a_scope(tool: Tool) -> None:
    schema = tool.spec.input_schema
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) <= {"query", "namespace", "limit", "id"}
    for more in WIDENING:
        assert InputValidator(tool.spec).problem({**ARGUMENTS[tool.spec.name], **more}) is not None


@pytest.mark.requirement("A029")
@pytest.mark.parametrize("name", list(ARGUMENTS))
@pytest.mark.parametrize("more", WIDENING, ids=lambda more: next(iter(more)))
async def test_an_argument_that_names_a_scope_is_refused(name: str, more: dict[str, Any]) -> None:
    outcome = await call(name, {**ARGUMENTS[name], **more})
    refused = outcome.tool_calls[0]
    assert (refused.state, refused.code) == ("failed", "invalid_arguments")
    told = [part for event in outcome.events for part in str(event.payload).split() if "theirs" in part]
    assert told == []


@pytest.mark.requirement("A026")
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.spec.name)
async def test_without_a_store_the_answer_is_an_error_and_no_empty_evidence(tool: Tool) -> None:
    contexts = [
        ToolContext(session_id="s", agent_name="ann"),
        ToolContext(session_id="s", agent_name="ann", knowledge_access_scope=SCOPE),
        ToolContext(session_id="s", agent_name="ann", knowledge_store=await knowledge()),
    ]
    for context in contexts:
        result = await tool.run(context, ARGUMENTS[tool.spec.name])
        assert result.is_error is True
        assert result.structured is None
        assert "no knowledge store" in result.content


@pytest.mark.requirement("A024", "A026")
@pytest.mark.parametrize("environment_name", [None, "empty"])
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.spec.name)
async def test_a_run_without_a_binding_is_refused_before_anything_is_written(
    tool: Tool, environment_name: str | None
) -> None:
    provider = ScriptedModelProvider(["never"])
    app = CayuApp(knowledge_store=(await knowledge()).bind(SCOPE))
    app.register_provider(provider)
    app.register_agent(AgentSpec(name="ann", model="m"), tools=[tool])
    app.register_environment(Environment(EnvironmentSpec(name="empty")))
    request = RunRequest(
        agent_name="ann", messages=(Message.text("user", "go"),), session_id="one", environment_name=environment_name
    )
    with pytest.raises(MissingBinding) as caught:
        await run_to_completion(app, request)
    assert caught.value.tool_name == tool.spec.name
    assert provider.requests == []
    assert await app.session_store.load("one") is None


@pytest.mark.requirement("A006")
def test_the_built_ins_declare_themselves() -> None:
    names = [tool.spec.execution_profile_identity for tool in TOOLS]
    assert None not in names
    assert len({identity.name for identity in names if identity}) == len(TOOLS)


# What was read, for those who ask what the model has seen.


async def read(tool: Tool, arguments: dict[str, Any]) -> ToolResult:
    """Run one tool over the knowledge of the tests."""
    context = ToolContext(
        session_id="s", agent_name="ann", knowledge_store=await knowledge(), knowledge_access_scope=SCOPE
    )
    return await tool.run(context, arguments)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.spec.name)
async def test_an_artifact_names_exactly_the_revisions_that_were_read(tool: Tool) -> None:
    store = await knowledge()
    entry = await store.get_entry("mine", access_scope=SCOPE)
    await store.append_entry_revision(entry, expected_revision=1)
    context = ToolContext(session_id="s", agent_name="ann", knowledge_store=store, knowledge_access_scope=SCOPE)
    result = await tool.run(context, ARGUMENTS[tool.spec.name])
    assert result.artifacts == ({"type": "cayu.knowledge", "items": [["mine", 2]]},)
    assert result.structured.get("hits", [result.structured])[0]["revision"] == 2


async def test_a_search_that_finds_nothing_has_read_nothing() -> None:
    result = await read(KnowledgeSearchTool(), {"query": "elephants"})
    assert (result.is_error, result.artifacts) == (False, ({"type": "cayu.knowledge", "items": []},))


async def test_an_artifact_names_what_the_search_returned_and_no_more() -> None:
    store = InMemoryKnowledgeStore()
    for number in range(5):
        await store.create_entry(
            KnowledgeEntry(id=f"e{number}", text="cold room", namespace="lab", labels={"team": "red"})
        )
    context = ToolContext(session_id="s", agent_name="ann", knowledge_store=store, knowledge_access_scope=SCOPE)
    result = await KnowledgeSearchTool().run(context, {"query": "cold room", "limit": 2})
    [artifact] = result.artifacts
    assert artifact["items"] == [[hit["id"], hit["revision"]] for hit in result.structured["hits"]]
    assert len(artifact["items"]) == 2


@pytest.mark.parametrize("id", ["theirs", "safe", "nothing"])
async def test_what_lies_outside_the_scope_leaves_no_artifact(id: str) -> None:
    result = await read(KnowledgeReadTool(), {"id": id})
    assert (result.is_error, result.artifacts) == (True, ())


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.spec.name)
async def test_without_a_store_there_is_no_artifact(tool: Tool) -> None:
    result = await tool.run(ToolContext(session_id="s", agent_name="ann"), ARGUMENTS[tool.spec.name])
    assert result.artifacts == ()


@pytest.mark.parametrize("name", list(ARGUMENTS))
async def test_an_artifact_is_kept_in_the_log_and_counts_as_an_exposure(name: str) -> None:
    app = CayuApp()
    app.register_provider(ScriptedModelProvider([[ModelStreamEvent.tool_call(name, ARGUMENTS[name])], "done"]))
    app.register_agent(AgentSpec(name="ann", model="m"), tools=TOOLS)
    spec = EnvironmentSpec(name="lab")
    app.register_environment(
        Environment(spec, knowledge_store=await knowledge(), knowledge_access_scope=SCOPE), default=True
    )
    request = RunRequest(agent_name="ann", messages=(Message.text("user", "go"),), session_id="one")
    assert (await run_to_completion(app, request)).status == "completed"
    loaded = await app.session_store.load("one")
    assert loaded is not None
    found = attribute(loaded.records, b"k", MemoryAttributionBounds())
    alias = memory_alias(b"k", "knowledge", "mine", 1)
    assert found.exposures == (MemoryExposure(step=2, origin="tool", injected=(alias,)),)
