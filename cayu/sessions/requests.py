"""What callers ask of the runtime, validated where it enters."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field, field_validator

from cayu.canonical import normalise
from cayu.identity import ExecutionProfileAdoptionIntent
from cayu.messages import Frozen, Message
from cayu.sessions.limits import BudgetLimit, RunLimits

MAX_SESSION_ID = 512
"""Characters of a session id."""
MAX_ID = 256
"""Characters of any other id."""
MAX_REASON = 4000
MAX_BUDGETS = 16
"""Budget limits of one run."""
DEFAULT_MAX_STEPS = 1000

Messages = tuple[Message, ...]


def _json(value: Any) -> Any:
    return normalise(value)


class RunRequest(Frozen):
    """Begin a new session."""

    agent_name: str = Field(min_length=1, max_length=MAX_ID)
    messages: Messages = Field(min_length=1)
    session_id: str | None = Field(default=None, min_length=1, max_length=MAX_SESSION_ID)
    """None mints one; an id that exists is refused."""
    title: str | None = Field(default=None, max_length=MAX_ID)
    environment_name: str | None = Field(default=None, max_length=MAX_ID)
    """A registered environment; None selects the application's default, if it has one."""
    labels: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1, strict=True)
    """How many model steps the run may take."""
    limits: RunLimits = RunLimits()
    budget_limits: tuple[BudgetLimit, ...] = Field(default=(), max_length=MAX_BUDGETS)
    parent_session_id: str | None = Field(default=None, min_length=1, max_length=MAX_SESSION_ID)
    """The session that this one works for; interrupting that one interrupts this one."""
    causal_budget_id: str | None = Field(default=None, min_length=1, max_length=MAX_SESSION_ID)
    """The account under which the whole tree of sessions spends; None takes the parent's, or the session's own id."""
    task_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID)
    """The application's own name of the piece of work; kept with the session's first event."""

    _metadata = field_validator("metadata")(_json)


class ResumeRequest(Frozen):
    """Go on with a session that has ended, failed or was interrupted."""

    session_id: str = Field(min_length=1, max_length=MAX_SESSION_ID)
    messages: Messages = Field(min_length=1)
    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1, strict=True)
    limits: RunLimits = RunLimits()
    budget_limits: tuple[BudgetLimit, ...] = Field(default=(), max_length=MAX_BUDGETS)
    profile_adoption: ExecutionProfileAdoptionIntent | None = None
    """Adopt a changed execution profile; only at a clean boundary."""
    compact_context: bool = Field(default=False, strict=True)
    """Cut the conversation so far down by the agent's context policy before going on."""
    metadata: dict[str, Any] = {}

    _metadata = field_validator("metadata")(_json)


class InterruptSessionRequest(Frozen):
    """Stop a running session, wherever it runs."""

    session_id: str = Field(min_length=1, max_length=MAX_SESSION_ID)
    reason: str | None = Field(default=None, max_length=MAX_REASON)
    requested_by: str | None = Field(default=None, max_length=MAX_ID)


class ResolutionActor(Frozen):
    """Who decides, as the application has authenticated them."""

    subject: str = Field(min_length=1, max_length=MAX_ID)
    tenant: str | None = Field(default=None, max_length=MAX_ID)
    source: str | None = Field(default=None, max_length=MAX_ID)
    """Where the decision was made: a console, a notebook, a service."""
    claims: dict[str, Any] = {}

    _claims = field_validator("claims")(_json)


class ToolApprovalDecision(StrEnum):
    """What may be decided of a call."""

    APPROVE = "approve"
    DENY = "deny"


class ToolApprovalRequest(Frozen):
    """Decide one call that waits for approval."""

    session_id: str = Field(min_length=1, max_length=MAX_SESSION_ID)
    approval_id: str = Field(min_length=1, max_length=MAX_ID)
    tool_round_id: str | None = None
    """Checked when given."""
    tool_call_id: str | None = None
    """Checked when given."""
    decision: ToolApprovalDecision
    arguments: dict[str, Any] | None = None
    """Edited arguments, with an approval only; None keeps the model's."""
    reason: str | None = Field(default=None, max_length=MAX_REASON)
    resolved_by: ResolutionActor | None = None

    _arguments = field_validator("arguments")(_json)


class UserInputResponse(Frozen):
    """Answer one question that waits."""

    session_id: str = Field(min_length=1, max_length=MAX_SESSION_ID)
    input_id: str = Field(min_length=1, max_length=MAX_ID)
    answer: str
    """Characters that no store keeps become U+FFFD."""
    tool_round_id: str | None = None
    """Checked when given."""
    tool_call_id: str | None = None
    """Checked when given."""
    resolved_by: ResolutionActor | None = None

    _answer = field_validator("answer")(_json)
