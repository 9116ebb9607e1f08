"""The only replay: events in, a `SessionView` out.

The running loop advances its own view with the same `apply` that a later reader uses, so what a run believes and what
its log says cannot drift apart. Events of types that this release does not know change nothing but the version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

from cayu.canonical import loads
from cayu.effects import ToolEffect
from cayu.errors import IllegalTransition, InvalidSessionLog
from cayu.events import EventType as E
from cayu.identity import ExecutionProfile
from cayu.messages import Message, ToolResultPart
from cayu.sessions.limits import BudgetLimit, RunLimits
from cayu.sessions.states import CALL, ROUND, SESSION, TERMINAL_CALLS
from cayu.sessions.streams import StoredRecord, StreamRow
from cayu.sessions.texts import UNEXECUTED
from cayu.sessions.view import (
    CallResult,
    CallView,
    Decision,
    RecallView,
    RecoveryReceipt,
    Rejected,
    RoundView,
    RunView,
    SessionView,
    Settlement,
)

Payload = dict[str, Any]


def fold(row: StreamRow, records: Iterable[StoredRecord]) -> SessionView:
    """Return what the log of a session means after its last record.

    Raises `InvalidSessionLog` for one that no run can have written, with the first record that does not fit.
    """
    view = SessionView(row)
    for record in records:
        try:
            apply(view, record.sequence, record.type, record.at, loads(record.body))
        except (IllegalTransition, ValueError, LookupError, TypeError, AttributeError, StopIteration) as misfit:
            raise InvalidSessionLog(session_id=row.id, sequence=record.sequence, event=record.type) from misfit
    return view


def apply(view: SessionView, sequence: int, type: str, at: int, payload: Payload) -> None:
    """Advance `view` by one event. Raises `IllegalTransition` for a log that no legal run can have written."""
    if type in _SESSION_EVENTS:
        view.status = SESSION.advance(view.status, type, view.row.id)
    handler = _HANDLERS.get(type)
    if handler is not None:
        handler(view, payload, at)
    if type in _DECISIONS and "action" in payload:
        _decide(view, type, payload, at, sequence)
    if type == E.RECOVERY_ITEM_EXECUTED:
        _receipt(view, payload, sequence)
    view.version = sequence
    view.updated_at = at


def check_calls(opened: RoundView | None, changes: Iterable[tuple[str, Payload]], session_id: str) -> None:
    """Raise `IllegalTransition` when `changes`, as (type, payload), are not legal for the calls of a round.

    Asked before a write, so that no log can come to hold what no reader can fold.
    """
    states = {call.id: call.state for call in opened.calls} if opened else {}
    for type, payload in changes:
        if type in _CALL_EVENTS and "tool_call_id" in payload:
            call_id = payload["tool_call_id"]
            states[call_id] = CALL.advance(states.get(call_id, "unknown call"), type, session_id)


def ahead(view: SessionView, changes: Iterable[tuple[str, Payload]], at: int = 0) -> SessionView:
    """Return what `view` will be once `changes`, as (type, payload), are committed; `view` itself stays as it is.

    `at` is the store's time of that commit, in microseconds, for readers to whom time matters.
    """
    later = replace(
        view,
        run=replace(view.run, usage=replace(view.run.usage)),
        usage=replace(view.usage),
        reservations=dict(view.reservations),
        receipts=dict(view.receipts),
        transcript=list(view.transcript),
        queued=list(view.queued),
        recalls=list(view.recalls),
        compacted=list(view.compacted),
        rounds=[*view.rounds[:-1], *deepcopy(view.rounds[-1:])],
        decisions=dict(view.decisions),
    )
    for type, payload in changes:
        apply(later, later.version + 1, type, max(later.updated_at, at), payload)
    return later


def _started(view: SessionView, payload: Payload, at: int) -> None:
    view.started_at = at
    view.profile = ExecutionProfile.from_json(payload["profile"])
    _begin_run(view, payload, at)


def _resumed(view: SessionView, payload: Payload, at: int) -> None:
    view.interruption = view.interrupted_at = view.error = None
    view.interrupt_requested = False
    view.interrupt_requested_at = view.cascade = None
    if not payload.get("continues"):
        if "compacted" in payload:
            _compact(view, payload["compacted"])
        _begin_run(view, payload, at)
        view.run.resumed = True


def _begin_run(view: SessionView, payload: Payload, at: int) -> None:
    view.run = RunView(
        payload["run_id"],
        payload["max_steps"],
        limits=RunLimits.model_validate(payload.get("limits", {})),
        budget_limits=tuple(map(BudgetLimit.model_validate, payload.get("budget_limits", ()))),
        accounting=payload.get("accounting", UNVERSIONED_ACCOUNTING),
        started_at=at,
        metadata=payload.get("metadata", {}),
    )
    messages = [Message.model_validate(message) for message in payload["messages"]]
    (view.queued if view.open_round else view.transcript).extend(messages)


def _compact(view: SessionView, messages: list[Payload]) -> None:
    """Put a shorter conversation in the place of the one so far; what was recalled for it goes with it."""
    kept = [Message.model_validate(message) for message in messages]
    said = [message.plain_text for message in view.transcript if message.role in ("user", "assistant")]
    still = {message.plain_text for message in kept}
    view.compacted += [text for text in said if text and text not in still]
    view.transcript, view.recalls = kept, []


def _recalled(view: SessionView, payload: Payload, at: int) -> None:
    view.recalled = payload["recall"]
    items = tuple(payload.get("items", ()))
    view.recalls.append(RecallView(payload["recall"], payload["position"], items, payload.get("text", "")))


def _exposed(view: SessionView, payload: Payload, at: int) -> None:
    view.exposed = (payload["step"], tuple(payload["recalls"]))


def _profile_decided(view: SessionView, payload: Payload, at: int) -> None:
    view.profile = ExecutionProfile.from_json(payload["profile"])
    view.rejected = None


def _profile_rejected(view: SessionView, payload: Payload, at: int) -> None:
    differences = tuple((name, category) for name, category in payload["differences"])
    view.rejected = Rejected(payload["candidate_profile_fingerprint"], differences)


def _interrupt_requested(view: SessionView, payload: Payload, at: int) -> None:
    view.interrupt_requested_at = view.interrupt_requested_at if view.interrupt_requested else at
    view.interrupt_requested = True
    view.cascade = payload.get("cascade")


def _interrupted(view: SessionView, payload: Payload, at: int) -> None:
    view.interruption, view.interrupted_at = payload, payload.get("since", at)
    view.model_in_flight = False
    if payload.get("reason") in _PAUSES:
        view.run.waiting_since = at


def _failed(view: SessionView, payload: Payload, at: int) -> None:
    view.error = payload
    view.model_in_flight = False


def _model_started(view: SessionView, payload: Payload, at: int) -> None:
    view.model_in_flight = True


def _model_failed(view: SessionView, payload: Payload, at: int) -> None:
    view.model_in_flight = False


def _model_completed(view: SessionView, payload: Payload, at: int) -> None:
    view.transcript.append(Message.model_validate(payload["message"]))
    view.model_in_flight = False
    view.run.steps += 1
    view.model_steps += 1
    usage = payload.get("usage") or {}
    for counted in (view.usage, view.run.usage):
        counted.input_tokens += usage.get("input_tokens", 0)
        counted.output_tokens += usage.get("output_tokens", 0)


def _reserved(view: SessionView, payload: Payload, at: int) -> None:
    view.reservations[payload["reservation_id"]] = payload["budget_id"]


def _reconciled(view: SessionView, payload: Payload, at: int) -> None:
    view.reservations.pop(payload["reservation_id"], None)


def _receipt(view: SessionView, payload: Payload, sequence: int) -> None:
    view.receipts[payload["execution_id"]] = RecoveryReceipt(
        execution_id=payload["execution_id"],
        plan_id=payload["plan_id"],
        item_id=payload["item_id"],
        action=payload["action"],
        decisions=payload["decisions"],
        sequence=sequence,
    )


def _end_wait(view: SessionView, at: int) -> None:
    """Count the time from the pause to this decision as waiting, when it is the pause's first."""
    run = view.run
    if run.waiting_since is not None:
        run.waited_us += at - run.waiting_since
        run.waiting_since = None


