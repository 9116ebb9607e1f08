"""Recovery as operators see it: plans, the decisions they ask for, and what became of their execution.

A plan is content-addressed: its id is the digest of what it says, so one that was edited is refused where it is read.
It names ids, counts and digests, and holds no prompt, argument or result.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from cayu.canonical import fingerprint, normalise
from cayu.effects import ToolEffect, ToolEffectReceipt
from cayu.messages import Frozen
from cayu.sessions.requests import MAX_ID, MAX_REASON, MAX_SESSION_ID, ResolutionActor

SessionId = Annotated[str, Field(min_length=1, max_length=MAX_SESSION_ID)]

MAX_PLANNED = 1000
"""Sessions that one plan inspects at most."""
MAX_BLOCKED = 100
"""Blocked sessions that a startup report names at most."""


class RecoveryAction(StrEnum):
    """What can be done with a session that was cut off, or with one part of it."""

    TERMINALIZE_ZERO_WORK = "terminalize_zero_work"
    """End it as interrupted: nothing of it was at work."""
    AUTOMATIC_REPAIR = "automatic_repair"
    """Bring it on as its log says: keep what is staged, replay what may be replayed, ask reconcilers, and continue the
    run; one that was being interrupted is ended instead."""
    LEAVE_INTACT = "leave_intact"
    """Write nothing."""
    MODEL_MARK_FAILED = "model_mark_failed"
    """End the session as failed: its model step is lost."""
    MODEL_MARK_INTERRUPTED = "model_mark_interrupted"
    """End the session as interrupted: its model step is lost, and a resume asks again."""
    TOOL_MARK_COMPLETED = "tool_mark_completed"
    """The call has acted."""
    TOOL_MARK_FAILED = "tool_mark_failed"
    """The call has not acted, and will not."""


MODEL_ACTIONS = (RecoveryAction.MODEL_MARK_FAILED, RecoveryAction.MODEL_MARK_INTERRUPTED)
TOOL_ACTIONS = (RecoveryAction.TOOL_MARK_COMPLETED, RecoveryAction.TOOL_MARK_FAILED)


class BlockerCode(StrEnum):
    """Why nothing is done with a session by itself."""

    INVALID_CASCADE_MARKER = "invalid_cascade_marker"
    """Its interruption names a tree that it does not belong to."""
    REGISTRATION_UNAVAILABLE = "registration_unavailable"
    """Its agent, provider or environment is not registered here."""
    REGISTRATION_INCOMPATIBLE = "registration_incompatible"
    """What is registered here behaves otherwise than what it began with."""
    ACTIVE_RECOVERY_CLAIM = "active_recovery_claim"
    """Another recovery has it in hand."""
    ACTIVE_EXECUTION_OWNER = "active_execution_owner"
    """A process has it in hand, or had until less than `inactive_for_seconds` ago."""
    MODEL_EFFECT_OUTCOME_UNKNOWN = "model_effect_outcome_unknown"
    """The provider was asked under a reservation or receipt, and what came of it is not known."""
    TOOL_EFFECT_OUTCOME_UNKNOWN = "tool_effect_outcome_unknown"
    """A call began, and whether it acted is not known."""
    TOOL_EFFECT_CONTINUATION_REQUIRED = "tool_effect_continuation_required"
    """Every outcome of its round is known, and the round waits for a resume to close it."""
    TOOL_APPROVAL_REQUIRED = "tool_approval_required"
    """It waits for an approval."""
    USER_INPUT_REQUIRED = "user_input_required"
    """It waits for an answer."""
    INVALID_DURABLE_STATE = "invalid_durable_state"
    """Its log holds something that no run can have written."""


DECIDABLE = frozenset({BlockerCode.MODEL_EFFECT_OUTCOME_UNKNOWN, BlockerCode.TOOL_EFFECT_OUTCOME_UNKNOWN})
"""Blockers that an operator's decision removes; every other one is hard, and nothing is tried against it."""


