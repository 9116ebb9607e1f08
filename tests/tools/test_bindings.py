"""Tests which knowledge a tool receives: the selected environment's, or the bound store that it was built with."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cayu import (
    AgentSpec,
    CayuApp,
    Environment,
    EnvironmentSpec,
    ExecutionProfileBehaviorIdentity,
    KnowledgeAccessScope,
    KnowledgeEntry,
    KnowledgeQuery,
    KnowledgeStore,
    Message,
    RunOutcome,
    RunRequest,
    Tool,
    ToolContext,
    ToolEffect,
    ToolResult,
    ToolSpec,
    run_to_completion,
)
from cayu.errors import MissingBinding, NotRegistered
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.storage import InMemoryKnowledgeStore, SQLiteKnowledgeStore

SCOPE = KnowledgeAccessScope(allowed_namespaces=("handbook",))
QUERY = KnowledgeQuery(text="shipping", namespace="handbook")


class Probe(Tool):
    """Remembers its context, and searches with what it finds there."""

    spec = ToolSpec(name="probe", description="Looks around.", effect=ToolEffect.NONE)

    def __init__(self, scope: KnowledgeAccessScope | None = None) -> None:
        self.contexts: list[ToolContext] = []
        self._scope = scope

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        self.contexts.append(ctx)
        if ctx.knowledge_store is None:
            return ToolResult(content="nothing is bound", is_error=True)
        found = await ctx.knowledge_store.search(QUERY, access_scope=self._scope or ctx.knowledge_access_scope)
        return ToolResult(content=json.dumps(found.model_dump(mode="json")))


class Needing(Probe):
    requires_knowledge = True


class HandbookReader(Tool):
    """Takes the store that it needs at its construction, and checks it there."""

    spec = ToolSpec(
        name="lookup_handbook",
        description="Search the handbook.",
        effect=ToolEffect.NONE,
        execution_profile_identity=ExecutionProfileBehaviorIdentity(
            name="handbook-reader", behavior_version="1", implementation_version="1"
        ),
    )

    def __init__(self, store: KnowledgeStore | None) -> None:
        if not isinstance(store, KnowledgeStore) or store.bound_access_scope() is None:
            raise ValueError("HandbookReader needs a bound knowledge store")
        self._store = store

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        found = await self._store.search(QUERY)
        payload = found.model_dump(mode="json")
        return ToolResult(content=json.dumps(payload), structured=payload)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KnowledgeStore]:
    made: KnowledgeStore = (
        InMemoryKnowledgeStore() if request.param == "memory" else SQLiteKnowledgeStore(tmp_path / "k.db")
    )
    await made.create_entry(KnowledgeEntry(id="in", text="Shipping takes a week.", namespace="handbook"))
    await made.create_entry(KnowledgeEntry(id="out", text="Shipping is secret.", namespace="safe"))
    yield made
    await made.aclose()


def application(tool: Tool, **more: Any) -> tuple[CayuApp, ScriptedModelProvider]:
    provider = ScriptedModelProvider([[ModelStreamEvent.tool_call(tool.spec.name)], "done"])
    app = CayuApp(**more)
    app.register_provider(provider)
    app.register_agent(AgentSpec(name="ann", model="m"), tools=[tool])
    return app, provider


def request(environment_name: str | None = None) -> RunRequest:
    messages = (Message.text("user", "go"),)
    return RunRequest(agent_name="ann", messages=messages, session_id="one", environment_name=environment_name)


def environment(store: KnowledgeStore, name: str = "handbook") -> Environment:
    return Environment(
        EnvironmentSpec(name=name), knowledge_store=store, knowledge_access_scope=store.bound_access_scope()
    )


def ids(outcome: RunOutcome) -> list[str]:
    content = outcome.tool_calls[0].content
    assert content is not None
    return [hit["entry"]["id"] for hit in json.loads(content)["hits"]]


@pytest.mark.requirement("A022")
async def test_the_application_s_own_store_reaches_no_tool(store: KnowledgeStore) -> None:
    probe = Probe()
    app, _ = application(probe, knowledge_store=store.bind(SCOPE))
    app.register_environment(environment(store.bind(SCOPE)))
    app.register_environment(Environment(EnvironmentSpec(name="empty")))
    for number, name in enumerate((None, "empty")):
        await run_to_completion(app, request(name).model_copy(update={"session_id": f"s{number}"}))
    seen = [(ctx.environment_name, ctx.knowledge_store, ctx.knowledge_access_scope) for ctx in probe.contexts]
    assert seen == [(None, None, None), ("empty", None, None)]


@pytest.mark.requirement("A030", "A031")
async def test_the_selected_environment_gives_store_and_scope(store: KnowledgeStore) -> None:
    probe = Probe()
    bound = store.bind(SCOPE)
    app, _ = application(probe)
    app.register_environment(environment(bound))
    app.register_environment(Environment(EnvironmentSpec(name="other")))
    outcome = await run_to_completion(app, request("handbook"))
    context = probe.contexts[0]
    assert context.environment_name == "handbook"
    assert context.knowledge_store is bound
    assert context.knowledge_access_scope == SCOPE
    assert ids(outcome) == ["in"]


@pytest.mark.requirement("A030")
async def test_a_default_environment_serves_runs_that_name_none(store: KnowledgeStore) -> None:
    probe = Probe()
    app, _ = application(probe)
    app.register_environment(environment(store.bind(SCOPE)), default=True)
    assert ids(await run_to_completion(app, request())) == ["in"]
    assert (await app.get_session("one")).environment_name == "handbook"


@pytest.mark.requirement("A030")
async def test_an_environment_that_nobody_registered_is_refused(store: KnowledgeStore) -> None:
    app, provider = application(Probe())
    with pytest.raises(NotRegistered) as caught:
        await run_to_completion(app, request("handbook"))
    assert (caught.value.kind, caught.value.name) == ("environment", "handbook")
    assert provider.requests == []
    assert await app.session_store.load("one") is None


@pytest.mark.requirement("A032")
@pytest.mark.parametrize(
    "scope",
    [
        KnowledgeAccessScope(allow_all_namespaces=True),
        KnowledgeAccessScope(allowed_namespaces=("handbook",), required_labels={"team": "red"}),
    ],
    ids=["wider", "narrower"],
)
async def test_a_tool_cannot_bring_a_scope_of_its_own(store: KnowledgeStore, scope: KnowledgeAccessScope) -> None:
    app, provider = application(Probe(scope))
    app.register_environment(environment(store.bind(SCOPE)))
    outcome = await run_to_completion(app, request("handbook"))
    call = outcome.tool_calls[0]
    assert (call.state, call.is_error, call.code) == ("failed", True, "raised")
    assert "secret" not in repr(provider.requests)


@pytest.mark.requirement("A023", "A024", "A025")
async def test_a_tool_may_take_its_bound_store_at_construction(store: KnowledgeStore) -> None:
    app, provider = application(HandbookReader(store.bind(SCOPE)))
    outcome = await run_to_completion(app, request())
    assert ids(outcome) == ["in"]
    assert outcome.tool_calls[0].structured == json.loads(outcome.tool_calls[0].content or "")
    told = repr(provider.requests[-1].messages)
    assert "Shipping takes a week." in told
    assert "secret" not in told


@pytest.mark.requirement("A023", "A024")
async def test_a_missing_or_unbound_store_is_refused_before_registration(store: KnowledgeStore) -> None:
    app = CayuApp()
    provider = ScriptedModelProvider(["never"])
    app.register_provider(provider)
    for wrong in (None, store):
        with pytest.raises(ValueError, match="bound knowledge store"):
            app.register_agent(AgentSpec(name="ann", model="m"), tools=[HandbookReader(wrong)])
    assert app.agent_names == ()
    with pytest.raises(NotRegistered):
        await run_to_completion(app, request())
    assert provider.requests == []
    assert await app.session_store.load("one") is None


@pytest.mark.requirement("A024")
@pytest.mark.parametrize("name", [None, "empty"])
async def test_a_tool_that_needs_knowledge_is_refused_before_the_provider_is_asked(
    store: KnowledgeStore, name: str | None
) -> None:
    probe = Needing()
    app, provider = application(probe, knowledge_store=store.bind(SCOPE))
    app.register_environment(Environment(EnvironmentSpec(name="empty")))
    app.register_environment(environment(store.bind(SCOPE)))
    with pytest.raises(MissingBinding, match="'probe' needs a knowledge store") as caught:
        await run_to_completion(app, request(name))
    assert caught.value.tool_name == "probe"
    assert (provider.requests, probe.contexts) == ([], [])
    assert await app.session_store.load("one") is None
    assert ids(await run_to_completion(app, request("handbook"))) == ["in"]
