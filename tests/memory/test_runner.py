"""The runner: a trial's session goes through the ordinary runtime, and is read like any other."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from memory.support import (
    CODE,
    KEY,
    QUESTION,
    SAYS,
    SCOPE,
    Bench,
    HandClock,
    JournalProxy,
    Lost,
    arm,
    at,
    change,
    once,
    texts,
)
from runtime.support import (
    FakePolicy,
    FakeTool,
    approval,
    assert_consistent,
    calls,
    identity,
    log_of,
    play,
    waiting_ids,
)

from cayu import AgentSpec, CayuApp, Message, ResumeRequest, ToolContext, run_to_completion
from cayu.errors import InvalidInput, MemoryInterventionExecutionConflict, SessionReserved, StoreFull
from cayu.events import EventType as E
from cayu.experiments import StudyStores, omit_expected, recall_off
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.memory import (
    CayuMemoryInterventionRuntimeRunner,
    MemoryInterventionExecutionRecord,
    MemoryInterventionProviderExecutionMode,
    MemoryInterventionRuntimeResult,
    MemoryInterventionRuntimeRunner,
)
from cayu.memory import runner as running
from cayu.memory.applications import TrialApplicationFactory
from cayu.providers import ModelProvider, ScriptedModelProvider
from cayu.providers.base import ModelRequest, ModelStreamEvent
from cayu.recall import AutomaticRecallPolicy, MemoryAttributionBounds
from cayu.sessions import RecoveryPlanRequest
from cayu.storage import InMemoryMemoryInterventionExecutionStore, SQLiteSessionStore
from cayu.tools import KnowledgeReadTool, KnowledgeSearchTool, SubagentTool, ToolPolicyDecision, ToolResult

OFF = AutomaticRecallPolicy(mode="off")


@pytest.mark.requirement("B040")
async def test_the_runner_names_the_files_of_its_factory(tmp_path: Path) -> None:
    memory = CayuMemoryInterventionRuntimeRunner((await Bench().open()).factory())
    assert memory.durable_state_paths() == memory.durable_budget_ledger_paths() == ()
    apart = StudyStores.in_file(tmp_path / "trials.db")
    stores = StudyStores(SQLiteSessionStore(tmp_path / "runs.db"), apart.snapshots, apart.executions)
    bench = await Bench(stores=stores).open()
    runner = CayuMemoryInterventionRuntimeRunner(bench.factory())
    assert runner.durable_state_paths() == runner.durable_budget_ledger_paths() == (tmp_path / "runs.db",)
    await stores.aclose()
    await apart.aclose()


class Bare(MemoryInterventionRuntimeRunner):
    """A runner that adds nothing to the base class."""

    execution_profile_fingerprint = "0" * 64

    async def run(self, **given: Any) -> MemoryInterventionRuntimeResult:
        raise AssertionError("not run here")

    recover = run


def with_child(app: CayuApp) -> None:
    app.register_agent(AgentSpec(name="child", model="m", provider_name="child"))
    app.register_provider(ScriptedModelProvider(["the child's answer"], name="child"))


@pytest.mark.requirement("B040", "B054")
async def test_a_bare_runner_knows_the_root_session_and_no_files() -> None:
    bench = await Bench().open()
    execution = (await bench.execute()).execution
    bare, root = Bare(), execution.session_id
    assert bare.durable_state_paths() == bare.durable_budget_ledger_paths() == ()
    assert await bare.accounting_sessions_belong_to_trial(execution, [root])
    assert await bare.accounting_sessions_belong_to_trial(execution, [root, root])
    for others in ([root, "child"], ["child"], []):
        assert not await bare.accounting_sessions_belong_to_trial(execution, others)


@pytest.mark.requirement("B054")
async def test_the_runner_proves_children_by_their_lineage() -> None:
    provider = ScriptedModelProvider([calls(("ask_child", {"task": "look"})), "done"])
    bench = await Bench(provider=provider, tools=[SubagentTool("child")], more=with_child).open()
    mine, other = await bench.execute(), await bench.execute(trial_id="t2")
    sessions: Any = bench.stores.sessions
    assert len(sessions._streams) == 4
    names = [name for name in sessions._streams if name.endswith(".child")]
    (child,) = [name for name in names if sessions._streams[name].row.parent_session_id == mine.execution.session_id]
    (stranger,) = [name for name in names if name != child]
    runner, root = bench.study.executor.runtime_runner, mine.execution.session_id
    belongs = runner.accounting_sessions_belong_to_trial
    assert await belongs(mine.execution, [root, child])
    assert await belongs(mine.execution, [child])
    for claimed in ([root, stranger], [other.execution.session_id], [root, "nobody"], []):
        assert not await belongs(mine.execution, claimed)
    assert not await Bare().accounting_sessions_belong_to_trial(mine.execution, [root, child])


@pytest.mark.requirement("B054")
async def test_a_child_that_spends_on_another_account_is_not_the_trials() -> None:
    bench = await Bench().open()
    execution = (await bench.execute()).execution
    sessions: Any = bench.stores.sessions
    app = bench.build_app(session_store=sessions, knowledge_store=bench.knowledge.bind(SCOPE), recall=OFF)
    request = bench.request().run_request.model_copy(
        update={"session_id": "guest", "parent_session_id": execution.session_id, "causal_budget_id": "theirs"}
    )
    await run_to_completion(app, request)
    runner = bench.study.executor.runtime_runner
    assert not await runner.accounting_sessions_belong_to_trial(execution, [execution.session_id, "guest"])


class Watching(CayuMemoryInterventionRuntimeRunner):
    """Remembers how it was entered, with what the journal and the session store held then."""

    bench: Bench
    entered: list[tuple[str, MemoryInterventionExecutionRecord | None, bool]]

    async def run(self, **given: Any) -> MemoryInterventionRuntimeResult:
        await self._look("run", given)
        return await super().run(**given)

    async def recover(self, **given: Any) -> MemoryInterventionRuntimeResult:
        await self._look("recover", given)
        return await super().recover(**given)

    async def _look(self, how: str, given: dict[str, Any]) -> None:
        request = given["request"]
        self.given = given
        self.entered.append((how, await self.bench.journal(request), await self.bench.has_session(request)))


def watching(bench: Bench, factory: Any = None) -> Watching:
    made = Watching(factory or bench.factory())
    made.bench, made.entered = bench, []
    return made


@pytest.mark.requirement("B055")
async def test_the_sessions_claim_is_durable_before_the_runner_is_entered() -> None:
    bench = await Bench().open()
    runner = watching(bench)
    await bench.executor(runtime_runner=runner).execute_trial(bench.request())
    ((how, record, exists),) = runner.entered
    assert (how, exists) == ("run", False)
    assert record is not None
    assert record.phase == "session_bound"
    assert record.runtime_session_create_claim is not None
    assert record.runtime_session_create_claim.session_id == record.session_id
    assert runner.given["reference_key"].secret != KEY.secret
    assert KEY not in runner.given.values()


@pytest.mark.requirement("B055")
async def test_recovery_starts_a_claimed_session_that_was_never_dispatched() -> None:
    provider = ScriptedModelProvider(["done"])
    bench = await Bench(provider=provider).open()
    runner, request = watching(bench), bench.request()
    journal = JournalProxy(bench.stores.executions, after=at("session_bound", once()))
    with pytest.raises(Lost):
        await bench.executor(runtime_runner=runner, executions=journal).execute_trial(request)
    assert not await bench.has_session(request)
    outcome = await bench.executor(runtime_runner=runner).execute_trial(request)
    assert outcome.execution.status == "completed"
    assert [(how, exists) for how, _, exists in runner.entered] == [("recover", False)]
    assert len(provider.requests) == 1


@pytest.mark.requirement("B055")
async def test_recovery_reconnects_to_a_session_that_was_dispatched() -> None:
    provider = ScriptedModelProvider(["done"])
    bench = await Bench(provider=provider).open()
    runner, request = watching(bench), bench.request()
    journal = JournalProxy(bench.stores.executions, before=at("runtime_terminal", once()))
    executor = bench.executor(runtime_runner=runner, executions=journal)
    with pytest.raises(Lost):
        await executor.execute_trial(request)
    outcome = await executor.execute_trial(request)
    assert outcome.execution.status == "completed"
    assert [(how, exists) for how, _, exists in runner.entered] == [("run", False), ("recover", True)]
    assert len(provider.requests) == 1


@pytest.mark.requirement("B055")
async def test_a_session_of_another_origin_under_the_trials_id_is_refused() -> None:
    bench = await Bench().open()
    request = bench.request()
    journal = JournalProxy(bench.stores.executions, after=at("session_bound", once()))
    with pytest.raises(Lost):
        await bench.executor(executions=journal).execute_trial(request)
    store = bench.knowledge.bind(SCOPE)
    app = bench.build_app(session_store=bench.stores.sessions, knowledge_store=store, recall=bench.recall)
    await run_to_completion(app, request.run_request.model_copy(update={"session_id": request.session_id}))
    with pytest.raises(MemoryInterventionExecutionConflict, match="a session of another origin"):
        await bench.study.executor.execute_trial(request)


@pytest.mark.requirement("B056")
async def test_a_trials_session_is_read_like_any_other_and_gone_on_with_by_nobody_else() -> None:
    bench = await Bench(tools=[KnowledgeSearchTool()]).open()
    outcome = await bench.execute()
    record, store = outcome.execution, bench.knowledge.bind(SCOPE)
    app = bench.build_app(
        session_store=bench.stores.sessions, knowledge_store=store, budget_ledger=bench.ledger, recall=bench.recall
    )
    view = await assert_consistent(app, record.session_id)
    session = await app.get_session(record.session_id)
    assert (session.status, session.agent_name, session.causal_budget_id) == (
        "completed",
        "reader",
        record.causal_budget_id,
    )
    assert session.environment_name == "laboratory"
    kinds = [stored.type for stored in (await log_of(app, record.session_id)).records]
    ordinary = await run_to_completion(app, bench.request().run_request)
    assert kinds == [event.type for event in ordinary.events if event.sequence is not None]
    assert view.final_text == ordinary.final_text
    again = ResumeRequest(session_id=record.session_id, messages=(Message.text("user", "Which lamp is broken?"),))
    with pytest.raises(SessionReserved, match=record.execution_id):
        await play(app.resume(again))
    assert (await assert_consistent(app, record.session_id)).version == view.version
    assert await bench.execute() == outcome


async def test_nobody_else_goes_on_with_a_trial_that_was_cut_off() -> None:
    """An application over the production memory would answer from what the trial has left out."""
    bench = await Bench().open()
    request = bench.request(arm("omit", "omit_items", change("cold-room")))
    append, writes = bench.stores.sessions.append, 0

    async def failing(unit: Any) -> Any:
        nonlocal writes
        writes += 1
        if writes > 1:
            raise StoreFull(path="x")
        return await append(unit)

    bench.stores.sessions.append = failing  # type: ignore[method-assign]
    with pytest.raises(StoreFull):
        await bench.study.executor.execute_trial(request)
    bench.stores.sessions.append = append  # type: ignore[method-assign]
    production = bench.build_app(
        session_store=bench.stores.sessions,
        knowledge_store=bench.knowledge.bind(SCOPE),
        budget_ledger=bench.ledger,
        recall=bench.recall,
    )
    with pytest.raises(SessionReserved):
        await play(production.recover_incomplete_session(request.session_id))
    plan = await production.plan_recovery(RecoveryPlanRequest(session_ids=(request.session_id,)))
    assert plan.items[0].blocker_codes == ("registration_incompatible",)
    outcome = await bench.study.executor.execute_trial(request)
    assert outcome.eval_result is not None
    assert outcome.eval_result.score == 0.0


class Shifting(TrialApplicationFactory):
    """A factory whose provider changes under its runner."""

    configuration: str | None = None
    mode: Any = None

    @property
    def provider_configuration_fingerprint(self) -> str:
        return self.configuration or super().provider_configuration_fingerprint

    @property
    def provider_execution_mode(self) -> Any:
        return self.mode or super().provider_execution_mode


@pytest.mark.requirement("B057", "B058")
@pytest.mark.parametrize(
    ("field", "value", "named"), [("configuration", "f" * 64, "configuration"), ("mode", "live", "mode")]
)
async def test_a_provider_that_drifts_is_refused_before_the_dispatch(field: str, value: str, named: str) -> None:
    provider = ScriptedModelProvider(["done"])
    bench = await Bench(provider=provider).open()
    factory, request = bench.factory(Shifting), bench.request()
    executor = bench.over(factory)
    setattr(factory, field, value)
    with pytest.raises(MemoryInterventionExecutionConflict, match=f"the provider's {named} is another one"):
        await executor.execute_trial(request)
    assert await bench.journal(request) is None
    with pytest.raises(MemoryInterventionExecutionConflict, match=named):
        _ = executor.execution_authority
    setattr(factory, field, None)

    async def drift(record: MemoryInterventionExecutionRecord) -> None:
        setattr(factory, field, value)

    journal = JournalProxy(bench.stores.executions, after=at("session_bound", drift))
    built = len(bench.apps)
    with pytest.raises(MemoryInterventionExecutionConflict, match=f"the provider's {named} is another one"):
        await bench.over(factory, executions=journal).execute_trial(request)
    assert (len(bench.apps), len(provider.requests)) == (built, 0)
    assert not await bench.has_session(request)


class Remote(ModelProvider):
    """Stands for a provider on a network."""

    def __init__(self, name: str = "remote") -> None:
        self.name = name
        self.asked = 0

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        return identity("remote")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        self.asked += 1
        yield ModelStreamEvent.text_delta(f"It is {CODE}.")
        yield ModelStreamEvent.completed()


@pytest.mark.requirement("B058")
async def test_a_provider_on_a_network_is_live_and_runs_as_such() -> None:
    remote = Remote()
    bench = await Bench(provider=remote).open()
    assert bench.study.executor.execution_authority.provider_execution_mode == "live"
    assert (await bench.execute()).execution.status == "completed"
    assert remote.asked == 1
    hermetic = await Bench(provider=ScriptedModelProvider(["done"])).open()
    assert hermetic.study.executor.execution_authority.provider_execution_mode == "hermetic"


@pytest.mark.requirement("B058")
@pytest.mark.parametrize("mode", [MemoryInterventionProviderExecutionMode.HERMETIC, "hermetic"])
async def test_a_hermetic_trial_over_a_network_provider_is_refused(mode: Any) -> None:
    """However the factory spells it: what the authority shows as hermetic is held to be so."""
    remote = Remote()
    bench = await Bench(provider=remote).open()
    factory, request = bench.factory(Shifting), bench.request()
    factory.mode = mode
    assert bench.over(factory).execution_authority.provider_execution_mode == "hermetic"
    with pytest.raises(MemoryInterventionExecutionConflict, match="a provider works outside this process"):
        await bench.over(factory).execute_trial(request)
    assert remote.asked == 0
    assert not await bench.has_session(request)


@pytest.mark.requirement("B058")
async def test_a_hermetic_trial_asks_no_network_provider_by_way_of_a_child() -> None:
    """The child's agent has a provider of its own; no model outside this process may be asked for a hermetic trial."""
    remote = Remote("child")

    def more(app: CayuApp) -> None:
        app.register_agent(AgentSpec(name="child", model="m", provider_name="child"))
        app.register_provider(remote)

    provider = ScriptedModelProvider([calls(("ask_child", {"task": "look"})), "done"])
    bench = await Bench(provider=provider, tools=[SubagentTool("child")], more=more).open()
    if bench.study.executor.execution_authority.provider_execution_mode == "hermetic":
        with pytest.raises(MemoryInterventionExecutionConflict):
            await bench.execute()
        assert remote.asked == 0
    else:
        assert (await bench.execute()).execution.status == "completed"


