"""`cayu pending`, `approve`, `deny` and `answer`: what waits for a human, and deciding it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from cayu.cli.advice import action_command, plan_command
from cayu.cli.documents import arguments_of
from cayu.cli.output import Report, Whole, cell, command, facts, json_block, whole
from cayu.cli.standing import more_line, parents, standing, waiting_lines
from cayu.cli.targets import AppStore, By, Cursor, Limit, ReadStore, Reason, TargetOption, actor, looking, opened
from cayu.errors import InvalidInput, PendingActionNotFound
from cayu.events import Event, EventType
from cayu.runtime.app import CayuApp
from cayu.runtime.outcome import lost_sessions
from cayu.sessions.records import PENDING, PENDING_KINDS, PendingAction, PendingActionPage, PendingActionQuery
from cayu.sessions.requests import ToolApprovalDecision, ToolApprovalRequest, UserInputResponse
from cayu.sessions.streams import ItemQuery

PAGE = 1000


class Kind(StrEnum):
    """Kinds of what waits."""

    TOOL_APPROVAL = "tool_approval"
    USER_INPUT = "user_input"
    MANUAL_RECOVERY = "manual_recovery"


ActionId = Annotated[str, typer.Argument(metavar="ACTION_ID", help="What waits, as `cayu pending` names it.")]
Within = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="The session that the action belongs to, if you know it.")
]


@command
async def pending(
    store: ReadStore,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only this session's.")] = None,
    kind: Annotated[Kind | None, typer.Option("--kind", help="Only this kind.")] = None,
    arguments: Annotated[
        bool, typer.Option("--arguments/--no-arguments", help="Show the arguments that a decision is about.")
    ] = True,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Report:
    """List what waits for a human.

    The oldest session comes first; sessions that were cut off at work are listed as well. Arguments are shown,
    because an approval covers exactly these; what a terminal would act on is escaped.

    \b
    Exit codes:
      0  listed
      1  the store cannot be read
      2  wrong usage

    \b
    Example:
      cayu pending --store runs.db
    """
    query = PendingActionQuery(session_id=session, kind=kind and kind.value, limit=limit, cursor=cursor)
    async with looking(store) as app:
        page = await app.list_pending_actions(query)
        lost = [name for name in await lost_sessions(app) if session in (None, name)]
        above = await parents(app, (action.session for action in page.actions))
    left_out = None if arguments else {"arguments"}
    document = {
        "actions": [
            {**action.model_dump(mode="json", exclude=left_out), "parent_session_id": above.get(action.session)}
            for action in page.actions
        ],
        "next_cursor": page.next_cursor,
        "total": page.total,
        "cut_off": lost,
    }
    return Report(document, _pending_lines(page, lost, above, arguments))


def _pending_lines(
    page: PendingActionPage, lost: Sequence[str], above: Mapping[str, str], arguments: bool
) -> Iterator[RenderableType]:
    if not page.actions and not lost:
        yield Text("Nothing waits.")
    for action in page.actions:
        yield cell(action.title, style="bold")
        yield facts(_action_facts(action, above.get(action.session)))
        if arguments and action.arguments is not None:
            yield json_block(action.arguments)
        yield Text("")
    yield from more_line(page.next_cursor)
    if lost:
        yield Text("Cut off at work; plan their recovery:")
        yield from (cell(f"  {plan_command(name)}") for name in lost)


SETTLES = {
    "tool_approval": "cayu approve or cayu deny",
    "user_input": "cayu answer",
    "manual_recovery": "a recovery plan with what you find out about it; no approve settles it",
}
"""What settles an action of each kind."""


def _action_facts(action: PendingAction, parent: str | None) -> dict[str, object]:
    options = " | ".join(action.options) + (" | or another answer" if action.allow_other else "")
    return {
        "action": Whole(action.id),
        "kind": action.kind,
        "session": Whole(action.session),
        "works for": whole(parent),
        "agent": action.agent_name,
        "tool": action.tool_name,
        "effect": action.tool_effect,
        "why": action.detail,
        "question": action.question,
        "options": options if action.options else None,
        "asked": action.requested_at and action.requested_at.isoformat(timespec="seconds"),
        "until": action.expires_at and action.expires_at.isoformat(timespec="seconds"),
        "arguments digest": whole(action.arguments_digest),
        "settled by": SETTLES[action.kind],
        "next": Whole(action_command(action)),
    }


@command
async def approve(
    action_id: ActionId,
    target: TargetOption,
    store: AppStore = None,
    session: Within = None,
    arguments: Annotated[
        str | None, typer.Option("--arguments", metavar="JSON|@FILE", help="Run the call with these arguments instead.")
    ] = None,
    reason: Reason = None,
    by: By = None,
) -> Report:
    """Approve one call that waits.

    When nothing else waits, the session goes on to where it stops. The same approval again does nothing.

    \b
    Exit codes:
      0  approved, now or by the same decision before
      1  refused, expired, or decided otherwise before
      2  wrong usage

    \b
    Example:
      cayu approve ACTION_ID --target my_agents:build_app --store runs.db --reason "stock is low"
    """
    edited = arguments_of(arguments)
    async with opened(target, store) as app:
        found = await _find(app, action_id, session)
        request = ToolApprovalRequest(
            session_id=found.session_id,
            approval_id=action_id,
            decision=ToolApprovalDecision.APPROVE,
            arguments=edited,
            reason=reason,
            resolved_by=actor(by),
        )
        return await _decided(app, found, "approved", app.resolve_tool_approval(request))


@command
async def deny(
    action_id: ActionId,
    target: TargetOption,
    store: AppStore = None,
    session: Within = None,
    reason: Reason = None,
    by: By = None,
) -> Report:
    """Deny one call that waits.

    It never runs, and the model reads the reason. The same denial again does nothing.

    \b
    Exit codes:
      0  denied, now or by the same decision before
      1  refused, expired, or decided otherwise before
      2  wrong usage

    \b
    Example:
      cayu deny ACTION_ID --target my_agents:build_app --store runs.db --reason "over budget"
    """
    async with opened(target, store) as app:
        found = await _find(app, action_id, session)
        request = ToolApprovalRequest(
            session_id=found.session_id,
            approval_id=action_id,
            decision=ToolApprovalDecision.DENY,
            reason=reason,
            resolved_by=actor(by),
        )
        return await _decided(app, found, "denied", app.resolve_tool_approval(request))


@command
async def answer(
    action_id: ActionId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The answer.")],
    target: TargetOption,
    store: AppStore = None,
    session: Within = None,
    by: By = None,
) -> Report:
    """Answer one question that waits.

    When nothing else waits, the session goes on to where it stops. The same answer again does nothing.

    \b
    Exit codes:
      0  answered, now or by the same answer before
      1  refused, expired, or answered otherwise before
      2  wrong usage

    \b
    Example:
      cayu answer ACTION_ID "the cold room" --target my_agents:build_app --store runs.db
    """
    async with opened(target, store) as app:
        found = await _find(app, action_id, session)
        response = UserInputResponse(
            session_id=found.session_id, input_id=action_id, answer=text, resolved_by=actor(by)
        )
        return await _decided(app, found, "answered", app.resolve_user_input(response))


@dataclass(frozen=True, slots=True)
class _Found:
    """An action of the store."""

    action_id: str
    session_id: str
    waits: bool
    """False when it was decided before."""


async def _find(app: CayuApp, action_id: str, session_id: str | None) -> _Found:
    """Find an action by its id: among what waits, then among what was decided."""
    found: list[_Found] = []
    for state in (PENDING, None):
        found = found or [each async for each in _with_id(app, action_id, session_id, state)]
    if not found:
        where = f"session {session_id!r}" if session_id else "this store"
        told = f"There is no action {action_id!r} in {where}; `cayu pending` lists what waits."
        raise PendingActionNotFound(told, action_id=action_id)
    if len(found) > 1:
        raise InvalidInput(f"{len(found)} sessions have an action {action_id!r}; name one with --session.")
    return found[0]


async def _with_id(
    app: CayuApp, action_id: str, session_id: str | None, state: str | None
) -> AsyncGenerator[_Found, None]:
    after: str | None = None
    while True:
        query = ItemQuery(session_id=session_id, kinds=PENDING_KINDS, state=state, after=after, limit=PAGE)
        page = await app.session_store.items(query)
        for row in page.rows:
            if row.item.key == action_id:
                yield _Found(action_id, row.session_id, row.item.state == PENDING)
        after = page.next
        if after is None:
            return


async def _decided(app: CayuApp, found: _Found, given: str, events: AsyncGenerator[Event, None]) -> Report:
    """Take a decision to where the session stops; what nobody decided in time has expired instead."""
    expired = False
    async with aclosing(events):
        async for event in events:
            late = event.type == EventType.TOOL_APPROVAL_EXPIRED and event.payload.get("action") == found.action_id
            expired = expired or late
    now = await standing(app, found.session_id)
    word = "expired" if expired else given
    said = f"not {given}; it has expired" if expired else word if found.waits else f"{word} before; nothing was done"
    told = {"action": Whole(found.action_id), "decision": said, **now.told()}
    document = {**now.document(), "action_id": found.action_id, "decision": word, "repeated": not found.waits}
    return Report(document, [facts(told), *waiting_lines(now.pending)], done=not expired)
