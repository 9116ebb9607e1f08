"""Plays a script in the world of `property_model`, and holds its laws after every step."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from runtime.property_model import (
    PATIENCE,
    TERMINAL_TYPES,
    Broken,
    Died,
    Owner,
    Script,
    Step,
    Together,
    World,
    WorldLoop,
    key_of,
    require,
)
from runtime.support import SESSION, FakeClock, approval, assert_consistent

from cayu import Event, Message, ResumeRequest, RunRequest
from cayu.approvals import UserInputResponse
from cayu.canonical import loads
from cayu.errors import (
    AlreadyDecided,
    CayuError,
    IllegalTransition,
    InvalidSessionLog,
    PendingActionNotFound,
    RecoveryError,
    SessionAlreadyExists,
    SessionAwaitingHuman,
    SessionNeedsRecovery,
    SessionNotFound,
    SessionNotRunning,
    SessionRunFenced,
    SessionRunning,
    StoreError,
    StreamConflict,
)
from cayu.events import EventType as E
from cayu.runtime import ownership
from cayu.sessions import InterruptSessionRequest, RunLimits, SessionView, fold
from cayu.sessions.plans import (
    RecoveryAction,
    RecoveryDecision,
    RecoveryExecutionRequest,
    RecoveryItemStatus,
    RecoveryPlan,
    RecoveryPlanRequest,
)
from cayu.sessions.requests import ToolApprovalRequest
from cayu.sessions.states import AWAITING_HUMAN, TERMINAL_CALLS, CallState, SessionStatus
from cayu.sessions.streams import Loaded, StoredRecord, StreamState
from cayu.sessions.view import CallView
from cayu.storage import InMemorySessionStore, SQLiteSessionStore

MOST_MOVES = 30
"""Moves with which an operator brings any session to rest, and rests after which it is complete."""
UNEXPECTED = (IllegalTransition, InvalidSessionLog, StreamConflict)
"""Errors of ours that no caller may meet, whatever it does."""
AT_WORK = (SessionStatus.RUNNING, SessionStatus.INTERRUPTING)
NEVER_RAN = AWAITING_HUMAN | {CallState.DENIED, CallState.EXPIRED, CallState.BLOCKED, CallState.SKIPPED}
DECIDING = frozenset(
    {E.TOOL_APPROVED, E.TOOL_APPROVAL_DENIED, E.TOOL_APPROVAL_EXPIRED, E.TOOL_STAGED, E.EFFECT_RECONCILED}
)
REFUSALS: dict[str, tuple[type[CayuError], ...]] = {
    "run": (SessionAlreadyExists, SessionRunFenced),
    "resume": (SessionRunning, SessionAwaitingHuman, SessionNeedsRecovery, SessionRunFenced),
    "recover": (SessionRunning, SessionNotRunning, SessionNeedsRecovery, SessionRunFenced),
    "interrupt": (SessionNotRunning,),
    "sweep": (),
    "approve": (AlreadyDecided, PendingActionNotFound, SessionRunFenced),
    "deny": (AlreadyDecided, PendingActionNotFound, SessionRunFenced),
    "edit": (AlreadyDecided, PendingActionNotFound, SessionRunFenced),
    "answer": (AlreadyDecided, PendingActionNotFound, SessionRunFenced),
    "repair": (RecoveryError, SessionRunFenced),
}
"""What each call says that it may refuse with, beside an unknown session and what the store says."""
Decision = ToolApprovalRequest | UserInputResponse


class Drama:
    """One playing of a script."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.owners = {name: Owner(name, world) for name in ("A", "B")}
        self.decided: list[Decision] = []
        """Decisions that the log has taken."""
        self.executed: list[RecoveryExecutionRequest] = []
        self.plans: list[RecoveryPlan] = []
        self.seen: list[StoredRecord] = []
        self._view: SessionView | None = None
        self._head: StreamState | None = None
        self._alone = True
        self._executions = 0
        self._lingering: set[str] = set()

    async def play(self) -> list[StoredRecord]:
        """Take every step, then bring the session to its end; return its log."""
        try:
            for step in self.world.script.steps:
                await self.take(step)
            await self.complete()
            return self.seen
        finally:
            ownership._LIVE.difference_update(self._lingering)

    async def take(self, step: Step | Together) -> None:
        """Take one step, bury who died in it, and hold the laws."""
        before = await self.view()
        rested = before is None or before.status not in AT_WORK
        pair = (step,) if isinstance(step, Step) else (step.second, step.first)
        self._alone = len(pair) == 1
        for each in pair:
            self.owners[each.by].prepare(each)
        if isinstance(step, Step):
            await self._do(step, before)
        else:
            await asyncio.gather(self._do(step.first, before), self._later(step, before))
        await self._bury()
        await self.check()
        after = await self.view()
        if rested and not any(each.crash or each.deaf or each.trouble for each in pair):
            require(after is None or after.status not in AT_WORK, f"nobody who lives leaves a session at work: {step}")

    async def _later(self, step: Together, before: SessionView | None) -> None:
        await self.world.sleep(step.lag)
        await self._do(step.second, before)

    async def _do(self, step: Step, before: SessionView | None) -> None:
        owner = self.owners[step.by]
        try:
            await getattr(self, f"_{step.what}")(owner, step, before)
        except Died:
            require(owner.dead, "only who died is dead")
        except UNEXPECTED as error:
            raise Broken(f"no caller meets {type(error).__name__}: {error}") from error
        except CayuError as error:
            refusals = REFUSALS.get(step.what)
            known = refusals is None or isinstance(error, (*refusals, SessionNotFound, StoreError))
            require(known, f"{step.what} tells of what it refuses, and raised {type(error).__name__}")

    async def _bury(self) -> None:
        for owner in list(self.owners.values()):
            if owner.dead:
                await owner.end()
                self.owners[owner.name] = Owner(owner.name, self.world)
                loaded = await self.world.store.load(SESSION)
                if loaded and loaded.head.state.owner and owner.crash and not owner.crash.known:
                    self._lingering.add(loaded.head.state.owner)
                    ownership._LIVE.add(loaded.head.state.owner)

    async def view(self) -> SessionView | None:
        """Return what the log means now; None before there is one."""
        loaded = await self.world.store.load(SESSION)
        if loaded is not None and (self._view is None or self._view.version != len(loaded.records)):
            self._view = fold(loaded.head.row, loaded.records)
        return self._view

    async def _consume(self, owner: Owner, step: Step, stream: AsyncGenerator[Event, None]) -> None:
        if not (step.cancelled and self.world.virtual):
            return await self._taken(owner, step, stream)
        task = asyncio.ensure_future(self._taken(owner, step, stream))
        await asyncio.wait([task], timeout=step.cancelled)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _taken(self, owner: Owner, step: Step, stream: AsyncGenerator[Event, None]) -> None:
        async with aclosing(stream):
            count = 0
            async for event in stream:
                owner.live()
                if event.sequence is not None:
                    loaded = await self.world.store.load(SESSION, event.sequence - 1)
                    stands = loaded is not None and bool(loaded.records) and loaded.records[0].type == event.type
                    require(stands, f"what is told is durable: {event.type}")
                await self.world.sleep(step.slow)
                count += 1
                if count == step.leave:
                    return

    async def _run(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        request = RunRequest(agent_name="a", session_id=SESSION, **_turn(step))
        await self._consume(owner, step, owner.app.run(request))

    async def _go(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        await getattr(self, f"_{fitting(await self.view())}")(owner, step, before)

    async def _resume(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        await self._consume(owner, step, owner.app.resume(ResumeRequest(session_id=SESSION, **_turn(step))))

    async def _recover(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        await self._consume(owner, step, owner.app.recover_incomplete_session(SESSION))

    async def _interrupt(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        await self._consume(owner, step, owner.app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))

    async def _sweep(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        await owner.app.resume_pending_interruption_cascades()

    async def _wait(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        if self.world.virtual:
            await asyncio.sleep(step.seconds)
        else:
            self.world.clock.advance(step.seconds)

    async def _jump(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        self.world.clock.us += round(step.seconds * 1_000_000)

    async def _restart(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        if self._alone:
            self.owners[owner.name] = Owner(owner.name, self.world)

    async def _revoke(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        self.world.revoked = not self.world.revoked

    async def _approve(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        await self._decide(owner, step, approval(await self._waiting(step, ".approval")))

    async def _deny(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        await self._decide(owner, step, approval(await self._waiting(step, ".approval"), "deny"))

    async def _edit(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        arguments = {"policy": "ask", "fate": "return", "before": 0.0, "after": 0.0, "edited": True}
        await self._decide(owner, step, approval(await self._waiting(step, ".approval"), arguments=arguments))

    async def _answer(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        input_id = await self._waiting(step, ".input")
        await self._decide(owner, step, UserInputResponse(session_id=SESSION, input_id=input_id, answer="x"))

    async def _waiting(self, step: Step, kind: str) -> str:
        view = await self.view()
        ids = [call.action_id for call in view.awaiting if call.action_id.endswith(kind)] if view else []
        return ids[step.which % len(ids)] if ids else f"nothing{kind}"

    async def _decide(self, owner: Owner, step: Step, request: Decision) -> None:
        before = await self.view()
        try:
            await self._consume(owner, step, _resolved(owner, request))
        finally:
            after = await self.view()
            action, wanted = _named(request)
            new = before is not None and action not in before.decisions
            taken = after.decisions.get(action) if after else None
            if self._alone and new and taken is not None and taken.decision == wanted:
                self.decided.append(request)

    async def _repeat(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        """An exact repeat is told what was recorded, and changes nothing."""
        if not self.decided:
            return
        request = self.decided[step.which % len(self.decided)]
        version = len(self.seen)
        try:
            await self._consume(owner, step, _resolved(owner, request))
        except CayuError as error:
            raise Broken(f"an exact repeat is no error, and raised {type(error).__name__}") from error
        if self._alone:
            await self._unchanged(version, "an exact repeat changes nothing")

    async def _contradict(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        """Another decision on what is decided is refused, and changes nothing."""
        if not self.decided:
            return
        request = self.decided[step.which % len(self.decided)]
        version = len(self.seen)
        other: Decision
        if isinstance(request, UserInputResponse):
            other = request.model_copy(update={"answer": "y"})
        else:
            turned = "deny" if request.decision == "approve" else "approve"
            other = approval(request.approval_id, turned)
        with suppress(AlreadyDecided):
            await self._consume(owner, step, _resolved(owner, other))
            raise Broken("a second, different decision raises AlreadyDecided")
        if self._alone:
            await self._unchanged(version, "a second, different decision changes nothing")

    async def _unchanged(self, version: int, law: str) -> None:
        loaded = await self.world.store.load(SESSION)
        require(loaded is not None and len(loaded.records) == version, law)

    async def _repair(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        """Plan and execute with the truth of the world: 0 all of it, 1 a part, 2 by a plan made earlier."""
        version = len(self.seen)
        if step.which == 2 and self.plans:
            plan = self.plans[-1]
        else:
            plan = await owner.app.plan_recovery(RecoveryPlanRequest(session_ids=(SESSION,)))
            if self._alone:
                await self._unchanged(version, "planning writes nothing")
            require(RecoveryPlan.model_validate_json(plan.model_dump_json()) == plan, "a plan survives its file")
        self.plans.append(plan)
        decisions = self._truths(plan)
        if step.which == 1:
            decisions = decisions[:1]
        self._executions += 1
        execution_id = f"x{self._executions}"
        request = RecoveryExecutionRequest(plan=plan, execution_id=execution_id, decisions=tuple(decisions))
        done = await owner.app.execute_recovery(request)
        if done.items[0].status is RecoveryItemStatus.EXECUTED:
            self.executed.append(request)

    def _truths(self, plan: RecoveryPlan) -> list[RecoveryDecision]:
        found = []
        for need in plan.items[0].needed_decisions:
            acted = self.world.truth(need.idempotency_key or "")
            if acted is not None:
                action = RecoveryAction.TOOL_MARK_COMPLETED if acted else RecoveryAction.TOOL_MARK_FAILED
                found.append(RecoveryDecision(session_id=SESSION, action=action, tool_call_id=need.tool_call_id))
        return found

    async def _again(self, owner: Owner, step: Step, before: SessionView | None) -> None:
        """An exact repeat of an execution does nothing."""
        if not self.executed:
            return
        version = len(self.seen)
        done = await owner.app.execute_recovery(self.executed[step.which % len(self.executed)])
        require(done.items[0].status is RecoveryItemStatus.REPEATED, "an execution is done once")
        if self._alone:
            await self._unchanged(version, "an execution is done once")

    async def complete(self) -> None:
        """Be an operator who knows the world, and bring the session to its end."""
        self.world.revoked = False
        for _ in range(MOST_MOVES):
            await self._bring_to_rest()
            view = await self.view()
            if view is None or view.status == SessionStatus.COMPLETED:
                return await self._repeat_all()
            await self.take(Step("resume"))
        raise Broken("every session can be completed")

    async def _repeat_all(self) -> None:
        for which in range(len(self.decided)):
            await self.take(Step("repeat", which=which))
            await self.take(Step("contradict", which=which, by="B"))
        for which in range(len(self.executed)):
            await self.take(Step("again", which=which))

    async def _bring_to_rest(self) -> None:
        for _ in range(MOST_MOVES):
            await self.take(Step("wait", seconds=PATIENCE))
            view = await self.view()
            if view is None or (view.open_round is None and view.status not in AT_WORK):
                return
            await self.take(Step(fitting(view), by="B"))
        raise Broken("an operator can bring every session to rest")

    async def check(self) -> None:
        """Hold the laws."""
        require(not self.world.faults, "; ".join(self.world.faults))
        loaded = await self.world.store.load(SESSION)
        if loaded is None or loaded.head.state == self._head:
            return
        self._head = loaded.head.state
        view = await assert_consistent(cast(Any, SimpleNamespace(session_store=self.world.store)))
        records = list(loaded.records)
        require(records[: len(self.seen)] == self.seen, "a log only grows")
        self.seen = records
        state, run = loaded.head.state, view.run
        if view.status not in AT_WORK:
            require(state.owner is None and state.lease_expires_at is None, "a session at rest has no owner")
        if view.status in (SessionStatus.COMPLETED, SessionStatus.FAILED):
            require(view.open_round is None, "a session that has ended has no open round")
        require((view.error or {}).get("code") != "runtime_error", "the runtime does not fail")
        require(run.steps <= run.max_steps, "max_steps holds")
        require(run.tool_calls <= (run.limits.max_tool_calls or run.tool_calls), "max_tool_calls holds")
        self._check_calls(view, loaded)

    def _check_calls(self, view: SessionView, loaded: Loaded) -> None:
        ends: dict[str, list[dict[str, Any]]] = {}
        decisions: Counter[str] = Counter()
        for record in loaded.records:
            payload = loads(record.body)
            if record.type in TERMINAL_TYPES:
                ends.setdefault(payload["tool_call_id"], []).append(payload)
            if record.type in DECIDING and "action" in payload:
                decisions[payload["action"]] += 1
        require(all(count == 1 for count in decisions.values()), f"everything is decided once: {decisions}")
        known = set()
        for opened in view.rounds:
            for call in opened.calls:
                told = ends.get(call.id, [])
                require(len(told) == (call.state in TERMINAL_CALLS), f"{call.id} of {call.name} ends once")
                require(opened.committed_at is None or told, f"{call.id} of {call.name} ends with its round")
                key = key_of(view.row.instance_id, call.id)
                known.add(key)
                self._check_call(call, key, told)
        require(set(self.world.acts) <= known, "nothing acts that is in no round")

    def _check_call(self, call: CallView, key: str, told: list[dict[str, Any]]) -> None:
        acted, name = self.world.acts[key], f"{call.id} ({call.name}, {call.state}, {call.code})"
        if call.state in NEVER_RAN or call.attempt == 0 or (told and not told[0]["executed"]):
            require(self.world.dispatches[key] == 0, f"what is told not to have run did not run: {name}")
        if call.settlement is not None:
            require((call.settlement.outcome == "completed") == (acted > 0), f"what is settled is true: {name}")
        elif call.state == CallState.COMPLETED and call.question is None:
            require(acted, f"what is told as completed has acted: {name}")


def fitting(view: SessionView | None) -> str:
    """Return the step that takes a session further, as it stands."""
    opened = view.open_round if view else None
    if view is None:
        return "run"
    if view.status in AT_WORK or (opened and opened.unknown):
        return "repair"
    if view.awaiting:
        return "answer" if view.awaiting[0].question else "approve"
    return "resume"


def _turn(step: Step) -> dict[str, Any]:
    limits = RunLimits(max_tool_calls=step.max_tool_calls, max_elapsed_seconds=step.max_elapsed_seconds)
    return {"messages": (Message.text("user", "go"),), "max_steps": step.max_steps, "limits": limits}


def _named(request: Decision) -> tuple[str, str]:
    if isinstance(request, UserInputResponse):
        return request.input_id, "answer"
    return request.approval_id, str(request.decision)


def _resolved(owner: Owner, request: Decision) -> AsyncGenerator[Event, None]:
    if isinstance(request, UserInputResponse):
        return owner.app.resolve_user_input(request)
    return owner.app.resolve_tool_approval(request)


def play(script: Script, folder: Path | None = None) -> list[StoredRecord]:
    """Play a script in memory, or in a SQLite file of `folder`; return the session's log. Raises `Broken`."""
    with _quietly():
        clock = FakeClock()
        if folder is None:
            world = World(script, InMemorySessionStore(clock=clock), clock)
            factory = lambda: WorldLoop(clock)  # noqa: E731 - the runner wants a function
        else:
            world = World(script, SQLiteSessionStore(folder / "world.db", clock=clock), clock, virtual=False)
            factory = None
        runner = asyncio.Runner(loop_factory=factory)
        try:
            return runner.run(_played(world))
        finally:
            with suppress(Broken):
                runner.close()


async def _played(world: World) -> list[StoredRecord]:
    try:
        return await Drama(world).play()
    finally:
        await world.store.aclose()


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the runtime's own words on deaths and failures out of thousands of playings."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
