"""`cayu sessions interrupt` and `cayu sessions resume`: stop a session, or begin its next turn."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer

from cayu.cli.output import Report, Whole, command, facts
from cayu.cli.standing import followed, standing, waiting_lines
from cayu.cli.targets import AppStore, By, Reason, SessionId, TargetOption, actor, opened
from cayu.events import Event, EventType
from cayu.messages import Message
from cayu.sessions.limits import RunLimits
from cayu.sessions.requests import DEFAULT_MAX_STEPS, InterruptSessionRequest, ResumeRequest


@command
async def interrupt(
    session: SessionId, target: TargetOption, store: AppStore = None, reason: Reason = None, by: By = None
) -> Report:
    """Stop a session and all below it.

    A session that a process has in hand is asked, and stops there at the next write. One whose process was lost is
    closed here; nothing of it runs.

    \b
    Exit codes:
      0  asked, or closed
      1  refused, or there is nothing to stop
      2  wrong usage

    \b
    Example:
      cayu sessions interrupt SESSION_ID --target my_agents:build_app --store runs.db --reason "closing time"
    """
    request = InterruptSessionRequest(session_id=session, reason=reason, requested_by=actor(by).subject)
    async with opened(target, store) as app:
        async with aclosing(app.interrupt_session(request)) as stream:
            events = [event async for event in stream]
        found = await standing(app, session)
    asked, closed = _stopped(events)
    document = {**found.document(), "asked": asked, "closed": closed}
    shown = [facts({"asked to stop": Whole(name)}) for name in asked]
    shown += [facts({"closed": Whole(name)}) for name in closed]
    return Report(document, [*shown, facts(found.told()), *waiting_lines(found.pending)])


def _stopped(events: list[Event]) -> tuple[list[str], list[str]]:
    """Return the sessions that were only asked, and those that were closed, in the order of their events."""
    closed = [event.session_id for event in events if event.type == EventType.SESSION_INTERRUPTED]
    asked = [event.session_id for event in events if event.type == EventType.SESSION_INTERRUPT_REQUESTED]
    return [name for name in dict.fromkeys(asked) if name not in closed], list(dict.fromkeys(closed))


@command
async def resume(
    session: SessionId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The next message to the agent.")],
    target: TargetOption,
    store: AppStore = None,
    max_tool_calls: Annotated[
        int | None, typer.Option("--max-tool-calls", metavar="N", min=1, help="Calls that may begin in this run.")
    ] = None,
    max_total_tokens: Annotated[
        int | None, typer.Option("--max-total-tokens", metavar="N", min=1, help="Tokens of this run, in and out.")
    ] = None,
    max_elapsed_seconds: Annotated[
        float | None, typer.Option("--max-elapsed-seconds", metavar="S", min=0.001, help="Active time of this run.")
    ] = None,
    max_steps: Annotated[
        int, typer.Option("--max-steps", metavar="N", min=1, help="Model steps of this run.")
    ] = DEFAULT_MAX_STEPS,
) -> Report:
    """Begin the next turn of a session.

    It has to be at rest: completed, failed, or interrupted with nothing that waits. Each event is shown as it happens,
    by type and tool, and at the end where the session stands.

    \b
    Exit codes:
      0  the session has ended, has reached a limit, or waits for an approval or answer
      1  refused, or a call's outcome is unknown
      2  wrong usage

    \b
    Example:
      cayu sessions resume SESSION_ID "Go on." --target my_agents:build_app --store runs.db --max-tool-calls 20
    """
    request = ResumeRequest(
        session_id=session,
        messages=(Message.text("user", text),),
        max_steps=max_steps,
        limits=RunLimits(
            max_tool_calls=max_tool_calls,
            max_total_tokens=max_total_tokens,
            max_elapsed_seconds=max_elapsed_seconds,
        ),
    )
    async with opened(target, store) as app:
        told = await followed(app.resume(request))
        found = await standing(app, session)
    shown = [facts(found.told()), *waiting_lines(found.pending)]
    return Report({**found.document(), "events": told}, shown, done=not found.outcome_is_open)