@pytest.mark.requirement("B060")
@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"max_receipts": 0}, "source_limit"),
        ({"max_exposures": 0}, "source_limit"),
        ({"max_items": 0}, "source_limit"),
        ({"max_source_bytes": 1}, "source_bytes_limit"),
        ({"max_projection_bytes": 1}, "projection_bytes_limit"),
    ],
)
async def test_small_bounds_truncate_the_attribution_and_come_back_as_the_effective_ones(
    bounds: dict[str, int], reason: str
) -> None:
    bench = await Bench().open()
    wanted = MemoryAttributionBounds(**{"max_projection_bytes": 4096, **bounds})
    runner = CayuMemoryInterventionRuntimeRunner(bench.factory(), attribution_bounds=wanted)
    outcome = await bench.executor(runtime_runner=runner).execute_trial(bench.request())
    payload = outcome.execution.runtime_result_payload
    assert payload is not None
    assert payload["effective_attribution_bounds"] == wanted.model_dump(mode="json")
    assert (payload["expected_receipt_count"], payload["expected_exposure_count"]) == (1, 1)
    assert outcome.binding is not None
    found = outcome.binding.attribution
    assert (found.status, found.truncated, found.reason) == ("truncated", True, reason)
    assert found.observed_receipts + found.omitted_receipts_at_least == 1
    assert not outcome.binding.proves_no_memory_exposure
    assert bench.study.executor.runtime_runner.execution_profile_fingerprint != runner.execution_profile_fingerprint


