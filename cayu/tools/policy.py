"""Who may call what: the decision is a value, the decider a small protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field

from cayu.agents import AgentSpec
from cayu.canonical import fingerprint
from cayu.effects import ToolEffect
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.messages import Frozen
from cayu.sessions.records import Session


class ToolPolicyDecision(StrEnum):
    """What a policy may say of a call."""

    ALLOW = "allow"
    DENY = "deny"
    REQUIRE_APPROVAL = "require_approval"


class ToolPolicyRequest(Frozen):
    """One call, before it runs."""

    session: Session
    agent: AgentSpec
    tool_name: str
    tool_call_id: str
    tool_round_id: str
    tool_effect: ToolEffect
    arguments: dict[str, Any]
    environment_name: str | None = None


class ToolPolicyResult(Frozen):
    """A policy's answer."""

    decision: ToolPolicyDecision
    reason: str | None = None
    """Shown to the reviewer, and to the model when the call is denied."""
    metadata: dict[str, Any] = {}
    approval_expires_in_seconds: float | None = Field(default=None, gt=0)
    """How long an approval may be given, from the pause on; None sets no end."""


class ToolPolicy(ABC):
    """Decides each call, and is asked again just before a call that has waited runs."""

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity | None:
        """The policy's declaration; None leaves it opaque."""
        return None

    @abstractmethod
    async def authorize(self, request: ToolPolicyRequest) -> ToolPolicyResult:
        """Allow the call, deny it, or send it to a human. An exception denies it."""


def _builtin(name: str, settings: Mapping[str, str] | None = None) -> ExecutionProfileBehaviorIdentity:
    version = fingerprint(f"cayu.tool-policy.{name}", dict(settings or {}))
    return ExecutionProfileBehaviorIdentity(name=f"cayu.{name}", behavior_version=version, implementation_version="1")


class AllowAllToolPolicy(ToolPolicy):
    """Allows every call."""

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        """The built-in declaration."""
        return _builtin("allow-all")

    async def authorize(self, request: ToolPolicyRequest) -> ToolPolicyResult:
        """Allow."""
        return ToolPolicyResult(decision=ToolPolicyDecision.ALLOW)


class AlwaysRequireApprovalToolPolicy(ToolPolicy):
    """Sends every call to a human."""

    def __init__(self, *, expires_in_seconds: float | None = None) -> None:
        self._expires = None if expires_in_seconds is None else float(expires_in_seconds)

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        """The built-in declaration."""
        return _builtin("always-require-approval", {"expires": str(self._expires)})

    async def authorize(self, request: ToolPolicyRequest) -> ToolPolicyResult:
        """Require approval."""
        return ToolPolicyResult(decision=ToolPolicyDecision.REQUIRE_APPROVAL, approval_expires_in_seconds=self._expires)


class ByEffectToolPolicy(ToolPolicy):
    """Decides by the tool's effect class; by default reads run freely and everything else asks."""

    def __init__(
        self,
        *,
        none: ToolPolicyDecision = ToolPolicyDecision.ALLOW,
        idempotent: ToolPolicyDecision = ToolPolicyDecision.REQUIRE_APPROVAL,
        external: ToolPolicyDecision = ToolPolicyDecision.REQUIRE_APPROVAL,
    ) -> None:
        self._decisions = {
            ToolEffect.NONE: ToolPolicyDecision(none),
            ToolEffect.IDEMPOTENT: ToolPolicyDecision(idempotent),
            ToolEffect.EXTERNAL: ToolPolicyDecision(external),
        }

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        """The built-in declaration, with its three decisions."""
        return _builtin("by-effect", {str(key): str(value) for key, value in self._decisions.items()})

    async def authorize(self, request: ToolPolicyRequest) -> ToolPolicyResult:
        """Answer what stands for the effect class."""
        decision = self._decisions[request.tool_effect]
        return ToolPolicyResult(decision=decision, reason=f"its effect is {request.tool_effect}")


class ByNameToolPolicy(ToolPolicy):
    """Decides by the tool's name, with one decision for all others."""

    def __init__(
        self, decisions: Mapping[str, ToolPolicyDecision], default: ToolPolicyDecision = ToolPolicyDecision.ALLOW
    ) -> None:
        self._decisions = {name: ToolPolicyDecision(decision) for name, decision in decisions.items()}
        self._default = ToolPolicyDecision(default)

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        """The built-in declaration, with every name's decision."""
        return _builtin("by-name", {**{k: str(v) for k, v in self._decisions.items()}, "*": str(self._default)})

    async def authorize(self, request: ToolPolicyRequest) -> ToolPolicyResult:
        """Answer what stands for the name."""
        return ToolPolicyResult(decision=self._decisions.get(request.tool_name, self._default))
