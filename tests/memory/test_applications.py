"""Applications of trials: built anew for each, and held against what the factory promised before they are used."""

from __future__ import annotations

from typing import Any

import pytest
from memory.support import QUESTION, ROOM, SCOPE, Bench, view_of
from runtime.support import FakeTool

from cayu import AgentSpec, CayuApp, Environment, EnvironmentSpec
from cayu.budgets.ledger import DocumentBudgetLedger
from cayu.errors import InvalidInput, MemoryInterventionExecutionConflict
from cayu.experiments import recall_off
from cayu.memory import MemoryInterventionRuntimeApplicationFactory, MemoryInterventionSpec
from cayu.memory.applications import TrialApplicationFactory
from cayu.providers import ExtractiveModelProvider
from cayu.recall import AutomaticRecallPolicy
from cayu.storage import InMemoryKnowledgeStore, InMemorySessionStore


class Making(TrialApplicationFactory):
    """Builds by `make(bench, parts)`, where `parts` are what it would hand to the application."""

    make: Any
    bench: Bench

    async def create(self, **given: Any) -> Any:
        view = given["view"]
        parts = {
            "session_store": self.runtime_session_store,
            "knowledge_store": view.knowledge_store,
            "budget_ledger": self.runtime_budget_ledger,
            "recall": view.trial_recall_policy,
        }
        return await self.make(self.bench, parts)


async def honest(bench: Bench, parts: dict[str, Any]) -> Any:
    return bench.build_app(**parts)


async def production_memory(bench: Bench, parts: dict[str, Any]) -> Any:
    return bench.build_app(**parts | {"knowledge_store": bench.knowledge.bind(SCOPE)})


async def copied_memory(bench: Bench, parts: dict[str, Any]) -> Any:
    return bench.build_app(**parts | {"knowledge_store": InMemoryKnowledgeStore().bind(SCOPE)})


async def twin_overlay(bench: Bench, parts: dict[str, Any]) -> Any:
    """Another view of the very same overlay is not the view that was checked."""
    return bench.build_app(**parts | {"knowledge_store": (await view_of(bench)).knowledge_store})


async def without_environment(bench: Bench, parts: dict[str, Any]) -> Any:
    app = CayuApp(session_store=parts["session_store"], budget_ledger=parts["budget_ledger"])
    app.register_provider(bench.provider)
    app.register_agent(AgentSpec(name="reader", model="m"), recall=parts["recall"])
    return app


async def other_default(bench: Bench, parts: dict[str, Any]) -> Any:
    """The overlay is there, and the environment that a run selects is another."""
    app = bench.build_app(**parts)
    spec = EnvironmentSpec(name="other", execution_profile_identity=ROOM.execution_profile_identity)
    app.register_environment(Environment(spec, knowledge_store=bench.knowledge.bind(SCOPE)), default=True)
    return app


async def other_sessions(bench: Bench, parts: dict[str, Any]) -> Any:
    return bench.build_app(**parts | {"session_store": InMemorySessionStore()})


async def other_ledger(bench: Bench, parts: dict[str, Any]) -> Any:
    return bench.build_app(**parts | {"budget_ledger": DocumentBudgetLedger(parts["session_store"])})


async def no_ledger(bench: Bench, parts: dict[str, Any]) -> Any:
    return bench.build_app(**parts | {"budget_ledger": None})


async def other_prompt(bench: Bench, parts: dict[str, Any]) -> Any:
    bench.options = {"temperature": 2}
    return bench.build_app(**parts)


async def other_tools(bench: Bench, parts: dict[str, Any]) -> Any:
    bench.tools = [FakeTool("more")]
    return bench.build_app(**parts)


async def other_provider(bench: Bench, parts: dict[str, Any]) -> Any:
    bench.provider = ExtractiveModelProvider(sentences=1)
    return bench.build_app(**parts)


async def other_recall(bench: Bench, parts: dict[str, Any]) -> Any:
    return bench.build_app(**parts | {"recall": AutomaticRecallPolicy(max_injected_items=1)})


async def no_recall(bench: Bench, parts: dict[str, Any]) -> Any:
    return bench.build_app(**parts | {"recall": None})


async def no_agent(bench: Bench, parts: dict[str, Any]) -> Any:
    return CayuApp(session_store=parts["session_store"], budget_ledger=parts["budget_ledger"])


async def an_object(bench: Bench, parts: dict[str, Any]) -> Any:
    return object()


async def nothing(bench: Bench, parts: dict[str, Any]) -> Any:
    return None


async def opaque(bench: Bench, parts: dict[str, Any]) -> Any:
    """A component that declares no identity cannot be known to be the same."""
    app = CayuApp(session_store=parts["session_store"], budget_ledger=parts["budget_ledger"])
    app.register_provider(bench.provider)
    app.register_environment(Environment(EnvironmentSpec(name="laboratory"), knowledge_store=parts["knowledge_store"]))
    app.register_environment(
        Environment(EnvironmentSpec(name="bare"), knowledge_store=parts["knowledge_store"]), default=True
    )
    app.register_agent(AgentSpec(name="reader", model="m"), recall=parts["recall"])
    return app


def making(bench: Bench, make: Any) -> Any:
    factory = bench.factory(Making)
    factory.make, factory.bench = make, bench
    return factory


