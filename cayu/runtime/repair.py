"""One item of a recovery plan enters its session: what was decided is written, and the run goes on from there."""

from __future__ import annotations

from cayu.crashpoints import reach
from cayu.events import EventType as E
from cayu.runtime.admission import Standing
from cayu.runtime.budgeting import release_open
from cayu.runtime.drive import Drive, Services
from cayu.runtime.entries import claim_for_budget, end_lost, interrupt_draft, recover, time_round
from cayu.runtime.ownership import RECOVERING
from cayu.runtime.rounds import limit_drafts
from cayu.runtime.settlement import Settler
from cayu.sessions.accounting import call_limit
from cayu.sessions.fold import ahead
from cayu.sessions.plans import (
    MODEL_ACTIONS,
    RecoveryAction,
    RecoveryExecutionRequest,
    RecoveryPlanItem,
    decisions_digest,
)
from cayu.sessions.projection import Draft
from cayu.sessions.recovery import UNFINISHED
from cayu.sessions.requests import InterruptSessionRequest
from cayu.sessions.states import CallState, SessionStatus
from cayu.sessions.view import RoundView, SessionView
from cayu.timing.phases import EFFECT_STATE, ROUND_COMMIT


class Repair:
    """Does with one session what a plan and its decisions say."""

    def __init__(
        self, request: RecoveryExecutionRequest, item: RecoveryPlanItem, *, depth: int = 0, stopping: str | None = None
    ) -> None:
        """`depth` counts the sessions above, and `stopping` names one of them that is being interrupted."""
        self._request = request
        self.item = item
        self.depth = depth
        self._stopping = stopping
        self.writes = False
        """False when the session only waits for outcomes, and none was found out."""
        self._settled: list[Draft] = []
        self._asked: list[tuple[str | None, int, int]] = []
        """When evidence was asked for, monotonic nanoseconds, and of which call; None for those that were decided."""
        self._decisions = request.decided(item.session_id)
        actions = {decision.action for decision in self._decisions}
        self.action = actions.pop() if len(actions) == 1 else item.action

    async def check(self, services: Services, view: SessionView) -> None:
        """Ask reconcilers, and hold the decisions against what they and the receipts say; writes nothing.

        Raises `ContradictoryEvidence`.
        """
        opened = view.open_round
        self.writes = view.status in UNFINISHED
        if opened is None or self.action in MODEL_ACTIONS:
            return
        assembly = services.registry.assemble(view.row.agent_name, view.row.environment_name)
        settler = Settler(view.row, assembly, services.config, services.store)
        actor, decided = self._request.requested_by, {decision.tool_call_id for decision in self._decisions}
        now = services.clock.monotonic_ns
        begun = now()
        self._settled = await settler.by_decisions(opened.id, opened.calls, self._decisions, actor)
        self._asked = [(None, begun, now())] if decided else []
        for call in opened.unknown:
            if call.id not in decided:
                begun = now()
                self._settled += await settler.by_reconciler(opened.id, call)
                self._asked.append((call.id, begun, now()))
        self.writes = self.writes or bool(self._settled)

    async def enter(self, drive: Drive, standing: Standing) -> bool:
        """Enter the session, which is as the plan found it."""
        drive.timing.preceded_by(EFFECT_STATE, self._asked)
        view = standing.view
        assembly = drive.services.registry.assemble(view.row.agent_name, view.row.environment_name)
        drive.attach(view, assembly, evicting=standing.evicting, epoch=standing.state.epoch, role=RECOVERING)
        if self.action in MODEL_ACTIONS:
            return await self._end_lost_step(drive)
        if view.status in UNFINISHED and self._stopping is not None and not view.interrupt_requested:
            asked = interrupt_draft(InterruptSessionRequest(session_id=view.row.id), self._stopping)
            return await end_lost(drive, [self._attribution(), asked], self._settled)
        if view.status in UNFINISHED:
            return await recover(drive, [self._attribution()], self._settled)
        return await self._go_on(drive)

    async def _go_on(self, drive: Drive) -> bool:
        """Settle calls of a session that waits: the last one lets the run go on, or closes what has ended."""
        time_round(drive)
        view, lead = drive.log.view, [self._attribution(), *self._settled]
        opened = ahead(view, [(draft.type, draft.payload) for draft in lead]).open_round
        if opened is None or opened.unknown:
            with drive.timing.within_round(EFFECT_STATE):
                await drive.log.commit(lead, release=True)
            return False
        lead.append(Draft(E.SESSION_RESUMED, {"continues": True}))
        waits = (view.interruption or {}).get("reason") == "manual_recovery"
        if waits and not view.interrupt_requested and self._stopping is None:
            return await self._continue(drive, opened, lead)
        lead += drive.rounds.closing(lead, opened)
        with drive.timing.within_round(ROUND_COMMIT):
            await drive.log.commit([*lead, _ended_as(view)], release=True)
        return False

    async def _continue(self, drive: Drive, opened: RoundView, lead: list[Draft]) -> bool:
        """Close the round and go on, unless a limit had kept a call of it back."""
        skipped = any(call.state == CallState.SKIPPED for call in opened.calls)
        limit = call_limit(drive.log.view, await drive.services.store.now(), 0) if skipped else None
        stop = limit_drafts(limit) if limit else []
        lead += drive.rounds.closing(lead, opened)
        with drive.timing.within_round(ROUND_COMMIT):
            await drive.log.commit([*lead, *stop], release=bool(stop))
        reach("round.closed")
        return not stop

    async def _end_lost_step(self, drive: Drive) -> bool:
        await claim_for_budget(drive)
        given_back = await release_open(drive.services.ledger, drive.log)
        if self.action is RecoveryAction.MODEL_MARK_FAILED:
            told = Draft(E.MODEL_ERROR, {"code": "marked_failed"})
            ends = [told, Draft(E.SESSION_FAILED, {"code": "model_marked_failed"})]
        else:
            ends = [Draft(E.SESSION_INTERRUPTED, {"reason": "model_marked_interrupted"})]
        await drive.log.commit([self._attribution(), *given_back, *ends], release=True)
        return False

    def _attribution(self) -> Draft:
        request = self._request
        told = {
            "execution_id": request.execution_id,
            "plan_id": request.plan.plan_id,
            "item_id": self.item.item_id,
            "action": str(self.action),
            "decisions": decisions_digest(self._decisions),
        }
        if request.requested_by is not None:
            told["requested_by"] = request.requested_by.subject
        return Draft(E.RECOVERY_ITEM_EXECUTED, told)


def _ended_as(view: SessionView) -> Draft:
    """Return the end that the session has come to already, to be written again after its round is closed."""
    if view.status == SessionStatus.FAILED:
        return Draft(E.SESSION_FAILED, view.error or {})
    ended = {"reason": (view.interruption or {}).get("reason"), "since": view.interrupted_at}
    return Draft(E.SESSION_INTERRUPTED, ended)
