"""`cayu recovery`: make a plan for sessions that were cut off, execute it, sweep at startup, go on with one session."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import RenderableType
from rich.text import Text

from cayu.cli.documents import faults, write_private
from cayu.cli.evidence import Decidable, decidable, read_decisions, read_plan, skeleton
from cayu.cli.output import Exact, Report, Whole, command, facts, whole
from cayu.cli.standing import followed, more_line, parents, standing, waiting_lines
from cayu.cli.targets import AppStore, By, Cursor, Limit, SessionId, Target, TargetOption, actor, opened
from cayu.errors import InvalidInput
from cayu.sessions.plans import (
    BlockerCode,
    RecoveryExecution,
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
    BlockerCode.ACTIVE_EXECUTION_OWNER: (
        "a process works on it, or did a moment ago; wait, or stop it with `cayu sessions interrupt`"
    ),
    BlockerCode.MODEL_EFFECT_OUTCOME_UNKNOWN: (
        "a model step was paid for and its answer is lost; decide to mark it failed or interrupted"
    ),
    BlockerCode.TOOL_EFFECT_OUTCOME_UNKNOWN: (
        "whether a call acted is not known; look it up at the service, by its key, and decide"
    ),
    BlockerCode.TOOL_EFFECT_CONTINUATION_REQUIRED: (
        "every outcome is known; `cayu sessions resume` closes the round with the next message"
    ),
    BlockerCode.TOOL_APPROVAL_REQUIRED: "it waits for an approval; see `cayu pending`, then approve or deny",
    BlockerCode.USER_INPUT_REQUIRED: "it waits for an answer; see `cayu pending`, then answer",
    BlockerCode.INVALID_DURABLE_STATE: (
        "its log does not fit together; restore the store from a copy, or leave it as evidence"
    ),
}
"""What each blocker means and what to do about it."""


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
    out. What a reconciler or a child session can tell may be decided as well, and is listed apart.

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
        above = await parents(app, (item.session_id for item in made.items))
    if output is not None:
        write_private(output, made.model_dump_json(indent=2) + "\n")
    document = {
        "plan": made.model_dump(mode="json"),
        "decisions": skeleton(made),
        "parents": above,
        "output": None if output is None else str(output),
    }
    return Report(document, _plan_lines(made, above, output))


def _plan_lines(made: RecoveryPlan, above: Mapping[str, str], output: Path | None) -> Iterator[RenderableType | Exact]:
    written = None if output is None else Whole(output)
    yield facts(
        {"plan": Whole(made.plan_id), "sessions inspected": made.inspected_session_count, "written to": written}
    )
    if not made.items:
        page = "" if made.next_cursor is None else " on this page"
        yield Text(f"Nothing is to be recovered{page}.")
    for item in made.items:
        yield Text("")
        yield facts(_item_facts(item, above.get(item.session_id)))
    yield from _advice(code for item in made.items for code in item.blocker_codes)
    yield from _decision_lines(made)
    yield from more_line(made.next_cursor)


def _item_facts(item: RecoveryPlanItem, parent: str | None) -> dict[str, object]:
    return {
        "session": Whole(item.session_id),
        "works for": whole(parent),
        "agent": item.agent_name,
        "status": item.status,
        "action": item.action,
        "blockers": _codes(item.blocker_codes),
    }


def _codes(codes: Iterable[BlockerCode]) -> str | None:
    return ", ".join(codes) or None


def _advice(codes: Iterable[BlockerCode]) -> Iterator[RenderableType]:
    for code in dict.fromkeys(codes):
        yield Text("")
        yield Text(f"{code}:")
        yield Text(f"  {ADVICE[code]}")


def _decision_lines(made: RecoveryPlan) -> Iterator[RenderableType | Exact]:
    needed = decidable(made, optional=False)
    if needed:
        yield Text("\nDecisions needed:")
        yield from _need_lines(needed)
    if optional := decidable(made, optional=True):
        yield Text("\nMay be decided, otherwise found out by itself:")
        yield from _need_lines(optional)
    if needed:
        yield Text('\nFill each "action" in with one that is allowed, and pass the file as --decisions:')
        yield Exact(json.dumps(skeleton(made), indent=2))


def _need_lines(needs: Iterable[Decidable]) -> Iterator[RenderableType]:
    for index, (session_id, need) in enumerate(needs):
        if index:
            yield Text("")
        yield facts(
            {
                "session": Whole(session_id),
                "decide on": need.subject.replace("_", " "),
                "call": whole(need.tool_call_id),
                "tool": need.tool_name,
                "effect": need.tool_effect,
                "attempt": need.attempt,
                "idempotency key": whole(need.idempotency_key),
                "arguments digest": whole(need.arguments_digest),
                "allowed": ", ".join(need.allowed_actions),
            }
        )


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
    reviewed = read_plan(file)
    decided = () if decisions is None else read_decisions(decisions, reviewed)
    try:
        request = RecoveryExecutionRequest(
            plan=reviewed, execution_id=execution_id, decisions=decided, requested_by=actor(by)
        )
    except ValidationError as error:
        where = [] if any(each["loc"] for each in error.errors()) else [str(decisions)]
        raise InvalidInput(": ".join([*where, f"{faults(error)}. Nothing was written."])) from None
    async with opened(target, store) as app:
        done = await app.execute_recovery(request)
    blocked = any(item.status is RecoveryItemStatus.BLOCKED for item in done.items)
    return Report(done.model_dump(mode="json"), _execution_lines(done), done=not blocked)


def _execution_lines(done: RecoveryExecution) -> Iterator[RenderableType]:
    yield facts({"execution": Whole(done.execution_id), "plan": Whole(done.plan_id)})
    for item in done.items:
        yield Text("")
        yield facts(
            {
                "session": Whole(item.session_id),
                "result": item.status,
                "action": item.action,
                "stands at": item.session_status,
                "blockers": _codes(item.blocker_codes),
                "receipt": whole(item.receipt_event_id),
            }
        )
    yield from _advice(code for item in done.items for code in item.blocker_codes)


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
    blocked = found.blocked_sessions
    shown += [facts({"session": Whole(each.session_id), "blockers": _codes(each.blocker_codes)}) for each in blocked]
    shown += _advice(code for each in blocked for code in each.blocker_codes)
    if found.blocked_sessions_truncated:
        shown.append(Text(f"Only the first {len(found.blocked_sessions)} blocked sessions are listed."))
    return Report(found.model_dump(mode="json"), shown, done=found.status == "completed")


@commands.command("resume")
@command
async def resume(
    session: SessionId,
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
    async with opened(target, store) as app:
        told = await followed(app.recover_incomplete_session(session))
        found = await standing(app, session)
    shown = [facts(found.told()), *waiting_lines(found.pending)]
    return Report({**found.document(), "events": told}, shown, done=not found.outcome_is_open)