@pytest.mark.requirement("B060")
async def test_bounds_that_leave_no_room_in_a_record_are_refused() -> None:
    factory = (await Bench().open()).factory()
    with pytest.raises(InvalidInput, match="at most 524288 bytes"):
        CayuMemoryInterventionRuntimeRunner(factory, attribution_bounds=MemoryAttributionBounds())


@pytest.mark.parametrize("tool", [KnowledgeSearchTool(), KnowledgeReadTool()])
async def test_what_a_knowledge_tool_reads_is_an_exposure(tool: Any) -> None:
    asked = {"query": "door code"} if isinstance(tool, KnowledgeSearchTool) else {"id": "cold-room"}
    provider = ScriptedModelProvider([calls((tool.spec.name, asked)), "done"])
    bench = await Bench(provider=provider, tools=[tool]).open()
    outcome = await bench.execute(recall_off())
    assert outcome.binding is not None
    found = outcome.binding.attribution
    assert (found.observed_receipts, [exposure.origin for exposure in found.exposures]) == (0, ["tool"])
    assert not outcome.binding.proves_no_memory_exposure
    assert CODE in texts(provider.requests[1])[-1] or SAYS in str(provider.requests[1])
    await bench.execute(omit_expected(), trial_id="t2")
    assert CODE not in str(provider.requests[3])


