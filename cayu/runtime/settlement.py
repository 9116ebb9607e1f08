"""Settling calls whose outcome is not known: by a registered reconciler, a receipt, or an operator's decision.

Evidence is checked before anything is written. Evidence that contradicts other evidence is an error, and no outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from cayu.canonical import dumps, fingerprint, loads, same
from cayu.effects import EffectOutcome, idempotency_key
from cayu.errors import ContradictoryEvidence, InvalidSessionLog
from cayu.events import EventType as E
from cayu.runtime.config import RuntimeConfig
from cayu.runtime.invoke import CUT_OFF_HERE, kept_outcome
from cayu.runtime.registry import Assembly
from cayu.sessions.fold import fold
from cayu.sessions.plans import RecoveryAction, RecoveryDecision
from cayu.sessions.projection import Draft
from cayu.sessions.recovery import UNFINISHED
from cayu.sessions.requests import ResolutionActor
from cayu.sessions.streams import SessionStore, StreamRow
from cayu.sessions.texts import SETTLED
from cayu.sessions.view import CallResult, CallView
from cayu.shielding import is_cancelling
from cayu.tools.reconcilers import Reconciliation, ReconciliationRequest
from cayu.tools.spec import ToolResult
from cayu.tools.subagents import (
    ANSWERS,
    SubagentTool,
    child_outcome,
    child_result,
    child_session_id,
)

logger = logging.getLogger("cayu.runtime")

NOT_KNOWN = Reconciliation(outcome=EffectOutcome.UNKNOWN)


class Settler:
    """Finds out what became of calls of one session."""

    def __init__(
        self,
        row: StreamRow,
        assembly: Assembly,
        config: RuntimeConfig,
        store: SessionStore,
    ) -> None:
        self._row = row
        self._store = store
        self._assembly = assembly
        self._config = config

    async def by_reconciler(self, round_id: str, call: CallView) -> list[Draft]:
        """Ask the registered reconciler; return what settles the call, nothing where its outcome is not known."""
        found = await self._ask(round_id, call, None)
        if found.outcome is EffectOutcome.UNKNOWN:
            return []
        return [self._settled(call, found, "reconciler", f"the reconciler of {call.name}")]

    async def by_decisions(
        self,
        round_id: str,
        calls: Sequence[CallView],
        decisions: Sequence[RecoveryDecision],
        actor: ResolutionActor | None,
    ) -> list[Draft]:
        """Return what settles calls as an operator decided.

        Raises `ContradictoryEvidence` for a receipt of another call, and for a decision that a reconciler denies.
        """
        drafts = []
        for decision in decisions:
            call = next(call for call in calls if call.id == decision.tool_call_id)
            drafts.append(await self._decided(round_id, call, decision, actor))
        return drafts

    async def _decided(
        self, round_id: str, call: CallView, decision: RecoveryDecision, actor: ResolutionActor | None
    ) -> Draft:
        completed = decision.action is RecoveryAction.TOOL_MARK_COMPLETED
        outcome = EffectOutcome.COMPLETED if completed else EffectOutcome.FAILED
        if decision.receipt is not None:
            key = idempotency_key(self._row.instance_id, round_id, call.id)
            if not same(decision.receipt.idempotency_key, key):
                raise self._contradiction(call, "the receipt names the idempotency key of another call")
            if not same(decision.receipt.arguments_digest, call.digest):
                raise self._contradiction(call, "the receipt names other arguments")
        asked = await self._ask(round_id, call, decision)
        if asked.outcome not in (EffectOutcome.UNKNOWN, outcome):
            raise self._contradiction(call, f"its reconciler answers {asked.outcome}")
        given = decision.content is not None or decision.structured is not None
        result = ToolResult(content=decision.content or "", structured=decision.structured) if given else asked.result
        reference = decision.receipt.reference if decision.receipt else asked.reference
        found = Reconciliation(outcome=outcome, result=result, reference=reference)
        source = "receipt" if decision.receipt is not None else "operator"
        draft = self._settled(call, found, source, actor.subject if actor else "an unnamed operator")
        if decision.reason:
            draft.payload["reason"] = decision.reason
        if actor is not None:
            draft.payload["resolved_by"] = actor.model_dump(mode="json", exclude_none=True)
        return draft

    def _contradiction(self, call: CallView, reason: str) -> ContradictoryEvidence:
        return ContradictoryEvidence(session_id=self._row.id, tool_call_id=call.id, reason=reason)

    async def _ask(self, round_id: str, call: CallView, decision: RecoveryDecision | None) -> Reconciliation:
        reconciler = self._assembly.reconcilers.get(call.name)
        if reconciler is None:
            return await self._child(call)
        request = ReconciliationRequest(
            session_id=self._row.id,
            agent_name=self._row.agent_name,
            tool_name=call.name,
            tool_call_id=call.id,
            tool_round_id=round_id,
            effect=call.effect,
            arguments=loads(dumps(call.arguments)),  # the reconciler's own, to do with as it likes
            arguments_digest=call.digest,
            idempotency_key=idempotency_key(self._row.instance_id, round_id, call.id),
            attempt=call.attempt,
            receipt=decision.receipt if decision else None,
        )
        try:
            async with asyncio.timeout(self._config.reconcile_timeout_seconds):
                answer: object = await reconciler.reconcile(request)
        except asyncio.CancelledError:
            if is_cancelling():
                raise
            answer = None
        except Exception as error:  # noqa: BLE001 - a reconciler that fails has found nothing out
            logger.warning(
                "the reconciler of %s failed in session %s: %s", call.name, self._row.id, type(error).__name__
            )
            return NOT_KNOWN
        if isinstance(answer, Reconciliation):
            early = answer.outcome is EffectOutcome.FAILED and call.id in CUT_OFF_HERE
            return NOT_KNOWN if early else answer
        logger.error("the reconciler of %s answered no Reconciliation in session %s", call.name, self._row.id)
        return NOT_KNOWN

    async def _child(self, call: CallView) -> Reconciliation:
        """Answer from the session whose answer is the call's result, and from no other that works for it."""
        loaded = await self._store.load(child_session_id(call.id))
        if loaded is None:
            never = isinstance(self._assembly.tools.get(call.name), SubagentTool) and call.id not in CUT_OFF_HERE
            return Reconciliation(outcome=EffectOutcome.FAILED) if never else NOT_KNOWN
        row = loaded.head.row
        answers = (row.metadata or {}).get(ANSWERS)
        if not isinstance(answers, dict) or answers.get("call") != call.id or row.parent_session_id != self._row.id:
            return NOT_KNOWN
        try:
            view = fold(row, loaded.records)
        except InvalidSessionLog:
            return NOT_KNOWN
        if view.status in UNFINISHED or view.open_round is not None:
            return NOT_KNOWN
        result = child_result(child_outcome(view), answers["characters"])
        return Reconciliation(outcome=EffectOutcome.COMPLETED, result=result, reference=row.instance_id)

    def _settled(self, call: CallView, found: Reconciliation, source: str, by: str) -> Draft:
        failed = found.outcome is EffectOutcome.FAILED
        code, result = ("settled_failed" if failed else None), CallResult(SETTLED[found.outcome], is_error=failed)
        if found.result is not None:
            tool = self._assembly.tools.get(call.name)
            bound = tool.spec.max_terminal_payload_bytes if tool is not None else None
            kept = kept_outcome(found.result, bound or self._config.max_result_bytes)
            code, result = kept.code, kept.result
        payload: dict[str, Any] = {
            "tool_call_id": call.id,
            "tool_name": call.name,
            "action": call.recovery_id,
            "outcome": str(found.outcome),
            "source": source,
            "by": by,
            "decided_digest": fingerprint("cayu.effect-settlement", [found.outcome, result.content, result.structured]),
            "content": result.content,
        }
        optional = {
            "structured": result.structured,
            "artifacts": list(result.artifacts) or None,
            "is_error": result.is_error or None,
            "code": code,
            "reference": found.reference,
        }
        return Draft(
            E.EFFECT_RECONCILED, payload | {name: value for name, value in optional.items() if value is not None}
        )
