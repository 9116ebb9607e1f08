"""Specs: each kind has its shape, keeps within its bounds, and is named by its content."""

from __future__ import annotations

from typing import Any

import pytest
from interventions.support import changes_of, digest, make_fixture, make_spec
from pydantic import ValidationError

from cayu.interventions.specs import (
    MemoryInterventionBounds,
    MemoryInterventionChange,
    MemoryInterventionFixture,
    MemoryInterventionKind,
    MemoryInterventionSpec,
    MemoryNegativeControlKind,
)

pytestmark = pytest.mark.exhaustive

KINDS = tuple(map(str, MemoryInterventionKind))
OMITTED = MemoryInterventionChange(entry_id="tea", revision=1)
REPLACED = MemoryInterventionChange(entry_id="tea", revision=1, fixture=make_fixture())
PUT_IN = MemoryInterventionChange(entry_id="tea", revision=0, fixture=make_fixture())
EMPTY = MemoryInterventionChange(entry_id="tea", revision=0)
CHANGES_OF = {"omit_items": OMITTED, "replace_items": REPLACED, "negative_control": PUT_IN}


@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_of_each_kind_is_made_and_read_back(kind: str) -> None:
    spec = make_spec(kind)
    assert spec.kind is MemoryInterventionKind(kind)
    assert MemoryInterventionSpec.model_validate_json(spec.model_dump_json()) == spec
    assert MemoryInterventionSpec.model_validate(spec.model_dump()) == spec
    assert make_spec(kind).fingerprint == spec.fingerprint


def test_kinds_have_their_values() -> None:
    assert KINDS == ("as_declared", "automatic_recall_off", "omit_items", "replace_items", "negative_control")
    assert tuple(map(str, MemoryNegativeControlKind)) == ("irrelevant", "stale", "conflicting", "adversarial")