async def test_with_recall_off_and_no_tools_no_exposure_is_proved() -> None:
    provider = ScriptedModelProvider(["done"])
    bench = await Bench(provider=provider).open()
    outcome = await bench.execute(recall_off())
    assert outcome.binding is not None
    assert outcome.binding.proves_no_memory_exposure
    assert texts(provider.requests[0]) == [QUESTION]
    seen = (await bench.execute(trial_id="t2")).binding
    assert seen is not None
    assert not seen.proves_no_memory_exposure
    assert SAYS in texts(provider.requests[1])[0]


async def test_a_child_that_saw_memory_leaves_no_proof_of_no_exposure() -> None:
    """What a child read stood before a model of this trial, and its answer before the parent's."""
    provider = ScriptedModelProvider([calls(("ask_child", {"task": "look"})), "done"])
    reader = ScriptedModelProvider([calls(("read_knowledge", {"id": "cold-room"})), f"It is {CODE}."], name="child")

    def more(app: CayuApp) -> None:
        app.register_agent(AgentSpec(name="child", model="m", provider_name="child"), tools=[KnowledgeReadTool()])
        app.register_provider(reader)

    bench = await Bench(provider=provider, tools=[SubagentTool("child")], more=more).open()
    outcome = await bench.execute(recall_off())
    assert CODE in str(provider.requests[1])
    assert outcome.binding is not None
    assert not outcome.binding.proves_no_memory_exposure


