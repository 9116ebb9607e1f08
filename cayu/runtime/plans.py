"""Looking before acting: one session as recovery sees it, and plans of many; everything here only reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from cayu.clock import MICROSECOND, as_datetime
from cayu.effects import idempotency_key
from cayu.errors import InvalidInput, InvalidSessionLog, MissingBinding, NotRegistered
from cayu.identity import compare_profiles
from cayu.runtime.admission import Standing, is_reserved, stand
from cayu.runtime.drive import Services
from cayu.runtime.lineage import ancestors, head_of
from cayu.runtime.ownership import RECOVERING
from cayu.sessions.plans import (
    MODEL_ACTIONS,
    TOOL_ACTIONS,
    BlockerCode,
    NeededDecision,
    RecoveryAction,
    RecoveryPlan,
    RecoveryPlanItem,
    RecoveryPlanRequest,
)
from cayu.sessions.recovery import Assessment, Registrations, assess
from cayu.sessions.states import SessionStatus
from cayu.sessions.streams import HeadQuery, StreamHead, cursor, cursor_position
from cayu.sessions.view import SessionView

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
    head = await head_of(services.store, session_id)
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


async def _unrested(services: Services, request: RecoveryPlanRequest) -> tuple[list[str], str | None]:
    """Return a page of sessions that may be at unrest, and the cursor of the next one."""
    index, after = 0, None
    if request.cursor is not None:
        index, after = cursor_position(request.cursor, int, str)
        if not 0 <= index < len(AT_UNREST):
            raise InvalidInput("The cursor is none that a plan gave; leave it out to start over.")
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
    same = compare_profiles(view.profile, assembly.profile).equal and not is_reserved(services, view)
    return replace(assembly.registrations, compatible=same)


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