@pytest.mark.parametrize(
    "change", [None, OMITTED, REPLACED, PUT_IN, EMPTY], ids=["none", "omit", "replace", "put", "nil"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_admits_exactly_its_changes(kind: str, change: MemoryInterventionChange | None) -> None:
    changes = (change,) if change is not None else ()
    if change is CHANGES_OF.get(kind):
        assert make_spec(kind, changes=changes).changes == changes
    else:
        with pytest.raises(ValidationError, match=r"has (no|at least one) change|, unlike the change of"):
            make_spec(kind, changes=changes)


@pytest.mark.parametrize("control", [None, *MemoryNegativeControlKind])
@pytest.mark.parametrize("kind", KINDS)
def test_a_negative_control_and_nothing_else_names_its_kind(kind: str, control: Any) -> None:
    if (kind == "negative_control") == (control is not None):
        assert make_spec(kind, negative_control_kind=control).negative_control_kind is control
    else:
        with pytest.raises(ValidationError, match="given for a negative control"):
            make_spec(kind, negative_control_kind=control)


@pytest.mark.parametrize("trial_mode", ["off", "offer", "strong_matches", "offer_and_strong_matches"])
@pytest.mark.parametrize("starting_mode", ["off", "offer", "strong_matches", "offer_and_strong_matches"])
@pytest.mark.parametrize("same_policy", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_recall_is_changed_only_to_switch_it_off(
    kind: str, same_policy: bool, starting_mode: str, trial_mode: str
) -> None:
    fields = {
        "starting_recall_mode": starting_mode,
        "trial_recall_mode": trial_mode,
        "trial_recall_policy_fingerprint": digest("recall" if same_policy else "recall off"),
    }
    if kind == "automatic_recall_off":
        legal = not same_policy and starting_mode != "off" and trial_mode == "off"
    else:
        legal = same_policy and starting_mode == trial_mode
    if legal:
        assert make_spec(kind, **fields).trial_recall_mode == trial_mode
    else:
        with pytest.raises(ValidationError, match="recall"):
            make_spec(kind, **fields)


def omissions(count: int) -> tuple[MemoryInterventionChange, ...]:
    return tuple(MemoryInterventionChange(entry_id=f"entry-{each}", revision=1) for each in range(count))


@pytest.mark.parametrize(
    "bounds, most",
    [({}, 16), ({"max_changed_items": 3}, 3), ({"max_changed_items": 3, "max_effect_receipts": 2}, 2)],
)
def test_a_spec_changes_as_many_items_as_its_bounds_admit(bounds: dict[str, int], most: int) -> None:
    admitted = MemoryInterventionBounds(**bounds)
    assert len(make_spec("omit_items", bounds=admitted, changes=omissions(most)).changes) == most
    with pytest.raises(ValidationError, match=f"at most {most} items"):
        make_spec("omit_items", bounds=admitted, changes=omissions(most + 1))


def test_an_item_is_changed_once() -> None:
    twice = (OMITTED, MemoryInterventionChange(entry_id="tea", revision=2))
    with pytest.raises(ValidationError, match="changed once"):
        make_spec("omit_items", changes=twice)


def test_fixtures_are_measured_in_bytes_of_titles_and_texts_together() -> None:
    one = make_fixture("é" * 5, title="é")
    assert one.size == 12
    changes = tuple(MemoryInterventionChange(entry_id=f"entry-{each}", revision=1, fixture=one) for each in range(2))
    admitted = MemoryInterventionBounds(max_fixture_bytes=24)
    assert make_spec("replace_items", bounds=admitted, changes=changes).changes == changes
    with pytest.raises(ValidationError, match="more than 23 bytes"):
        make_spec("replace_items", bounds=MemoryInterventionBounds(max_fixture_bytes=23), changes=changes)


@pytest.mark.parametrize(
    "name, most", [("max_changed_items", 128), ("max_fixture_bytes", 262_144), ("max_effect_receipts", 128)]
)
def test_bounds_are_whole_numbers_within_limits(name: str, most: int) -> None:
    assert getattr(MemoryInterventionBounds(**{name: most}), name) == most
    assert getattr(MemoryInterventionBounds(**{name: 1}), name) == 1
    for value in (0, -1, most + 1, True, 1.0, "1", None):
        with pytest.raises(ValidationError):
            MemoryInterventionBounds(**{name: value})


@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None])
def test_the_revision_of_a_change_is_a_whole_number(value: object) -> None:
    with pytest.raises(ValidationError):
        MemoryInterventionChange(entry_id="tea", revision=value)


def test_bounds_and_defaults_of_a_spec() -> None:
    spec = make_spec()
    assert spec.bounds == MemoryInterventionBounds(
        max_changed_items=16, max_fixture_bytes=65_536, max_effect_receipts=128
    )
    assert (spec.changes, spec.negative_control_kind, spec.reason) == ((), None, "")
    assert spec.trial_state_mode == "reset_each_trial"
    assert (spec.evidence_only, spec.production_mutation_allowed) == (True, False)


@pytest.mark.parametrize(
    "name, value",
    [
        *(("evidence_only", value) for value in (False, 1, "true", None)),
        *(("production_mutation_allowed", value) for value in (True, 0, "false", None)),
    ],
)
def test_a_spec_never_reaches_production(name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        make_spec(**{name: value})
    with pytest.raises(ValidationError, match=name):
        MemoryInterventionSpec.model_validate({**dict(make_spec()), name: value})


OTHERS: dict[str, Any] = {
    "spec_id": "another",
    "snapshot_fingerprint": digest("another"),
    "memory_state_fingerprint": digest("another"),
    "execution_profile_fingerprint": digest("another"),
    "trial_state_mode": "accumulate_within_candidate",
    "authority_scope_fingerprint": digest("another"),
    "bounds": MemoryInterventionBounds(max_changed_items=1),
    "changes": (MemoryInterventionChange(entry_id="tea", revision=2),),
    "reason": "another",
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_field_is_in_the_fingerprint(name: str) -> None:
    spec = make_spec("omit_items")
    assert make_spec("omit_items", **{name: OTHERS[name]}).fingerprint != spec.fingerprint


@pytest.mark.requirement("B015")
@pytest.mark.parametrize("name", OTHERS)
def test_a_changed_spec_under_its_old_fingerprint_is_refused(name: str) -> None:
    spec = make_spec("omit_items")
    with pytest.raises(ValidationError, match="the record was changed"):
        MemoryInterventionSpec.model_validate({**dict(spec), name: OTHERS[name]})


def test_a_fixture_is_named_by_its_content() -> None:
    fixture = make_fixture()
    others = [
        *(make_fixture("Tea is served at five."), make_fixture(title="Tea"), make_fixture(namespace="kitchen")),
        *(make_fixture(labels={"room": "1"}), make_fixture(entry_kind="rule"), make_fixture(visibility="private")),
    ]
    assert len({fixture.fingerprint, *(each.fingerprint for each in others)}) == 7
    with pytest.raises(ValidationError, match="the record was changed"):
        MemoryInterventionFixture.model_validate({**dict(fixture), "text": "Tea is served at five."})
    with pytest.raises(ValidationError):
        make_fixture("")


def test_a_fixture_becomes_an_entry_with_its_content() -> None:
    fixture = make_fixture(title="Tea", namespace="kitchen", labels={"room": "1"}, entry_kind="rule")
    entry = fixture.entry("tea", 4)
    assert (entry.id, entry.revision, entry.text, entry.title) == ("tea", 4, fixture.text, "Tea")
    assert (entry.namespace, entry.labels, entry.kind, entry.visibility) == ("kitchen", {"room": "1"}, "rule", "public")


def test_an_error_names_the_item_and_not_its_content() -> None:
    hidden = make_fixture("The code of the safe is K4711.")
    change = MemoryInterventionChange(entry_id="safe", revision=0, fixture=hidden)
    with pytest.raises(ValidationError) as caught:
        make_spec("replace_items", changes=(change,))
    assert "'safe'" in str(caught.value)
    assert "K4711" not in str(caught.value)


def test_a_spec_of_plain_values_is_the_same_spec() -> None:
    spec = make_spec("omit_items", bounds=MemoryInterventionBounds(max_changed_items=3))
    plain = changes_of(MemoryInterventionKind.OMIT_ITEMS) | {
        "bounds": {"max_changed_items": 3},
        "changes": [{"entry_id": "tea", "revision": 1}],
    }
    assert make_spec("omit_items", **plain) == spec


@pytest.mark.parametrize(
    "value",
    [object(), b"\xff", "a\ud800", float("nan"), None, 7],
    ids=["object", "bytes", "surrogate", "nan", "none", "number"],
)
def test_what_is_no_id_is_refused_as_such(value: object) -> None:
    with pytest.raises(ValidationError):
        make_spec(spec_id=value)
