"""Attempts at a round that another process, or an earlier claim, had begun: what they did themselves, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime import crash_scenarios as scenarios
from runtime.support import (
    SESSION,
    FakeTool,
    StoreProxy,
    approval,
    calls,
    has,
    logged,
    make_app,
    new_run,
    play,
    waiting_ids,
)
from timing.support import (
    TickingClock,
    active,
    failing_store,
    flags,
    lasted,
    lasting,
    rounds_of,
    serial,
    steps_of,
    timed_app,
    told,
    took,
)

from cayu import AgentSpec, CayuApp, ToolEffect
from cayu.effects import EffectOutcome
from cayu.errors import StoreError
from cayu.events import EventType as E
from cayu.observability import ToolRoundTiming
from cayu.providers.scripted import ScriptedModelProvider
from cayu.sessions import (
    InterruptSessionRequest,
    RecoveryAction,
    RecoveryDecision,
    RecoveryExecutionRequest,
    RecoveryPlanRequest,
)
from cayu.sessions.streams import Unit
from cayu.testing import FakeClock, run_child
from cayu.timing.phases import (
    EFFECT_STATE,
    EXECUTION,
    PUBLICATION,
    PUBLICATION_QUEUE_WAIT,
    ROUND_COMMIT,
    SIBLING_WAIT,
    UNATTRIBUTED,
)
from cayu.tools import AlwaysRequireApprovalToolPolicy, Reconciliation, ReconciliationRequest, ToolEffectReconciler

SCENARIOS = str(Path(scenarios.__file__))
RECOVERED, WAITING = (False, True), (True, True)


class SlowReconciler(ToolEffectReconciler):
    """Knows after a second that a call has acted."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    async def reconcile(self, request: ReconciliationRequest) -> Reconciliation:
        self._clock.advance(1)
        return Reconciliation(outcome=EffectOutcome.COMPLETED)


async def lost_at(kind: str, effect: ToolEffect = ToolEffect.NONE) -> StoreProxy:
    """A store in which a round of two serial calls was lost, with a second of execution each, at one of its writes."""
    store, clock = failing_store(kind, StoreError("gone")), FakeClock()
    app = timed_app(clock, [calls("t", "t"), "done"], [serial(clock, "t", 1, effect=effect)], store=store)
    with pytest.raises(StoreError):
        await play(app.run(new_run()))
    [record] = await rounds_of(app)
    assert flags(record) == (True, False)
    return store


def assert_kept(record: ToolRoundTiming, index: int) -> None:
    """A call whose result was kept is only published here: nothing of its work is made up from old receipts."""
    call = record.calls[index]
    assert took(call, EXECUTION) == 0
    assert call.phase(EXECUTION).first_started_at is None
    assert (call.tool_effect_completed_at, call.tool_terminal_staged_at) == (None, None)
    assert took(call, SIBLING_WAIT) == took(call, PUBLICATION_QUEUE_WAIT) == 0
    assert call.phase(PUBLICATION).first_started_at is not None


# With a store that fails.


@pytest.mark.requirement("A118", "A120")
async def test_a_recovered_round_executes_what_it_replays_and_nothing_else() -> None:
    clock, store = FakeClock(), await lost_at("close")
    app = timed_app(clock, [calls("t", "t"), "done"], [serial(clock, "t", 2)], store=store)
    events = await play(app.recover_incomplete_session(SESSION))
    assert events[-1].type == E.SESSION_COMPLETED
    [record] = await rounds_of(app)
    assert flags(record) == RECOVERED
    assert_kept(record, 0)
    assert told(record) == told(record.calls[1]) == {EXECUTION: 2}
    assert active(record) == lasted(record)


@pytest.mark.requirement("A118", "A120")
async def test_a_round_that_an_operator_settles_has_executed_nothing_here() -> None:
    store = await lost_at("close", ToolEffect.EXTERNAL)
    app = make_app(store, [calls("t", "t"), "done"], [FakeTool("t", effect=ToolEffect.EXTERNAL, parallel_safe=False)])
    await play(app.recover_incomplete_session(SESSION))
    [left] = await rounds_of(app)
    assert flags(left) == WAITING, "the outcome of the second call is not known, and the round stays open"
    plan = await app.plan_recovery(RecoveryPlanRequest())
    [need] = plan.items[0].needed_decisions
    failed = RecoveryAction.TOOL_MARK_FAILED
    decision = RecoveryDecision(session_id=SESSION, tool_call_id=need.tool_call_id, action=failed)
    await app.execute_recovery(RecoveryExecutionRequest(plan=plan, execution_id="x", decisions=(decision,)))
    settled, _ = await rounds_of(app)
    assert settled.tool_round_id == left.tool_round_id
    assert flags(settled) == RECOVERED
    assert took(settled, EXECUTION) == took(left, EXECUTION) == 0
    assert took(settled, ROUND_COMMIT) > 0
    assert_kept(settled, 0)


