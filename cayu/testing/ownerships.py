"""What every execution store must do with the ownership of a dispatch; `journals` gathers the checks."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from cayu.interventions.ownership import DurableOperationOwnershipDisposition as D
from cayu.interventions.ownership import DurableOperationOwnershipState as State
from cayu.interventions.ownership import DurableOperationOwnershipTransition
from cayu.interventions.phases import MemoryInterventionExecutionPhase as Phase
from cayu.interventions.records import dispatch_operation
from cayu.testing.clocks import START, FakeClock
from cayu.testing.executions import (
    LEASE,
    NAME,
    OWNERSHIP,
    Open,
    ask,
    made_up_owner,
    next_record,
    not_written,
    opened,
    taken_to,
)


async def check_ownership(open_store: Open) -> None:
    """The dispatch of a bound session is claimed, renewed and released by the store's time, beside the revision."""
    clock = FakeClock()
    async with opened(open_store, clock) as store:
        before = await taken_to(store, Phase.EFFECT_RESOLVED)
        early = await ask(store, "claim")
        assert (early.ownership.disposition, early.execution) == (D.OPERATION_ADVANCED, before)
        bound = await store.compare_and_set(before, next_record(before))
        clock.advance(3)
        now = START + timedelta(seconds=3)
        first = await ask(store, "claim", lease=20)
        owner = first.ownership.ownership
        assert owner is not None
        assert (first.ownership.disposition, first.ownership.observed_at, owner.generation) == (D.ACQUIRED, now, 1)
        assert (owner.acquired_at, owner.renewed_at, owner.lease_expires_at) == (now, now, now + LEASE * 2)
        assert first.execution == bound.model_copy(update={OWNERSHIP: owner}) == await store.load(NAME)
        again = await ask(store, "claim")
        assert (again.ownership.disposition, again.execution) == (D.ACQUIRED, first.execution)
        other = await ask(store, "claim", "b")
        assert (other.ownership.disposition, other.execution) == (D.EQUIVALENT_LIVE_OWNER, first.execution)
        clock.advance(15)
        renewed = await ask(store, "renew", generation=1)
        assert renewed.ownership.disposition is D.RENEWED
        assert renewed.ownership.ownership is not None
        assert renewed.ownership.ownership.lease_expires_at == now + timedelta(seconds=25)
        for thief, generation in (("b", 1), ("a", 2)):
            for action in ("renew", "release"):
                fenced = await ask(store, action, thief, generation=generation)
                assert (fenced.ownership.disposition, fenced.execution) == (D.FENCED, renewed.execution)
        released = await ask(store, "release", generation=1)
        assert released.ownership.disposition is D.RELEASED
        second = await ask(store, "claim", "b")
        assert (second.ownership.disposition, second.execution.revision) == (D.ACQUIRED, bound.revision)
        assert second.execution.runtime_dispatch_ownership is not None
        assert second.execution.runtime_dispatch_ownership.generation == 2
        assert await store.load(NAME) == second.execution


async def check_takeover(open_store: Open) -> None:
    """A live owner keeps others out; one whose lease has ended is taken over from, once, and fenced from then on."""
    clock = FakeClock()
    async with opened(open_store, clock) as store:
        await taken_to(store, Phase.SESSION_BOUND)
        held = (await ask(store, "claim")).execution
        clock.advance(9.9)
        assert (await ask(store, "claim", "b")).ownership.disposition is D.EQUIVALENT_LIVE_OWNER
        clock.advance(0.1)
        assert (await ask(store, "renew", generation=1)).ownership.disposition is D.FENCED
        assert await store.load(NAME) == held
        results = await asyncio.gather(*(ask(store, "claim", f"heir {n}") for n in range(8)))
        found = [result.ownership.disposition for result in results]
        assert sorted(found) == sorted([D.EXPIRED_TAKEN_OVER] + [D.EQUIVALENT_LIVE_OWNER] * 7)
        stands = await store.load(NAME)
        assert stands is not None
        assert stands == results[found.index(D.EXPIRED_TAKEN_OVER)].execution
        assert stands.runtime_dispatch_ownership is not None
        assert stands.runtime_dispatch_ownership.generation == 2
        assert (await ask(store, "release", generation=1)).ownership.disposition is D.FENCED
        await not_written(store, stands, next_record(held), expected=held)


