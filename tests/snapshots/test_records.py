"""Records that are named by their content, and refuse to be anything else."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from snapshots.support import ACCESS, OTHER_ACCESS, digest, make_result

from cayu.knowledge.records import KnowledgeAccessScope
from cayu.snapshots import (
    AgentSnapshot,
    AgentSnapshotComponent,
    AgentSnapshotMaterialization,
    AgentSnapshotMaterializationRequest,
    AgentSnapshotResultBinding,
    AgentSnapshotTrialBinding,
    AgentSnapshotTrialStateMode,
    MaterializedComponent,
)
from cayu.snapshots.records import Addressed, component_fingerprint, scope_fingerprint
from cayu.testing.clocks import START

pytestmark = pytest.mark.exhaustive

LATER = START + timedelta(days=1)
SECRET = "words that no error shows"


def overlay(**fields: Any) -> MaterializedComponent:
    common = {"kind": "memory", "baseline_fingerprint": digest("memory"), "materialization_ref": digest("overlay")}
    return MaterializedComponent(**{**common, "overlay": True, **fields})


FIELDS: dict[type[Addressed], dict[str, Any]] = {
    AgentSnapshot: {
        "authority_scope_fingerprint": digest("scope"),
        "components": (AgentSnapshotComponent.of("agent", {"n": 1}), AgentSnapshotComponent.of("tools", [1.5, "ü"])),
        "created_at": START,
    },
    AgentSnapshotMaterialization: {
        "progress_id": "progress",
        "snapshot_fingerprint": digest("snapshot"),
        "candidate_id": "candidate",
        "state_scope_id": "scope",
        "state_mode": "reset_each_trial",
        "authority_scope_fingerprint": digest("scope"),
        "created_at": START,
        "components": (overlay(),),
    },
    AgentSnapshotTrialBinding: {
        "snapshot_fingerprint": digest("snapshot"),
        "materialization_fingerprint": digest("materialization"),
        "candidate_id": "candidate",
        "case_id": "case",
        "trial_id": "trial-1",
        "evaluator_fingerprint": digest("evaluator"),
        "memory_overlay_fingerprint": digest("overlay"),
        "created_at": START,
    },
    AgentSnapshotResultBinding: {
        "trial_fingerprint": digest("trial"),
        "session_id": "session-1",
        "terminal_disposition": "completed",
        "runtime_evidence_fingerprint": digest("evidence"),
        "usage_fingerprint": digest("usage"),
        "recorded_at": START,
    },
}
OTHER: dict[str, Any] = {
    "components": (),
    "state_mode": "accumulate_within_candidate",
    "terminal_disposition": "failed",
}
"""Another value of a field, where that is no other word or fingerprint."""


def another(field: str) -> Any:
    return OTHER.get(field, digest("another") if field.endswith("fingerprint") else "another")


CHANGES = [(kind, field) for kind, fields in FIELDS.items() for field in fields if not field.endswith("_at")]


@pytest.mark.parametrize("kind, field", CHANGES)
def test_every_field_is_part_of_the_name(kind: type[Addressed], field: str) -> None:
    made, other = kind.create(**FIELDS[kind]), kind.create(**FIELDS[kind] | {field: another(field)})
    assert made.fingerprint != other.fingerprint
    assert kind.create(**FIELDS[kind]).fingerprint == made.fingerprint


@pytest.mark.parametrize("kind", FIELDS)
def test_a_time_is_no_part_of_the_name(kind: type[Addressed]) -> None:
    (time,) = [field for field in FIELDS[kind] if field.endswith("_at")]
    made, later = kind.create(**FIELDS[kind]), kind.create(**FIELDS[kind] | {time: LATER})
    assert made.fingerprint == later.fingerprint
    assert made != later


@pytest.mark.parametrize("kind, field", CHANGES)
def test_a_record_that_was_changed_is_refused(kind: type[Addressed], field: str) -> None:
    stored = kind.create(**FIELDS[kind]).model_dump(mode="json")
    assert kind.model_validate(stored).model_dump(mode="json") == stored
    with pytest.raises(ValidationError, match="the record was changed"):
        kind.model_validate(stored | {field: another(field)})


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("put", [digest("another"), "", "short", None, "A" * 64])
def test_a_name_is_not_chosen(kind: type[Addressed], put: Any) -> None:
    with pytest.raises(ValidationError):
        kind(**FIELDS[kind] | {"fingerprint": put})


@pytest.mark.parametrize("kind", FIELDS)
def test_a_record_that_is_not_well_formed_is_not_made(kind: type[Addressed]) -> None:
    (time,) = [field for field in FIELDS[kind] if field.endswith("_at")]
    for changes in ({"words": 1}, {time: datetime(2026, 1, 1)}, {time: None}):
        with pytest.raises(ValidationError):
            kind.create(**FIELDS[kind] | changes)


def test_the_kind_of_a_record_is_part_of_its_name() -> None:
    kinds = [kind.kind_of_record for kind in FIELDS]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("kind", FIELDS)
def test_a_record_cannot_be_changed_in_place(kind: type[Addressed]) -> None:
    with pytest.raises(ValidationError):
        kind.create(**FIELDS[kind]).fingerprint = digest("another")


def test_a_component_is_named_by_its_kind_and_material() -> None:
    made = AgentSnapshotComponent.of("agent", {"b": (1, 2), "a": None})
    assert made.material == {"a": None, "b": [1, 2]}
    assert made.fingerprint == component_fingerprint("agent", {"a": None, "b": [1, 2]})
    assert made.fingerprint != AgentSnapshotComponent.of("tools", {"a": None, "b": [1, 2]}).fingerprint
    with pytest.raises(ValidationError, match="follows from its material") as refused:
        AgentSnapshotComponent(kind="agent", fingerprint=made.fingerprint, material={"a": SECRET})
    assert SECRET not in str(refused.value)


def test_a_snapshot_gives_its_component_by_kind() -> None:
    snapshot = AgentSnapshot.create(**FIELDS[AgentSnapshot])
    assert snapshot.component("tools").material == [1.5, "ü"]
    with pytest.raises(KeyError, match="memory"):
        snapshot.component("memory")


def test_a_copy_names_the_overlay_of_its_memory() -> None:
    fixed = overlay(kind="agent", overlay=False)
    fields = FIELDS[AgentSnapshotMaterialization]
    made = AgentSnapshotMaterialization.create(**fields | {"components": (fixed, overlay())})
    assert made.memory_overlay_fingerprint == digest("overlay")
    none = AgentSnapshotMaterialization.create(**fields | {"components": (fixed,)})
    with pytest.raises(KeyError, match="no component"):
        assert none.memory_overlay_fingerprint


@pytest.mark.parametrize("value", [1, 0, "true", None])
def test_an_overlay_is_a_real_boolean(value: Any) -> None:
    with pytest.raises(ValidationError):
        overlay(overlay=value)


def scope_of(mode: str, **fields: Any) -> AgentSnapshotMaterializationRequest:
    common = {"snapshot_fingerprint": digest("snapshot"), "candidate_id": "c", "trial_id": "t", "access": ACCESS}
    return AgentSnapshotMaterializationRequest(**{**common, "state_mode": mode, **fields})


@pytest.mark.parametrize("mode, alone", [("reset_each_trial", True), ("accumulate_within_candidate", False)])
def test_a_copy_belongs_to_a_trial_or_to_a_candidate(mode: str, alone: bool) -> None:
    one, other = scope_of(mode), scope_of(mode, trial_id="t2")
    assert (one.state_scope_id != other.state_scope_id) is alone
    assert (one.progress_id != other.progress_id) is alone
    assert one.state_scope_id == scope_of(mode, access=OTHER_ACCESS).state_scope_id
    for changed in ({"candidate_id": "c2"}, {"snapshot_fingerprint": digest("another")}):
        assert scope_of(mode, **changed).state_scope_id != one.state_scope_id


def test_the_two_modes_never_share_a_copy() -> None:
    modes = [scope_of(mode).state_scope_id for mode in AgentSnapshotTrialStateMode]
    assert len({*modes}) == len(modes) == 2
    given = AgentSnapshotMaterializationRequest(
        snapshot_fingerprint=digest("snapshot"), candidate_id="c", trial_id="t", access=ACCESS
    )
    assert given.state_mode is AgentSnapshotTrialStateMode.RESET_EACH_TRIAL


@pytest.mark.parametrize(
    "changes",
    [
        {"allowed_namespaces": ("default", "more")},
        {"required_labels": {"team": "north"}},
        {"allowed_visibilities": ("public", "private")},
        {"allowed_source_types": ()},
        {"include_expired": True},
    ],
)
def test_an_access_is_named_by_all_that_it_allows(changes: dict[str, Any]) -> None:
    assert scope_fingerprint(ACCESS) == scope_fingerprint(KnowledgeAccessScope(allowed_namespaces=("default",)))
    assert scope_fingerprint(ACCESS.model_copy(update=changes)) != scope_fingerprint(ACCESS)


def test_a_result_is_another_one_with_any_other_evidence() -> None:
    plain = make_result(digest("trial"))
    optional = ("eval_result_revision", "memory_evidence_fingerprint", "usage_fingerprint", "cost_fingerprint")
    made = [make_result(digest("trial"), **{field: digest("evidence")}) for field in optional]
    assert len({plain.fingerprint, *(result.fingerprint for result in made)}) == 5
