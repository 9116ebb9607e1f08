"""The evaluator that comes with Cayu: compares a session's last answer with what its case expects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cayu.canonical import fingerprint
from cayu.clock import MILLI, as_datetime
from cayu.errors import InvalidInput, InvalidSessionLog
from cayu.evals.cases import EvalCase, EvalCaseContractV1
from cayu.evals.results import EvalAssertion, EvalTrialResult
from cayu.evals.scoring import AnswerScoring, score_answer
from cayu.interventions.results import MemoryInterventionRuntimeResult
from cayu.memory.capabilities import MemoryInterventionEvaluator
from cayu.recall.attribution import items_seen
from cayu.sessions.fold import fold
from cayu.sessions.streams import SessionStore
from cayu.snapshots.records import AgentSnapshotTerminalDisposition

BEHAVIOUR = "1"
"""Rises when the same answer would get another result."""


class AnswerEvaluator(MemoryInterventionEvaluator):
    """Scores the last answer of a session, and says whether the memories that hold the answer stood before the model.

    It computes nothing but what the session's log says, so evaluating twice gives the same result.
    """

    def __init__(
        self,
        cases: Iterable[EvalCase],
        sessions: SessionStore,
        *,
        scoring: AnswerScoring = AnswerScoring.CONTAINS,
        passing_score: float = 1.0,
        revisions: Mapping[str, int] | None = None,
    ) -> None:
        """`sessions` is where trials run; an answer passes from `passing_score` on, between 0 and 1.

        `revisions` says, by entry id, at which revision an expected entry holds its answer; others hold it at any.
        """
        listed = tuple(cases)
        self._cases = {case.case_id: case for case in listed}
        if len(self._cases) < len(listed):
            raise InvalidInput("Two cases have one id; give each its own.")
        self._sessions = sessions
        self._scoring = AnswerScoring(scoring)
        self._passing = passing_score
        if not 0 <= passing_score <= 1:
            raise InvalidInput("A passing score lies between 0 and 1.")
        self._revisions = dict(revisions or {})
        self.evaluator_fingerprint = fingerprint(
            "cayu.answer-evaluator", [BEHAVIOUR, str(self._scoring), passing_score]
        )

    async def evaluate(
        self, *, operation_id: str, case: EvalCaseContractV1, runtime: MemoryInterventionRuntimeResult
    ) -> EvalTrialResult:
        """Score one session."""
        known = self._cases.get(case.case_id)
        if known is None or known.contract != case:
            return EvalTrialResult(status="unavailable", session_id=runtime.session_id, error="unknown_case")
        loaded = await self._sessions.load(runtime.session_id)
        if loaded is None:
            return EvalTrialResult(
                status="unavailable", session_id=runtime.session_id, error="no_session", evidence_complete=False
            )
        try:
            view = fold(loaded.head.row, loaded.records)
        except InvalidSessionLog:
            return EvalTrialResult(
                status="unavailable", session_id=runtime.session_id, error="unreadable_session", evidence_complete=False
            )
        if runtime.terminal_disposition is not AgentSnapshotTerminalDisposition.COMPLETED:
            return EvalTrialResult(
                status="error", session_id=runtime.session_id, error=str(runtime.terminal_disposition)
            )
        score = score_answer(view.final_text, known.expected_answer, self._scoring)
        seen = {
            entry_id
            for source, entry_id, revision in items_seen(loaded.records)
            if source == "knowledge" and revision == self._revisions.get(entry_id, revision)
        }
        return EvalTrialResult(
            status="passed" if score >= self._passing else "failed",
            session_id=runtime.session_id,
            score=score,
            final_output=view.final_text,
            assertions=(
                EvalAssertion(name=f"answer_{self._scoring}", passed=score >= self._passing),
                EvalAssertion(name="expected_entries_seen", passed=seen.issuperset(known.expected_entries)),
            ),
            evidence_complete=runtime.terminal_evidence_available,
            usage_summary={"input_tokens": view.usage.input_tokens, "output_tokens": view.usage.output_tokens},
            memory_attribution=runtime.attribution,
            started_at=as_datetime(view.started_at),
            completed_at=as_datetime(view.updated_at),
            duration_ms=(view.updated_at - view.started_at) / MILLI,
        )

    async def recover(
        self, *, operation_id: str, case: EvalCaseContractV1, runtime: MemoryInterventionRuntimeResult
    ) -> EvalTrialResult:
        """Score the session again, with the same result."""
        return await self.evaluate(operation_id=operation_id, case=case, runtime=runtime)
