"""Execution profiles: one digest per class of component, with its strength, and their comparison.

A profile answers one question: would this application behave as the one that began the session? Only aggregate digests
and strengths leave this module; names and versions of members do not.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import Field

from cayu.canonical import JSON, fingerprint
from cayu.messages import Frozen

RUNTIME_PROTOCOL = 1
"""Version of what the runtime writes and how it reads it back; not the package's version."""

COMPONENT_CLASSES = (
    "agent",
    "provider",
    "tools",
    "tool_policy",
    "environment",
    "context_policy",
    "recall_policy",
    "runtime_protocol",
)
"""The classes that a profile is made of, in this order."""


class ExecutionProfileBehaviorIdentity(Frozen):
    """A component's versioned declaration of how it behaves. It holds no configuration and no secret."""

    name: str = Field(min_length=1, max_length=256)
    """Stays the same over the component's life."""
    behavior_version: str = Field(min_length=1, max_length=256)
    """Changes when what can be observed from outside changes."""
    implementation_version: str = Field(min_length=1, max_length=256)
    """Changes with every deployment of the implementation."""


class ExecutionProfileAdoptionIntent(Frozen):
    """A request to go on under a changed profile, from a clean boundary."""

    idempotency_key: str = Field(min_length=1, max_length=256)
    reason: str = Field(min_length=1, max_length=2000)
    requested_by: str = Field(min_length=1, max_length=256)


class IdentityStrength(StrEnum):
    """How much a component's digest says."""

    DECLARED = "declared"
    """Equal digests mean the same declaration, in any process."""
    OPAQUE = "opaque"
    """The digest holds within one application object only."""


class DifferenceCategory(StrEnum):
    """What can be said about a changed class without naming a member."""

    OPAQUE_IDENTITY = "opaque_identity"
    OTHER_OR_UNKNOWN = "other_or_unknown"


@dataclass(frozen=True, slots=True)
class ComponentDigest:
    """The aggregate identity of one component class."""

    digest: str
    strength: IdentityStrength


@dataclass(frozen=True, slots=True)
class ExecutionProfile:
    """The identity of an application as one session sees it."""

    components: Mapping[str, ComponentDigest]

    @property
    def fingerprint(self) -> str:
        """The digest of the whole profile, 64 hexadecimal digits."""
        return fingerprint("cayu.execution-profile", self.as_json())

    def as_json(self) -> dict[str, list[str]]:
        """Return the stored form: class -> [digest, strength]."""
        return {name: [item.digest, str(item.strength)] for name, item in sorted(self.components.items())}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ExecutionProfile:
        """Return the profile that `as_json` stored."""
        return cls({name: ComponentDigest(pair[0], IdentityStrength(pair[1])) for name, pair in stored.items()})


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """How a candidate profile differs from the one a session expects; equal when no class changed."""

    expected: ExecutionProfile
    candidate: ExecutionProfile
    differences: tuple[tuple[str, str], ...]
    """(class, category) of each changed class, in class order."""

    @property
    def equal(self) -> bool:
        """True when the candidate may go on."""
        return not self.differences

    @property
    def changed_component_classes(self) -> tuple[str, ...]:
        """The names of the changed classes."""
        return tuple(name for name, _ in self.differences)


def compare_profiles(expected: ExecutionProfile, candidate: ExecutionProfile) -> ProfileComparison:
    """Compare class by class; what cannot be diagnosed is `other_or_unknown`."""
    names = [*COMPONENT_CLASSES, *sorted(set(expected.components) - set(COMPONENT_CLASSES))]
    differences = []
    for name in names:
        before, after = expected.components.get(name), candidate.components.get(name)
        if before == after:
            continue
        opaque = any(item is not None and item.strength is IdentityStrength.OPAQUE for item in (before, after))
        category = DifferenceCategory.OPAQUE_IDENTITY if opaque else DifferenceCategory.OTHER_OR_UNKNOWN
        differences.append((name, str(category)))
    return ProfileComparison(expected, candidate, tuple(differences))


class IdentityMint:
    """Makes component digests for one application object; its nonce is what makes an opaque identity local."""

    def __init__(self) -> None:
        self._nonce = secrets.token_hex(16)

    def declared(self, component_class: str, material: JSON) -> ComponentDigest:
        """Digest material that says everything about the component's behaviour."""
        return ComponentDigest(fingerprint(f"cayu.component.{component_class}", material), IdentityStrength.DECLARED)

    def opaque(self, component_class: str, material: JSON) -> ComponentDigest:
        """Digest material of which some member's behaviour is known to this process only."""
        local = {"material": material, "nonce": self._nonce}
        return ComponentDigest(fingerprint(f"cayu.component.{component_class}", local), IdentityStrength.OPAQUE)

    def component(
        self, component_class: str, material: JSON, identity: ExecutionProfileBehaviorIdentity | None
    ) -> ComponentDigest:
        """Digest one component: declared when it carries an identity, opaque otherwise."""
        if identity is None:
            return self.opaque(component_class, material)
        return self.declared(component_class, {"material": material, "identity": identity.model_dump(mode="json")})
