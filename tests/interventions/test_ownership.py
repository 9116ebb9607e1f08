"""Who owns a dispatch: every state with every action, whoever asks and whenever."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interventions.support import AT, make_ownership
from pydantic import ValidationError

from cayu.interventions.ownership import DEFAULT_LEASE_SECONDS, DurableOperationOwnership, decide_ownership
from cayu.interventions.ownership import DurableOperationOwnershipDisposition as D
from cayu.interventions.ownership import DurableOperationOwnershipState as State
from cayu.interventions.ownership import DurableOperationOwnershipTransition as Transition
from cayu.interventions.records import dispatch_operation

pytestmark = pytest.mark.exhaustive

EXECUTION = "trial-1"
OPERATION = dispatch_operation(EXECUTION)
LEASE = timedelta(seconds=DEFAULT_LEASE_SECONDS)
TICK = timedelta(microseconds=1)
LIVE, EXPIRED = AT + LEASE - TICK, AT + LEASE
HOLDER = {"operation_id": OPERATION, "claim_id": "claim-1", "owner_id": "owner-1", "generation": 3}
ASKERS: dict[str, dict[str, Any]] = {
    "holder": {},
    "other claim": {"claim_id": "claim-2"},
    "other owner": {"owner_id": "owner-2"},
    "stranger": {"claim_id": "claim-2", "owner_id": "owner-2"},
    "earlier generation": {"generation": 2},
    "later generation": {"generation": 4},
    "other operation": {"operation_id": dispatch_operation("trial-2")},
}
STANDINGS: dict[str, tuple[DurableOperationOwnership | None, datetime]] = {
    "none": (None, LIVE),
    "live": (make_ownership(EXECUTION, generation=3), LIVE),
    "expired": (make_ownership(EXECUTION, generation=3), EXPIRED),
    "released": (make_ownership(EXECUTION, "released", generation=3), LIVE),
    "released and expired": (make_ownership(EXECUTION, "released", generation=3), EXPIRED),
    "settled": (make_ownership(EXECUTION, "settled", generation=3), LIVE),
    "settled and expired": (make_ownership(EXECUTION, "settled", generation=3), EXPIRED),
}
ACTIONS = ("claim", "renew", "release", "settle")
DONE = {"renew": D.RENEWED, "release": D.RELEASED, "settle": D.SETTLED}
CLAIMED = {
    "none": D.ACQUIRED,
    "expired": D.EXPIRED_TAKEN_OVER,
    "released": D.ACQUIRED,
    "released and expired": D.ACQUIRED,
    "settled": D.SETTLED,
    "settled and expired": D.SETTLED,
}
"""What a claim comes to, whoever makes it; a live ownership depends on that."""


def ask(action: str, lease: float | None = None, **asker: Any) -> Transition:
    fields = HOLDER | asker
    if action == "claim":
        fields["generation"] = None
    return Transition(**fields, action=action, lease_seconds=lease)


def expected(standing: str, action: str, asker: str) -> D:
    """What has to come of it, in the words of the protocol."""
    if asker == "other operation" and standing != "none":
        return D.IDENTITY_CONFLICT
    if action == "claim":
        mine = asker in ("holder", "earlier generation", "later generation")
        return CLAIMED.get(standing, D.ACQUIRED if mine else D.EQUIVALENT_LIVE_OWNER)
    if asker == "holder" and standing == "live":
        return DONE[action]
    return D.SETTLED if asker == "holder" and standing.startswith("settled") else D.FENCED


@pytest.mark.requirement("B077")
@pytest.mark.parametrize("standing, action, asker", list(product(STANDINGS, ACTIONS, ASKERS)))
def test_every_state_answers_every_action_of_everybody(standing: str, action: str, asker: str) -> None:
    current, now = STANDINGS[standing]
    disposition, after = decide_ownership(current, ask(action, **ASKERS[asker]), now)
    assert disposition is expected(standing, action, asker)
    moved = (disposition in (D.RENEWED, D.RELEASED, D.EXPIRED_TAKEN_OVER)) or (
        disposition is D.ACQUIRED and standing != "live"
    )
    moved = moved or (disposition is D.SETTLED and standing == "live")
    assert moved != (after is current)


@pytest.mark.parametrize("standing", ["none", "expired", "released", "released and expired"])
def test_a_claim_makes_a_fresh_ownership_of_the_next_generation(standing: str) -> None:
    current, now = STANDINGS[standing]
    _, after = decide_ownership(current, ask("claim", lease=2.5, claim_id="claim-2", owner_id="owner-2"), now)
    assert after == DurableOperationOwnership(
        operation_id=OPERATION,
        claim_id="claim-2",
        owner_id="owner-2",
        generation=1 if current is None else 4,
        state=State.ACTIVE,
        acquired_at=now,
        renewed_at=now,
        lease_expires_at=now + timedelta(seconds=2.5),
    )


def test_a_lease_is_ten_seconds_unless_it_is_said() -> None:
    _, after = decide_ownership(None, ask("claim"), AT)
    assert after is not None
    assert after.lease_expires_at - after.acquired_at == timedelta(seconds=10)
    assert after.is_live(AT + timedelta(seconds=10) - TICK)
    assert not after.is_live(AT + timedelta(seconds=10))


def test_a_renewal_prolongs_from_now_and_never_shortens() -> None:
    current = make_ownership(EXECUTION, generation=3)
    now = AT + timedelta(seconds=4)
    _, longer = decide_ownership(current, ask("renew"), now)
    assert longer == current.model_copy(update={"renewed_at": now, "lease_expires_at": now + LEASE})
    _, same = decide_ownership(current, ask("renew", lease=0.5), now)
    assert same == current.model_copy(update={"renewed_at": now})


@pytest.mark.parametrize(
    "action, state, field", [("release", "released", "released_at"), ("settle", "settled", "settled_at")]
)
def test_an_ownership_ends_at_the_stores_time(action: str, state: str, field: str) -> None:
    current = make_ownership(EXECUTION, generation=3)
    _, after = decide_ownership(current, ask(action), LIVE)
    assert after is not None
    assert after == current.model_copy(update={"state": State(state), field: LIVE})
    assert after == DurableOperationOwnership.model_validate(after.model_dump())
    assert not after.is_live(LIVE)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_clock_that_was_set_back_leaves_an_ownership_that_can_be_read(action: str) -> None:
    current = make_ownership(EXECUTION, generation=3)
    _, after = decide_ownership(current, ask(action), AT - timedelta(seconds=5))
    assert after is not None
    assert after == DurableOperationOwnership.model_validate(after.model_dump())


STEPS = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(ACTIONS), st.integers(0, 2), st.integers(1, 4), st.integers(1, 15)),
    max_size=25,
)


@settings(deadline=None, max_examples=50)
@given(STEPS)
def test_nobody_holds_what_another_holds(steps: list[tuple[int, str, int, int, int]]) -> None:
    """Generations rise, a settled ownership is final, and a live one changes hands only when it is given up."""
    now, current = AT, None
    for seconds, action, who, generation, lease in steps:
        now += timedelta(seconds=seconds)
        wanted = ask(
            action,
            lease=lease if action in ("claim", "renew") else None,
            claim_id=f"claim-{who}",
            owner_id=f"owner-{who}",
            generation=generation,
        )
        disposition, after = decide_ownership(current, wanted, now)
        if after is not None:
            assert after == DurableOperationOwnership.model_validate(after.model_dump())
        if current is not None:
            assert after is not None
            assert after.generation >= current.generation
            assert after.lease_expires_at >= current.lease_expires_at or after.generation > current.generation
            if current.is_live(now):
                assert after.claim_id == current.claim_id
            if current.state is State.SETTLED:
                assert after is current
        if disposition in (D.ACQUIRED, D.EXPIRED_TAKEN_OVER, D.RENEWED):
            assert after is not None
            assert after.is_live(now)
            assert after.claim_id == wanted.claim_id
        current = after


@pytest.mark.parametrize(
    "changes",
    [
        {"renewed_at": AT - TICK},
        {"lease_expires_at": AT - TICK},
        {"released_at": AT},
        {"settled_at": AT},
        {"state": "released"},
        {"state": "settled"},
        {"state": "settled", "released_at": AT},
        {"generation": 0},
        {"generation": True},
        {"generation": 1.0},
        {"claim_id": " "},
        {"owner_id": "x" * 257},
        {"acquired_at": datetime(2026, 1, 1)},
        {"words": "more"},
    ],
)
def test_an_ownership_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    fields = make_ownership(EXECUTION).model_dump()
    with pytest.raises(ValidationError):
        DurableOperationOwnership(**fields | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"action": "claim"},
        {"action": "renew", "generation": None},
        {"action": "release", "generation": None},
        {"action": "settle", "generation": None},
        {"action": "release", "lease_seconds": 1.0},
        {"action": "settle", "lease_seconds": 1.0},
        {"action": "renew", "lease_seconds": 0},
        {"action": "renew", "lease_seconds": 3601},
        {"action": "renew", "lease_seconds": float("nan")},
        {"action": "steal"},
        {"action": "renew", "generation": 0},
    ],
)
def test_a_transition_names_what_it_needs_and_nothing_else(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Transition(**HOLDER | {"action": "renew"} | changes)