async def test_an_approval_ends_a_trial_as_failed_and_can_still_be_decided() -> None:
    """Nobody decides within a trial: a session that waits for a human has not completed."""
    tool = FakeTool("order")
    policy = FakePolicy(lambda asked: ToolPolicyDecision.REQUIRE_APPROVAL)
    bench = await Bench(provider=ScriptedModelProvider([calls("order"), "done"]), tools=[tool], policy=policy).open()
    outcome = await bench.execute()
    record = outcome.execution
    assert (record.status, record.failure_code, record.phase) == ("failed", "runtime_failed", "finalized")
    assert outcome.eval_result is not None
    assert (outcome.eval_result.status, tool.calls) == ("error", [])
    app = bench.apps[-1]
    (waiting,) = await waiting_ids(app, record.session_id)
    await play(app.resolve_tool_approval(approval(waiting, session_id=record.session_id)))
    assert len(tool.calls) == 1
    assert await bench.executor().execute_trial(bench.request()) == outcome


@pytest.mark.requirement("B055")
async def test_a_session_whose_log_cannot_be_read_ends_its_trial_as_unknown() -> None:
    bench = await Bench().open()
    request = bench.request()
    journal = JournalProxy(bench.stores.executions, before=at("runtime_terminal", once()))
    with pytest.raises(Lost):
        await bench.executor(executions=journal).execute_trial(request)
    stored = bench.stores.sessions._streams[request.session_id].records  # type: ignore[attr-defined]
    stored[1] = dataclasses.replace(stored[1], body=b'{"nonsense":1}')
    outcome = await bench.study.executor.execute_trial(request)
    record = outcome.execution
    assert (record.status, record.phase) == ("outcome_unknown", "finalized")
    payload = record.runtime_result_payload
    assert payload is not None
    assert (payload["terminal_evidence_available"], payload["terminal_evidence_limitation"]) == (
        False,
        "evidence_read_failed",
    )
    assert outcome.eval_result is not None
    assert (outcome.eval_result.status, outcome.eval_result.error) == ("unavailable", "unreadable_session")
    assert outcome.binding is not None
    assert outcome.binding.attribution.status == "unavailable"
    assert await bench.executor().execute_trial(request) == outcome