async def refused(bench: Bench, make: Any, reason: str) -> None:
    """Hold that no session is begun over what `make` gives, and that the trial can still be made good."""
    request = bench.request()
    with pytest.raises(MemoryInterventionExecutionConflict, match=reason) as found:
        await bench.over(making(bench, make)).execute_trial(request)
    assert QUESTION not in str(found.value)
    assert not await bench.has_session(request)
    stands = await bench.journal(request)
    assert stands is not None
    assert (stands.phase, stands.status) == ("session_bound", "active")


@pytest.mark.requirement("B062")
@pytest.mark.parametrize("make", [production_memory, copied_memory, twin_overlay, other_default])
async def test_an_application_over_another_memory_is_refused(make: Any) -> None:
    await refused(await Bench().open(), make, "does not hold the trial's overlay")


@pytest.mark.requirement("B062")
async def test_an_application_without_a_memory_is_refused() -> None:
    await refused(await Bench().open(), without_environment, "cannot run the agent: MissingBinding")


@pytest.mark.requirement("B063")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (other_sessions, "another session store"),
        (other_ledger, "another budget ledger"),
        (no_ledger, "another budget ledger"),
        (other_prompt, "execution profile is not the one"),
        (other_tools, "execution profile is not the one"),
        (other_provider, "execution profile is not the one"),
        (other_recall, "execution profile is not the one"),
        (no_recall, "execution profile is not the one"),
        (no_agent, "cannot run the agent: NotRegistered"),
        (opaque, "declares no identity for environment"),
    ],
)
async def test_an_application_other_than_the_promised_one_is_refused(make: Any, reason: str) -> None:
    await refused(await Bench().open(), make, reason)


@pytest.mark.requirement("B064")
@pytest.mark.parametrize("make", [an_object, nothing])
async def test_what_is_no_application_is_refused(make: Any) -> None:
    await refused(await Bench().open(), make, "no newly built CayuApp")


@pytest.mark.requirement("B064")
async def test_an_application_is_used_once() -> None:
    bench = await Bench().open()
    built: list[Any] = []

    async def again(bench: Bench, parts: dict[str, Any]) -> Any:
        if not built:
            built.append(bench.build_app(**parts))
        return built[0]

    executor = bench.over(making(bench, again))
    assert (await executor.execute_trial(bench.request())).execution.status == "completed"
    second = bench.request(trial_id="t2")
    with pytest.raises(MemoryInterventionExecutionConflict, match="no newly built CayuApp"):
        await executor.execute_trial(second)
    assert not await bench.has_session(second)


async def test_a_refused_trial_goes_on_once_the_factory_is_right() -> None:
    bench = await Bench().open()
    await refused(bench, other_sessions, "another session store")
    outcome = await bench.over(making(bench, honest)).execute_trial(bench.request())
    assert (outcome.execution.status, outcome.execution.revision) == ("completed", 6)


class Plain(Making):
    """A factory that does not say what the profile is when recall is switched off."""

    def expected_execution_profile_fingerprint(self, spec: MemoryInterventionSpec) -> str:
        return MemoryInterventionRuntimeApplicationFactory.expected_execution_profile_fingerprint(self, spec)


@pytest.mark.requirement("B065")
async def test_recall_off_by_a_factory_that_cannot_say_its_profile_is_refused() -> None:
    bench = await Bench().open()
    plain = bench.factory(Plain)
    plain.make, plain.bench = honest, bench
    request = bench.request(recall_off())
    with pytest.raises(MemoryInterventionExecutionConflict, match="does not say which execution profile"):
        await bench.over(plain).execute_trial(request)
    assert await bench.journal(request) is None
    assert not await bench.has_session(request)
    unchanged = await bench.over(plain).execute_trial(bench.request())
    assert unchanged.execution.status == "completed"


@pytest.mark.requirement("B065")
async def test_the_expected_profile_is_the_snapshots_unless_recall_is_switched_off() -> None:
    bench = await Bench().open()
    factory, on, off = bench.factory(), bench.request().spec, bench.request(recall_off()).spec
    assert factory.expected_execution_profile_fingerprint(on) == on.execution_profile_fingerprint
    silent = factory.expected_execution_profile_fingerprint(off)
    assert silent != off.execution_profile_fingerprint
    outcome = await bench.execute(recall_off())
    assert outcome.execution.runtime_execution_profile_fingerprint == silent
    assert outcome.execution.required_execution_profile_fingerprint == on.execution_profile_fingerprint
    other = await Bench(recall=AutomaticRecallPolicy(max_injected_items=1)).open()
    assert other.factory().execution_profile_fingerprint != factory.execution_profile_fingerprint


async def test_an_agent_without_a_recall_policy_has_no_trials() -> None:
    bench = await Bench().open()
    app = bench.build_app(knowledge_store=bench.knowledge.bind(SCOPE))
    with pytest.raises(InvalidInput, match="'reader' has no recall policy"):
        TrialApplicationFactory(
            bench.build_app,
            app.assembly("reader"),
            session_store=bench.stores.sessions,
            budget_ledger=bench.ledger,
        )


async def test_an_application_may_be_built_asynchronously() -> None:
    bench = await Bench().open()

    async def build_app(**parts: Any) -> Any:
        return bench.build_app(**parts)

    factory = TrialApplicationFactory(
        build_app, bench.assembly, session_store=bench.stores.sessions, budget_ledger=bench.ledger
    )
    outcome = await bench.over(factory).execute_trial(bench.request())
    assert outcome.execution.status == "completed"
