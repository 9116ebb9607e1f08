"""Executing a recovery plan: everything is read and checked again before anything is written.

What is then done enters each session through the same door as ordinary work, and stands in its log under the
execution's id. Sessions below others come first, so that what a child has come to is known to its parent.
"""

from __future__ import annotations

from contextlib import aclosing

from cayu.canonical import JSON
from cayu.clock import as_datetime
from cayu.errors import (
    ContradictoryEvidence,
    RecoveryExecutionConflict,
    SessionRunning,
    StaleRecoveryPlanError,
)
from cayu.runtime.admission import repeated
from cayu.runtime.drive import Drive, Services
from cayu.runtime.lineage import ancestors
from cayu.runtime.plans import Inspection, inspect
from cayu.runtime.repair import Repair
from cayu.runtime.sweep import end_below, stopping_ancestor
from cayu.sessions.plans import (
    BlockerCode,
    RecoveryAction,
    RecoveryExecution,
    RecoveryExecutionRequest,
    RecoveryItemResult,
    RecoveryItemStatus,
    RecoveryPlanItem,
    decisions_digest,
)
from cayu.sessions.states import SessionStatus

EXECUTIONS = "recovery-executions"
"""The documents that remember which plan and decisions an execution id stands for."""


async def execute_plan(services: Services, request: RecoveryExecutionRequest) -> RecoveryExecution:
    """Do what a plan says, with the decisions given.

    Raises `StaleRecoveryPlanError`, `RecoveryExecutionConflict` and `ContradictoryEvidence` before anything is written:
    every session is read, and all evidence checked, before the first is touched. A session that somebody changes after
    that raises `StaleRecoveryPlanError` in its turn, and evidence that what was done meanwhile contradicts raises
    `ContradictoryEvidence`; what is left then needs a new plan.
    """
    prepared = [await _prepare(services, request, item) for item in request.plan.items]
    repairs = sorted((each for each in prepared if isinstance(each, Repair)), key=lambda each: -each.depth)
    if any(repair.writes for repair in repairs):
        await _register(services, request)
    done: dict[str, RecoveryItemResult] = {}
    for repair in repairs:
        done[repair.item.item_id] = await _execute(services, request, repair, ask_again=bool(done))
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
        return _result(request, item, found, RecoveryItemStatus.REPEATED, RecoveryAction(receipt.action))
    if found.item.item_id != item.item_id:
        _refuse_contradiction(request, item, found)
        if found.item.hard_blockers and _is_unchanged(item, found.item):
            return _result(request, item, found, RecoveryItemStatus.BLOCKED)
        raise StaleRecoveryPlanError(session_id=item.session_id, plan_id=request.plan.plan_id)
    if item.hard_blockers or (item.blocker_codes and not request.decided(item.session_id)) or found.standing is None:
        return _result(request, item, found, RecoveryItemStatus.BLOCKED)
    if not item.blocker_codes and item.action is RecoveryAction.LEAVE_INTACT:
        return _result(request, item, found, RecoveryItemStatus.LEFT_INTACT)
    view = found.standing.view
    above = await ancestors(services.store, view.row.parent_session_id)
    repair = Repair(request, item, depth=len(above), stopping=await stopping_ancestor(services, view))
    await repair.check(services, view)
    return repair


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


async def _execute(
    services: Services, request: RecoveryExecutionRequest, repair: Repair, *, ask_again: bool
) -> RecoveryItemResult:
    item = repair.item
    found = await _as_planned(services, request, item)
    if item.status == SessionStatus.INTERRUPTING:
        await end_below(services, item.session_id)
    if found.standing is not None and ask_again:
        await repair.check(services, found.standing.view)  # a child may have come to its end meanwhile
    if not repair.writes:
        result = _result(request, item, found, RecoveryItemStatus.BLOCKED)
        return result.model_copy(update={"blocker_codes": (BlockerCode.TOOL_EFFECT_OUTCOME_UNKNOWN,)})

    await _register(services, request)
    status = RecoveryItemStatus.EXECUTED

    async def enter(drive: Drive) -> bool:
        nonlocal status
        before = await inspect(services, item.session_id)
        if before.view is not None and request.execution_id in before.view.receipts:
            status = RecoveryItemStatus.REPEATED  # by whoever was faster, or by a first try that was written after all
            return False
        again = await _as_planned(services, request, item)
        assert again.standing is not None, "a session whose log cannot be read is not repaired"
        try:
            return await repair.enter(drive, again.standing)
        except SessionRunning:
            raise StaleRecoveryPlanError(session_id=item.session_id, plan_id=request.plan.plan_id) from None

    async with aclosing(Drive(services, repeated(enter)).events()) as events:
        async for _ in events:
            pass
    after = await inspect(services, item.session_id)
    return _result(request, item, after, status, repair.action)


async def _as_planned(services: Services, request: RecoveryExecutionRequest, item: RecoveryPlanItem) -> Inspection:
    """Return the session as it stands. Raises `StaleRecoveryPlanError` when that is not what the plan says."""
    found = await inspect(services, item.session_id, request.plan.request.inactive_for_seconds)
    if found.item.item_id != item.item_id:
        raise StaleRecoveryPlanError(session_id=item.session_id, plan_id=request.plan.plan_id)
    return found


def _result(
    request: RecoveryExecutionRequest,
    item: RecoveryPlanItem,
    found: Inspection,
    status: RecoveryItemStatus,
    action: RecoveryAction | None = None,
) -> RecoveryItemResult:
    receipt = found.view.receipts.get(request.execution_id) if found.view else None
    return RecoveryItemResult(
        session_id=item.session_id,
        item_id=item.item_id,
        status=status,
        action=action or item.action,
        blocker_codes=found.item.blocker_codes,
        session_status=found.item.status,
        receipt_event_id=f"{item.instance_id}.{receipt.sequence}" if receipt else None,
    )
