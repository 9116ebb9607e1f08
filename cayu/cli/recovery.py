"""`cayu recovery`: make a plan for sessions that were cut off, execute it, sweep at startup, go on with one session."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import RenderableType
from rich.text import Text

from cayu.cli.documents import faults, read, write_private
from cayu.cli.output import Exact, Report, cell, command, console, facts, table
from cayu.cli.standing import standing, waiting_lines
from cayu.cli.targets import AppStore, By, Cursor, Limit, Target, TargetOption, actor, opened
from cayu.errors import InvalidInput
from cayu.events import Event
from cayu.sessions.plans import (
    BlockerCode,
    NeededDecision,
    RecoveryDecision,
    RecoveryExecutionRequest,
    RecoveryItemStatus,
    RecoveryPlan,
    RecoveryPlanItem,
    RecoveryPlanRequest,
)

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Recover sessions that were cut off.",
)

ADVICE: dict[BlockerCode, str] = {
    BlockerCode.INVALID_CASCADE_MARKER: "its interruption names a tree it does not belong to; leave it as evidence",
    BlockerCode.REGISTRATION_UNAVAILABLE: (
        "its agent, provider or environment is not registered by this factory; use the factory it began with"
    ),
    BlockerCode.REGISTRATION_INCOMPATIBLE: (
        "this factory's components behave otherwise than those it began with; restore the original factory"
    ),
    BlockerCode.ACTIVE_RECOVERY_CLAIM: "another recovery has it in hand; wait for it and plan again",
    BlockerCode.ACTIVE_EXECUTION_OWNER: "a process works on it, or did a moment ago; wait, or stop that process",
    BlockerCode.MODEL_EFFECT_OUTCOME_UNKNOWN: (
        "a model step was paid for and its answer is lost; decide to mark it failed or interrupted"
    ),
    BlockerCode.TOOL_EFFECT_OUTCOME_UNKNOWN: (
        "whether a call acted is not known; look it up at the service, by its key, and decide"
    ),
    BlockerCode.TOOL_EFFECT_CONTINUATION_REQUIRED: (
        "every outcome is known; resume the session with its next message to close the round"
    ),
    BlockerCode.TOOL_APPROVAL_REQUIRED: "it waits for an approval; see `cayu pending`, then approve or deny",
    BlockerCode.USER_INPUT_REQUIRED: "it waits for an answer; see `cayu pending`, then answer",
    BlockerCode.INVALID_DURABLE_STATE: (
        "its log does not fit together; restore the store from a copy, or leave it as evidence"
    ),
}
"""What each blocker means and what to do about it."""

_PLAN = TypeAdapter(RecoveryPlan)
_DECISIONS = TypeAdapter(tuple[RecoveryDecision, ...])


@commands.command("plan")
@command
async def plan(
    target: Target,
    session: Annotated[
        list[str] | None, typer.Option("--session", metavar="ID", help="A session to inspect; may be repeated.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Inspect this agent's sessions that are not at rest.")
    ] = None,
    inactive_for_seconds: Annotated[
        float, typer.Option("--inactive-for-seconds", min=0, help="Leave alone what was written to more recently.")
    ] = 0.0,
    limit: Limit = 100,
    cursor: Cursor = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write the plan here.")] = None,
    store: AppStore = None,
) -> Report:
    """Say what recovery would do, and write nothing.

    The plan tells per session what would be done and what stands in the way. Without --session and --agent it looks
    at every session that is not at rest. The plan holds ids, counts and digests, no prompt, argument or result. Review
    it, then execute it. Where a decision is needed, a skeleton for --decisions is printed; fill in what you found
    out.

    \b
    Exit codes:
      0  the plan is made
      1  refused, no plan
      2  wrong usage

    \b
    Example:
      cayu recovery plan my_agents:build_app --session SESSION_ID --inactive-for-seconds 0 --output plan.json
    """
    if session and (agent is not None or cursor is not None):
        raise typer.BadParameter("--session goes neither with --agent nor with --cursor")
    request = RecoveryPlanRequest(
        session_ids=tuple(dict.fromkeys(session or ())),
        agent_name=agent,
        inactive_for_seconds=inactive_for_seconds,
        limit=limit,
        cursor=cursor,
    )
    async with opened(target, store) as app:
        made = await app.plan_recovery(request)
    if output is not None:
        write_private(output, made.model_dump_json(indent=2) + "\n")
    document = {
        "plan": made.model_dump(mode="json"),
        "decisions": _skeleton(made),
        "output": None if output is None else str(output),
    }
    return Report(document, _plan_lines(made, output))


def _skeleton(made: RecoveryPlan) -> list[dict[str, str | None]]:
    """Return the decisions to fill in; none of them is made here."""
    return [{"session_id": name, "tool_call_id": need.tool_call_id, "action": ""} for name, need in _decidable(made)]


def _decidable(made: RecoveryPlan) -> list[tuple[str, NeededDecision]]:
    """Return what an operator can decide, by session; behind a hard blocker a decision would change nothing."""
    open_items = [item for item in made.items if not item.hard_blockers]
    return [(item.session_id, need) for item in open_items for need in item.needed_decisions]


def _plan_lines(made: RecoveryPlan, output: Path | None) -> Iterator[RenderableType | Exact]:
    yield facts({"plan": made.plan_id, "sessions inspected": made.inspected_session_count, "written to": output})
    if not made.items:
        yield Text("Nothing is to be recovered.")
    else:
        yield _item_table(made.items)
        yield from _advice(code for item in made.items for code in item.blocker_codes)
        yield from _decision_lines(made)
    if made.next_cursor is not None:
        yield facts({"more": f"--cursor {shlex.quote(made.next_cursor)}"})


def _item_table(items: Iterable[RecoveryPlanItem]) -> RenderableType:
    rows = [(item.session_id, item.agent_name, item.status, item.action, _codes(item.blocker_codes)) for item in items]
    return table("session", "agent", "status", "action", "blockers", rows=rows)


def _codes(codes: Iterable[BlockerCode]) -> str:
    return ", ".join(codes)


def _advice(codes: Iterable[BlockerCode]) -> Iterator[RenderableType]:
    found = dict.fromkeys(codes)
    if found:
        yield facts({str(code): ADVICE[code] for code in found})


def _decision_lines(made: RecoveryPlan) -> Iterator[RenderableType | Exact]:
    needed = _decidable(made)
    if not needed:
        return
    yield Text("\nDecisions needed:")
    for session_id, need in needed:
        yield facts(_need_facts(session_id, need))
        yield Text("")
    yield Text('Fill each "action" in with one that is allowed, and pass the file as --decisions:')
    yield Exact(json.dumps(_skeleton(made), indent=2))


def _need_facts(session_id: str, need: NeededDecision) -> dict[str, object]:
    return {
        "session": session_id,
        "decide on": need.subject.replace("_", " "),
        "call": need.tool_call_id,
        "tool": need.tool_name,
        "effect": need.tool_effect,
        "attempt": need.attempt,
        "idempotency key": need.idempotency_key,
        "arguments digest": need.arguments_digest,
        "allowed": ", ".join(need.allowed_actions),
    }


@commands.command("execute")
@command
async def execute(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The plan, as `cayu recovery plan` wrote it.")],
    target: TargetOption,
    execution_id: Annotated[
        str,
        typer.Option("--execution-id", metavar="ID", help="Your name for this execution; the sessions' logs keep it."),
    ],
    decisions: Annotated[
        Path | None,
        typer.Option("--decisions", metavar="FILE", help="What you found out of lost calls and model steps."),
    ] = None,
    by: By = None,
    store: AppStore = None,
) -> Report:
    """Do what a reviewed plan says.

    An exact repeat does nothing. A plan is refused as a whole when a session has changed since. What needs a
    decision that is not given stays open. A changed execution profile is never adopted, and an unknown external
    call never begun again.

    \b
    Exit codes:
      0  every item is executed, repeated or left intact as planned
      1  refused, or an item is blocked
      2  wrong usage

    \b
    Example:
      cayu recovery execute plan.json --target my_agents:build_app --execution-id repair-1 --decisions decisions.json
    """
    reviewed = read(_PLAN, file)
    decided = () if decisions is None else read(_DECISIONS, decisions)
    try:
        request = RecoveryExecutionRequest(
            plan=reviewed, execution_id=execution_id, decisions=decided, requested_by=actor(by)
        )
    except ValidationError as error:
        where = [] if any(each["loc"] for each in error.errors()) else [str(decisions)]
        raise InvalidInput(": ".join([*where, f"{faults(error)}. Nothing was written."])) from None
    async with opened(target, store) as app:
        done = await app.execute_recovery(request)
    rows = [
        (
            item.session_id,
            item.status,
            item.action,
            item.session_status,
            _codes(item.blocker_codes),
            item.receipt_event_id,
        )
        for item in done.items
    ]
    shown: list[RenderableType] = [facts({"execution": done.execution_id, "plan": done.plan_id})]
    shown += [table("session", "result", "action", "stands at", "blockers", "receipt", rows=rows)]
    shown += _advice(code for item in done.items for code in item.blocker_codes)
    blocked = any(item.status is RecoveryItemStatus.BLOCKED for item in done.items)
    return Report(done.model_dump(mode="json"), shown, done=not blocked)


@commands.command("startup")
@command
async def startup(target: Target, store: AppStore = None) -> Report:
    """Finish interruptions that were cut off.

    Sessions that have to stay as they are do not keep the others back, and are listed with what stands in the way.

    \b
    Exit codes:
      0  the sweep is complete
      1  refused, or sessions are blocked
      2  wrong usage

    \b
    Example:
      cayu recovery startup my_agents:build_app --store runs.db
    """
    async with opened(target, store) as app:
        await app.resume_pending_interruption_cascades()
        found = await app.get_startup_recovery_status()
    counted = {"status": found.status, "brought to their end": found.scheduled_roots}
    shown: list[RenderableType] = [facts({**counted, "blocked": found.blocked_session_count})]
    if found.blocked_sessions:
        rows = [(each.session_id, _codes(each.blocker_codes)) for each in found.blocked_sessions]
        shown.append(table("session", "blockers", rows=rows))
        shown += _advice(code for each in found.blocked_sessions for code in each.blocker_codes)
    if found.blocked_sessions_truncated:
        shown.append(Text(f"Only the first {len(found.blocked_sessions)} blocked sessions are listed."))
    return Report(found.model_dump(mode="json"), shown, done=found.status == "completed")


@commands.command("resume")
@command
async def resume(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    target: TargetOption,
    store: AppStore = None,
) -> Report:
    """Go on with a session that was cut off.

    What is staged is kept, and what may be replayed is replayed once. Each event is shown as it happens, by type
    and tool. External calls are never begun again; they stay open until a plan with your decision settles them.

    \b
    Exit codes:
      0  the session has ended or waits for an approval or answer
      1  refused, or a call's outcome is unknown
      2  wrong usage

    \b
    Example:
      cayu recovery resume SESSION_ID --target my_agents:build_app --store runs.db
    """
    told: list[dict[str, Any]] = []
    async with opened(target, store) as app:
        async with aclosing(app.recover_incomplete_session(session)) as events:
            async for event in events:
                if event.sequence is not None:
                    console().print(_progress(event))
                    told.append({"sequence": event.sequence, "type": str(event.type), "tool_name": event.tool_name})
        found = await standing(app, session)
    shown = [facts({"session": session, "status": found.status}), *waiting_lines(found.pending)]
    unknown = any(action.kind == "manual_recovery" for action in found.pending)
    return Report({**found.document(), "events": told}, shown, done=not unknown)


def _progress(event: Event) -> RenderableType:
    return cell(f"{event.sequence:>5}  {event.type}  {event.tool_name or ''}".rstrip())