def round_of(payload: Payload, asking: Message, at: int = 0) -> RoundView:
    """Return the round that an opening event describes, for the calls of the assistant message before it."""
    calls = [_proposed(entry, part.arguments) for entry, part in zip(payload["calls"], asking.tool_calls, strict=True)]
    return RoundView(id=payload["tool_round_id"], step=payload["step"], calls=calls, opened_at=at)


def _round_opened(view: SessionView, payload: Payload, at: int) -> None:
    view.rounds.append(round_of(payload, view.transcript[-1], at))


def _proposed(entry: Payload, arguments: dict[str, Any]) -> CallView:
    code = entry["verdict"] if entry["verdict"] in UNEXECUTED else None
    return CallView(
        id=entry["tool_call_id"],
        provider_call_id=entry["provider_call_id"],
        name=entry["name"],
        arguments=arguments,
        digest=entry["digest"],
        asked_digest=entry["digest"],
        effect=ToolEffect(entry["effect"]),
        parallel_safe=entry["parallel"],
        verdict=entry["verdict"],
        reason=entry.get("reason"),
        code=code,
    )


def _round_committed(view: SessionView, payload: Payload, at: int) -> None:
    opened = view.rounds[-1]
    opened.state = ROUND.advance(opened.state, E.ROUND_COMMITTED, view.row.id)
    opened.committed_at = at
    view.transcript.append(Message.model_construct(role="tool", content=tuple(map(_answer, opened.calls))))
    view.transcript.extend(view.queued)
    view.queued.clear()


