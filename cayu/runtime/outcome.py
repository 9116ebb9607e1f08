"""Running a session to where it stops, for callers that want the result and not the stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from cayu.errors import InvalidInput
from cayu.events import Event
from cayu.messages import Frozen
from cayu.runtime.admission import Standing, stand
from cayu.runtime.app import CayuApp
from cayu.runtime.lineage import heads_of
from cayu.runtime.ownership import is_gone
from cayu.sessions.recovery import UNFINISHED
from cayu.sessions.requests import ResumeRequest, RunRequest, ToolApprovalRequest, UserInputResponse
from cayu.sessions.states import SessionStatus
from cayu.sessions.streams import is_owned
from cayu.sessions.view import CallView, SessionView

Request = RunRequest | ResumeRequest | ToolApprovalRequest | UserInputResponse


class ToolCallOutcome(Frozen):
    """One call of the session, as it ended or stands."""

    tool_call_id: str
    tool_round_id: str
    tool_name: str
    state: str
    """A `CallState`."""
    arguments: dict[str, Any]
    content: str | None = None
    structured: Any = None
    is_error: bool = False
    code: str | None = None
    """Why it did not run, or did not return."""
    replayed: bool = False


class RunOutcome(Frozen):
    """Where a session stands after a run."""

    session_id: str
    status: SessionStatus
    final_text: str
    """The last thing that the model said."""
    error: dict[str, Any] | None = None
    events: tuple[Event, ...] = ()
    """What this call received, live events included."""
    model_steps: int = 0
    usage: dict[str, int] = {}
    """`input_tokens` and `output_tokens` of the whole session."""
    tool_calls: tuple[ToolCallOutcome, ...] = ()
    interruption: dict[str, Any] | None = None
    """Why the session is interrupted, if it is."""


async def run_to_completion(app: CayuApp, request: Request) -> RunOutcome:
    """Run, resume or decide, until the session ends or pauses; a pause is an outcome and not an error.

    Raises what the call itself raises.
    """
    async with aclosing(_started(app, request)) as stream:
        events = [event async for event in stream]
    session_id = events[0].session_id if events else request.session_id
    if session_id is None:
        raise InvalidInput("The run gave no event; it was closed before it began.")
    return await outcome_of(app, session_id, tuple(events))


async def outcome_of(app: CayuApp, session_id: str, events: tuple[Event, ...] = ()) -> RunOutcome:
    """Return where a session stands now. Raises `SessionNotFound`."""
    view = (await stand(app.services, session_id)).view
    return RunOutcome(
        session_id=session_id,
        status=SessionStatus(view.status),
        final_text=view.final_text,
        error=view.error,
        events=events,
        model_steps=view.model_steps,
        usage={"input_tokens": view.usage.input_tokens, "output_tokens": view.usage.output_tokens},
        tool_calls=tuple(_call(opened.id, call) for opened in view.rounds for call in opened.calls),
        interruption=view.interruption,
    )


async def session_view(app: CayuApp, session_id: str) -> SessionView:
    """Return what a session's log means now. Raises `SessionNotFound`."""
    return (await stand(app.services, session_id)).view


async def session_standing(app: CayuApp, session_id: str) -> Standing:
    """Return a session with who has it in hand. Raises `SessionNotFound`."""
    return await stand(app.services, session_id)


async def lost_sessions(app: CayuApp) -> list[str]:
    """Return the ids of sessions that were cut off at work: their process is gone, or their lease has run out."""
    now = await app.session_store.now()
    found = []
    for status in UNFINISHED:
        async for head in heads_of(app.session_store, status):
            owner = head.state.owner
            if not is_owned(head.state, now) or (owner is not None and is_gone(owner)):
                found.append(head.row.id)
    return found


def _started(app: CayuApp, request: Request) -> AsyncGenerator[Event, None]:
    match request:
        case RunRequest():
            return app.run(request)
        case ResumeRequest():
            return app.resume(request)
        case ToolApprovalRequest():
            return app.resolve_tool_approval(request)
        case UserInputResponse():
            return app.resolve_user_input(request)
        case _:
            raise InvalidInput(f"{type(request).__name__} does not run a session.")


def _call(round_id: str, call: CallView) -> ToolCallOutcome:
    result = call.result
    return ToolCallOutcome(
        tool_call_id=call.id,
        tool_round_id=round_id,
        tool_name=call.name,
        state=call.state,
        arguments=call.arguments,
        content=result.content if result else None,
        structured=result.structured if result else None,
        is_error=result.is_error if result else False,
        code=call.code,
        replayed=call.replayed,
    )
