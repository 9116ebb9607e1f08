"""Evidence of one trial: operations, receipts that agree with their status, bindings of parts that belong together."""

from __future__ import annotations

from typing import Any

import pytest
from interventions.support import (
    KEY,
    Parts,
    digest,
    make_attribution,
    make_parts,
    make_receipt,
    make_request,
    make_spec,
)
from pydantic import ValidationError

from cayu.interventions.evidence import (
    MemoryInterventionIsolationAuthority,
    MemoryInterventionOperation,
    MemoryInterventionReceipt,
    MemoryInterventionTrialBinding,
    revision_fingerprint,
)
from cayu.interventions.evidence import MemoryInterventionReceiptStatus as ReceiptStatus
from cayu.interventions.requests import RuntimeSessionCreateClaimReference, RuntimeSessionCreateClaimReferenceKey
from cayu.interventions.specs import MemoryInterventionChange
from cayu.recall.attribution import MemoryAttribution

pytestmark = pytest.mark.exhaustive

REVISIONS = tuple(digest(f"revision {each}") for each in range(4))
EFFECTS = tuple(digest(f"effect {each}") for each in range(4))


def receipt(status: str, requested: Any, matched: Any, changed: Any, **fields: Any) -> MemoryInterventionReceipt:
    common: dict[str, Any] = {
        "operation_fingerprint": digest("operation"),
        "memory_overlay_fingerprint": digest("overlay"),
        "status": ReceiptStatus(status),
        "requested_count": requested,
        "matched_count": matched,
        "changed_count": changed,
    }
    if type(changed) is int and changed >= 0:
        common |= {"changed_revision_fingerprints": REVISIONS[:changed], "effect_fingerprints": EFFECTS[:changed]}
    return MemoryInterventionReceipt.create(**(common | fields))


def is_legal(status: str, requested: int, matched: int, changed: int) -> bool:
    """Whether a receipt may say so, spelled out status by status."""
    match status:
        case "verified_no_change":
            return (requested, matched, changed) == (0, 0, 0)
        case "applied":
            return requested == matched == changed > 0
        case "matched_no_items":
            return requested > 0 and (matched, changed) == (0, 0)
    return requested >= matched and requested > 0 and changed == 0


@pytest.mark.parametrize("status", list(ReceiptStatus))
def test_a_receipt_agrees_with_its_status(status: str) -> None:
    counts = [(asked, found, done) for asked in range(4) for found in range(4) for done in range(4)]
    for each in counts:
        if is_legal(status, *each):
            assert receipt(status, *each).status == status
        else:
            with pytest.raises(ValidationError):
                receipt(status, *each)


@pytest.mark.parametrize("name", ["requested_count", "matched_count", "changed_count"])
@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None])
def test_counts_of_a_receipt_are_whole_numbers(name: str, value: object) -> None:
    good: dict[str, Any] = {"requested_count": 1, "matched_count": 1, "changed_count": 1}
    with pytest.raises(ValidationError, match=name):
        receipt(
            "applied",
            *(good | {name: value}).values(),
            changed_revision_fingerprints=REVISIONS[:1],
            effect_fingerprints=EFFECTS[:1],
        )


@pytest.mark.parametrize("name", ["changed_revision_fingerprints", "effect_fingerprints"])
def test_each_changed_item_has_its_revision_and_its_effect(name: str) -> None:
    assert receipt("applied", 2, 2, 2).changed_count == 2
    for wrong in ((), REVISIONS[:1], REVISIONS[:3]):
        with pytest.raises(ValidationError, match="its revision and its effect"):
            receipt("applied", 2, 2, 2, **{name: wrong})


def test_a_receipt_has_at_most_128_effects() -> None:
    many = tuple(digest(str(each)) for each in range(129))
    full = {"changed_revision_fingerprints": many[:128], "effect_fingerprints": many[:128]}
    assert receipt("applied", 128, 128, 128, **full).changed_count == 128
    with pytest.raises(ValidationError, match="at most 128"):
        receipt("applied", 129, 129, 129, changed_revision_fingerprints=many, effect_fingerprints=many)


def addressed(parts: Parts) -> list[Any]:
    return [parts.request.spec, parts.operation, parts.receipt, parts.binding, parts.trial, parts.result]


@pytest.mark.parametrize("place", range(6))
def test_records_that_are_named_by_their_content_are_read_back(place: int) -> None:
    record = addressed(make_parts())[place]
    assert type(record).model_validate_json(record.model_dump_json()) == record
    assert record.fingerprint == record.digest()


