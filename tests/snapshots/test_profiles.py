"""The execution profile of a snapshot: every class in its place, with an identity or openly without one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from snapshots.support import digest

from cayu.identity import COMPONENT_CLASSES, ComponentDigest, ExecutionProfile, IdentityStrength
from cayu.snapshots import AgentSnapshotExecutionProfileRef, ProfileComponentRef

DECLARED, OPAQUE = IdentityStrength.DECLARED, IdentityStrength.OPAQUE


def profile(opaque: tuple[str, ...] = (), absent: tuple[str, ...] = ()) -> ExecutionProfile:
    names = [name for name in COMPONENT_CLASSES if name not in absent]
    found = {name: ComponentDigest(digest(name), OPAQUE if name in opaque else DECLARED) for name in names}
    return ExecutionProfile(dict(reversed(found.items())))


def test_a_reference_holds_every_class_in_order() -> None:
    made = AgentSnapshotExecutionProfileRef.of(profile())
    assert tuple(item.name for item in made.components) == COMPONENT_CLASSES
    assert [item.fingerprint for item in made.components] == [digest(name) for name in COMPONENT_CLASSES]
    assert made.unavailable == ()
    assert made == AgentSnapshotExecutionProfileRef.of(profile())
    assert made == AgentSnapshotExecutionProfileRef.model_validate(made.model_dump(mode="json"))


def test_a_class_without_an_identity_is_said_to_be_unavailable() -> None:
    made = AgentSnapshotExecutionProfileRef.of(profile(opaque=("tools",), absent=("recall_policy",)))
    assert made.unavailable == ("tools", "recall_policy")
    found = {item.name: item for item in made.components}
    assert (found["tools"].fingerprint, found["tools"].availability) == (None, "unavailable")
    assert (found["agent"].fingerprint, found["agent"].availability) == (digest("agent"), "available")
    assert made.fingerprint != AgentSnapshotExecutionProfileRef.of(profile()).fingerprint


@pytest.mark.parametrize("name", COMPONENT_CLASSES)
def test_another_identity_of_one_class_is_another_profile(name: str) -> None:
    made = AgentSnapshotExecutionProfileRef.of(profile())
    other = made.with_component(name, digest("another"))
    assert other.fingerprint != made.fingerprint
    assert [item for item in other.components if item not in made.components] == [
        ProfileComponentRef(name=name, fingerprint=digest("another"), availability="available")
    ]
    assert other.with_component(name, digest(name)) == made


def test_a_class_gains_an_identity() -> None:
    made = AgentSnapshotExecutionProfileRef.of(profile(opaque=("tools",)))
    assert made.with_component("tools", digest("tools")) == AgentSnapshotExecutionProfileRef.of(profile())


@pytest.mark.parametrize(
    "changes", [{"fingerprint": digest("another")}, {"components": ()}, {"schema_version": True}, {"schema_version": 2}]
)
def test_a_reference_that_was_changed_is_refused(changes: dict[str, Any]) -> None:
    made = AgentSnapshotExecutionProfileRef.of(profile()).model_dump(mode="json")
    with pytest.raises(ValidationError):
        AgentSnapshotExecutionProfileRef.model_validate(made | changes)


@pytest.mark.parametrize("put, state", [(None, "available"), (digest("x"), "unavailable"), ("x", "available")])
def test_a_fingerprint_and_its_availability_agree(put: str | None, state: str) -> None:
    with pytest.raises(ValidationError):
        ProfileComponentRef(name="agent", fingerprint=put, availability=state)