async def check_publication(open_store: Open) -> None:
    """What is known of a bound session is published by its live owner only, in the store's time of that write."""
    clock = FakeClock()
    async with opened(open_store, clock) as store:
        bound = await taken_to(store, Phase.SESSION_BOUND)
        stopped: dict[str, Any] = {"runtime_timeout_observed": True}
        await not_written(store, bound, bound.advanced(**stopped))
        await not_written(store, bound, next_record(bound))
        await not_written(store, bound, bound.advanced(**stopped, runtime_dispatch_ownership=made_up_owner(bound)))
        held = (await ask(store, "claim")).execution
        await not_written(store, held, bound.advanced(**stopped), expected=bound)
        await not_written(store, held, next_record(bound), expected=bound)
        clock.advance(10)
        await not_written(store, held, held.advanced(**stopped))
        await not_written(store, held, next_record(held))
        held = (await ask(store, "claim")).execution
        clock.advance(8)
        renewed = (await ask(store, "renew", generation=2)).execution
        clock.advance(8)
        seen = await store.compare_and_set(held, held.advanced(**stopped))
        assert seen.runtime_dispatch_ownership == renewed.runtime_dispatch_ownership, "a write changed the lease"
        released = (await ask(store, "release", generation=2)).execution
        await not_written(store, released, next_record(seen), expected=seen)


async def check_settlement(open_store: Open) -> None:
    """The write of the session's end settles the ownership by the store's time, and nothing else does."""
    clock = FakeClock()
    async with opened(open_store, clock) as store:
        await taken_to(store, Phase.SESSION_BOUND)
        held = (await ask(store, "claim")).execution
        asked = await ask(store, "settle", generation=1)
        assert (asked.ownership.disposition, asked.execution) == (D.OPERATION_ADVANCED, held)
        clock.advance(4)
        ended = await store.compare_and_set(held, next_record(held))
        owner = ended.runtime_dispatch_ownership
        assert owner is not None
        assert (owner.state, owner.settled_at) == (State.SETTLED, START + timedelta(seconds=4))
        assert (owner.generation, owner.owner_id) == (1, "a")
        for who in ("a", "b"):
            late = await ask(store, "claim", who)
            assert (late.ownership.disposition, late.execution) == (D.OPERATION_ADVANCED, ended)
        late = await ask(store, "renew", generation=1)
        assert (late.ownership.disposition, late.execution) == (D.OPERATION_ADVANCED, ended)


async def check_authority(open_store: Open) -> None:
    """An ownership is the store's to give: none comes into a record, or is changed there, by a step."""
    async with opened(open_store) as store:
        resolved = await taken_to(store, Phase.EFFECT_RESOLVED)
        forged = next_record(resolved, runtime_dispatch_ownership=made_up_owner(resolved))
        await not_written(store, resolved, forged)
        ended = await taken_to(store, Phase.RUNTIME_TERMINAL, "trial-2")
        other = made_up_owner(ended).settled(START)
        await not_written(store, ended, next_record(ended, runtime_dispatch_ownership=other))
        assert ended.runtime_dispatch_ownership != other


async def check_operations(open_store: Open) -> None:
    """A transition names the dispatch of the very execution that it is asked of."""
    async with opened(open_store) as store:
        bound = await taken_to(store, Phase.SESSION_BOUND)
        request = DurableOperationOwnershipTransition(
            operation_id=dispatch_operation("trial-2"), claim_id="c", owner_id="a", action="claim"
        )
        result = await store.transition_runtime_dispatch_ownership(NAME, request)
        assert (result.ownership.disposition, result.execution) == (D.IDENTITY_CONFLICT, bound)
        assert await store.load(NAME) == bound


async def check_clock_set_back(open_store: Open) -> None:
    """A store whose clock is set back goes on: a lease is renewed, and the record stays readable."""
    clock = FakeClock()
    async with opened(open_store, clock) as store:
        await taken_to(store, Phase.SESSION_BOUND)
        held = (await ask(store, "claim")).execution
        clock.jump(-5)
        assert (await ask(store, "renew", generation=1)).ownership.disposition is D.RENEWED
        stands = await store.load(NAME)
        assert stands is not None
        owner, before = stands.runtime_dispatch_ownership, held.runtime_dispatch_ownership
        assert owner is not None
        assert before is not None
        assert owner.lease_expires_at >= before.lease_expires_at, "a renewal shortened the lease"
        ended = await store.compare_and_set(stands, next_record(stands))
        assert ended.phase is Phase.RUNTIME_TERMINAL