@pytest.mark.requirement("B015")
@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("wrong", ["a" * 64, "a" * 63, "A" * 64, "", " " + "a" * 63, "a" * 64 + "\n", None, b"a" * 64])
def test_a_wrong_fingerprint_is_refused(place: int, wrong: object) -> None:
    record = addressed(make_parts())[place]
    with pytest.raises(ValidationError):
        type(record).model_validate({**dict(record), "fingerprint": wrong})


def test_two_kinds_of_records_never_share_a_fingerprint() -> None:
    assert len({record.fingerprint for record in addressed(make_parts())}) == 6


def test_an_operation_commits_to_spec_copy_and_trial() -> None:
    parts = make_parts()
    operation = parts.operation
    assert operation.spec_fingerprint == parts.request.spec.fingerprint
    assert operation.materialization_fingerprint == parts.materialization.fingerprint
    assert operation.trial_fingerprint == parts.trial.fingerprint
    assert operation.memory_overlay_fingerprint == parts.materialization.memory_overlay_fingerprint
    assert operation.state_scope_id == parts.materialization.state_scope_id
    assert operation == MemoryInterventionOperation.of(parts.request.spec, parts.materialization, parts.trial)


def test_revisions_have_names_of_their_own() -> None:
    assert len({revision_fingerprint("tea", 1), revision_fingerprint("tea", 2), revision_fingerprint("tea1", 1)}) == 3
    assert revision_fingerprint("tea", 1) == revision_fingerprint("tea", 1)


def without_fingerprint(record: Any) -> dict[str, Any]:
    return {name: value for name, value in dict(record).items() if name != "fingerprint"}


def binding_of(parts: Parts, **others: Any) -> MemoryInterventionTrialBinding:
    fields = {
        "spec": parts.request.spec,
        "operation": parts.operation,
        "receipt": parts.receipt,
        "trial": parts.trial,
        "result": parts.result,
        "attribution": parts.binding.attribution,
    }
    return MemoryInterventionTrialBinding.create(**(fields | others))


def test_a_binding_of_the_parts_of_one_trial_is_made() -> None:
    parts = make_parts()
    assert binding_of(parts) == parts.binding


@pytest.mark.parametrize("name", ["spec", "operation", "receipt", "trial", "result"])
def test_a_binding_refuses_a_part_of_another_trial(name: str) -> None:
    parts, other = make_parts(), make_parts(make_request(make_spec(spec_id="another"), trial_id="trial-2"))
    with pytest.raises(ValidationError, match="not of one trial"):
        binding_of(parts, **{name: getattr(other.binding, name)})


@pytest.mark.parametrize(
    "name, fields",
    [
        *(("operation", {each: digest("x")}) for each in ("spec_fingerprint", "trial_fingerprint")),
        *(("operation", {each: digest("x")}) for each in ("materialization_fingerprint", "memory_overlay_fingerprint")),
        *(("receipt", {each: digest("x")}) for each in ("operation_fingerprint", "memory_overlay_fingerprint")),
        ("trial", {"snapshot_fingerprint": digest("x")}),
        ("result", {"trial_fingerprint": digest("x")}),
    ],
)
def test_a_binding_refuses_a_part_that_names_another(name: str, fields: dict[str, Any]) -> None:
    parts = make_parts()
    part = getattr(parts.binding, name)
    forged = type(part).create(**{**without_fingerprint(part), **fields})
    with pytest.raises(ValidationError, match="not of one trial"):
        binding_of(parts, **{name: forged})


@pytest.mark.parametrize("name", ["materialization_fingerprint", "memory_overlay_fingerprint"])
def test_a_binding_refuses_an_operation_on_another_copy_with_a_receipt_of_it(name: str) -> None:
    parts = make_parts()
    forged = MemoryInterventionOperation.create(**{**without_fingerprint(parts.operation), name: digest("x")})
    with pytest.raises(ValidationError, match="not of one trial"):
        binding_of(parts, operation=forged, receipt=make_receipt(forged, parts.request.spec))


def test_a_binding_refuses_a_spec_of_another_snapshot_that_was_committed_to() -> None:
    parts, spec = make_parts(), make_spec(snapshot_fingerprint=digest("x"))
    forged = MemoryInterventionOperation.of(spec, parts.materialization, parts.trial)
    with pytest.raises(ValidationError, match="not of one trial"):
        binding_of(parts, spec=spec, operation=forged, receipt=make_receipt(forged, spec))


