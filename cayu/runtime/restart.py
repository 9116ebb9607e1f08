"""Recovery by plan: look first, decide, then act through the same door as ordinary work.

A plan is made by reading only. Its execution reads every session again and refuses when one has changed, before it
writes to any; what it then does stands in the session's log under the execution's id.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from cayu.canonical import JSON
from cayu.clock import MICROSECOND, as_datetime
from cayu.effects import idempotency_key
from cayu.errors import (
    ContradictoryEvidence,
    InvalidSessionLog,
    MissingBinding,
    NotRegistered,
    RecoveryExecutionConflict,
    SessionNotFound,
    SessionRunning,
    StaleRecoveryPlanError,
)
from cayu.identity import compare_profiles
from cayu.runtime.admission import Standing, repeated, stand
from cayu.runtime.cascade import stop_below
from cayu.runtime.drive import Drive, Services
from cayu.runtime.lineage import ancestors
from cayu.runtime.ownership import RECOVERING
from cayu.runtime.repair import Repair
from cayu.sessions.plans import (
    MODEL_ACTIONS,
    TOOL_ACTIONS,
    BlockerCode,
    NeededDecision,
    RecoveryAction,
    RecoveryExecution,
    RecoveryExecutionRequest,
    RecoveryItemResult,
    RecoveryItemStatus,
    RecoveryPlan,
    RecoveryPlanItem,
    RecoveryPlanRequest,
    decisions_digest,
)
from cayu.sessions.recovery import Assessment, Registrations, assess
from cayu.sessions.states import SessionStatus
from cayu.sessions.streams import HeadQuery, StreamHead, cursor, cursor_position
from cayu.sessions.view import SessionView

EXECUTIONS = "recovery-executions"
"""The documents that remember which plan and decisions an execution id stands for."""
AT_UNREST = (
    SessionStatus.INTERRUPTING,
    SessionStatus.RUNNING,
    SessionStatus.INTERRUPTED,
    SessionStatus.FAILED,
)
"""Statuses among which a plan looks for sessions, in this order."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """One session as recovery sees it."""

    item: RecoveryPlanItem
    standing: Standing | None
    """None for a log that cannot be folded."""

    @property
    def view(self) -> SessionView | None:
        """What its log means."""
        return self.standing.view if self.standing is not None else None


async def make_plan(services: Services, request: RecoveryPlanRequest) -> RecoveryPlan:
    """Inspect sessions and say what recovery would do with each; writes nothing. Raises `SessionNotFound`."""
    chosen, following = list(request.session_ids), None
    if not chosen:
        chosen, following = await _unrested(services, request)
    inspected = [await inspect(services, name, request.inactive_for_seconds) for name in chosen]
    items = [found.item for found in inspected if request.session_ids or not _is_at_rest(found.item)]
    now = as_datetime(await services.store.now())
    return RecoveryPlan.create(request, items, created_at=now, inspected=len(inspected), next_cursor=following)


async def inspect(services: Services, session_id: str, inactive_for_seconds: float = 0.0) -> Inspection:
    """Read one session and assess it; writes nothing."""
    head = await _head(services, session_id)
    now = await services.store.now()
    try:
        standing = await stand(services, session_id)
    except InvalidSessionLog:
        unreadable = Assessment(RecoveryAction.LEAVE_INTACT, (BlockerCode.INVALID_DURABLE_STATE,))
        return Inspection(_item(head, head.state.status, unreadable, ()), None)
    view = standing.view
    registrations = _registrations(services, view)
    found = assess(
        view,
        registrations,
        owner=_owner(standing, now, inactive_for_seconds),
        cascade_is_valid=await _cascade_is_valid(services, view),
    )
    head = StreamHead(view.row, standing.state)
    return Inspection(_item(head, view.status, found, _needed(view, found, registrations.reconciled)), standing)


async def execute_plan(services: Services, request: RecoveryExecutionRequest) -> RecoveryExecution:
    """Do what a plan says, with the decisions given.

    Raises `StaleRecoveryPlanError`, `RecoveryExecutionConflict` and `ContradictoryEvidence` before anything is written:
    every session is read, and all evidence checked, before the first is touched. A session that somebody changes after
    that raises `StaleRecoveryPlanError` in its turn; what is left then needs a new plan.
    """
    prepared = [await _prepare(services, request, item) for item in request.plan.items]
    repairs = sorted((each for each in prepared if isinstance(each, Repair)), key=lambda each: -each.depth)
    if repairs:
        await _register(services, request)
    done = {repair.item.item_id: await _execute(services, request, repair) for repair in repairs}
    results = tuple(done[each.item.item_id] if isinstance(each, Repair) else each for each in prepared)
    return RecoveryExecution(execution_id=request.execution_id, plan_id=request.plan.plan_id, items=results)


async def _prepare(
    services: Services, request: RecoveryExecutionRequest, item: RecoveryPlanItem
) -> RecoveryItemResult | Repair:
    """Return the item's repair, its evidence checked; or the result, when it was done before or is not to be done."""
    found = await inspect(services, item.session_id, request.plan.request.inactive_for_seconds)
    receipt = found.view.receipts.get(request.execution_id) if found.view else None
    if receipt is not None:
        digest = decisions_digest(request.decided(item.session_id))
        if (receipt.plan_id, receipt.item_id, receipt.decisions) != (request.plan.plan_id, item.item_id, digest):
            raise RecoveryExecutionConflict(execution_id=request.execution_id)
        return _result(item, RecoveryItemStatus.REPEATED, RecoveryAction(receipt.action), found, request.execution_id)
    if found.item.item_id != item.item_id:
        _refuse_contradiction(request, item, found)
        if found.item.hard_blockers and _is_unchanged(item, found.item):
            return _result(item, RecoveryItemStatus.BLOCKED, item.action, found, request.execution_id)
        raise StaleRecoveryPlanError(session_id=item.session_id, plan_id=request.plan.plan_id)
    untouched = _untouched(request, item)
    if untouched is not None or found.standing is None:
        status = untouched or RecoveryItemStatus.BLOCKED
        return _result(item, status, item.action, found, request.execution_id)
    above = await ancestors(services.store, found.standing.view.row.parent_session_id)
    repair = Repair(request, item, depth=len(above), stopping=await _stopping(services, above))
    await repair.check(services, found.standing.view)
    if repair.writes(found.standing.view):
        return repair
    result = _result(item, RecoveryItemStatus.BLOCKED, item.action, found, request.execution_id)
    return result.model_copy(update={"blocker_codes": (BlockerCode.TOOL_EFFECT_OUTCOME_UNKNOWN,)})