class RecoveryPlanRequest(Frozen):
    """Which sessions to inspect: those named, or those of an agent (or of all) that are not at rest."""

    session_ids: tuple[SessionId, ...] = Field(default=(), max_length=MAX_PLANNED)
    agent_name: str | None = Field(default=None, max_length=MAX_ID)
    inactive_for_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False, strict=True)
    """Sessions with a write more recent than this count as owned."""
    limit: int = Field(default=100, ge=1, le=MAX_PLANNED, strict=True)
    """Sessions to inspect; more are on the next page."""
    cursor: str | None = None
    """`next_cursor` of the plan before."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.session_ids and (self.agent_name is not None or self.cursor is not None):
            raise ValueError("name session_ids, or page through an agent's sessions, not both")
        if len(set(self.session_ids)) != len(self.session_ids):
            raise ValueError("session_ids names a session twice")
        if len(self.session_ids) > self.limit:
            raise ValueError("session_ids names more sessions than limit allows")
        return self


class NeededDecision(Frozen):
    """Something that only evidence from outside can tell, with what identifies it there."""

    subject: Literal["model_step", "tool_call"]
    optional: bool = False
    """True when a registered reconciler will be asked as well, and may find it out."""
    allowed_actions: tuple[RecoveryAction, ...]
    tool_call_id: str | None = None
    tool_round_id: str | None = None
    tool_name: str | None = None
    tool_effect: ToolEffect | None = None
    attempt: int | None = None
    """How often the call was begun."""
    arguments_digest: str | None = None
    idempotency_key: str | None = None
    """Under which the service may know the call."""


class RecoveryPlanItem(Frozen):
    """One session as the plan found it, and what execution does with it."""

    item_id: str
    """Digest of the other fields."""
    session_id: str
    instance_id: str
    agent_name: str
    status: str
    version: int
    """Records in its log; execution refuses the plan when there are more by then."""
    run_epoch: int
    action: RecoveryAction
    """What is done when no decision is given."""
    blocker_codes: tuple[BlockerCode, ...] = ()
    needed_decisions: tuple[NeededDecision, ...] = ()

    @classmethod
    def create(cls, **fields: Any) -> Self:
        """Return an item with its id."""
        draft = cls(item_id="", **fields)
        return draft.model_copy(update={"item_id": draft.digest()})

    def digest(self) -> str:
        """Return what `item_id` has to be."""
        return fingerprint("cayu.recovery-plan-item", self.model_dump(mode="json", exclude={"item_id"}))

    @property
    def hard_blockers(self) -> tuple[BlockerCode, ...]:
        """The blockers that no decision removes."""
        return tuple(code for code in self.blocker_codes if code not in DECIDABLE)


class RecoveryPlan(Frozen):
    """What recovery would do, as of one moment; making it wrote nothing."""

    record_type: Literal["recovery_plan"] = "recovery_plan"
    schema_version: Literal[1] = 1
    plan_id: str
    """Digest of everything but `created_at`."""
    created_at: datetime
    request: RecoveryPlanRequest
    items: tuple[RecoveryPlanItem, ...]
    """Sessions that are named, or that are not at rest."""
    inspected_session_count: int
    next_cursor: str | None = None

    @classmethod
    def create(
        cls,
        request: RecoveryPlanRequest,
        items: Sequence[RecoveryPlanItem],
        *,
        created_at: datetime,
        inspected: int,
        next_cursor: str | None,
    ) -> Self:
        """Return a plan with its id."""
        fields: dict[str, Any] = {
            "created_at": created_at,
            "request": request,
            "items": tuple(items),
            "inspected_session_count": inspected,
            "next_cursor": next_cursor,
        }
        return cls(plan_id=cls.model_construct(plan_id="", **fields).digest(), **fields)

    def digest(self) -> str:
        """Return what `plan_id` has to be."""
        return fingerprint("cayu.recovery-plan", self.model_dump(mode="json", exclude={"plan_id", "created_at"}))

    @model_validator(mode="after")
    def _unedited(self) -> Self:
        if any(item.item_id != item.digest() for item in self.items) or self.plan_id != self.digest():
            raise ValueError("the plan is not what its plan_id says; make a new one instead of editing it")
        return self


class RecoveryDecision(Frozen):
    """What an operator has found out, outside."""

    session_id: str = Field(min_length=1, max_length=MAX_SESSION_ID)
    action: RecoveryAction
    """One of those that the plan allows."""
    tool_call_id: str | None = Field(default=None, max_length=MAX_SESSION_ID)
    """The call, with the `tool_mark_...` actions."""
    content: str | None = None
    """What the call returned, with `tool_mark_completed`; without it the model reads a fixed sentence."""
    structured: Any = None
    receipt: ToolEffectReceipt | None = None
    """The service's own word, with `tool_mark_completed`; it has to name the call's key and arguments."""
    reason: str | None = Field(default=None, max_length=MAX_REASON)

    _storable = field_validator("content", "structured", "reason")(normalise)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.action not in (*MODEL_ACTIONS, *TOOL_ACTIONS):
            raise ValueError(f"{self.action} is done by itself and needs no decision")
        if (self.action in TOOL_ACTIONS) != (self.tool_call_id is not None):
            raise ValueError("a tool_mark_... decision names its tool_call_id, a model_mark_... decision names none")
        given = (self.content, self.structured, self.receipt)
        if self.action is not RecoveryAction.TOOL_MARK_COMPLETED and given != (None, None, None):
            raise ValueError("content, structured and receipt go with tool_mark_completed")
        return self


class RecoveryExecutionRequest(Frozen):
    """Execute a plan that was reviewed, under an id that attributes what is done."""

    plan: RecoveryPlan
    execution_id: str = Field(min_length=1, max_length=MAX_ID)
    """Chosen by the operator; an exact repeat under it does nothing."""
    decisions: tuple[RecoveryDecision, ...] = Field(default=(), max_length=MAX_PLANNED)
    requested_by: ResolutionActor | None = None

    @model_validator(mode="after")
    def _decisions_of_the_plan(self) -> Self:
        planned = {item.session_id: item for item in self.plan.items}
        seen = set()
        for decision in self.decisions:
            subject = (decision.session_id, decision.tool_call_id)
            item = planned.get(decision.session_id)
            needed = item.needed_decisions if item else ()
            if not any(need.tool_call_id == decision.tool_call_id for need in needed):
                raise ValueError(f"the plan asks for no decision on {decision.tool_call_id or decision.session_id!r}")
            if subject in seen:
                raise ValueError(f"{decision.tool_call_id or decision.session_id!r} is decided twice")
            seen.add(subject)
        return self

    def decided(self, session_id: str) -> tuple[RecoveryDecision, ...]:
        """Return the decisions on one session."""
        return tuple(decision for decision in self.decisions if decision.session_id == session_id)


def decisions_digest(decisions: Sequence[RecoveryDecision]) -> str:
    """Return what a repeat is compared by, as 64 hexadecimal digits."""
    return fingerprint("cayu.recovery-decisions", [decision.model_dump(mode="json") for decision in decisions])


class RecoveryItemStatus(StrEnum):
    """What became of one item."""

    EXECUTED = "executed"
    REPEATED = "repeated"
    """It was executed under this id before; nothing was done."""
    LEFT_INTACT = "left_intact"
    """The plan does nothing with it."""
    BLOCKED = "blocked"
    """Something stands in its way; nothing was written."""


class RecoveryItemResult(Frozen):
    """One item of an execution."""

    session_id: str
    item_id: str
    status: RecoveryItemStatus
    action: RecoveryAction
    """What was done, or would have been."""
    blocker_codes: tuple[BlockerCode, ...] = ()
    session_status: str
    """Where the session stands afterwards."""
    receipt_event_id: str | None = None
    """The event in the session's log that attributes the action to the execution."""


class RecoveryExecution(Frozen):
    """What an execution did."""

    execution_id: str
    plan_id: str
    items: tuple[RecoveryItemResult, ...]


class BlockedSession(Frozen):
    """A session that startup could not bring to rest."""

    session_id: str
    blocker_codes: tuple[BlockerCode, ...]


class StartupRecoveryResult(Frozen):
    """The latest sweep of this process over interruptions that were cut off."""

    schema_version: Literal[1] = 1
    completed: bool = False
    """True when the sweep has come to its end."""
    status: Literal["not_run", "running", "completed", "completed_with_blocked", "failed"] = "not_run"
    sweep_count: int = 0
    """Sweeps that this process has begun."""
    scheduled_roots: int = 0
    """Interruptions that were taken up and brought to their end."""
    blocked_session_count: int = 0
    blocked_sessions: tuple[BlockedSession, ...] = ()
    """At most 100 of them."""
    blocked_sessions_truncated: bool = False