def test_every_part_of_a_binding_is_in_its_fingerprint() -> None:
    request = make_request(make_spec("omit_items"))
    fingerprints = [
        make_parts(request).binding.fingerprint,
        make_parts(request, receipt_status="matched_no_items").binding.fingerprint,
        make_parts(request, attribution=make_attribution(status="truncated", truncated=True)).binding.fingerprint,
        make_parts(request, disposition="failed").binding.fingerprint,
    ]
    assert len(set(fingerprints)) == 4
    parts = make_parts(request)
    with pytest.raises(ValidationError, match="the record was changed"):
        MemoryInterventionTrialBinding.model_validate(
            {**dict(parts.binding), "attribution": make_attribution(status="truncated", truncated=True)}
        )


@pytest.mark.parametrize(
    "fields, proves",
    [
        ({"observed_exposures": 0, "exposures": ()}, True),
        ({}, False),
        ({"status": "truncated", "truncated": True, "observed_exposures": 0, "exposures": ()}, False),
        ({"status": "contradictory", "observed_exposures": 0, "exposures": ()}, False),
        ({"status": "redacted", "observed_exposures": 0, "exposures": ()}, False),
        ({"status": "unavailable", "observed_exposures": 0, "exposures": ()}, False),
    ],
)
def test_only_complete_evidence_without_exposures_proves_that_there_was_none(
    fields: dict[str, Any], proves: bool
) -> None:
    parts = make_parts()
    binding = binding_of(parts, attribution=MemoryAttribution(**(dict(make_attribution()) | fields)))
    assert binding.proves_no_memory_exposure is proves


@pytest.mark.parametrize("kind", ["as_declared", "automatic_recall_off", "omit_items"])
def test_the_baseline_is_the_trial_in_which_nothing_is_changed(kind: str) -> None:
    assert make_parts(make_request(make_spec(kind))).binding.is_baseline is (kind == "as_declared")


@pytest.mark.parametrize("claimed", [1, 3])
def test_a_binding_refuses_a_receipt_for_another_number_of_items_than_its_spec_has(claimed: int) -> None:
    two = tuple(MemoryInterventionChange(entry_id=f"entry-{each}", revision=1) for each in range(2))
    parts = make_parts(make_request(make_spec("omit_items", changes=two)))
    changes = tuple(MemoryInterventionChange(entry_id=f"entry-{each}", revision=1) for each in range(claimed))
    forged = make_receipt(parts.operation, make_spec("omit_items", changes=changes))
    with pytest.raises(ValidationError):
        binding_of(parts, receipt=forged)


@pytest.mark.requirement("B013", "B068")
@pytest.mark.parametrize("name", ["materialization_fingerprint", "memory_overlay_fingerprint", "state_scope_id"])
@pytest.mark.parametrize("wrong", ["", " ", " padded", "x" * 257, None, 7, b"a" * 64, True])
def test_an_isolation_authority_is_strict(name: str, wrong: object) -> None:
    fields: dict[str, Any] = {
        "materialization_fingerprint": digest("materialization"),
        "memory_overlay_fingerprint": digest("overlay"),
        "state_scope_id": "x" * 256,
    }
    assert dict(MemoryInterventionIsolationAuthority(**fields)) == fields
    with pytest.raises(ValidationError):
        MemoryInterventionIsolationAuthority(**(fields | {name: wrong}))
    with pytest.raises(ValidationError):
        MemoryInterventionIsolationAuthority(**{each: fields[each] for each in fields if each != name})


def test_a_claim_is_of_the_key_that_gave_it_and_of_nothing_else() -> None:
    key = KEY.runtime_session_create_reference_key()
    claim = RuntimeSessionCreateClaimReference.made(key, "session", digest("operation"), "claim")
    other = RuntimeSessionCreateClaimReferenceKey(key_id=key.key_id, secret=b"0" * 32)
    assert claim.is_of(key)
    assert not claim.is_of(other)
    assert not claim.is_of(RuntimeSessionCreateClaimReferenceKey(key_id="other", secret=key.secret))
    for name, value in {
        "session_id": "another",
        "operation_id": digest("another"),
        "claim_id": "another",
        "request_authority_key_id": "another",
        "request_authority_hmac_sha256": digest("another"),
    }.items():
        assert not claim.model_copy(update={name: value}).is_of(key), name
