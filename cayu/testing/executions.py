"""Executions to test a journal with: records whose evidence exists nowhere, and the steps that take them on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from cayu.canonical import fingerprint
from cayu.clock import as_datetime
from cayu.errors import MemoryInterventionExecutionConflict
from cayu.interventions.journal import MemoryInterventionExecutionStore, MemoryInterventionRuntimeOwnershipResult
from cayu.interventions.ownership import (
    Action,
    DurableOperationOwnership,
    DurableOperationOwnershipState,
    DurableOperationOwnershipTransition,
)
from cayu.interventions.phases import FIELDS_OF, ORDER
from cayu.interventions.phases import MemoryInterventionExecutionPhase as Phase
from cayu.interventions.phases import MemoryInterventionExecutionStatus as Status
from cayu.interventions.records import MemoryInterventionExecutionRecord, dispatch_operation
from cayu.interventions.requests import RuntimeSessionCreateClaimReference
from cayu.testing.clocks import START, FakeClock

StoreTime = Callable[[], datetime]
Open = Callable[[StoreTime], MemoryInterventionExecutionStore]
Check = Callable[[Open], Awaitable[None]]
Record = MemoryInterventionExecutionRecord
Store = MemoryInterventionExecutionStore

NAME = "trial-1"
LEASE = timedelta(seconds=10)
OWNERSHIP = "runtime_dispatch_ownership"
DIGESTS = (
    *("request_fingerprint", "spec_fingerprint", "case_revision", "required_execution_profile_fingerprint"),
    *("runtime_execution_profile_fingerprint", "overlay_provider_fingerprint", "runtime_runner_fingerprint"),
    "evaluator_fingerprint",
)
NAMES = ("request_key_id", "candidate_id", "trial_id", "case_id", "overlay_provider_id")


def first_record(name: str = NAME, **changes: Any) -> Record:
    """Return the record that an execution begins with, with these fields changed."""
    fields: dict[str, Any] = {field: fingerprint("cayu.testing", field) for field in DIGESTS}
    fields |= {field: f"the {field}" for field in NAMES}
    fields |= {"execution_id": name, "session_id": f"session of {name}", "causal_budget_id": f"budget of {name}"}
    fields |= {"phase": Phase.PREPARED, "revision": 0, "created_at": START, "updated_at": START}
    return Record(**fields | changes)


def next_record(record: Record, **known: Any) -> Record:
    """Return the record one phase on, with evidence for that phase and these fields changed.

    A session that ends needs the ownership that the record has; without one an ownership is made up.
    """
    phase = list(Phase)[ORDER[record.phase] + 1]
    evidence: dict[str, Any] = {field: fingerprint("cayu.testing", field) for field in FIELDS_OF[phase]}
    if phase is Phase.SESSION_BOUND:
        evidence = {"runtime_session_create_claim": session_claim(record), "runtime_deadline_at": START + LEASE * 6}
    if phase is Phase.RUNTIME_TERMINAL:
        owner = record.runtime_dispatch_ownership or made_up_owner(record)
        evidence |= {"runtime_result_payload": {"words": ["ü", 1.5, None]}, OWNERSHIP: owner.settled(owner.renewed_at)}
    if phase is Phase.FINALIZED:
        evidence["status"] = Status.COMPLETED
    return record.advanced(phase, **evidence | known)


def made_up_owner(record: Record, **changes: Any) -> DurableOperationOwnership:
    """Return an ownership of a record's dispatch that no store has given."""
    fields: dict[str, Any] = {"operation_id": dispatch_operation(record.execution_id), "claim_id": "made up"}
    fields |= {"owner_id": "nobody", "generation": 1, "state": DurableOperationOwnershipState.ACTIVE}
    fields |= {"acquired_at": START, "renewed_at": START, "lease_expires_at": START + LEASE}
    return DurableOperationOwnership(**fields | changes)


def session_claim(record: Record, operation: str | None = None) -> RuntimeSessionCreateClaimReference:
    """Return the claim of a record's session for an operation, by default the record's own."""
    return RuntimeSessionCreateClaimReference(
        session_id=record.session_id,
        operation_id=operation or record.operation_fingerprint or "",
        request_authority_key_id=record.request_key_id,
        request_authority_hmac_sha256=fingerprint("cayu.testing", "authority"),
        claim_id="a session's claim",
    )


@asynccontextmanager
async def opened(open_store: Open, clock: FakeClock | None = None) -> AsyncIterator[Store]:
    """Open a store on a clock, by default one that stands still, and close it."""
    time = clock or FakeClock()
    store = open_store(lambda: as_datetime(time.now_us()))
    try:
        yield store
    finally:
        await store.aclose()


async def taken_to(store: Store, phase: Phase, name: str = NAME) -> Record:
    """Begin an execution and take it on to a phase, owning its dispatch where that is needed."""
    record = await store.begin(first_record(name))
    for _ in range(ORDER[phase]):
        if record.phase is Phase.SESSION_BOUND:
            record = (await ask(store, "claim", name=name)).execution
        record = await store.compare_and_set(record, next_record(record))
    return record


async def ask(
    store: Store,
    action: Action,
    who: str = "a",
    *,
    generation: int | None = None,
    lease: float | None = None,
    name: str = NAME,
) -> MemoryInterventionRuntimeOwnershipResult:
    """Ask a store for a transition in somebody's name; `lease` is in seconds. Return what came of it."""
    request = DurableOperationOwnershipTransition(
        operation_id=dispatch_operation(name),
        claim_id=f"claim of {who}",
        owner_id=who,
        action=action,
        generation=generation,
        lease_seconds=lease,
    )
    return await store.transition_runtime_dispatch_ownership(name, request)


async def refused(work: Awaitable[Any], *kinds: type[Exception]) -> None:
    """Check that work raises one of these errors, by default the journal's conflict."""
    wanted = kinds or (MemoryInterventionExecutionConflict,)
    try:
        await work
    except wanted:
        return
    raise AssertionError(f"none of {', '.join(kind.__name__ for kind in wanted)} was raised")


async def not_written(
    store: Store, stands: Record, desired: Record, *kinds: type[Exception], expected: Record | None = None
) -> None:
    """Check that a step is refused, and that the execution stands as before."""
    await refused(store.compare_and_set(expected or stands, desired), *kinds)
    assert await store.load(stands.execution_id) == stands, "a refused write changed the record"
