"""A human's decision enters a paused session: once, whoever else decides at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cayu.canonical import fingerprint
from cayu.clock import as_datetime
from cayu.crashpoints import reach
from cayu.errors import AlreadyDecided, InvalidInput, PendingActionNotFound
from cayu.events import EventType as E
from cayu.runtime.admission import Enter, Standing, check_profile, planning, refuse_reserved, repeated, stand
from cayu.runtime.drive import Drive
from cayu.runtime.entries import continue_round, expiry, is_expired
from cayu.runtime.log import build_event
from cayu.runtime.registry import Assembly
from cayu.sessions.projection import Draft
from cayu.sessions.requests import ToolApprovalDecision, ToolApprovalRequest, UserInputResponse
from cayu.sessions.states import CallState
from cayu.sessions.view import CallView, Decision, SessionView, arguments_digest

BOUNDARY = "approval"
Decide = Callable[[Assembly, CallView], Draft]


def enter_approval(request: ToolApprovalRequest) -> Enter:
    """Enter with an approval or a denial of one call."""

    def is_repeat(prior: Decision, call: CallView) -> bool:
        return prior.decision == request.decision and prior.digest == _approved_digest(request, call)

    def decide(assembly: Assembly, call: CallView) -> Draft:
        return _approval(assembly, request, call)

    async def enter(drive: Drive) -> bool:
        if request.decision is ToolApprovalDecision.DENY and request.arguments is not None:
            raise InvalidInput("Edited arguments go with an approval; a denial takes none. Nothing was written.")
        standing = await stand(drive.services, request.session_id)
        if await _settled(drive, standing, request.approval_id, is_repeat):
            return False
        places = (request.tool_round_id, request.tool_call_id)
        call = _waiting_call(standing.view, CallState.AWAITING_APPROVAL, request.approval_id, places)
        return await _apply(drive, standing, call, decide)

    return repeated(enter)


def enter_answer(response: UserInputResponse) -> Enter:
    """Enter with the answer to one question."""

    def is_repeat(prior: Decision, call: CallView) -> bool:
        return prior.decision == "answer" and prior.digest == _answer_digest(response)

    def decide(assembly: Assembly, call: CallView) -> Draft:
        return _answer(response, call)

    async def enter(drive: Drive) -> bool:
        standing = await stand(drive.services, response.session_id)
        if await _settled(drive, standing, response.input_id, is_repeat):
            return False
        places = (response.tool_round_id, response.tool_call_id)
        call = _waiting_call(standing.view, CallState.AWAITING_INPUT, response.input_id, places)
        return await _apply(drive, standing, call, decide)

    return repeated(enter)


async def _apply(drive: Drive, standing: Standing, call: CallView, decide: Decide) -> bool:
    view = standing.view
    refuse_reserved(drive.services, standing)
    assembly = drive.services.registry.assemble(view.row.agent_name, view.row.environment_name)
    await check_profile(drive, standing, assembly, BOUNDARY)
    decision = expiry(call) if is_expired(call, standing.now) else decide(assembly, call)
    drive.attach(view, assembly, evicting=standing.evicting, epoch=standing.state.epoch)
    if len(view.awaiting) > 1:
        await drive.log.commit([decision], release=True)
        reach("decision.recorded")
        return False
    return await continue_round(drive, [decision, Draft(E.SESSION_RESUMED, {"continues": True})])


async def _settled(
    drive: Drive, standing: Standing, action_id: str, is_repeat: Callable[[Decision, CallView], bool]
) -> bool:
    """Answer an exact repeat with what was recorded; raise `AlreadyDecided` for any other second decision."""
    view = standing.view
    prior = view.decisions.get(action_id)
    if prior is None:
        return False
    call = _call(view, prior.tool_call_id)
    if not is_repeat(prior, call):
        raise AlreadyDecided(
            session_id=view.row.id,
            action_id=action_id,
            decision=prior.decision,
            decided_by=prior.by,
            decided_at=as_datetime(prior.at).isoformat(timespec="seconds"),
        )
    loaded = await drive.services.store.load(view.row.id, prior.sequence - 1)
    events = [build_event(view.row, record) for record in loaded.records] if loaded else []
    told = [event for event in events if event.payload.get("tool_call_id") == call.id]
    await drive.republish(told)
    return True


def _call(view: SessionView, call_id: str) -> CallView:
    return next(call for opened in reversed(view.rounds) for call in opened.calls if call.id == call_id)


def _waiting_call(
    view: SessionView, state: CallState, action_id: str, places: tuple[str | None, str | None]
) -> CallView:
    opened = view.open_round
    round_id, call_id = places
    for call in view.awaiting:
        if call.state != state or call.action_id != action_id:
            continue
        if opened is not None and round_id in (None, opened.id) and call_id in (None, call.id):
            return call
    raise PendingActionNotFound(_why_not(view, action_id), session_id=view.row.id, action_id=action_id)


def _why_not(view: SessionView, action_id: str) -> str | None:
    """Return what to do with an action that waits for something else; None for one that does not wait at all."""
    for call in view.awaiting:
        if call.action_id == action_id:
            wanted = "an answer" if call.state == CallState.AWAITING_INPUT else "an approval or a denial"
            return f"{action_id!r} of session {view.row.id!r} waits for {wanted}."
    if action_id.endswith(".recovery"):
        return f"Whether the call of {action_id!r} acted has to be found out; {planning(view.row.id)}."
    return None


def _approved_digest(request: ToolApprovalRequest, call: CallView) -> str:
    return call.asked_digest if request.arguments is None else arguments_digest(call.name, request.arguments)


def _approval(assembly: Assembly, request: ToolApprovalRequest, call: CallView) -> Draft:
    digest = _approved_digest(request, call)
    payload = _decided(call, digest, request.reason, request.resolved_by)
    if request.decision is ToolApprovalDecision.DENY:
        return Draft(E.TOOL_APPROVAL_DENIED, payload | {"code": "approval_denied"})
    if request.arguments is not None:
        problem = assembly.validators[call.name].problem(request.arguments)
        if problem is not None:
            raise InvalidInput(f"The edited arguments do not fit the schema of {call.name!r}: {problem}.")
        payload["arguments"] = request.arguments
    return Draft(E.TOOL_APPROVED, payload | {"digest": digest})


def _answer_digest(response: UserInputResponse) -> str:
    return fingerprint("cayu.user-input", response.answer)


def _answer(response: UserInputResponse, call: CallView) -> Draft:
    question = call.question or {}
    if not question.get("allow_other", True) and response.answer not in question["options"]:
        raise InvalidInput(f"The answer to {call.input_id!r} is none of the options offered. Nothing was written.")
    payload = _decided(call, _answer_digest(response), None, response.resolved_by)
    structured = {"answer": response.answer, "question": question.get("question")}
    return Draft(E.TOOL_STAGED, payload | {"content": response.answer, "structured": structured})


def _decided(call: CallView, digest: str, reason: str | None, actor: Any) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "tool_call_id": call.id,
        "tool_name": call.name,
        "action": call.action_id,
        "decided_digest": digest,
    }
    if reason:
        payload["reason"] = reason
    if actor is not None:
        payload["resolved_by"] = actor.model_dump(mode="json", exclude_none=True)
    return payload