@pytest.mark.requirement("A101", "A118")
async def test_finding_out_in_a_recovery_is_effect_state() -> None:
    clock, store = FakeClock(), await lost_at("close", ToolEffect.EXTERNAL)
    app = CayuApp(session_store=store)  # type: ignore[arg-type]
    app.services.clock = clock
    app.register_provider(ScriptedModelProvider([calls("t", "t"), "done"]))
    tool = FakeTool("t", effect=ToolEffect.EXTERNAL, parallel_safe=False)
    app.register_agent(
        AgentSpec(name="a", model="m"), tools=[tool], tool_effect_reconcilers={"t": SlowReconciler(clock)}
    )
    await play(app.recover_incomplete_session(SESSION))
    [record] = await rounds_of(app)
    assert (tool.calls, flags(record)) == ([], RECOVERED)
    assert told(record) == {EFFECT_STATE: 1}
    assert told(record.calls[1]) == {EFFECT_STATE: 1}


@pytest.mark.requirement("A101")
async def test_the_write_of_what_was_found_out_is_effect_state_while_another_call_waits() -> None:
    clock = FakeClock()
    store = failing_store("stage", StoreError("gone"))
    tools = [FakeTool("t", effect=ToolEffect.EXTERNAL)]
    with pytest.raises(StoreError):
        await play(make_app(store, [calls("t", "t"), "done"], tools).run(new_run()))
    await play(make_app(store, [calls("t", "t"), "done"], tools).recover_incomplete_session(SESSION))

    async def slow(unit: Unit) -> None:
        clock.advance(0.5 if has(unit, E.EFFECT_RECONCILED) else 0)

    store.before = slow
    app = timed_app(clock, [calls("t", "t"), "done"], tools, store=store)
    seen: list[dict[str, float]] = []
    for number in range(2):
        plan = await app.plan_recovery(RecoveryPlanRequest())
        need = plan.items[0].needed_decisions[0]
        failed = RecoveryAction.TOOL_MARK_FAILED
        decision = RecoveryDecision(session_id=SESSION, tool_call_id=need.tool_call_id, action=failed)
        request = RecoveryExecutionRequest(plan=plan, execution_id=f"x{number}", decisions=(decision,))
        await app.execute_recovery(request)
        seen.append(told((await rounds_of(app))[0]))
    assert seen == [{EFFECT_STATE: 0.5}, {ROUND_COMMIT: 0.5}]
    assert [flags(record) for record in await rounds_of(app)] == [RECOVERED, WAITING]


@pytest.mark.requirement("A101")
async def test_finding_out_for_a_plan_is_effect_state_as_well() -> None:
    """The reconciler is asked by the execution of the plan, on behalf of the round that it closes."""
    clock, store = FakeClock(), await lost_at("close", ToolEffect.EXTERNAL)
    tools = [FakeTool("t", effect=ToolEffect.EXTERNAL, parallel_safe=False)]
    await play(make_app(store, [calls("t", "t"), "done"], tools).recover_incomplete_session(SESSION))
    app = CayuApp(session_store=store)  # type: ignore[arg-type]
    app.services.clock = clock
    app.register_provider(ScriptedModelProvider([calls("t", "t"), "done"]))
    app.register_agent(
        AgentSpec(name="a", model="m"), tools=tools, tool_effect_reconcilers={"t": SlowReconciler(clock)}
    )
    plan = await app.plan_recovery(RecoveryPlanRequest())
    await app.execute_recovery(RecoveryExecutionRequest(plan=plan, execution_id="x"))
    [record] = await rounds_of(app)
    assert flags(record) == RECOVERED
    assert told(record.calls[1]) == {EFFECT_STATE: 1}


@pytest.mark.requirement("A118")
async def test_a_lost_round_that_is_interrupted_is_recovered() -> None:
    store = await lost_at("stage")
    app = make_app(store, [calls("t", "t"), "done"], [FakeTool("t")])
    await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
    assert await logged(app, E.ROUND_COMMITTED)
    [record] = await rounds_of(app)
    assert flags(record) == RECOVERED
    assert took(record, EXECUTION) == 0
    assert took(record, ROUND_COMMIT) > 0


