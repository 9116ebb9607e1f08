"""`cayu sessions list` and `show`: what a store holds, read from it alone; nothing is registered or written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from cayu.cli.advice import plan_command
from cayu.cli.output import Report, Whole, cell, command, facts, json_block, whole
from cayu.cli.standing import Standing, more_line, progress, standing, status_line, waiting_lines, why
from cayu.cli.targets import Cursor, Limit, ReadStore, looking
from cayu.errors import SessionNotFound
from cayu.events import Event
from cayu.runtime.log import build_event
from cayu.runtime.outcome import lost_sessions
from cayu.sessions.fold import fold
from cayu.sessions.records import Session, session_record
from cayu.sessions.states import SessionStatus
from cayu.sessions.streams import HeadQuery, StreamHead
from cayu.sessions.view import CallView, RoundView, RunView, SessionView

commands = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List sessions, look at one, stop or resume it."
)


@commands.command("list")
@command
async def list_sessions(
    store: ReadStore,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only this agent's.")] = None,
    status: Annotated[SessionStatus | None, typer.Option("--status", help="Only those that stand there.")] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="Part of an id, a title or an agent's name.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Report:
    """List sessions, newest first.

    \b
    Exit codes:
      0  listed
      1  the store cannot be read
      2  wrong usage

    \b
    Example:
      cayu sessions list --store runs.db --status interrupted
    """
    query = HeadQuery(agent_name=agent, status=status, text=text, after=cursor, limit=limit)
    async with looking(store) as app:
        page = await app.session_store.heads(query)
        lost = frozenset(await lost_sessions(app))
    listed = [_head(head, head.row.id in lost) for head in page.rows]
    document = {"sessions": listed, "next_cursor": page.next, "total": page.total}
    shown: list[RenderableType] = []
    for head in page.rows:
        shown += [facts(_head_facts(head, head.row.id in lost)), Text("")]
    return Report(document, [*shown, Text(f"{len(page.rows)} of {page.total}"), *more_line(page.next)])


def _head(head: StreamHead, cut_off: bool) -> dict[str, Any]:
    state = head.state
    counted = {name: getattr(state, name) for name in ("model_steps", "tool_calls", "input_tokens", "output_tokens")}
    told = session_record(head).model_dump(mode="json")
    return {**told, "cut_off": cut_off, "pending_actions": state.pending, **counted}


def _head_facts(head: StreamHead, cut_off: bool) -> dict[str, object]:
    found = session_record(head)
    return {
        "session": Whole(found.id),
        "title": found.title,
        "works for": whole(found.parent_session_id),
        "agent": found.agent_name,
        "status": status_line(found.status, cut_off),
        "waits": head.state.pending or None,
        "updated": _moment(found.updated_at),
    }


def _moment(at: datetime) -> str:
    return at.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00") + "Z"


@dataclass(frozen=True, slots=True)
class _Look:
    """One session as it is shown."""

    record: Session
    view: SessionView
    standing: Standing
    events: tuple[Event, ...] | None
    """None when they were not asked for."""
    content: bool


@commands.command("show")
@command
async def show(
    session: Annotated[str, typer.Argument(metavar="ID", help="The session's id.")],
    store: ReadStore,
    events: Annotated[bool, typer.Option("--events", help="List its events as well.")] = False,
    content: Annotated[
        bool, typer.Option("--content", help="Show arguments, results and texts as well; they may hold secrets.")
    ] = False,
) -> Report:
    """Show one session.

    Its record, its run's usage, its rounds and calls, and what it waits for. What the model, the tools and people
    have said is left out unless --content asks for it.

    \b
    Exit codes:
      0  shown
      1  there is no such session, or it cannot be read
      2  wrong usage

    \b
    Example:
      cayu sessions show SESSION_ID --store runs.db --events
    """
    async with looking(store) as app:
        loaded = await app.session_store.load(session)
        if loaded is None:
            raise SessionNotFound(session_id=session)
        row = loaded.head.row
        look = _Look(
            record=session_record(loaded.head),
            view=fold(row, loaded.records),
            standing=await standing(app, session),
            events=tuple(build_event(row, record) for record in loaded.records) if events else None,
            content=content,
        )
    return Report(_document(look), _lines(look))


def _document(look: _Look) -> dict[str, Any]:
    view = look.view
    document = {
        "session": look.record.model_dump(mode="json"),
        "cut_off": look.standing.cut_off,
        "run": _run(view.run),
        "usage": _usage(view),
        "rounds": [_round(opened, look.content) for opened in view.rounds],
        "pending": [action.model_dump(mode="json") for action in look.standing.pending]
        if look.content
        else look.standing.document()["pending"],
        "error": view.error,
        "interruption": view.interruption,
    }
    if look.content:
        document["messages"] = [message.model_dump(mode="json") for message in view.transcript]
    if look.events is not None:
        document["events"] = [_event(event, look.content) for event in look.events]
    return document


def _run(run: RunView) -> dict[str, Any]:
    return {
        "id": run.id,
        "model_steps": run.steps,
        "max_steps": run.max_steps,
        "tool_calls": run.tool_calls,
        "input_tokens": run.usage.input_tokens,
        "output_tokens": run.usage.output_tokens,
        "limits": run.limits.model_dump(mode="json", exclude_defaults=True),
    }


def _usage(view: SessionView) -> dict[str, int]:
    return {
        "model_steps": view.model_steps,
        "tool_calls": view.tool_calls,
        "input_tokens": view.usage.input_tokens,
        "output_tokens": view.usage.output_tokens,
    }


def _round(opened: RoundView, content: bool) -> dict[str, Any]:
    calls = [_call(call, content) for call in opened.calls]
    return {"id": opened.id, "step": opened.step, "state": str(opened.state), "calls": calls}


def _call(call: CallView, content: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": call.id,
        "tool_name": call.name,
        "effect": str(call.effect),
        "state": str(call.state),
        "attempt": call.attempt,
        "code": call.code,
        "replayed": call.replayed,
        "settled_by": call.settlement.by if call.settlement else None,
    }
    if content:
        result = call.result
        told["arguments"] = call.arguments
        told["result"] = {"content": result.content, "structured": result.structured} if result else None
    return told


def _event(event: Event, content: bool) -> dict[str, Any]:
    left_out = {"session_id", "agent_name", "environment_name"} | (set() if content else {"payload"})
    return event.model_dump(mode="json", exclude=left_out)


def _lines(look: _Look) -> Iterator[RenderableType]:
    record, view, run, lost = look.record, look.view, look.view.run, look.standing.cut_off
    yield facts(
        {
            "session": Whole(record.id),
            "title": record.title,
            "agent": f"{record.agent_name} ({record.provider_name} {record.model})",
            "environment": record.environment_name,
            "works for": whole(record.parent_session_id),
            "status": status_line(record.status, lost),
            "why": why(view),
            "next": Whole(plan_command(record.id)) if lost else None,
            "created": _moment(record.created_at),
            "updated": _moment(record.updated_at),
            "run": f"{run.id}: step {run.steps} of {run.max_steps}, {_counted(run.tool_calls, run.usage)}",
            "whole session": f"{view.model_steps} steps, {_counted(view.tool_calls, view.usage)}",
        }
    )
    for opened in view.rounds:
        for call in opened.calls:
            yield Text("")
            yield facts(_call_facts(opened, call))
    yield from waiting_lines(look.standing.pending)
    if look.content:
        yield from _said(view)
    if look.events is not None:
        yield Text("")
        yield from (progress(event, _moment(event.timestamp)) for event in look.events)


def _call_facts(opened: RoundView, call: CallView) -> dict[str, object]:
    return {
        "call": Whole(call.id),
        "tool": f"{call.name} ({call.effect})",
        "round": f"step {opened.step}, {opened.state}",
        "state": f"{call.state}, attempt {call.attempt}",
        "code": call.code,
    }


def _counted(tool_calls: int, usage: Any) -> str:
    return f"{tool_calls} calls, {usage.input_tokens} tokens in, {usage.output_tokens} out"


def _said(view: SessionView) -> Iterator[RenderableType]:
    for message in view.transcript:
        for part in message.content:
            yield cell(f"{message.role} · {part.type}", style="bold")
            yield json_block(part.model_dump(mode="json", exclude={"type"}, exclude_none=True))