async def test_an_owner_that_ends_slowly_is_asked_once_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease of the first executor's dispatch has run out, but its session lives; the second is cancelled."""
    monkeypatch.setattr(running, "WAIT_SECONDS", 0.005)
    clock, gate = HandClock(), asyncio.Event()

    async def stubborn(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return ToolResult(content="done")

    tool = FakeTool("stubborn", stubborn)
    bench = await Bench(provider=ScriptedModelProvider([calls("stubborn"), "done"]), tools=[tool]).open()
    journal = InMemoryMemoryInterventionExecutionStore(ownership_clock=clock)
    request = bench.request()
    first = asyncio.ensure_future(bench.executor(executions=journal).execute_trial(request))
    await tool.entered.wait()
    clock.advance(60)
    second = asyncio.ensure_future(bench.executor(executions=journal).execute_trial(request))
    await asyncio.sleep(0.05)
    second.cancel()
    await asyncio.sleep(0.2)
    assert not second.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert (await first).execution.status == "cancelled"
    kinds = [record.type for record in (await log_of(bench.apps[-1], request.session_id)).records]
    assert kinds.count(E.SESSION_INTERRUPT_REQUESTED) == 1
    assert kinds[-1] == E.SESSION_INTERRUPTED


@pytest.mark.requirement("B056")
async def test_a_child_of_a_trials_session_is_gone_on_with_by_nobody_else() -> None:
    provider = ScriptedModelProvider([calls(("ask_child", {"task": "look"})), "done"])
    bench = await Bench(provider=provider, tools=[SubagentTool("child")], more=with_child).open()
    execution = (await bench.execute()).execution
    sessions: Any = bench.stores.sessions
    (child,) = [name for name in sessions._streams if name != execution.session_id]
    store = bench.knowledge.bind(SCOPE)
    app = bench.build_app(
        session_store=sessions, knowledge_store=store, budget_ledger=bench.ledger, recall=bench.recall
    )
    before = (await log_of(app, child)).head.state.version
    with pytest.raises(SessionReserved, match=execution.execution_id):
        await play(app.resume(ResumeRequest(session_id=child, messages=(Message.text("user", "And now?"),))))
    assert (await log_of(app, child)).head.state.version == before
    assert bench.apps[-1] is app
    assert (await bench.execute()).execution == execution


@pytest.mark.parametrize("body", [b'{"nonsense":1}', b"{"], ids=["of other fields", "cut off"])
async def test_a_childs_log_that_cannot_be_read_leaves_no_complete_attribution_and_an_ended_trial(body: bytes) -> None:
    def more(app: CayuApp) -> None:
        app.register_agent(AgentSpec(name="child", model="m", provider_name="child"), recall=AutomaticRecallPolicy())
        app.register_provider(ScriptedModelProvider(["the child's answer"], name="child"))

    provider = ScriptedModelProvider([calls(("ask_child", {"task": QUESTION})), "done"])
    bench = await Bench(provider=provider, tools=[SubagentTool("child")], more=more).open()
    request = bench.request()
    journal = JournalProxy(bench.stores.executions, before=at("runtime_terminal", once()))
    with pytest.raises(Lost):
        await bench.executor(executions=journal).execute_trial(request)
    streams = bench.stores.sessions._streams  # type: ignore[attr-defined]
    (child,) = [name for name in streams if name != request.session_id]
    stored = streams[child].records
    (place,) = [number for number, record in enumerate(stored) if record.type == E.RECALL_COMPLETED]
    stored[place] = dataclasses.replace(stored[place], body=body)
    outcome = await bench.study.executor.execute_trial(request)
    assert outcome.execution.phase == "finalized"
    assert outcome.binding is not None
    assert outcome.binding.attribution.status != "complete"
    assert not outcome.binding.proves_no_memory_exposure
    assert await bench.executor().execute_trial(request) == outcome