@pytest.mark.requirement("A122")
async def test_the_step_after_a_recovered_round_comes_after_its_commit_here() -> None:
    clock, store = TickingClock(), await lost_at("close")
    app = timed_app(clock, [calls("t", "t"), "done"], [serial(clock, "t", 1)], store=store)
    await play(app.recover_incomplete_session(SESSION))
    [record], [step] = await rounds_of(app), await steps_of(app)
    assert (step.after_tool_round_id, step.started_at) == (record.tool_round_id, record.completed_at)


@pytest.mark.requirement("A122")
async def test_a_step_after_a_crash_between_rounds_comes_after_nothing() -> None:
    """The commit that came before was another process's."""
    store, clock = failing_store("open", StoreError("gone")), FakeClock()
    first = timed_app(clock, [calls("t"), calls("t"), "done"], [lasting(clock, "t", 1)], store=store)
    with pytest.raises(StoreError):
        await play(first.run(new_run()))
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)], store=store)
    await play(app.recover_incomplete_session(SESSION))
    assert [step.after_tool_round_id is None for step in await steps_of(app)] == [True, False]


async def test_a_continuation_that_was_lost_is_recovered_and_has_a_remainder() -> None:
    clock = TickingClock()
    store = failing_store("close", StoreError("gone"))
    policy = AlwaysRequireApprovalToolPolicy()
    app = timed_app(clock, [calls("t"), "done"], [lasting(clock, "t", 1)], policy, store)
    await play(app.run(new_run()))
    [waiting] = await waiting_ids(app)
    with pytest.raises(StoreError):
        await play(app.resolve_tool_approval(approval(waiting)))
    await play(app.recover_incomplete_session(SESSION))
    records = await rounds_of(app)
    assert [flags(record) for record in records] == [RECOVERED, (True, False), (True, False)]
    assert len({record.tool_round_id for record in records}) == 1
    assert took(records[0], UNATTRIBUTED) > 0


# With a process that is really killed.


async def killed(folder: Path, effect: str, shape: str, point: str, name: str = "run") -> None:
    child = run_child(f"{SCENARIOS}:{name}", [str(folder), effect, shape], crash_at=point)
    assert child.killed, child.stderr


@pytest.mark.slow
@pytest.mark.requirement("A118", "A120")
async def test_a_staged_result_outlives_its_process_and_its_execution_does_not(tmp_path: Path) -> None:
    await killed(tmp_path, "none", "serial", "result.staged")
    async with scenarios.build(tmp_path, "none", "serial") as app:
        assert await rounds_of(app, None) == (), "what the other process saw is gone"
        await scenarios.recover(app)
        [record] = await rounds_of(app, scenarios.SESSION)
    assert flags(record) == RECOVERED
    assert_kept(record, 0)
    assert took(record.calls[1], EXECUTION) > 0, "what is replayed runs here"
    assert took(record, EXECUTION) == took(record.calls[1], EXECUTION)
    assert lasted(record) - active(record) >= 0


@pytest.mark.slow
@pytest.mark.requirement("A118", "A120")
async def test_calls_whose_outcome_is_found_out_executed_nowhere_here(tmp_path: Path) -> None:
    await killed(tmp_path, "external", "serial", "result.staged")
    async with scenarios.build(tmp_path, "external", "serial") as app:
        await scenarios.recover(app)
        await scenarios.settle(app, tmp_path)
        settled, left = await rounds_of(app, scenarios.SESSION)
    assert (flags(left), flags(settled)) == (WAITING, RECOVERED)
    assert left.tool_round_id == settled.tool_round_id
    for record in (left, settled):
        assert took(record, EXECUTION) == 0
        assert record.phase(EXECUTION).first_started_at is None
    assert_kept(settled, 0)


@pytest.mark.slow
@pytest.mark.requirement("A118")
async def test_an_approved_round_that_was_killed_is_recovered_under_the_same_id(tmp_path: Path) -> None:
    async with scenarios.build(tmp_path, "none", "approved") as app:
        await scenarios.begin(app)
        [paused] = await rounds_of(app, scenarios.SESSION)
    await killed(tmp_path, "none", "approved", "round.continued", "approve_all")
    async with scenarios.build(tmp_path, "none", "approved") as app:
        await scenarios.recover(app)
        [record] = await rounds_of(app, scenarios.SESSION)
    assert (flags(paused), flags(record)) == ((True, False), RECOVERED)
    assert record.tool_round_id == paused.tool_round_id
    assert all(took(call, EXECUTION) > 0 for call in record.calls)
