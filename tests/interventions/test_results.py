"""Runtime results that are consistent in themselves, and outcomes whose parts are those that the record names."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from interventions.support import (
    Parts,
    Phase,
    digest,
    make_attribution,
    make_outcome,
    make_parts,
    make_record,
    make_request,
    make_runtime_result,
    make_spec,
)
from pydantic import ValidationError

from cayu.evals import EvalMemoryEvidenceLimitation, EvalMemorySourceAliasV1, EvalTrialResult
from cayu.interventions.phases import MemoryInterventionExecutionStatus as Status
from cayu.interventions.results import (
    MemoryInterventionRuntimeResult,
    MemoryInterventionTrialOutcome,
    memory_intervention_eval_result_revision,
    memory_intervention_runtime_result_fingerprint,
)
from cayu.recall.attribution import MemoryAttribution, MemoryAttributionBounds
from cayu.snapshots.records import AgentSnapshotTerminalDisposition

pytestmark = pytest.mark.exhaustive

ALIAS = EvalMemorySourceAliasV1(key_id="key-1", digest=digest("source"))
NO_EVIDENCE: dict[str, Any] = {
    "terminal_evidence_available": False,
    "terminal_evidence_limitation": "missing",
    "expected_receipt_count": None,
    "expected_exposure_count": None,
    "source_alias": None,
    "attribution": MemoryAttribution.unavailable("missing"),
    "usage_fingerprint": None,
    "cost_fingerprint": None,
}
"""What a result says of a session whose log could not be read."""


# Runtime results


def test_a_result_is_read_back_as_it_was_written() -> None:
    for result in (make_runtime_result(), make_runtime_result(**NO_EVIDENCE)):
        assert MemoryInterventionRuntimeResult.model_validate_json(result.model_dump_json()) == result
        assert MemoryInterventionRuntimeResult.model_validate(result.model_dump()) == result


@pytest.mark.requirement("B070")
@pytest.mark.parametrize("value", [1, 0, "true", "yes", 1.0, None])
def test_whether_there_is_evidence_is_a_real_boolean(value: object) -> None:
    with pytest.raises(ValidationError, match="terminal_evidence_available"):
        make_runtime_result(terminal_evidence_available=value)


@pytest.mark.requirement("B070")
@pytest.mark.parametrize("name", ["expected_receipt_count", "expected_exposure_count"])
@pytest.mark.parametrize("value", [-1, True, 1.0, "1"])
def test_counts_are_whole_numbers_from_0_on(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        make_runtime_result(**{name: value})


@pytest.mark.requirement("B013")
@pytest.mark.parametrize("value", ["", " ", " padded", "padded\n", "x" * 513, 7, b"session", None])
def test_the_session_of_a_result_has_an_id(value: object) -> None:
    assert make_runtime_result(session_id="x" * 512).session_id == "x" * 512
    with pytest.raises(ValidationError, match="session_id"):
        make_runtime_result(session_id=value)


@pytest.mark.requirement("B015")
@pytest.mark.parametrize("name", ["runtime_evidence_fingerprint", "usage_fingerprint", "cost_fingerprint"])
@pytest.mark.parametrize("value", ["", "a" * 63, "A" * 64, "a" * 64 + "\n", 7])
def test_fingerprints_of_a_result_are_well_formed(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        make_runtime_result(**{name: value})


@pytest.mark.requirement("B071")
@pytest.mark.parametrize("usage, cost", list(product((False, True), repeat=2)))
@pytest.mark.parametrize("available", [False, True])
def test_a_result_has_exactly_the_evidence_that_it_says(available: bool, usage: bool, cost: bool) -> None:
    """Each combination of what may be there; the legal ones are counted by name."""
    for limited, receipts, exposures, aliased, attributed in product((False, True), repeat=5):
        fields: dict[str, Any] = {
            "terminal_evidence_available": available,
            "terminal_evidence_limitation": "missing" if limited else None,
            "expected_receipt_count": 1 if receipts else None,
            "expected_exposure_count": 1 if exposures else None,
            "source_alias": ALIAS if aliased else None,
            "attribution": make_attribution() if attributed else MemoryAttribution.unavailable("missing"),
            "usage_fingerprint": digest("usage") if usage else None,
            "cost_fingerprint": digest("cost") if cost else None,
        }
        if available:
            legal = not limited and receipts and exposures and aliased and attributed
        else:
            legal = limited and not (receipts or exposures or aliased or attributed or usage or cost)
        if legal:
            assert make_runtime_result(**fields).terminal_evidence_available is available
        else:
            with pytest.raises(ValidationError):
                make_runtime_result(**fields)


@pytest.mark.requirement("B071")
@pytest.mark.parametrize("limitation", list(EvalMemoryEvidenceLimitation))
def test_each_limitation_explains_missing_evidence(limitation: str) -> None:
    result = make_runtime_result(**(NO_EVIDENCE | {"terminal_evidence_limitation": limitation}))
    assert result.terminal_evidence_limitation == limitation


@pytest.mark.requirement("B071")
@pytest.mark.parametrize("status, available", [("complete", True), ("truncated", True), ("unavailable", False)])
def test_an_attribution_is_unavailable_exactly_when_the_evidence_is(status: str, available: bool) -> None:
    attribution = MemoryAttribution(status=status)
    for with_evidence in (True, False):
        fields = {} if with_evidence else NO_EVIDENCE
        counts = {"expected_receipt_count": 0, "expected_exposure_count": 0} if with_evidence else {}
        if with_evidence is available:
            assert make_runtime_result(**(fields | counts | {"attribution": attribution})).attribution == attribution
        else:
            with pytest.raises(ValidationError, match="unavailable exactly when the evidence is"):
                make_runtime_result(**(fields | counts | {"attribution": attribution}))


def counted(kind: str, status: str, observed: int, omitted: int) -> MemoryAttribution:
    """An attribution that saw and left out so many receipts or exposures."""
    fields = {f"observed_{kind}s": observed, f"omitted_{kind}s_at_least": omitted}
    others = {"observed_receipts": 0, "observed_exposures": 0, "receipts": (), "exposures": ()}
    return make_attribution(**(others | {"status": status, "truncated": status == "truncated"} | fields))


@pytest.mark.requirement("B071")
@pytest.mark.parametrize("kind", ["receipt", "exposure"])
@pytest.mark.parametrize("status", ["complete", "truncated", "contradictory", "redacted"])
def test_an_attribution_agrees_with_what_the_log_holds(kind: str, status: str) -> None:
    for expected, observed, omitted in product(range(4), repeat=3):
        counts = {"expected_receipt_count": 0, "expected_exposure_count": 0, f"expected_{kind}_count": expected}
        fields: dict[str, Any] = {**counts, "attribution": counted(kind, status, observed, omitted)}
        legal = observed + omitted <= expected and (status != "complete" or observed == expected)
        if legal:
            assert make_runtime_result(**fields).attribution.status == status
        else:
            with pytest.raises(ValidationError, match="does not agree with what the log holds"):
                make_runtime_result(**fields)


@pytest.mark.requirement("B071")
@pytest.mark.parametrize("name", ["max_receipts", "max_exposures"])
def test_an_attribution_keeps_within_its_bounds(name: str) -> None:
    assert make_runtime_result(effective_attribution_bounds=MemoryAttributionBounds(**{name: 1}))
    with pytest.raises(ValidationError, match="more than its bounds admit"):
        make_runtime_result(effective_attribution_bounds=MemoryAttributionBounds(**{name: 0}))


@pytest.mark.requirement("B019")
def test_a_result_is_detached_from_its_parts() -> None:
    attribution, bounds = make_attribution(), MemoryAttributionBounds()
    result = make_runtime_result(attribution=attribution, effective_attribution_bounds=bounds, source_alias=ALIAS)
    before = result.model_dump_json()
    assert result.attribution is not attribution
    assert result.attribution.receipts[0] is not attribution.receipts[0]
    assert result.effective_attribution_bounds is not bounds
    assert result.source_alias is not ALIAS
    object.__setattr__(attribution.receipts[0], "considered", 99)
    object.__setattr__(bounds, "max_items", 7)
    assert result.model_dump_json() == before


OTHERS: dict[str, Any] = {
    "session_id": "another",
    "terminal_disposition": "failed",
    "runtime_evidence_fingerprint": digest("another"),
    "effective_attribution_bounds": MemoryAttributionBounds(max_items=7),
    "source_alias": EvalMemorySourceAliasV1(key_id="key-2", digest=digest("source")),
    "usage_fingerprint": None,
    "cost_fingerprint": digest("cost"),
    "expected_receipt_count": 2,
    "expected_exposure_count": 2,
}


@pytest.mark.requirement("B052")
@pytest.mark.parametrize("name", OTHERS)
def test_every_field_of_a_result_is_in_its_fingerprint(name: str) -> None:
    fields = {"attribution": make_attribution(status="truncated", truncated=True)}
    first, other = make_runtime_result(**fields), make_runtime_result(**(fields | {name: OTHERS[name]}))
    fingerprint = memory_intervention_runtime_result_fingerprint(first)
    assert re.fullmatch(r"[0-9a-f]{64}", fingerprint)
    assert memory_intervention_runtime_result_fingerprint(other) != fingerprint


@pytest.mark.requirement("B052")
def test_a_result_that_was_stored_has_the_same_fingerprint() -> None:
    for disposition in AgentSnapshotTerminalDisposition:
        result = make_runtime_result(terminal_disposition=disposition)
        stored = MemoryInterventionRuntimeResult.model_validate_json(result.model_dump_json())
        found = memory_intervention_runtime_result_fingerprint(stored)
        assert found == memory_intervention_runtime_result_fingerprint(result)


# Outcomes


def outcome(parts: Parts, phase: Phase, **others: Any) -> MemoryInterventionTrialOutcome:
    """The outcome of a trial at a phase, with the parts that are known by then unless others are given."""
    order = list(Phase)
    known = {
        "receipt": (parts.receipt, Phase.EFFECT_RESOLVED),
        "eval_result": (parts.evaluation, Phase.EVALUATED),
        "snapshot_result": (parts.result, Phase.FINALIZED),
        "binding": (parts.binding, Phase.FINALIZED),
    }
    here = order.index(phase)
    found = {name: part for name, (part, since) in known.items() if order.index(since) <= here}
    return MemoryInterventionTrialOutcome(execution=make_record(phase, parts=parts), **(found | others))


@pytest.mark.requirement("B072")
@pytest.mark.parametrize("phase", list(Phase))
def test_an_outcome_has_exactly_the_parts_of_its_phase(phase: Phase) -> None:
    parts = make_parts()
    whole = {
        "receipt": parts.receipt,
        "eval_result": parts.evaluation,
        "snapshot_result": parts.result,
        "binding": parts.binding,
    }
    made = outcome(parts, phase)
    present = {name for name in whole if getattr(made, name) is not None}
    for name, part in whole.items():
        with pytest.raises(ValidationError, match="is another one, or missing"):
            outcome(parts, phase, **{name: None if name in present else part})


@pytest.mark.requirement("B072")
@pytest.mark.parametrize("name", ["receipt", "eval_result", "snapshot_result", "binding"])
def test_an_outcome_refuses_a_part_of_another_trial(name: str) -> None:
    parts, other = make_parts(), make_parts(make_request(make_spec("omit_items"), trial_id="trial-2"))
    theirs = {"receipt": other.receipt, "snapshot_result": other.result, "binding": other.binding}
    theirs["eval_result"] = EvalTrialResult(status="failed", session_id=parts.request.session_id, score=0.0)
    with pytest.raises(ValidationError, match="is another one, or missing"):
        outcome(parts, Phase.FINALIZED, **{name: theirs[name]})


@pytest.mark.requirement("B072")
def test_an_evaluation_is_of_the_executions_session() -> None:
    parts = make_parts()
    for session_id, legal in ((parts.request.session_id, True), (None, True), ("another", False)):
        evaluation = parts.evaluation.model_copy(update={"session_id": session_id})
        revision = memory_intervention_eval_result_revision(evaluation)
        record = make_record(Phase.EVALUATED, parts=parts, eval_result_revision=revision)
        fields: dict[str, Any] = {"execution": record, "receipt": parts.receipt, "eval_result": evaluation}
        if legal:
            assert MemoryInterventionTrialOutcome(**fields).eval_result == evaluation
        else:
            with pytest.raises(ValidationError, match="of another session"):
                MemoryInterventionTrialOutcome(**fields)


@pytest.mark.requirement("B072")
@pytest.mark.parametrize("status", [Status.CONFLICTING, Status.INDETERMINATE])
def test_the_outcome_of_a_refused_effect_is_its_receipt(status: Status) -> None:
    parts = make_parts(make_request(make_spec("omit_items")), receipt_status=str(status))
    record = make_record(Phase.EFFECT_RESOLVED, status, parts)
    made = MemoryInterventionTrialOutcome(execution=record, receipt=parts.receipt)
    assert (made.receipt, made.eval_result, made.snapshot_result, made.binding) == (parts.receipt, None, None, None)


def test_an_outcome_is_read_back_as_it_was_written() -> None:
    made = make_outcome()
    assert MemoryInterventionTrialOutcome.model_validate_json(made.model_dump_json()) == made


@pytest.mark.requirement("B019")
def test_an_outcome_is_detached_from_its_parts() -> None:
    evaluation = EvalTrialResult(
        status="passed",
        session_id=make_request().session_id,
        structured_output={"deep": [1]},
        usage_summary={"input_tokens": 1},
    )
    parts = make_parts()
    revision = memory_intervention_eval_result_revision(evaluation)
    record = make_record(Phase.EVALUATED, parts=parts, eval_result_revision=revision)
    made = MemoryInterventionTrialOutcome(execution=record, receipt=parts.receipt, eval_result=evaluation)
    before = made.model_dump_json()
    evaluation.structured_output["deep"].append(2)
    evaluation.usage_summary["input_tokens"] = 2
    assert record.runtime_result_payload is not None
    record.runtime_result_payload["session_id"] = "another"
    object.__setattr__(parts.receipt, "requested_count", 9)
    assert made.model_dump_json() == before
