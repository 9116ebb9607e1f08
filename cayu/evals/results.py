"""The result of one trial, and its identity."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime, Field, field_validator

from cayu.canonical import fingerprint, normalise
from cayu.evals.fields import ExactBool, SessionId
from cayu.messages import Frozen
from cayu.recall.attribution import MemoryAttribution

EvalStatus = Literal["passed", "failed", "unavailable", "error", "skipped"]
_TIMES = frozenset({"started_at", "completed_at", "duration_ms"})


class EvalAssertion(Frozen):
    """One thing that was checked."""

    name: str
    passed: bool
    detail: str = ""
    """Never quotes the answer."""


class EvalTrialResult(Frozen):
    """What an evaluator found of one trial."""

    trial_number: int = Field(default=1, ge=1, strict=True)
    status: EvalStatus
    session_id: SessionId | None = None
    score: float | None = Field(default=None, ge=0.0, le=1.0, strict=True)
    final_output: str | None = None
    structured_output: Any = None
    assertions: tuple[EvalAssertion, ...] = ()
    error: str | None = None
    """Why there is no score."""
    evidence_complete: ExactBool = True
    usage_summary: dict[str, int] = {}
    memory_attribution: MemoryAttribution | None = None
    started_at: AwareDatetime | None = None
    completed_at: AwareDatetime | None = None
    duration_ms: float | None = Field(default=None, allow_inf_nan=False)

    _json = field_validator("structured_output")(normalise)


def eval_trial_result_revision(result: EvalTrialResult) -> str:
    """Return the identity of a result, 64 hexadecimal digits: everything of it but its times."""
    return fingerprint("cayu.eval-trial-result", normalise(result.model_dump(mode="json", exclude=set(_TIMES))))
