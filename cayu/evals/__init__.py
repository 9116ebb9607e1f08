"""Evaluations: cases with revisions, results with identities, and how an answer is scored."""

from cayu.evals.cases import EvalCase, EvalCaseContractV1, question_cases
from cayu.evals.evidence import EvalMemoryEvidenceLimitation, EvalMemorySourceAliasV1
from cayu.evals.results import EvalAssertion, EvalTrialResult, eval_trial_result_revision
from cayu.evals.scoring import AnswerScoring, score_answer

__all__ = [
    "AnswerScoring",
    "EvalAssertion",
    "EvalCase",
    "EvalCaseContractV1",
    "EvalMemoryEvidenceLimitation",
    "EvalMemorySourceAliasV1",
    "EvalTrialResult",
    "eval_trial_result_revision",
    "question_cases",
    "score_answer",
]