async def _stopping(services: Services, above: Sequence[str]) -> str | None:
    """Return the id of the nearest session above that is being interrupted, so that what is below ends with it."""
    for name in above:
        if (await _head(services, name)).state.status == SessionStatus.INTERRUPTING:
            return name
    return None


def _is_unchanged(planned: RecoveryPlanItem, found: RecoveryPlanItem) -> bool:
    """True when the session itself is as it was, and only what this application can do with it differs."""
    return (planned.version, planned.run_epoch, planned.status) == (found.version, found.run_epoch, found.status)


def _refuse_contradiction(request: RecoveryExecutionRequest, item: RecoveryPlanItem, found: Inspection) -> None:
    """Raise when a decision says otherwise than what is settled already."""
    calls = {call.id: call for opened in found.view.rounds for call in opened.calls} if found.view else {}
    for decision in request.decided(item.session_id):
        call = calls.get(decision.tool_call_id or "")
        settled = call.settlement if call is not None else None
        completed = decision.action is RecoveryAction.TOOL_MARK_COMPLETED
        if settled is not None and (settled.outcome == "completed") != completed:
            when = as_datetime(settled.at).isoformat(timespec="seconds")
            raise ContradictoryEvidence(
                session_id=item.session_id,
                tool_call_id=decision.tool_call_id,
                reason=f"it was settled as {settled.outcome} by {settled.by} at {when}",
            )


async def _register(services: Services, request: RecoveryExecutionRequest) -> None:
    """Bind the execution id to this plan and these decisions, for good."""
    mine = {"plan_id": request.plan.plan_id, "decisions": decisions_digest(request.decisions)}

    def decide(current: JSON, now: int) -> JSON:
        return mine if current is None else None

    if await services.store.transact(EXECUTIONS, request.execution_id, decide) != mine:
        raise RecoveryExecutionConflict(execution_id=request.execution_id)


async def _execute(services: Services, request: RecoveryExecutionRequest, repair: Repair) -> RecoveryItemResult:
    item = repair.item
    if item.status == SessionStatus.INTERRUPTING:
        await stop_below(services, item.session_id)

    async def enter(drive: Drive) -> bool:
        found = await inspect(services, item.session_id, request.plan.request.inactive_for_seconds)
        if found.item.item_id != item.item_id or found.standing is None:
            raise StaleRecoveryPlanError(session_id=item.session_id, plan_id=request.plan.plan_id)
        try:
            return await repair.enter(drive, found.standing)
        except SessionRunning:
            raise StaleRecoveryPlanError(session_id=item.session_id, plan_id=request.plan.plan_id) from None

    async with aclosing(Drive(services, repeated(enter)).events()) as events:
        async for _ in events:
            pass
    found = await inspect(services, item.session_id)
    return _result(item, RecoveryItemStatus.EXECUTED, repair.action, found, request.execution_id)