def _answer(call: CallView) -> ToolResultPart:
    result = call.answer
    if result is None:
        raise ValueError("a round is committed when every call has ended")
    return ToolResultPart.model_construct(
        type="tool_result",
        tool_call_id=call.provider_call_id,
        name=call.name,
        content=result.content,
        structured=result.structured,
        is_error=result.is_error,
    )


def _call_event(
    change: Callable[[CallView, Payload, int], None], event: E
) -> Callable[[SessionView, Payload, int], None]:
    def handle(view: SessionView, payload: Payload, at: int) -> None:
        call = view.rounds[-1].call(payload["tool_call_id"])
        call.state = CALL.advance(call.state, event, view.row.id)
        change(call, payload, at)
        if event is E.TOOL_STARTED and call.attempt == 1:
            view.tool_calls += 1
            view.run.tool_calls += 1
        if call.state in TERMINAL_CALLS:
            call.ended_at = at

    return handle


def _approval_requested(call: CallView, payload: Payload, at: int) -> None:
    call.requested_at, call.expires_at = at, payload.get("expires_at")
    call.reason = payload.get("reason")


def _input_requested(call: CallView, payload: Payload, at: int) -> None:
    call.requested_at, call.expires_at = at, payload.get("expires_at")
    call.question = payload["question"]


def _approved(call: CallView, payload: Payload, at: int) -> None:
    if payload.get("arguments") is not None:
        call.arguments, call.edited = payload["arguments"], True
    call.digest = payload["digest"]
    call.reason = payload.get("reason")


def _refused(call: CallView, payload: Payload, at: int) -> None:
    call.code, call.reason = payload["code"], payload.get("reason")


def _call_started(call: CallView, payload: Payload, at: int) -> None:
    call.attempt = payload["attempt"]
    call.replayed = call.replayed or call.attempt > 1
    call.started_at = call.started_at or at


def _staged(call: CallView, payload: Payload, at: int) -> None:
    call.code = payload.get("code")
    call.result = CallResult(
        content=payload["content"],
        structured=payload.get("structured"),
        artifacts=tuple(payload.get("artifacts", ())),
        is_error=payload.get("is_error", False),
    )


def _settled(call: CallView, payload: Payload, at: int) -> None:
    _staged(call, payload, at)
    call.settlement = Settlement(payload["outcome"], payload["source"], payload["by"], at)


def _ended(call: CallView, payload: Payload, at: int) -> None:
    if call.result is None:
        call.code, call.reason = payload["code"], payload.get("reason", call.reason)


def _nothing(call: CallView, payload: Payload, at: int) -> None:
    """The state is all that changes."""


