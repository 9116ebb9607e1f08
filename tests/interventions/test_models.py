"""Every record that an execution is made of: closed to unknown fields, frozen, exact about version and type."""

from __future__ import annotations

import pytest
from interventions.support import (
    AT,
    Phase,
    digest,
    make_outcome,
    make_ownership,
    make_parts,
    make_record,
    make_request,
    make_spec,
)
from pydantic import BaseModel, ValidationError

import cayu.memory
from cayu.interventions.base import ExecutionModel
from cayu.interventions.comparability import MemoryInterventionComparability
from cayu.interventions.evidence import MemoryInterventionIsolationAuthority
from cayu.interventions.journal import MemoryInterventionRuntimeOwnershipResult
from cayu.interventions.ownership import DurableOperationOwnershipResult, DurableOperationOwnershipTransition
from cayu.interventions.records import MemoryInterventionExecutionRecord
from cayu.memory import MemoryInterventionExecutorAuthority
from cayu.snapshots.profiles import AgentSnapshotExecutionProfileRef

pytestmark = pytest.mark.exhaustive

PARTS = make_parts()


def examples() -> list[BaseModel]:
    """One record of each kind that an execution is made of."""
    request = make_request(make_spec("replace_items"))
    parts = make_parts(request)
    record = make_record(
        Phase.SESSION_BOUND, parts=parts, runtime_dispatch_ownership=make_ownership(request.execution_id)
    )
    owner, claim = record.runtime_dispatch_ownership, record.runtime_session_create_claim
    assert owner is not None
    assert claim is not None
    result = DurableOperationOwnershipResult(disposition="acquired", observed_at=AT, ownership=owner)  # type: ignore[arg-type]
    change = request.spec.changes[0]
    assert change.fixture is not None
    return [
        *(request, record, parts.runtime, make_outcome(), request.spec, request.spec.bounds, change, change.fixture),
        *(parts.operation, parts.receipt, parts.binding, parts.trial, parts.result, parts.materialization),
        *(owner, claim, result, MemoryInterventionRuntimeOwnershipResult(execution=record, ownership=result)),
        DurableOperationOwnershipTransition(operation_id="o", claim_id="c", owner_id="w", action="claim"),
        MemoryInterventionComparability.create(baseline=PARTS.binding, intervention=parts.binding),
        MemoryInterventionIsolationAuthority(
            materialization_fingerprint=parts.materialization.fingerprint,
            memory_overlay_fingerprint=parts.operation.memory_overlay_fingerprint,
            state_scope_id=parts.operation.state_scope_id,
        ),
        MemoryInterventionExecutorAuthority(
            overlay_provider_id="overlay",
            overlay_provider_fingerprint=digest("overlay provider"),
            runtime_runner_fingerprint=digest("runner"),
            evaluator_fingerprint=digest("evaluator"),
        ),
        AgentSnapshotExecutionProfileRef.made(()),
        request.case,
    ]


EXAMPLES = {type(each).__name__: each for each in examples()}


def test_there_is_an_example_of_every_execution_model() -> None:
    ours = {each.__name__ for each in ExecutionModel.__subclasses__()}
    assert ours <= set(EXAMPLES)
    public = {getattr(cayu.memory, name) for name in cayu.memory.__all__}
    models = {each.__name__ for each in public if isinstance(each, type) and issubclass(each, BaseModel)}
    assert models <= set(EXAMPLES)


@pytest.mark.requirement("B010")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_unknown_field_is_refused(name: str) -> None:
    record = EXAMPLES[name]
    assert type(record).model_validate(dict(record)) == record
    for unknown in ("unexpected", "metadata", ""):
        with pytest.raises(ValidationError, match="Extra inputs are not permitted") as caught:
            type(record).model_validate({**dict(record), unknown: "private words"})
        assert "private words" not in str(caught.value)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_record_is_frozen_and_is_read_back_as_it_was_written(name: str) -> None:
    record = EXAMPLES[name]
    assert type(record).model_validate_json(record.model_dump_json()) == record
    for field in type(record).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(record, field, getattr(record, field))


VERSIONS = {
    **dict.fromkeys(("MemoryInterventionTrialRequest", "MemoryInterventionSpec", "MemoryInterventionOperation"), 1),
    **dict.fromkeys(("MemoryInterventionReceipt", "MemoryInterventionTrialBinding"), 1),
    **dict.fromkeys(("MemoryInterventionExecutorAuthority", "AgentSnapshotExecutionProfileRef"), 1),
    "MemoryInterventionExecutionRecord": 2,
}


@pytest.mark.requirement("B009")
def test_every_record_with_a_version_is_known() -> None:
    found = {name: each.schema_version for name, each in EXAMPLES.items() if hasattr(each, "schema_version")}
    assert found == VERSIONS


@pytest.mark.requirement("B009")
@pytest.mark.parametrize("value", [True, False, 0, 1, 2, 3, -1, 1.0, 2.0, "1", "2", "1.0", None, b"1"])
@pytest.mark.parametrize("name", VERSIONS)
def test_a_version_is_its_exact_number(name: str, value: object) -> None:
    record = EXAMPLES[name]
    if type(value) is int and value == VERSIONS[name]:
        assert type(record).model_validate({**dict(record), "schema_version": value}) == record
        return
    with pytest.raises(ValidationError, match="schema_version"):
        type(record).model_validate({**dict(record), "schema_version": value})


@pytest.mark.requirement("B009")
@pytest.mark.parametrize("written", ["true", "1.0", "2.0", "2e0", '"2"', "null", "3"])
def test_a_version_that_comes_in_as_json_is_its_exact_number(written: str) -> None:
    record = make_record()
    text = record.model_dump_json().replace('"schema_version":2', f'"schema_version":{written}')
    with pytest.raises(ValidationError, match="schema_version"):
        MemoryInterventionExecutionRecord.model_validate_json(text)


TYPES = {
    "MemoryInterventionExecutionRecord": "cayu.memory-intervention-execution",
    "MemoryInterventionSpec": "cayu.memory-intervention-spec",
    "MemoryInterventionOperation": "cayu.memory-intervention-operation",
    "MemoryInterventionReceipt": "cayu.memory-intervention-receipt",
    "MemoryInterventionTrialBinding": "cayu.memory-intervention-trial",
}


@pytest.mark.requirement("B011")
@pytest.mark.parametrize("name", TYPES)
def test_a_record_type_is_one_word(name: str) -> None:
    record = EXAMPLES[name]
    assert record.record_type == TYPES[name]  # type: ignore[attr-defined]
    for value in ("", "cayu.memory-intervention", TYPES[name].upper(), f" {TYPES[name]}", None, 1, b"x"):
        with pytest.raises(ValidationError, match="record_type"):
            type(record).model_validate({**dict(record), "record_type": value})
