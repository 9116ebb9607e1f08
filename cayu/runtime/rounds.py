"""The dispatch of a tool round: start, stage, close, with each promise durable before the act it promises.

A round of n dispatched calls takes n + 1 write transactions, serial or parallel: the opening commit carries the starts
of the first calls; each finished call's result is committed as it finishes, with the start of the call that takes its
slot; the last result rides with the terminal events and the round's receipt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from cayu.canonical import dumps, loads
from cayu.crashpoints import reach
from cayu.effects import ToolEffect, idempotency_key
from cayu.events import EventType as E
from cayu.runtime.config import RuntimeConfig
from cayu.runtime.invoke import CUT_OFF_CODES, CUT_OFF_HERE, GIVEN_UP_CODES, Outcome, cut_off, forget, invoke
from cayu.runtime.log import SessionLog
from cayu.runtime.planning import APPROVAL, POLICY_FAILED, authorize
from cayu.runtime.registry import Assembly
from cayu.runtime.settlement import Settler
from cayu.sessions.accounting import call_limit
from cayu.sessions.projection import FAILED_CODES, Draft
from cayu.sessions.records import session_record
from cayu.sessions.states import TERMINAL_CALLS, UNEXECUTED_WAITING, CallState
from cayu.sessions.streams import StreamHead
from cayu.sessions.texts import LOST, UNEXECUTED, unexecuted
from cayu.sessions.view import CallResult, CallView, RoundView, SessionView
from cayu.shielding import is_cancelling
from cayu.timing.phases import (
    ADMISSION,
    AUTHORIZATION,
    EFFECT_STATE,
    PUBLICATION,
    ROUND_COMMIT,
    STARTED_PERSISTENCE,
)
from cayu.tools.policy import ToolPolicyDecision
from cayu.tools.spec import ChildSessions, ToolContext

Limit = tuple[str, int | float | str]
"""Name and value of a limit that is reached."""


class RoundRunner:
    """Dispatches the calls of the open round of one log."""

    def __init__(
        self,
        log: SessionLog,
        assembly: Assembly,
        config: RuntimeConfig,
        children: Callable[[CallView], ChildSessions] | None = None,
    ) -> None:
        """`children` gives a call the means to run sessions of its own."""
        self._log = log
        self._timing = log.timing
        self._assembly = assembly
        self._config = config
        self._children = children
        self.settler = Settler(log.view.row, assembly, config, log.store)
        self._limit: Limit | None = None
        """The limit that keeps the calls which still wait from beginning."""
        self._waiting: deque[str] = deque()
        self._running: dict[asyncio.Task[Outcome], str] = {}
        self._ended: deque[asyncio.Task[Outcome]] = deque()
        self._some_ended = asyncio.Event()
        self._refusals: dict[str, tuple[str, str | None]] = {}
        self._launch_next: list[str] = []
        self._undispatched: set[str] = set()
        """Calls whose first attempt is durable and has not been launched by this runner."""
        self._finished: dict[str, Draft] = {}
        """Results that the next commit makes durable, by call id."""

    async def begin(
        self,
        lead: Sequence[Draft],
        calls: Iterable[CallView],
        *,
        opened: RoundView,
        point: str,
        after: SessionView | None = None,
    ) -> bool:
        """Commit `lead` with the starts of the first of `calls`; return False when nothing is left to dispatch.

        `opened` is the round as `lead` leaves it, and `after` the session, when the round has waited: then the policy
        is asked again. With nothing to dispatch, the same commit closes the round or, when an outcome is unknown,
        leaves it to an operator.
        """
        self._waiting = deque(call.id for call in calls)
        starts = await self._starts(opened, after or self._log.view, reauthorize=after is not None)
        if not self._launch_next:
            await self._close([*lead, *starts], opened)
            return False
        with self._timing.within(STARTED_PERSISTENCE, None):
            await self._log.commit([*lead, *starts], opened=opened)
        reach(point)
        return True

    async def run(self) -> None:
        """Launch what has started, and stage and start until the round is closed."""
        await self._launch()
        while self._running:
            await self._some_ended.wait()
            self._some_ended.clear()
            while self._ended:
                task = self._ended.popleft()
                call = self._round.call(self._running.pop(task))
                staged = self._finished[call.id] = self._staged(call, _outcome(task))
                starts = await self._starts(self._round, self._log.view, reauthorize=True)
                if self._launch_next or self._running:
                    with self._timing.staging(call.id, is_result=staged.type in _RESULTS):
                        await self._log.commit([staged, *starts])
                    del self._finished[call.id]
                    reach("result.staged")
                    await self._launch()
                else:
                    reach("round.closing")
                    await self._close([staged, *starts], self._round)

    async def stop(self) -> list[Draft]:
        """Cancel what runs, wait for results within the grace, and return what is to be written of each call.

        Afterwards the open round either has no unknown call and can be closed, or waits for an operator.
        """
        opened = self._log.view.open_round
        if opened is None:
            return []
        cancelled = {task for task in self._running if task.cancel()}
        if cancelled:
            await asyncio.wait(cancelled, timeout=self._config.cancel_grace_seconds)
        dispatched = {call_id: (task, task in cancelled) for task, call_id in self._running.items()}
        self._running = {}
        drafts = []
        for call in opened.calls:
            if call.state == CallState.STARTED:
                task, was_cancelled = dispatched.get(call.id, (None, False))
                drafts.append(self._finished.get(call.id) or self._stopped(call, task, was_cancelled))
            elif call.state in UNEXECUTED_WAITING and call.verdict not in UNEXECUTED:
                self._refusals.setdefault(call.id, ("interrupted", None))
        return drafts

    def _stopped(self, call: CallView, task: asyncio.Task[Outcome] | None, was_cancelled: bool) -> Draft:
        """Return what is written of a call that the interruption met; one that may have acted is never "not run".

        An exception that a tool raised because it was cancelled says nothing of its effect.
        """
        if task is None and call.id in self._undispatched:
            text = unexecuted("interrupted")
            return _stage(call, Outcome(CallResult(content=text, is_error=True), code="interrupted"))
        if task is not None and task.done() and not task.cancelled():
            outcome = _outcome(task)
            if was_cancelled and outcome.code == "raised" and call.effect is not ToolEffect.NONE:
                CUT_OFF_HERE.add(call.id)
                return lost(call)
            return self._staged(call, outcome)
        if task is not None:
            CUT_OFF_HERE.add(call.id)
            task.add_done_callback(forget)
        return lost(call)

    def _staged(self, call: CallView, outcome: Outcome) -> Draft:
        if outcome.code in GIVEN_UP_CODES:
            CUT_OFF_HERE.add(call.id)
        return _stage(call, outcome)

    async def settle(self, opened: RoundView, drafts: Sequence[Draft]) -> list[Draft]:
        """Ask reconcilers about the calls that `drafts` leave unknown; return what settles those that they know."""
        names = _unknown(opened, drafts)
        settled = []
        for call in opened.calls:
            if call.id in names:
                with self._timing.within(EFFECT_STATE, call.id):
                    settled += await self.settler.by_reconciler(opened.id, call)
        return settled

    def refuse(self, call_ids: Iterable[str], code: str) -> None:
        """Note that calls close unexecuted, for the reason that `code` names."""
        self._refusals.update((call_id, (code, None)) for call_id in call_ids)

    def closing(self, staged: Sequence[Draft], opened: RoundView) -> list[Draft]:
        """Return the terminal events in model order, and the receipt.

        While an outcome is unknown only the calls that never run are ended, and the round stays open.
        """
        results = {draft.payload["tool_call_id"]: draft for draft in staged if draft.type in _RESULTS}
        unknown = _unknown(opened, staged)
        for draft in staged:
            if draft.type in _RESULTS:
                self._timing.staged(draft.payload["tool_call_id"])
        ends = []
        for call in opened.calls:
            if call.state not in TERMINAL_CALLS and (not unknown or _never_runs(call, results)):
                with self._timing.within(PUBLICATION, call.id):
                    ends.append(self._end(call, results.get(call.id)))
        if unknown:
            return ends
        receipt = {"tool_round_id": opened.id, "executed": sum(end.payload["executed"] for end in ends)}
        return [*ends, Draft(E.ROUND_COMMITTED, receipt | {"calls": len(opened.calls)})]

    async def _close(self, lead: list[Draft], opened: RoundView) -> None:
        lead = [*lead, *await self.settle(opened, lead)]
        lead += self.closing(lead, opened)
        if is_closed(lead):
            stop = limit_drafts(self._limit) if self._limit else []
            with self._timing.within(ROUND_COMMIT, None):
                await self._log.commit([*lead, *stop], opened=opened, release=bool(stop))
            reach("round.closed")
        else:
            ended = {"reason": "manual_recovery", "tool_round_id": opened.id}
            if self._log.view.interrupt_requested:
                ended |= {"reason": "interrupt_requested", "needs": "manual_recovery"}
            with self._timing.within(ROUND_COMMIT, None):
                await self._log.commit([*lead, Draft(E.SESSION_INTERRUPTED, ended)], release=True, opened=opened)

    @property
    def _round(self) -> RoundView:
        return self._log.view.rounds[-1]

    async def _starts(self, opened: RoundView, after: SessionView, *, reauthorize: bool) -> list[Draft]:
        """Take the calls whose turn it is from the waiting ones; return their starts and intents.

        A limit that is reached keeps those back that have not begun; a replay has begun, and is let through.
        """
        drafts: list[Draft] = []
        chosen: list[CallView] = []
        beside = [opened.call(call_id) for call_id in self._running.values()]
        while self._waiting:
            call = opened.call(self._waiting[0])
            alone = [*beside, *chosen]
            if alone and not (call.parallel_safe and all(other.parallel_safe for other in alone)):
                break
            if len(alone) >= self._config.parallel_width:
                break
            self._waiting.popleft()
            if call.attempt == 0 and await self._is_over_limit(after, chosen, call):
                self._refusals[call.id] = ("limit_reached", None)
                continue
            if reauthorize and not await self._still_allowed(opened, call):
                drafts += [lost(call)] if call.attempt else []
                continue
            chosen.append(call)
            drafts += self._start(opened, call)
        self._launch_next = [call.id for call in chosen]
        self._undispatched.update(call.id for call in chosen if call.attempt == 0)
        return drafts

    async def _is_over_limit(self, after: SessionView, chosen: Sequence[CallView], call: CallView) -> bool:
        limits = after.run.limits
        if limits.max_tool_calls is None and limits.max_elapsed_seconds is None:
            return False
        with self._timing.within(ADMISSION, call.id):
            now = await self._log.store.now() if limits.max_elapsed_seconds is not None else 0
            self._limit = self._limit or call_limit(after, now, sum(call.attempt == 0 for call in chosen))
            return self._limit is not None

    async def _still_allowed(self, opened: RoundView, call: CallView) -> bool:
        session = session_record(StreamHead(self._log.view.row, self._log.state))
        with self._timing.within(AUTHORIZATION, call.id):
            answer = await authorize(self._assembly, session, call, opened.id)
        covered = call.verdict == APPROVAL or call.attempt > 0
        if answer.decision is ToolPolicyDecision.DENY or (
            answer.decision is ToolPolicyDecision.REQUIRE_APPROVAL and not covered
        ):
            self._refusals[call.id] = ("policy_failed" if answer is POLICY_FAILED else "policy_denied", answer.reason)
            return False
        return True

    def _start(self, opened: RoundView, call: CallView) -> list[Draft]:
        named = {"tool_call_id": call.id, "tool_name": call.name}
        drafts = [Draft(E.TOOL_STARTED, {**named, "attempt": call.attempt + 1})]
        if call.effect is not ToolEffect.NONE:
            with self._timing.within(EFFECT_STATE, call.id):
                key = idempotency_key(self._log.view.row.instance_id, opened.id, call.id)
                intent = {"effect": str(call.effect), "digest": call.digest, "idempotency_key": key}
                drafts.append(Draft(E.EFFECT_INTENT_RECORDED, named | intent))
        return drafts

    async def _launch(self) -> None:
        """Dispatch what the last commit started, unless the run is being cancelled already."""
        if is_cancelling():
            await asyncio.sleep(0)
        launched, self._launch_next = self._launch_next, []
        for call_id in launched:
            self._log.check_lease()
            call = self._round.call(call_id)
            tool = self._assembly.tools[call.name]
            arguments = loads(dumps(call.arguments))  # the tool's own, to do with as it likes
            work = invoke(tool, self._context(call), arguments, self._config, self._timing.tool(call.id))
            self._undispatched.discard(call_id)
            task = asyncio.create_task(work, name=f"tool {call.id}")
            self._running[task] = call_id
            task.add_done_callback(self._arrive)

    def _arrive(self, task: asyncio.Task[Outcome]) -> None:
        self._ended.append(task)
        self._some_ended.set()

    def _context(self, call: CallView) -> ToolContext:
        row, environment = self._log.view.row, self._assembly.environment
        return ToolContext(
            session_id=row.id,
            agent_name=row.agent_name,
            environment_name=row.environment_name,
            causal_budget_id=row.causal_budget_id,
            idempotency_key=idempotency_key(row.instance_id, self._round.id, call.id),
            knowledge_store=environment.knowledge_store if environment else None,
            knowledge_access_scope=environment.knowledge_access_scope if environment else None,
            metadata={**(row.metadata or {}), **self._log.view.run.metadata},
            children=self._children(call) if self._children else None,
        )

    def _end(self, call: CallView, staged: Draft | None) -> Draft:
        named: dict[str, Any] = {"tool_call_id": call.id, "tool_name": call.name}
        if staged is not None or call.state == CallState.STAGED:
            code = staged.payload.get("code") if staged is not None else call.code
            payload = named | {"executed": code != "interrupted"}
            if call.replayed:
                payload["replayed_after_recovery"] = True
            kind = E.TOOL_FAILED if code in FAILED_CODES else E.TOOL_COMPLETED
            return Draft(kind, payload | ({"code": code} if code else {}))
        code, reason = self._refusals.get(call.id) or (call.code or "not_started", call.reason)
        payload = named | {"executed": False, "code": code} | ({"reason": reason} if reason else {})
        return Draft(_REFUSED.get(code, E.TOOL_FAILED), payload)


def limit_drafts(limit: Limit) -> list[Draft]:
    """Return what ends a run that has reached a limit; an ordinary resume goes on from there."""
    name, value = limit
    reached = Draft(E.SESSION_LIMIT_REACHED, {"limit": name, "value": value})
    return [reached, Draft(E.SESSION_INTERRUPTED, {"reason": "limit_reached", "limit": name})]


def _unknown(opened: RoundView, drafts: Iterable[Draft]) -> set[str]:
    """Return the calls whose outcome is still not known once `drafts` are written."""
    names = {call.id for call in opened.unknown}
    for draft in drafts:
        if draft.type == E.EFFECT_OUTCOME_UNKNOWN:
            names.add(draft.payload["tool_call_id"])
        elif draft.type == E.EFFECT_RECONCILED:
            names.discard(draft.payload["tool_call_id"])
    return names


def _never_runs(call: CallView, results: Collection[str]) -> bool:
    return call.state not in (CallState.STARTED, CallState.STAGED, CallState.UNKNOWN) and call.id not in results


def is_closed(drafts: Iterable[Draft]) -> bool:
    """True when the drafts close their round."""
    return any(draft.type == E.ROUND_COMMITTED for draft in drafts)


_RESULTS = frozenset({E.TOOL_STAGED, E.EFFECT_RECONCILED})
_BLOCKED = frozenset({"policy_denied", "policy_failed", "approval_denied", "approval_expired", "input_expired"})
_REFUSED = {"limit_reached": E.TOOL_SKIPPED, **dict.fromkeys(_BLOCKED, E.TOOL_BLOCKED)}


def _outcome(task: asyncio.Task[Outcome]) -> Outcome:
    if task.cancelled():
        return cut_off("cancelled_itself")
    error = task.exception()
    if error is None:
        return task.result()
    return Outcome(CallResult(content=f"The tool failed: {type(error).__name__}.", is_error=True), code="raised")


def _stage(call: CallView, outcome: Outcome) -> Draft:
    """Return what is written of a call's outcome; one that may have acted and did not say so is unknown."""
    result = outcome.result
    if outcome.code in CUT_OFF_CODES and call.effect is not ToolEffect.NONE:
        unknown = lost(call)
        return Draft(unknown.type, unknown.payload | {"code": outcome.code})
    payload: dict[str, Any] = {"tool_call_id": call.id, "tool_name": call.name, "content": result.content}
    if result.structured is not None:
        payload["structured"] = result.structured
    if result.artifacts:
        payload["artifacts"] = list(result.artifacts)
    if result.is_error:
        payload["is_error"] = True
    if outcome.code is not None:
        payload["code"] = outcome.code
    return Draft(E.TOOL_STAGED, payload)


def lost(call: CallView) -> Draft:
    """Return what is written of a call that began and is gone: NONE fails, the others may have acted."""
    if call.effect is ToolEffect.NONE:
        return _stage(call, Outcome(CallResult(content=LOST, is_error=True), code="lost"))
    return Draft(
        E.EFFECT_OUTCOME_UNKNOWN, {"tool_call_id": call.id, "tool_name": call.name, "effect": str(call.effect)}
    )
