"""The journal's record: strict fields, exactly what its phase knows, and how it ends."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from interventions.support import (
    AT,
    CODES,
    KEY,
    SECRET,
    Phase,
    Status,
    digest,
    known_fields,
    make_ownership,
    make_parts,
    make_record,
    make_runtime_result,
    reached,
    record_fields,
    walk,
)
from pydantic import ValidationError

from cayu.errors import InvalidInput, MemoryInterventionExecutionConflict
from cayu.interventions.evidence import MemoryInterventionReceiptStatus as ReceiptStatus
from cayu.interventions.journal import decide_compare_and_set
from cayu.interventions.phases import FAILURE_OF, STATUS_OF_DISPOSITION, STATUS_OF_RECEIPT
from cayu.interventions.records import MemoryInterventionExecutionRecord, dispatch_operation
from cayu.interventions.requests import MemoryInterventionRequestFingerprintKey, RuntimeSessionCreateClaimReference
from cayu.snapshots.records import AgentSnapshotTerminalDisposition

pytestmark = pytest.mark.exhaustive

PHASES = list(Phase)
PARTS = make_parts()
KNOWN = known_fields(PARTS)
CONFLICT = MemoryInterventionExecutionConflict


# Fields of the record


@pytest.mark.requirement("B013")
@pytest.mark.parametrize("value", ["", " ", "\n", " padded", "padded ", "line\n", None, 7, True, b"bytes"])
@pytest.mark.parametrize(
    "name, most",
    [
        *((name, 256) for name in ("execution_id", "request_key_id", "candidate_id", "trial_id", "case_id")),
        *(("overlay_provider_id", 256), ("session_id", 512), ("causal_budget_id", 512)),
    ],
)
def test_ids_are_strict_and_bounded(name: str, most: int, value: object) -> None:
    assert getattr(make_record(**{name: "x" * most}), name) == "x" * most
    assert getattr(make_record(**{name: "ü" * most}), name) == "ü" * most
    for wrong in (value, "x" * (most + 1)):
        with pytest.raises(ValidationError, match=name):
            make_record(**{name: wrong})


@pytest.mark.requirement("B014")
@pytest.mark.parametrize("value", [-1, True, False, 0.0, 1.0, "1", None])
def test_a_revision_is_a_whole_number_from_0_on(value: object) -> None:
    assert make_record(revision=0).revision == 0
    with pytest.raises(ValidationError, match="revision"):
        make_record(revision=value)


@pytest.mark.requirement("B014")
def test_a_revision_rises_by_one_per_step() -> None:
    records = walk()
    assert [record.revision for record in records] == list(range(7))
    first, second = records[:2]
    assert decide_compare_and_set(first, first, second, AT) == second
    for revision in (0, 2, 7):
        skipping = second.model_copy(update={"revision": revision})
        with pytest.raises(CONFLICT, match=f"revision {revision} does not follow 0"):
            decide_compare_and_set(first, first, skipping, AT)


FINGERPRINTS = [
    *("request_fingerprint", "spec_fingerprint", "case_revision", "required_execution_profile_fingerprint"),
    *("runtime_execution_profile_fingerprint", "overlay_provider_fingerprint", "runtime_runner_fingerprint"),
    *("evaluator_fingerprint", "materialization_fingerprint", "trial_binding_fingerprint", "operation_fingerprint"),
    *("receipt_fingerprint", "runtime_evidence_fingerprint", "runtime_result_fingerprint", "eval_result_revision"),
    *("snapshot_result_fingerprint", "final_binding_fingerprint"),
]


@pytest.mark.requirement("B015")
@pytest.mark.parametrize("name", FINGERPRINTS)
def test_fingerprints_are_well_formed(name: str) -> None:
    final = record_fields(Phase.FINALIZED)
    wrong: list[Any] = ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n", " " + "a" * 63, b"a" * 64, 7]
    for value in wrong:
        with pytest.raises(ValidationError, match=name):
            MemoryInterventionExecutionRecord(**(final | {name: value}))


def test_no_fingerprint_of_the_record_is_forgotten() -> None:
    fields = MemoryInterventionExecutionRecord.model_fields
    assert [name for name in fields if name.endswith(("_fingerprint", "_revision"))] == FINGERPRINTS


@pytest.mark.requirement("B015")
@pytest.mark.parametrize("name", ["created_at", "updated_at", "runtime_deadline_at"])
def test_times_know_their_zone(name: str) -> None:
    bound = record_fields(Phase.SESSION_BOUND)
    with pytest.raises(ValidationError, match=name):
        MemoryInterventionExecutionRecord(**(bound | {name: datetime(2026, 3, 2)}))
    with pytest.raises(ValidationError, match=name):
        MemoryInterventionExecutionRecord(**(bound | {name: "2026-03-02T00:00:00"}))
    elsewhere = datetime(2026, 3, 2, tzinfo=timezone(timedelta(hours=5)))
    times = {"updated_at": elsewhere, "runtime_deadline_at": elsewhere, name: elsewhere}
    assert getattr(MemoryInterventionExecutionRecord(**(bound | times)), name) == elsewhere


@pytest.mark.requirement("B015")
def test_times_are_in_order() -> None:
    assert make_record(updated_at=AT).updated_at == AT
    assert make_record(updated_at=AT.astimezone(timezone(timedelta(hours=-5)))).updated_at == AT
    with pytest.raises(ValidationError, match="updated after it was created"):
        make_record(updated_at=AT - timedelta(microseconds=1))
    with pytest.raises(ValidationError, match="updated after it was created"):
        make_record(created_at=AT + timedelta(microseconds=1))


@pytest.mark.requirement("B015")
def test_a_deadline_lies_after_the_request() -> None:
    with pytest.raises(ValidationError):
        make_record(Phase.SESSION_BOUND, runtime_deadline_at=AT - timedelta(days=1))


@pytest.mark.parametrize("name", ["runtime_cancellation_observed", "runtime_timeout_observed"])
def test_an_observed_control_is_a_real_boolean(name: str) -> None:
    assert getattr(make_record(), name) is False
    assert getattr(make_record(Phase.SESSION_BOUND, **{name: True}), name) is True
    for value in ("yes", "true", 1, 0, 1.0, None):
        with pytest.raises(ValidationError, match=name):
            make_record(Phase.SESSION_BOUND, **{name: value})


@pytest.mark.parametrize("name", ["runtime_cancellation_observed", "runtime_timeout_observed"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_control_is_observed_of_a_session_that_was_claimed(phase: Phase, name: str) -> None:
    if phase in (Phase.PREPARED, Phase.TRIAL_BOUND, Phase.EFFECT_RESOLVED):
        with pytest.raises(ValidationError, match="a control is observed"):
            make_record(phase, **{name: True})
    else:
        assert getattr(make_record(phase, **{name: True}), name) is True


# What a phase knows


@pytest.mark.requirement("B016")
@pytest.mark.parametrize("phase", PHASES)
def test_a_record_of_each_phase_is_made(phase: Phase) -> None:
    record = make_record(phase, parts=PARTS)
    given = {name for name in KNOWN if getattr(record, name) is not None}
    assert given == set(reached(phase))
    assert record.is_terminal is (phase is Phase.FINALIZED)


@pytest.mark.requirement("B016")
@pytest.mark.parametrize("phase, name", [(phase, name) for phase in PHASES for name in reached(phase)])
def test_a_record_misses_nothing_that_its_phase_knows(phase: Phase, name: str) -> None:
    with pytest.raises(ValidationError, match=f"an execution that is {phase} has a {name}"):
        make_record(phase, parts=PARTS, **{name: None})


@pytest.mark.requirement("B016")
@pytest.mark.parametrize(
    "phase, name", [(phase, name) for phase in PHASES for name in KNOWN if name not in reached(phase)]
)
def test_a_record_knows_nothing_before_its_time(phase: Phase, name: str) -> None:
    if (phase, name) == (Phase.SESSION_BOUND, "runtime_dispatch_ownership"):
        owned = make_record(phase, runtime_dispatch_ownership=make_ownership(PARTS.request.execution_id))
        assert owned.runtime_dispatch_ownership is not None
        return
    with pytest.raises(ValidationError, match=f"an execution that is {phase} has no {name}"):
        make_record(phase, parts=PARTS, **{name: KNOWN[name]})


LEGAL = {
    *((phase, Status.ACTIVE) for phase in PHASES if phase is not Phase.FINALIZED),
    *((Phase.EFFECT_RESOLVED, status) for status in (Status.CONFLICTING, Status.INDETERMINATE)),
    *((Phase.FINALIZED, status) for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)),
    *((Phase.FINALIZED, status) for status in (Status.TIMED_OUT, Status.OUTCOME_UNKNOWN)),
}
"""Every phase with the statuses that it may have."""


@pytest.mark.requirement("B006", "B016")
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("status", list(Status))
def test_each_phase_has_its_statuses_and_each_status_its_code(phase: Phase, status: Status) -> None:
    fields = record_fields(phase, status, PARTS)
    for code in {None, *CODES.values()}:
        if (phase, status) in LEGAL and code == CODES[status]:
            record = MemoryInterventionExecutionRecord(**(fields | {"failure_code": code}))
            assert record.is_terminal is (status is not Status.ACTIVE)
        else:
            with pytest.raises(ValidationError, match="an execution that is"):
                MemoryInterventionExecutionRecord(**(fields | {"failure_code": code}))


@pytest.mark.requirement("B006")
@pytest.mark.parametrize("code", ["", "runtime_completed", "RUNTIME_FAILED", 0, False])
def test_another_failure_code_is_refused(code: object) -> None:
    with pytest.raises(ValidationError, match="failure_code"):
        make_record(Phase.FINALIZED, Status.FAILED, failure_code=code)


@pytest.mark.parametrize("status", list(Status))
def test_the_status_and_the_phase_are_read_from_their_words(status: Status) -> None:
    phase = Phase.EFFECT_RESOLVED if status in (Status.CONFLICTING, Status.INDETERMINATE) else Phase.FINALIZED
    phase = Phase.PREPARED if status is Status.ACTIVE else phase
    record = make_record(phase, status)
    assert MemoryInterventionExecutionRecord.model_validate_json(record.model_dump_json()) == record
    for name in ("status", "phase"):
        with pytest.raises(ValidationError, match=name):
            type(record).model_validate({**dict(record), name: "ended"})


@pytest.mark.parametrize("state", ["active", "released", "settled"])
@pytest.mark.parametrize("phase", [Phase.SESSION_BOUND, Phase.RUNTIME_TERMINAL, Phase.EVALUATED, Phase.FINALIZED])
def test_an_ownership_is_settled_when_the_session_has_ended(phase: Phase, state: str) -> None:
    owner = make_ownership(PARTS.request.execution_id, state)
    if (phase is not Phase.SESSION_BOUND) == (state == "settled"):
        assert make_record(phase, runtime_dispatch_ownership=owner).runtime_dispatch_ownership == owner
    else:
        with pytest.raises(ValidationError, match="settled when the session has ended"):
            make_record(phase, runtime_dispatch_ownership=owner)


def test_an_ownership_and_a_claim_are_of_this_execution() -> None:
    with pytest.raises(ValidationError, match="the ownership is of another operation"):
        make_record(Phase.SESSION_BOUND, runtime_dispatch_ownership=make_ownership("another"))
    key = KEY.runtime_session_create_reference_key()
    session_id, operation = PARTS.request.session_id, PARTS.operation.fingerprint
    for given in (("another", operation), (session_id, digest("another"))):
        claim = RuntimeSessionCreateClaimReference.made(key, *given, "session-claim-1")
        with pytest.raises(ValidationError, match="claim is of another trial"):
            make_record(Phase.SESSION_BOUND, runtime_session_create_claim=claim)
    assert dispatch_operation("execution") == "execution.dispatch"


def test_a_claim_is_given_under_the_key_of_the_request() -> None:
    other = MemoryInterventionRequestFingerprintKey(key_id="another", secret=SECRET)
    claim = RuntimeSessionCreateClaimReference.made(
        other.runtime_session_create_reference_key(), PARTS.request.session_id, PARTS.operation.fingerprint, "claim"
    )
    with pytest.raises(ValidationError):
        make_record(Phase.SESSION_BOUND, runtime_session_create_claim=claim)


# What ends an execution


@pytest.mark.requirement("B048")
@pytest.mark.parametrize(
    "receipt, status, code",
    [
        ("verified_no_change", "active", None),
        ("applied", "active", None),
        ("matched_no_items", "active", None),
        ("indeterminate", "indeterminate", "intervention_indeterminate"),
        ("conflicting", "conflicting", "intervention_conflicting"),
    ],
)
def test_each_receipt_has_one_status_and_code(receipt: str, status: str, code: str | None) -> None:
    assert set(STATUS_OF_RECEIPT) == set(ReceiptStatus)
    found = STATUS_OF_RECEIPT[ReceiptStatus(receipt)]
    assert (found, FAILURE_OF[found]) == (status, code)
    assert make_record(Phase.EFFECT_RESOLVED, found, failure_code=code).status == status


@pytest.mark.requirement("B048")
@pytest.mark.parametrize(
    "disposition, status, code",
    [
        ("completed", "completed", None),
        ("failed", "failed", "runtime_failed"),
        ("cancelled", "cancelled", "runtime_cancelled"),
        ("timed_out", "timed_out", "runtime_timed_out"),
        ("outcome_unknown", "outcome_unknown", "runtime_outcome_unknown"),
    ],
)
def test_each_disposition_has_one_status_and_code(disposition: str, status: str, code: str | None) -> None:
    assert set(STATUS_OF_DISPOSITION) == set(AgentSnapshotTerminalDisposition)
    found = STATUS_OF_DISPOSITION[AgentSnapshotTerminalDisposition(disposition)]
    assert (found, FAILURE_OF[found]) == (status, code)
    parts = make_parts(disposition=disposition)
    assert make_record(Phase.FINALIZED, found, parts, failure_code=code).status == status


@pytest.mark.requirement("B006", "B048")
def test_every_status_has_its_code_and_no_table_can_be_changed() -> None:
    assert dict(FAILURE_OF) == CODES
    assert len({code for code in CODES.values() if code is not None}) == 6
    for table in (FAILURE_OF, STATUS_OF_RECEIPT, STATUS_OF_DISPOSITION):
        with pytest.raises(TypeError):
            table[next(iter(table))] = None  # type: ignore[index]


# Detached copies


@pytest.mark.requirement("B019")
def test_a_record_is_detached_from_what_it_was_made_of() -> None:
    payload = make_runtime_result().model_dump(mode="json")
    owner = make_ownership(PARTS.request.execution_id, "settled")
    claim = KNOWN["runtime_session_create_claim"].model_copy()
    fields = {"runtime_dispatch_ownership": owner, "runtime_session_create_claim": claim}
    record = make_record(Phase.RUNTIME_TERMINAL, parts=PARTS, runtime_result_payload=payload, **fields)
    before = record.model_dump_json()
    payload["session_id"] = "another"
    payload["attribution"]["receipts"].clear()
    object.__setattr__(owner, "owner_id", "another")
    object.__setattr__(claim, "claim_id", "another")
    assert record.model_dump_json() == before
    assert record.runtime_dispatch_ownership is not owner
    assert record.runtime_session_create_claim is not claim


@pytest.mark.requirement("B019")
def test_what_a_record_gives_out_is_detached() -> None:
    record = make_record(Phase.RUNTIME_TERMINAL, parts=PARTS)
    before = record.model_dump_json()
    record.model_dump()["runtime_result_payload"]["attribution"]["receipts"].clear()
    record.model_dump(mode="json")["runtime_result_payload"].clear()
    assert record.model_dump_json() == before


@pytest.mark.parametrize("payload", [[], "text", 7, {"a": float("nan")}, {1: "a"}, {"a": object()}])
def test_a_payload_is_an_object_of_json(payload: object) -> None:
    with pytest.raises((ValidationError, InvalidInput)):
        make_record(Phase.RUNTIME_TERMINAL, parts=PARTS, runtime_result_payload=payload)