def _decide(view: SessionView, type: str, payload: Payload, at: int, sequence: int) -> None:
    _end_wait(view, at)
    view.decisions[payload["action"]] = Decision(
        action_id=payload["action"],
        decision=_DECISIONS[type],
        digest=payload.get("decided_digest", ""),
        by=_decider(type, payload),
        at=at,
        tool_call_id=payload["tool_call_id"],
        sequence=sequence,
    )


def _decider(type: str, payload: Payload) -> str:
    if type == E.TOOL_APPROVAL_EXPIRED:
        return "the deadline"
    if type == E.EFFECT_RECONCILED:
        return str(payload["by"])
    return str((payload.get("resolved_by") or {}).get("subject", "an unnamed reviewer"))


_DECISIONS: dict[str, str] = {
    E.TOOL_APPROVED: "approve",
    E.TOOL_APPROVAL_DENIED: "deny",
    E.TOOL_APPROVAL_EXPIRED: "expired",
    E.TOOL_STAGED: "answer",
    E.EFFECT_RECONCILED: "settled",
}
_PAUSES = frozenset({"awaiting_human", "manual_recovery"})
"""Reasons of interruptions that wait for a human, whose time is not the run's."""
UNVERSIONED_ACCOUNTING = 1
"""The accounting of runs whose first event names none."""
_CALL_EVENTS = frozenset(event for row in CALL.table.values() for event in row)
_SESSION_EVENTS = frozenset(event for row in SESSION.table.values() for event in row)

_HANDLERS: dict[str, Callable[[SessionView, Payload, int], None]] = {
    E.SESSION_STARTED: _started,
    E.SESSION_RESUMED: _resumed,
    E.SESSION_PROFILE_DECIDED: _profile_decided,
    E.SESSION_PROFILE_REJECTED: _profile_rejected,
    E.SESSION_INTERRUPT_REQUESTED: _interrupt_requested,
    E.SESSION_INTERRUPTED: _interrupted,
    E.SESSION_FAILED: _failed,
    E.RECALL_COMPLETED: _recalled,
    E.RECALL_FAILED: _recalled,
    E.EXPOSURE_RECORDED: _exposed,
    E.MODEL_STARTED: _model_started,
    E.MODEL_ERROR: _model_failed,
    E.MODEL_COMPLETED: _model_completed,
    E.BUDGET_RESERVED: _reserved,
    E.BUDGET_RECONCILED: _reconciled,
    E.ROUND_OPENED: _round_opened,
    E.ROUND_COMMITTED: _round_committed,
    E.TOOL_APPROVAL_REQUESTED: _call_event(_approval_requested, E.TOOL_APPROVAL_REQUESTED),
    E.SESSION_AWAITING_USER_INPUT: _call_event(_input_requested, E.SESSION_AWAITING_USER_INPUT),
    E.TOOL_APPROVED: _call_event(_approved, E.TOOL_APPROVED),
    E.TOOL_APPROVAL_DENIED: _call_event(_refused, E.TOOL_APPROVAL_DENIED),
    E.TOOL_APPROVAL_EXPIRED: _call_event(_refused, E.TOOL_APPROVAL_EXPIRED),
    E.TOOL_STARTED: _call_event(_call_started, E.TOOL_STARTED),
    E.TOOL_STAGED: _call_event(_staged, E.TOOL_STAGED),
    E.EFFECT_INTENT_RECORDED: _call_event(_nothing, E.EFFECT_INTENT_RECORDED),
    E.EFFECT_OUTCOME_UNKNOWN: _call_event(_nothing, E.EFFECT_OUTCOME_UNKNOWN),
    E.TOOL_COMPLETED: _call_event(_ended, E.TOOL_COMPLETED),
    E.TOOL_FAILED: _call_event(_ended, E.TOOL_FAILED),
    E.TOOL_BLOCKED: _call_event(_ended, E.TOOL_BLOCKED),
    E.TOOL_SKIPPED: _call_event(_ended, E.TOOL_SKIPPED),
    E.EFFECT_RECONCILED: _call_event(_settled, E.EFFECT_RECONCILED),
}
