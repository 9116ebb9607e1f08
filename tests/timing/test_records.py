"""Records hold numbers that can have been measured, whoever makes them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from cayu.observability import ModelStepPreparationTiming, RuntimePhaseTiming, ToolRoundTiming

AT = datetime(2030, 1, 1, tzinfo=UTC)
SECONDS = [name for name in RuntimePhaseTiming.model_fields if name.endswith("_seconds")]
COUNTS = ["store_transaction_count", "store_bytes_written"]
IMPOSSIBLE = [-1e-9, -1.0, -math.inf, math.inf, math.nan]
WHOLE: dict[str, Any] = {"session_id": "s", "model_step_id": "i.m1", "started_at": AT, "completed_at": AT, "phases": ()}


def a_round(**fields: Any) -> ToolRoundTiming:
    return ToolRoundTiming(tool_round_id="i.r1", model_attempt_id="i.m1.a1", **(WHOLE | fields))


@pytest.mark.parametrize("number", IMPOSSIBLE)
@pytest.mark.parametrize("name", SECONDS)
def test_a_phase_refuses_seconds_that_cannot_be(name: str, number: float) -> None:
    with pytest.raises(ValidationError, match=name):
        RuntimePhaseTiming.model_validate({"name": "execution", name: number})
    assert getattr(RuntimePhaseTiming.model_validate({"name": "execution", name: 0.0}), name) == 0


@pytest.mark.parametrize("number", [-1, 0.5, math.inf, math.nan])
@pytest.mark.parametrize("name", COUNTS)
def test_a_phase_refuses_counts_that_cannot_be(name: str, number: float) -> None:
    with pytest.raises(ValidationError, match=name):
        RuntimePhaseTiming.model_validate({"name": "execution", name: number})
    assert getattr(RuntimePhaseTiming.model_validate({"name": "execution", name: 0}), name) == 0


@pytest.mark.parametrize("number", IMPOSSIBLE)
def test_a_record_refuses_a_duration_that_cannot_be(number: float) -> None:
    for kind in (a_round, lambda **fields: ModelStepPreparationTiming(**(WHOLE | fields))):
        with pytest.raises(ValidationError, match="duration_seconds"):
            kind(duration_seconds=number)
        assert kind(duration_seconds=0.0).duration_seconds == 0


def test_a_round_refuses_a_negative_number_of_calls() -> None:
    with pytest.raises(ValidationError, match="calls_truncated"):
        a_round(duration_seconds=1.0, calls_truncated=-1)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "-0.1"])
def test_a_stored_record_with_such_a_number_is_not_read(text: str) -> None:
    good = a_round(duration_seconds=1.5).model_dump_json()
    assert '"duration_seconds":1.5' in good
    with pytest.raises(ValidationError, match="duration_seconds"):
        ToolRoundTiming.model_validate_json(good.replace('"duration_seconds":1.5', f'"duration_seconds":{text}'))