def _untouched(request: RecoveryExecutionRequest, item: RecoveryPlanItem) -> RecoveryItemStatus | None:
    """Return why nothing is written of an item, None when something is."""
    if item.hard_blockers or (item.blocker_codes and not request.decided(item.session_id)):
        return RecoveryItemStatus.BLOCKED
    if not item.blocker_codes and item.action is RecoveryAction.LEAVE_INTACT:
        return RecoveryItemStatus.LEFT_INTACT
    return None


async def _head(services: Services, session_id: str) -> StreamHead:
    page = await services.store.heads(HeadQuery(session_id=session_id, limit=1))
    if not page.rows:
        raise SessionNotFound(session_id=session_id)
    return page.rows[0]


async def _unrested(services: Services, request: RecoveryPlanRequest) -> tuple[list[str], str | None]:
    """Return a page of sessions that may be at unrest, and the cursor of the next one."""
    index, after = 0, None
    if request.cursor is not None:
        index, after = cursor_position(request.cursor, int, str)
    chosen: list[str] = []
    for position, status in list(enumerate(AT_UNREST))[index:]:
        room = request.limit - len(chosen)
        if room == 0:
            return chosen, cursor(position, "")
        query = HeadQuery(agent_name=request.agent_name, status=status, after=after or None, limit=room)
        page = await services.store.heads(query)
        chosen += [head.row.id for head in page.rows]
        if page.next is not None:
            return chosen, cursor(position, page.next)
        after = None
    return chosen, None


def _is_at_rest(item: RecoveryPlanItem) -> bool:
    return item.action is RecoveryAction.LEAVE_INTACT and not item.blocker_codes


def _owner(standing: Standing, now: int, inactive_for_seconds: float) -> BlockerCode | None:
    """Say who has the session in hand; somebody who wrote to it a moment ago counts as having it."""
    if standing.owned:
        recovering = (standing.state.owner or "").startswith(RECOVERING)
        return BlockerCode.ACTIVE_RECOVERY_CLAIM if recovering else BlockerCode.ACTIVE_EXECUTION_OWNER
    if now - standing.state.updated_at < inactive_for_seconds * MICROSECOND:
        return BlockerCode.ACTIVE_EXECUTION_OWNER
    return None


def _registrations(services: Services, view: SessionView) -> Registrations:
    try:
        assembly = services.registry.assemble(view.row.agent_name, view.row.environment_name)
    except (NotRegistered, MissingBinding):
        return Registrations(available=False)
    return replace(assembly.registrations, compatible=compare_profiles(view.profile, assembly.profile).equal)


async def _cascade_is_valid(services: Services, view: SessionView) -> bool:
    """True unless the session is being interrupted in the name of a tree that it does not belong to."""
    if view.status != SessionStatus.INTERRUPTING or view.cascade is None:
        return True
    root = view.cascade.get("root") if isinstance(view.cascade, dict) else None
    if root == view.row.id:
        return True
    return isinstance(root, str) and root in await ancestors(services.store, view.row.parent_session_id)


def _item(head: StreamHead, status: str, found: Assessment, needed: Sequence[NeededDecision]) -> RecoveryPlanItem:
    return RecoveryPlanItem.create(
        session_id=head.row.id,
        instance_id=head.row.instance_id,
        agent_name=head.row.agent_name,
        status=str(status),
        version=head.state.version,
        run_epoch=head.state.epoch,
        action=found.action,
        blocker_codes=found.blockers,
        needed_decisions=tuple(needed),
    )


def _needed(view: SessionView, found: Assessment, reconciled: Collection[str]) -> list[NeededDecision]:
    if BlockerCode.MODEL_EFFECT_OUTCOME_UNKNOWN in found.blockers:
        return [NeededDecision(subject="model_step", allowed_actions=MODEL_ACTIONS)]
    opened = view.open_round
    if opened is None:
        return []
    return [
        NeededDecision(
            subject="tool_call",
            optional=call.name in reconciled,
            allowed_actions=TOOL_ACTIONS,
            tool_call_id=call.id,
            tool_round_id=opened.id,
            tool_name=call.name,
            tool_effect=call.effect,
            attempt=call.attempt,
            arguments_digest=call.digest,
            idempotency_key=idempotency_key(view.row.instance_id, opened.id, call.id),
        )
        for call in opened.calls
        if call.id in found.unknown
    ]


def _result(
    item: RecoveryPlanItem, status: RecoveryItemStatus, action: RecoveryAction, found: Inspection, execution_id: str
) -> RecoveryItemResult:
    receipt = found.view.receipts.get(execution_id) if found.view else None
    return RecoveryItemResult(
        session_id=item.session_id,
        item_id=item.item_id,
        status=status,
        action=action,
        blocker_codes=found.item.blocker_codes,
        session_status=found.item.status,
        receipt_event_id=f"{item.instance_id}.{receipt.sequence}" if receipt else None,
    )
