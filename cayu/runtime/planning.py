"""From a model's answer to a planned round: which calls may run, which need a human, which never will."""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import dataclass
from typing import Any

from cayu.canonical import normalise
from cayu.clock import MICROSECOND
from cayu.effects import ToolEffect
from cayu.events import EventType as E
from cayu.messages import Message, ToolCallPart
from cayu.runtime.log import SessionLog
from cayu.runtime.registry import Assembly
from cayu.sessions.fold import round_of
from cayu.sessions.projection import Draft
from cayu.sessions.records import Session
from cayu.sessions.texts import UNEXECUTED
from cayu.sessions.view import CallView, RoundView, SessionView, arguments_digest
from cayu.shielding import is_cancelling
from cayu.timing.phases import AUTHORIZATION
from cayu.tools.policy import ToolPolicyDecision, ToolPolicyRequest, ToolPolicyResult
from cayu.tools.questions import AskUserTool, question_of

logger = logging.getLogger("cayu.runtime")

ALLOW, APPROVAL, QUESTION = "allow", "approval", "question"
"""Verdicts on calls that may run; the others are the codes of `cayu.sessions.texts`."""
POLICY_FAILED = ToolPolicyResult(decision=ToolPolicyDecision.DENY)
"""What stands for the answer of a policy that gave none."""


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A round as its authorization found it, before anything of it is written."""

    opening: Draft
    round: RoundView
    asks: tuple[Draft, ...] = ()
    """What waits for a human; empty when the round may be dispatched."""


def round_id_of(view: SessionView) -> str:
    """Return the id of the round that the next model step may ask for."""
    return f"{view.row.instance_id}.r{view.model_steps + 1}"


async def plan_round(assembly: Assembly, log: SessionLog, session: Session, message: Message, now: int) -> PlannedRound:
    """Validate and authorize every call of a message; `now` is the store's clock in microseconds."""
    timing, step, round_id = log.timing, log.view.model_steps + 1, round_id_of(log.view)
    entries: list[dict[str, Any]] = []
    waits: dict[str, ToolPolicyResult] = {}
    for index, part in enumerate(message.tool_calls, 1):
        call_id = f"{round_id}.c{index:03d}"
        timing.name_call(call_id, part.name if part.name in assembly.tools else None)
        with timing.within(AUTHORIZATION, call_id):
            entry = _entry(assembly, call_id, part)
            if entry["verdict"] in (ALLOW, QUESTION):
                call = round_of({"tool_round_id": round_id, "step": step, "calls": [entry]}, _only(part)).calls[0]
                answer = await authorize(assembly, session, call, round_id)
                verdict, reason = _verdict(answer)
                asked = entry["verdict"] == QUESTION and verdict in (ALLOW, APPROVAL)
                entry |= {"verdict": QUESTION if asked else verdict} | ({"reason": reason} if reason else {})
                if asked or verdict == APPROVAL:
                    waits[call_id] = answer
        entries.append(entry)
    payload = {"tool_round_id": round_id, "step": step, "calls": entries}
    planned = round_of(payload, message)
    asks: list[Draft] = []
    if waits:
        with timing.within(AUTHORIZATION, None):
            asks += [_ask(assembly, planned.call(call_id), answer, now) for call_id, answer in waits.items()]
    return PlannedRound(Draft(E.ROUND_OPENED, payload), planned, tuple(asks))


def _only(part: ToolCallPart) -> Message:
    return Message.model_construct(role="assistant", content=(part,))


def _entry(assembly: Assembly, call_id: str, part: ToolCallPart) -> dict[str, Any]:
    tool = assembly.tools.get(part.name)
    verdict, reason = ALLOW, None
    if tool is None:
        verdict = "unknown_tool"
        reason = f"Known tools: {', '.join(assembly.tools) or 'none'}."
    elif (problem := assembly.validators[part.name].problem(part.arguments)) is not None:
        verdict, reason = "invalid_arguments", problem
    elif isinstance(tool, AskUserTool):
        verdict = QUESTION
    entry = {
        "tool_call_id": call_id,
        "provider_call_id": part.id,
        "name": part.name,
        "digest": arguments_digest(part.name, part.arguments),
        "effect": str(tool.spec.effect if tool else ToolEffect.NONE),
        "parallel": tool.spec.parallel_safe if tool else True,
        "verdict": verdict,
    }
    return entry | {"reason": reason} if reason else entry


async def authorize(assembly: Assembly, session: Session, call: CallView, round_id: str) -> ToolPolicyResult:
    """Ask the policy about one call. A policy that raises, or answers with something else, denies."""
    request = ToolPolicyRequest(
        session=session,
        agent=assembly.agent,
        tool_name=call.name,
        tool_call_id=call.id,
        tool_round_id=round_id,
        tool_effect=call.effect,
        arguments=call.arguments,
        environment_name=session.environment_name,
    )
    try:
        answer: object = assembly.policy.authorize(request)
        answer = await answer if inspect.isawaitable(answer) else answer
    except asyncio.CancelledError:
        if is_cancelling():
            raise
        return POLICY_FAILED
    except Exception:
        logger.exception("the tool policy raised on %s in session %s", call.name, session.id)
        return POLICY_FAILED
    if isinstance(answer, ToolPolicyResult):
        return answer
    logger.error("the tool policy answered %s, not a ToolPolicyResult, on %s", type(answer).__name__, call.name)
    return POLICY_FAILED


def _verdict(answer: ToolPolicyResult) -> tuple[str, str | None]:
    match answer.decision:
        case ToolPolicyDecision.ALLOW:
            return ALLOW, None
        case ToolPolicyDecision.REQUIRE_APPROVAL:
            return APPROVAL, None
        case _:
            return ("policy_failed", None) if answer is POLICY_FAILED else ("policy_denied", answer.reason)


def _ask(assembly: Assembly, call: CallView, answer: ToolPolicyResult, now: int) -> Draft:
    tool = assembly.tools[call.name]
    payload: dict[str, Any] = {"tool_call_id": call.id, "tool_name": call.name, "digest": call.digest}
    if isinstance(tool, AskUserTool):
        seconds = tool.expires_in_seconds
        payload |= {"input_id": call.input_id, "question": question_of(call.arguments)}
    else:
        seconds = answer.approval_expires_in_seconds
        payload |= {"approval_id": call.approval_id}
        payload |= {"reason": answer.reason} if answer.reason else {}
        payload |= {"policy_metadata": normalise(answer.metadata)} if answer.metadata else {}
    if seconds is not None:
        payload["expires_at"] = now + round(seconds * MICROSECOND)
    kind = E.SESSION_AWAITING_USER_INPUT if isinstance(tool, AskUserTool) else E.TOOL_APPROVAL_REQUESTED
    return Draft(kind, payload)


def refused(call: CallView) -> bool:
    """True when the round's authorization found that the call never runs."""
    return call.verdict in UNEXECUTED
