"""The dispatch: one owner, one deadline, and an end that is durable before anybody is told."""

from __future__ import annotations

import asyncio
import platform
from typing import Any

import pytest
from memory.support import Bench, HandClock, JournalProxy, Lost, at, once
from runtime.support import FakeTool, calls, log_of, play

from cayu import ToolContext, ToolEffect
from cayu.errors import MemoryInterventionExecutionConflict, StoreBusy
from cayu.events import EventType as E
from cayu.memory import (
    CayuMemoryInterventionRuntimeRunner,
    MemoryInterventionExecutionRecord,
    MemoryInterventionTrialOutcome,
    MemoryInterventionTrialRequest,
)
from cayu.memory import dispatch as dispatching
from cayu.providers import ScriptedModelProvider
from cayu.providers.base import ModelStreamEvent
from cayu.runtime import ownership
from cayu.sessions import InterruptSessionRequest
from cayu.storage import InMemoryMemoryInterventionExecutionStore
from cayu.tools import ToolResult

SHORT = 100.0
"""Seconds: longer waits are for a trial's deadline, which a test lets come when it likes."""


async def hang(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    """Work until somebody stops it."""
    await asyncio.Event().wait()
    raise AssertionError("nothing sets this event")


async def slow(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    """Refuse to stop until it is done."""
    ended = asyncio.ensure_future(asyncio.sleep(0.03))
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            continue
    return ToolResult(content="done")


def working(tool: FakeTool) -> Bench:
    return Bench(provider=ScriptedModelProvider([calls(tool.spec.name), "done"]), tools=[tool])


def deadline_at(entered: asyncio.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the deadline of a trial come at the moment that a tool is at work."""
    wait = asyncio.wait

    async def waiting(tasks: Any, *, timeout: float | None = None, **options: Any) -> Any:
        if timeout is None or timeout < SHORT:
            return await wait(tasks, timeout=timeout, **options)
        begun = asyncio.ensure_future(entered.wait())
        await wait([*tasks, begun], return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        return await wait(tasks, timeout=0)

    monkeypatch.setattr(asyncio, "wait", waiting)


def first(hook: Any) -> Any:
    done: list[bool] = []

    async def watch(record: MemoryInterventionExecutionRecord) -> None:
        if not done:
            done.append(True)
            await hook(record)

    return watch


async def timed_out(
    bench: Bench, tool: FakeTool, monkeypatch: pytest.MonkeyPatch
) -> tuple[MemoryInterventionTrialOutcome, JournalProxy]:
    """Execute a trial whose deadline comes while its tool is at work."""
    journal = JournalProxy(bench.stores.executions)
    with monkeypatch.context() as patched:
        deadline_at(tool.entered, patched)
        return await bench.executor(executions=journal).execute_trial(bench.request()), journal


async def cancelled(
    bench: Bench, request: MemoryInterventionTrialRequest, tool: FakeTool, journal: JournalProxy | None = None
) -> None:
    """Cancel a trial while its tool is at work."""
    executor = bench.executor(executions=journal or bench.stores.executions)
    task = asyncio.ensure_future(executor.execute_trial(request))
    await tool.entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.requirement("B018")
async def test_an_attempt_after_the_first_deadline_times_out() -> None:
    """The first attempt claims the session and is lost; the deadline that it set holds for all that come."""
    bench, clock = await Bench().open(), HandClock()
    request = bench.request(timeout_seconds=60)
    journal = JournalProxy(bench.stores.executions, after=at("session_bound", once()))
    with pytest.raises(Lost):
        await bench.executor(executions=journal, clock=clock).execute_trial(request)
    stands = await bench.journal(request)
    assert stands is not None
    deadline = stands.runtime_deadline_at
    assert deadline is not None
    assert (deadline - clock.now).total_seconds() == 60
    clock.advance(61)
    outcome = await bench.executor(clock=clock).execute_trial(request)
    record = outcome.execution
    assert (record.status, record.failure_code, record.phase) == ("timed_out", "runtime_timed_out", "finalized")
    assert record.runtime_timeout_observed
    assert record.runtime_deadline_at == deadline
    assert not await bench.has_session(request)


@pytest.mark.requirement("B018")
async def test_a_later_attempt_within_the_deadline_keeps_it() -> None:
    bench, clock = await Bench().open(), HandClock()
    request = bench.request(timeout_seconds=60)
    journal = JournalProxy(bench.stores.executions, after=at("session_bound", once()))
    with pytest.raises(Lost):
        await bench.executor(executions=journal, clock=clock).execute_trial(request)
    stands = await bench.journal(request)
    assert stands is not None
    clock.advance(59)
    record = (await bench.executor(clock=clock).execute_trial(request)).execution
    assert (record.status, record.runtime_deadline_at) == ("completed", stands.runtime_deadline_at)
    assert not record.runtime_timeout_observed


@pytest.mark.requirement("B018")
async def test_a_session_that_runs_past_the_deadline_is_brought_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = FakeTool("hang", hang)
    bench = await working(tool).open()
    outcome, journal = await timed_out(bench, tool, monkeypatch)
    record = outcome.execution
    assert (record.status, record.failure_code) == ("timed_out", "runtime_timed_out")
    assert [found.revision for found in journal.written] == list(range(1, 8))
    observed = [found.phase for found in journal.written if found.runtime_timeout_observed]
    assert observed == ["session_bound", "runtime_terminal", "evaluated", "finalized"]
    assert outcome.eval_result is not None
    assert (outcome.eval_result.status, outcome.eval_result.error) == ("error", "timed_out")
    assert (await log_of(bench.apps[-1], record.session_id)).head.state.status == "interrupted"
    assert await bench.executor().execute_trial(bench.request()) == outcome


@pytest.mark.requirement("B047")
@pytest.mark.parametrize("effect", list(ToolEffect))
async def test_a_cancelled_trial_returns_only_when_its_tool_is_settled(effect: ToolEffect) -> None:
    """The flag, the result of the slow tool and the session's end are durable before the cancellation is raised."""
    tool = FakeTool("slow", slow, effect=effect)
    bench = await working(tool).open()
    request, journal = bench.request(), JournalProxy(bench.stores.executions)
    ends_at_flag: list[int] = []

    async def look(record: MemoryInterventionExecutionRecord) -> None:
        if record.runtime_cancellation_observed and record.phase == "session_bound":
            ends_at_flag.append(len(tool.ended))

    journal.after = look
    await cancelled(bench, request, tool, journal)
    assert ends_at_flag == [0]
    assert len(tool.ended) == 1
    stands = await bench.journal(request)
    assert stands is not None
    assert (stands.phase, stands.runtime_cancellation_observed) == ("runtime_terminal", True)
    loaded = await log_of(bench.apps[-1], request.session_id)
    assert loaded.head.state.status == "interrupted"
    assert E.TOOL_COMPLETED in [record.type for record in loaded.records]
    record = (await bench.study.executor.execute_trial(request)).execution
    assert (record.status, record.failure_code) == ("cancelled", "runtime_cancelled")
    assert record.runtime_cancellation_observed
    assert len(tool.calls) == 1


@pytest.mark.requirement("B047")
async def test_a_trial_that_times_out_returns_only_when_its_tool_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = FakeTool("slow", slow)
    bench = await working(tool).open()
    outcome, journal = await timed_out(bench, tool, monkeypatch)
    assert len(tool.ended) == 1
    assert outcome.execution.status == "timed_out"
    loaded = await log_of(bench.apps[-1], outcome.execution.session_id)
    assert E.TOOL_COMPLETED in [record.type for record in loaded.records]
    assert [found.phase for found in journal.written].count("session_bound") == 2


@pytest.mark.requirement("B047")
async def test_a_session_that_is_interrupted_from_outside_is_waited_for_and_has_failed() -> None:
    tool = FakeTool("slow", slow)
    bench = await working(tool).open()
    request = bench.request()
    task = asyncio.ensure_future(bench.study.executor.execute_trial(request))
    await tool.entered.wait()
    await play(bench.apps[-1].interrupt_session(InterruptSessionRequest(session_id=request.session_id)))
    record = (await task).execution
    assert (record.status, record.failure_code, len(tool.ended)) == ("failed", "runtime_failed", 1)
    assert not record.runtime_cancellation_observed
    assert (await log_of(bench.apps[-1], request.session_id)).head.state.status == "interrupted"


@pytest.mark.requirement("B047")
async def test_repeated_cancellations_do_not_tear_a_trial_apart() -> None:
    tool = FakeTool("slow", slow)
    bench = await working(tool).open()
    request = bench.request()
    task = asyncio.ensure_future(bench.study.executor.execute_trial(request))
    await tool.entered.wait()
    for _ in range(5):
        task.cancel()
        await asyncio.sleep(0.002)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(tool.ended) == 1
    stands = await bench.journal(request)
    assert stands is not None
    assert (stands.phase, stands.runtime_cancellation_observed) == ("runtime_terminal", True)


@pytest.mark.requirement("B047")
async def test_a_cancellation_that_was_made_durable_holds_for_a_later_attempt() -> None:
    """The flag is written and then everything is lost: the session is not gone on with, but ended."""
    tool = FakeTool("hang", hang)
    bench = await working(tool).open()
    request = bench.request()
    journal = JournalProxy(bench.stores.executions, before=at("runtime_terminal", once()))
    task = asyncio.ensure_future(bench.executor(executions=journal).execute_trial(request))
    await tool.entered.wait()
    task.cancel()
    with pytest.raises((Lost, asyncio.CancelledError)):
        await task
    stands = await bench.journal(request)
    assert stands is not None
    assert (stands.phase, stands.runtime_cancellation_observed) == ("session_bound", True)
    record = (await bench.study.executor.execute_trial(request)).execution
    assert (record.status, len(tool.calls)) == ("cancelled", 1)


async def test_a_cancellation_before_the_dispatch_leaves_a_trial_that_goes_on() -> None:
    bench = await Bench().open()
    request, reached = bench.request(), asyncio.Event()

    async def wait(record: MemoryInterventionExecutionRecord) -> None:
        reached.set()
        await asyncio.Event().wait()

    journal = JournalProxy(bench.stores.executions, after=at("trial_bound", wait))
    task = asyncio.ensure_future(bench.executor(executions=journal).execute_trial(request))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = (await bench.study.executor.execute_trial(request)).execution
    assert (record.status, record.runtime_cancellation_observed) == ("completed", False)


@pytest.mark.parametrize("control", ["cancel", "timeout"])
async def test_an_external_call_that_is_cut_off_leaves_an_unknown_outcome(
    control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what it did, so the trial does not say that it was only stopped."""
    tool = FakeTool("send", hang, effect=ToolEffect.EXTERNAL)
    bench = await working(tool).open()
    request = bench.request()
    if control == "cancel":
        await cancelled(bench, request, tool)
        outcome = await bench.study.executor.execute_trial(request)
    else:
        outcome, _ = await timed_out(bench, tool, monkeypatch)
    record = outcome.execution
    assert (record.status, record.failure_code) == ("outcome_unknown", "runtime_outcome_unknown")
    assert outcome.snapshot_result is not None
    assert outcome.snapshot_result.terminal_disposition == "outcome_unknown"
    assert outcome.eval_result is not None
    assert (outcome.eval_result.status, outcome.eval_result.error) == ("error", "outcome_unknown")
    assert len(tool.calls) == 1
    assert await bench.executor().execute_trial(request) == outcome


async def test_a_provider_that_fails_makes_a_failed_trial() -> None:
    bench = await Bench(provider=ScriptedModelProvider([[ModelStreamEvent.error("overloaded")]])).open()
    outcome = await bench.execute()
    record = outcome.execution
    assert (record.status, record.failure_code, record.revision) == ("failed", "runtime_failed", 6)
    assert outcome.binding is not None
    assert outcome.binding.result.terminal_disposition == "failed"
    assert await bench.execute() == outcome


async def test_a_cancelled_trial_saw_what_it_saw() -> None:
    """The evidence of a session that was stopped is as complete as that of any other."""
    tool = FakeTool("hang", hang)
    bench = await working(tool).open()
    await cancelled(bench, bench.request(), tool)
    outcome = await bench.execute()
    assert outcome.binding is not None
    assert (outcome.binding.attribution.status, outcome.binding.attribution.observed_exposures) == ("complete", 1)
    assert not outcome.binding.proves_no_memory_exposure


async def test_a_dispatch_that_another_has_in_hand_is_waited_for() -> None:
    """Two executors of one process at one trial: one session, one evaluation, one outcome."""
    bench = await Bench().open()
    one, two = await asyncio.gather(bench.execute(), bench.executor().execute_trial(bench.request()))
    assert one == two
    logs = bench.stores.sessions._streams  # type: ignore[attr-defined]
    assert list(logs) == [one.execution.session_id]


async def test_a_runner_that_reports_of_another_session_is_refused() -> None:
    bench = await Bench().open()

    class Liar(CayuMemoryInterventionRuntimeRunner):
        async def run(self, **given: Any) -> Any:
            return (await super().run(**given)).model_copy(update={"session_id": "another"})

    request = bench.request()
    with pytest.raises(MemoryInterventionExecutionConflict, match="reports of another session"):
        await bench.executor(runtime_runner=Liar(bench.factory())).execute_trial(request)
    stands = await bench.journal(request)
    assert stands is not None
    assert stands.phase == "session_bound"
    assert stands.runtime_dispatch_ownership is not None
    assert stands.runtime_dispatch_ownership.state == "released"


async def test_an_owner_that_lost_its_lease_takes_it_again_before_it_publishes() -> None:
    """The store's time has run past the lease; the end is published under a new generation."""
    clock, bench = HandClock(), await Bench().open()
    journal = InMemoryMemoryInterventionExecutionStore(ownership_clock=clock)

    async def expire(record: MemoryInterventionExecutionRecord) -> None:
        clock.advance(60)

    proxy = JournalProxy(journal, before=at("runtime_terminal", first(expire)))
    record = (await bench.executor(executions=proxy).execute_trial(bench.request())).execution
    assert record.status == "completed"
    assert record.runtime_dispatch_ownership is not None
    assert (record.runtime_dispatch_ownership.generation, record.runtime_dispatch_ownership.state) == (2, "settled")


async def test_a_trial_that_another_owner_ended_is_taken_over_as_it_is() -> None:
    """While the first waits for its tool, the lease runs out, and a second executor brings the trial to its end."""
    clock, gate = HandClock(), asyncio.Event()

    async def wait(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await gate.wait()
        return ToolResult(content="ok")

    tool = FakeTool("wait", wait)
    bench = await working(tool).open()
    journal = InMemoryMemoryInterventionExecutionStore(ownership_clock=clock)
    executor = bench.executor(executions=journal)
    task = asyncio.ensure_future(executor.execute_trial(bench.request()))
    await tool.entered.wait()
    clock.advance(60)
    other = asyncio.ensure_future(bench.executor(executions=journal).execute_trial(bench.request()))
    await asyncio.sleep(0.05)
    gate.set()
    one, two = await asyncio.gather(task, other)
    assert one == two
    assert (one.execution.status, len(tool.calls)) == ("completed", 1)


async def busy(record: MemoryInterventionExecutionRecord) -> None:
    """Refuse to record why a session is stopped."""
    if record.runtime_cancellation_observed or record.runtime_timeout_observed:
        raise StoreBusy(path="trials.db")


@pytest.mark.requirement("B047")
async def test_a_cancelled_trial_is_settled_although_its_journal_refuses_to_record_why() -> None:
    tool = FakeTool("slow", slow)
    bench = await working(tool).open()
    request = bench.request()
    await cancelled(bench, request, tool, JournalProxy(bench.stores.executions, before=busy))
    assert len(tool.ended) == 1
    assert (await log_of(bench.apps[-1], request.session_id)).head.state.status == "interrupted"
    stands = await bench.journal(request)
    assert stands is not None
    assert (stands.phase, stands.runtime_cancellation_observed) == ("session_bound", False)
    outcome = await bench.study.executor.execute_trial(request)
    assert (outcome.execution.phase, outcome.execution.status, len(tool.calls)) == ("finalized", "failed", 1)


@pytest.mark.requirement("B047")
async def test_a_trial_that_times_out_is_settled_although_its_journal_refuses_to_record_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = FakeTool("slow", slow)
    bench = await working(tool).open()
    request = bench.request()
    executor = bench.executor(executions=JournalProxy(bench.stores.executions, before=busy))
    with monkeypatch.context() as patched:
        deadline_at(tool.entered, patched)
        with pytest.raises(StoreBusy):
            await executor.execute_trial(request)
    assert len(tool.ended) == 1
    assert (await log_of(bench.apps[-1], request.session_id)).head.state.status == "interrupted"
    outcome = await bench.study.executor.execute_trial(request)
    assert (outcome.execution.phase, outcome.execution.status, len(tool.calls)) == ("finalized", "failed", 1)


class Faulty(JournalProxy):
    """A journal whose disk fails the first time that an ownership is asked for one action."""

    def __init__(self, bench: Bench, action: str) -> None:
        super().__init__(bench.stores.executions)
        self.action, self.asked = action, 0
        self.twice = asyncio.Event()

    async def transition_runtime_dispatch_ownership(self, execution_id: str, request: Any) -> Any:
        if request.action == self.action:
            self.asked += 1
            if self.asked == 1:
                raise OSError("the disk is gone")
            self.twice.set()
        return await super().transition_runtime_dispatch_ownership(execution_id, request)


async def test_a_renewal_that_fails_does_not_end_the_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await asyncio.wait_for(journal.twice.wait(), 2)
        return ToolResult(content="renewed")

    monkeypatch.setattr(dispatching, "RENEW_SECONDS", 0.005)
    tool = FakeTool("wait", wait)
    bench = await working(tool).open()
    journal = Faulty(bench, "renew")
    outcome = await bench.executor(executions=journal).execute_trial(bench.request())
    assert journal.asked > 1
    assert outcome.execution.status == "completed"
    kinds = [item.type for item in (await log_of(bench.apps[-1], outcome.execution.session_id)).records]
    assert E.TOOL_COMPLETED in kinds


async def test_a_release_that_fails_does_not_stand_for_the_cancellation() -> None:
    tool = FakeTool("slow", slow)
    bench = await working(tool).open()
    journal = Faulty(bench, "release")
    await cancelled(bench, bench.request(), tool, journal)
    assert journal.asked == 1
    assert (await bench.execute()).execution.status == "cancelled"


async def test_a_live_dispatch_on_a_machine_of_a_long_name_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of an owner id is kept, so the second executor knows that the first is there."""
    here = (f"{'n' * 64}/{'1' * 32}", "2" * 36, "pid:[4026531836]")
    monkeypatch.setattr(platform, "node", lambda: "n" * 64)
    monkeypatch.setattr(ownership, "_here", lambda: here)
    gate = asyncio.Event()

    async def wait(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await gate.wait()
        return ToolResult(content="ok")

    tool = FakeTool("wait", wait)
    bench = await working(tool).open()
    task = asyncio.ensure_future(bench.execute())
    await tool.entered.wait()
    other = asyncio.ensure_future(bench.executor().execute_trial(bench.request()))
    await asyncio.sleep(0.05)
    stands = await bench.journal(bench.request())
    assert stands is not None
    assert stands.runtime_dispatch_ownership is not None
    assert stands.runtime_dispatch_ownership.generation == 1
    gate.set()
    one, two = await asyncio.gather(task, other)
    assert one == two
    assert (one.execution.status, len(tool.calls)) == ("completed", 1)
