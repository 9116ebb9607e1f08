"""Who may work on one durable operation: a lease by the store's clock, and its transitions as one pure function."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, StrictInt, model_validator

from cayu.evals.fields import Id
from cayu.interventions.base import ExecutionModel

DEFAULT_LEASE_SECONDS = 10.0
"""How long an ownership holds without a renewal."""

Action = Literal["claim", "renew", "release", "settle"]


class DurableOperationOwnershipState(StrEnum):
    """Whether an operation has an owner."""

    ACTIVE = "active"
    RELEASED = "released"
    SETTLED = "settled"


class DurableOperationOwnershipDisposition(StrEnum):
    """What came of a transition."""

    ACQUIRED = "acquired"
    RENEWED = "renewed"
    EQUIVALENT_LIVE_OWNER = "equivalent_live_owner"
    """Somebody else has it in hand."""
    EXPIRED_TAKEN_OVER = "expired_taken_over"
    RELEASED = "released"
    SETTLED = "settled"
    FENCED = "fenced"
    """Whoever asks does not own the operation any more."""
    OPERATION_ADVANCED = "operation_advanced"
    """There is nothing to own: the operation has not begun, or is over."""
    IDENTITY_CONFLICT = "identity_conflict"
    INDETERMINATE = "indeterminate"
    """The store cannot tell; read again."""


class DurableOperationOwnership(ExecutionModel):
    """The ownership of an operation as it stands; its times are the store's."""

    operation_id: Id
    claim_id: Id
    owner_id: Id
    generation: Annotated[StrictInt, Field(ge=1)]
    """Rises with every owner."""
    state: DurableOperationOwnershipState
    acquired_at: AwareDatetime
    renewed_at: AwareDatetime
    lease_expires_at: AwareDatetime
    released_at: AwareDatetime | None = None
    settled_at: AwareDatetime | None = None

    @model_validator(mode="after")
    def _agrees_with_its_state(self) -> Self:
        if not self.acquired_at <= self.renewed_at <= self.lease_expires_at:
            raise ValueError("an ownership is acquired, then renewed, then expires")
        if (self.released_at is not None) != (self.state is DurableOperationOwnershipState.RELEASED):
            raise ValueError("a released ownership, and no other, has the time of its release")
        if (self.settled_at is not None) != (self.state is DurableOperationOwnershipState.SETTLED):
            raise ValueError("a settled ownership, and no other, has the time of its settlement")
        return self

    def is_live(self, now: datetime) -> bool:
        """True while the owner may act, at `now` by the store's clock."""
        return self.state is DurableOperationOwnershipState.ACTIVE and now < self.lease_expires_at

    def is_held_by(self, other: DurableOperationOwnership | DurableOperationOwnershipTransition) -> bool:
        """True when the other names this very claim and generation."""
        return (self.operation_id, self.claim_id, self.owner_id, self.generation) == (
            other.operation_id,
            other.claim_id,
            other.owner_id,
            other.generation,
        )

    def settled(self, now: datetime) -> DurableOperationOwnership:
        """Return the ownership as the end of the operation leaves it."""
        return self.model_copy(update={"state": DurableOperationOwnershipState.SETTLED, "settled_at": now})


class DurableOperationOwnershipTransition(ExecutionModel):
    """One step that an owner, or one who would be, asks for."""

    operation_id: Id
    claim_id: Id
    owner_id: Id
    action: Action
    generation: Annotated[StrictInt, Field(ge=1)] | None = None
    """That of the ownership which is renewed, released or settled; a claim names none."""
    lease_seconds: Annotated[float, Field(gt=0, le=3600)] | None = None
    """For claims and renewals; None means 10 seconds."""

    @model_validator(mode="after")
    def _names_what_it_needs(self) -> Self:
        if (self.generation is None) != (self.action == "claim"):
            raise ValueError("a claim names no generation, and every other action does")
        if self.lease_seconds is not None and self.action in ("release", "settle"):
            raise ValueError("only a claim or a renewal names a lease")
        return self


class DurableOperationOwnershipResult(ExecutionModel):
    """What came of a transition, and the ownership as it stands then."""

    disposition: DurableOperationOwnershipDisposition
    observed_at: AwareDatetime
    """The store's time in the transaction that decided."""
    ownership: DurableOperationOwnership | None


_D = DurableOperationOwnershipDisposition
_S = DurableOperationOwnershipState


def decide_ownership(
    current: DurableOperationOwnership | None, request: DurableOperationOwnershipTransition, now: datetime
) -> tuple[DurableOperationOwnershipDisposition, DurableOperationOwnership | None]:
    """Return what comes of a transition at `now`, and the ownership that stands after it."""
    if current is not None and current.operation_id != request.operation_id:
        return _D.IDENTITY_CONFLICT, current
    if request.action == "claim":
        return _claimed(current, request, now)
    if current is not None and current.state is _S.SETTLED and current.is_held_by(request):
        return _D.SETTLED, current
    if current is None or not current.is_held_by(request) or not current.is_live(now):
        return _D.FENCED, current
    if request.action == "release":
        return _D.RELEASED, current.model_copy(update={"state": _S.RELEASED, "released_at": now})
    if request.action == "settle":
        return _D.SETTLED, current.settled(now)
    until = max(current.lease_expires_at, now + _lease(request))
    renewed = max(current.renewed_at, now)  # a clock that was set back takes nothing from a lease
    return _D.RENEWED, current.model_copy(update={"renewed_at": renewed, "lease_expires_at": until})


def _claimed(
    current: DurableOperationOwnership | None, request: DurableOperationOwnershipTransition, now: datetime
) -> tuple[DurableOperationOwnershipDisposition, DurableOperationOwnership | None]:
    if current is not None and current.state is _S.SETTLED:
        return _D.SETTLED, current
    if current is not None and current.is_live(now):
        same = (current.claim_id, current.owner_id) == (request.claim_id, request.owner_id)
        return (_D.ACQUIRED if same else _D.EQUIVALENT_LIVE_OWNER), current
    taken = DurableOperationOwnership(
        operation_id=request.operation_id,
        claim_id=request.claim_id,
        owner_id=request.owner_id,
        generation=current.generation + 1 if current is not None else 1,
        state=_S.ACTIVE,
        acquired_at=now,
        renewed_at=now,
        lease_expires_at=now + _lease(request),
    )
    expired = current is not None and current.state is _S.ACTIVE
    return (_D.EXPIRED_TAKEN_OVER if expired else _D.ACQUIRED), taken


def _lease(request: DurableOperationOwnershipTransition) -> timedelta:
    return timedelta(seconds=request.lease_seconds or DEFAULT_LEASE_SECONDS)
