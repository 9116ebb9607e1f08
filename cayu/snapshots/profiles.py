"""An execution profile as a snapshot keeps it: each component class with its identity, or without one."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import model_validator

from cayu.canonical import fingerprint
from cayu.evals.fields import Exactly, Fingerprint, Id
from cayu.identity import COMPONENT_CLASSES, ExecutionProfile, IdentityStrength
from cayu.messages import Frozen


class ProfileComponentRef(Frozen):
    """One component class of a profile."""

    name: Id
    fingerprint: Fingerprint | None
    availability: Literal["available", "unavailable"]
    """`unavailable` for a component that declares no identity: no other application object can match it."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.fingerprint is None) != (self.availability == "unavailable"):
            raise ValueError("an available component has a fingerprint, and an unavailable one has none")
        return self


class AgentSnapshotExecutionProfileRef(Frozen):
    """The identity of the application that an agent ran in."""

    schema_version: Annotated[Literal[1], Exactly] = 1
    fingerprint: Fingerprint
    components: tuple[ProfileComponentRef, ...]
    """In the order of `cayu.identity.COMPONENT_CLASSES`."""

    @classmethod
    def of(cls, profile: ExecutionProfile) -> AgentSnapshotExecutionProfileRef:
        """Return the reference of a profile."""
        found = []
        for name in COMPONENT_CLASSES:
            item = profile.components.get(name)
            declared = item is not None and item.strength is IdentityStrength.DECLARED
            digest = item.digest if item is not None and declared else None
            state: Literal["available", "unavailable"] = "available" if declared else "unavailable"
            found.append(ProfileComponentRef(name=name, fingerprint=digest, availability=state))
        return cls.made(tuple(found))

    @classmethod
    def made(cls, components: tuple[ProfileComponentRef, ...]) -> AgentSnapshotExecutionProfileRef:
        """Return the reference that has these components."""
        return cls(fingerprint=_digest(components), components=components)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.fingerprint != _digest(self.components):
            raise ValueError("the fingerprint of a profile follows from its components")
        return self

    @property
    def unavailable(self) -> tuple[str, ...]:
        """The component classes without an identity."""
        return tuple(item.name for item in self.components if item.fingerprint is None)

    def with_component(self, name: str, digest: str) -> AgentSnapshotExecutionProfileRef:
        """Return the same profile with another identity of one component class."""
        changed = ProfileComponentRef(name=name, fingerprint=digest, availability="available")
        return self.made(tuple(changed if item.name == name else item for item in self.components))


def _digest(components: tuple[ProfileComponentRef, ...]) -> str:
    return fingerprint("cayu.snapshot-profile", [[item.name, item.fingerprint] for item in components])
