"""A result's revision is everything of it but its times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from cayu.evals import EvalAssertion, EvalTrialResult, eval_trial_result_revision
from cayu.recall import MemoryAttribution, MemoryExposure

RESULT = EvalTrialResult(
    status="passed",
    session_id="s",
    score=0.5,
    final_output="four degrees",
    structured_output={"degrees": 4},
    assertions=(EvalAssertion(name="score", passed=True),),
    usage_summary={"input_tokens": 1},
    memory_attribution=MemoryAttribution(status="complete"),
    started_at=datetime(2030, 1, 1, tzinfo=UTC),
    completed_at=datetime(2030, 1, 2, tzinfo=UTC),
    duration_ms=1.0,
)
OTHER: dict[str, Any] = {
    "trial_number": 2,
    "status": "failed",
    "session_id": "t",
    "score": 0.25,
    "final_output": "four degrees.",
    "structured_output": {"degrees": 5},
    "assertions": (EvalAssertion(name="score", passed=False),),
    "error": "timed_out",
    "evidence_complete": False,
    "usage_summary": {"input_tokens": 2},
    "memory_attribution": MemoryAttribution(
        status="complete", observed_exposures=1, exposures=(MemoryExposure(step=1, origin="tool"),)
    ),
}
TIMES: dict[str, Any] = {
    "started_at": datetime(2031, 1, 1, tzinfo=UTC),
    "completed_at": None,
    "duration_ms": 2.0,
}


def revised(**fields: Any) -> str:
    return eval_trial_result_revision(RESULT.model_copy(update=fields))


def test_every_field_is_one_or_the_other() -> None:
    assert OTHER.keys() | TIMES.keys() == EvalTrialResult.model_fields.keys()
    assert not OTHER.keys() & TIMES.keys()


@pytest.mark.parametrize("name", OTHER)
def test_the_revision_covers_what_was_found(name: str) -> None:
    assert revised(**{name: OTHER[name]}) != revised()


@pytest.mark.parametrize("name", TIMES)
def test_the_revision_covers_no_time(name: str) -> None:
    assert revised(**{name: TIMES[name]}) == revised()


def test_the_revision_is_a_fingerprint_and_survives_a_file() -> None:
    assert len(revised()) == 64
    assert eval_trial_result_revision(EvalTrialResult.model_validate_json(RESULT.model_dump_json())) == revised()


def test_the_detail_of_an_assertion_counts() -> None:
    assert revised(assertions=(EvalAssertion(name="score", passed=True, detail="of 2"),)) != revised()


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "perfect"},
        {"score": 1.01},
        {"score": -0.01},
        {"score": float("nan")},
        {"trial_number": 0},
        {"trial_number": True},
        {"trial_number": 1.0},
        {"session_id": " s"},
        {"session_id": "s" * 513},
        {"verdict": "passed"},
    ],
    ids=lambda wrong: str(wrong)[:30],
)
def test_a_result_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        EvalTrialResult.model_validate(RESULT.model_dump() | wrong)


def test_a_structured_output_is_json_and_detached() -> None:
    given = {"a": (1, 2)}
    result = EvalTrialResult(status="passed", structured_output=given)
    given["a"] = (3,)
    assert result.structured_output == {"a": [1, 2]}
    for wrong in (float("nan"), {1: 2}, object()):
        with pytest.raises((ValidationError, ValueError)):
            EvalTrialResult(status="passed", structured_output=wrong)
