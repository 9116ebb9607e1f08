"""Who may write: every refusal and every success of `decide_append` and `decide_renewal`, as pure functions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cayu.errors import (
    IllegalTransition,
    SessionAlreadyExists,
    SessionNotFound,
    SessionRunFenced,
    SessionRunning,
    StreamConflict,
)
from cayu.sessions.streams import (
    COUNTERS,
    LEASE_SECONDS,
    Held,
    Record,
    StreamRow,
    StreamState,
    Take,
    Unit,
    decide_append,
    decide_renewal,
    is_owned,
)

NOW = 1_000_000_000
LEASE = round(LEASE_SECONDS * 1_000_000)
ROW = StreamRow(id="s", instance_id="i", agent_name="a", provider_name="p", model="m")
FREE = StreamState(version=4, status="completed", epoch=2, created_at=1, updated_at=2)
RUN = FREE._replace(status="running", owner="me", lease_expires_at=NOW + 1)
RESUMED = (Record("session.resumed", b"{}"),)
STARTED = (Record("model.started", b"{}"),)
MINE = Held(2, "me")


def unit(version: int | None = 4, fence: Held | Take | None = MINE, records: Any = STARTED, **more: Any) -> Unit:
    return Unit("s", version, fence, records, **more)


REFUSALS = {
    "unknown stream": (None, unit(), SessionNotFound),
    "unknown stream, unfenced": (None, unit(None, None), SessionNotFound),
    "existing stream": (FREE, unit(0, Take("me"), create=ROW), SessionAlreadyExists),
    "existing stream that runs": (RUN, unit(0, Take("x"), create=ROW), SessionAlreadyExists),
    "an older epoch": (RUN, unit(fence=Held(1, "me")), SessionRunFenced),
    "a later epoch": (RUN, unit(fence=Held(3, "me")), SessionRunFenced),
    "another owner": (RUN, unit(fence=Held(2, "you")), SessionRunFenced),
    "a claim given up": (FREE, unit(fence=MINE), SessionRunFenced),
    "a stale claim before a stale version": (RUN, unit(3, Held(1, "me")), SessionRunFenced),
    "a version behind": (RUN, unit(3), StreamConflict),
    "a version ahead": (RUN, unit(5), StreamConflict),
    "a version behind, unfenced": (RUN, unit(3, None), StreamConflict),
    "taking a stale version": (FREE, unit(3, Take("you"), RESUMED), StreamConflict),
    "taking a stale version that runs": (RUN, unit(3, Take("you")), StreamConflict),
    "taking what is owned": (RUN, unit(fence=Take("you")), SessionRunning),
    "taking what is owned by oneself": (RUN, unit(fence=Take("me")), SessionRunning),
    "evicting someone else": (RUN, unit(fence=Take("you", evicting="them")), SessionRunning),
    "an event that the state does not admit": (FREE, unit(fence=Take("me")), IllegalTransition),
    "a second event that the state does not admit": (
        FREE,
        unit(fence=Take("me"), records=(*RESUMED, *RESUMED)),
        IllegalTransition,
    ),
    "a first event that is none": (None, unit(0, Take("me"), create=ROW), IllegalTransition),
    "a version other than 0 for a new stream": (None, unit(1, Take("me"), create=ROW), StreamConflict),
    "an interrupt request after the end": (
        FREE,
        unit(None, None, (Record("session.interrupt_requested", b"{}"),)),
        IllegalTransition,
    ),
}


@pytest.mark.parametrize("state, wanted, error", REFUSALS.values(), ids=REFUSALS)
def test_refusals(state: StreamState | None, wanted: Unit, error: type[Exception]) -> None:
    with pytest.raises(error):
        decide_append(state, wanted, NOW)


def test_refusals_say_what_they_are_about() -> None:
    with pytest.raises(StreamConflict) as conflict:
        decide_append(RUN, unit(3), NOW)
    assert (conflict.value.stream, conflict.value.expected, conflict.value.actual) == ("s", 3, 4)
    with pytest.raises(SessionRunning) as running:
        decide_append(RUN, unit(fence=Take("you")), NOW)
    assert (running.value.session_id, running.value.owner) == ("s", "me")


def test_a_new_stream_is_claimed_by_its_first_write() -> None:
    started = (Record("session.started", b"{}"), Record("model.started", b"{}"))
    found = decide_append(None, unit(0, Take("me"), started, create=ROW), NOW)
    assert found == StreamState(
        version=2,
        status="running",
        epoch=1,
        owner="me",
        lease_expires_at=NOW + LEASE,
        created_at=NOW,
        updated_at=NOW,
    )


SUCCESSES = {
    "an owner's write renews": (RUN, unit(), {"version": 5, "lease_expires_at": NOW + LEASE}),
    "an owner's write with a lease of its own": (
        RUN,
        unit(lease_seconds=0.5),
        {"version": 5, "lease_expires_at": NOW + 500_000},
    ),
    "an owner whose lease ran out, taken over by nobody": (
        RUN._replace(lease_expires_at=NOW - 1),
        unit(),
        {"version": 5, "lease_expires_at": NOW + LEASE},
    ),
    "an owner's release": (RUN, unit(release=True), {"version": 5, "owner": None, "lease_expires_at": None}),
    "a claim of a free stream": (
        FREE,
        unit(fence=Take("you"), records=RESUMED),
        {"version": 5, "status": "running", "epoch": 3, "owner": "you", "lease_expires_at": NOW + LEASE},
    ),
    "a claim with its release": (
        FREE,
        unit(fence=Take("you"), records=(), release=True),
        {"epoch": 3, "owner": None, "lease_expires_at": None},
    ),
    "a claim of an expired lease": (
        RUN._replace(lease_expires_at=NOW),
        unit(fence=Take("you")),
        {"version": 5, "epoch": 3, "owner": "you", "lease_expires_at": NOW + LEASE},
    ),
    "an eviction of an owner that is gone": (
        RUN,
        unit(fence=Take("you", evicting="me")),
        {"version": 5, "epoch": 3, "owner": "you", "lease_expires_at": NOW + LEASE},
    ),
    "a claim without a record": (
        RUN._replace(owner=None, lease_expires_at=None),
        unit(fence=Take("you"), records=()),
        {"epoch": 3, "owner": "you", "lease_expires_at": NOW + LEASE},
    ),
    "an interrupt request leaves the claim alone": (
        RUN,
        unit(None, None, (Record("session.interrupt_requested", b"{}"),)),
        {"version": 5, "status": "interrupting"},
    ),
    "an event of tomorrow": (
        RUN,
        unit(records=(Record("a.new.one", b"{}"),)),
        {"version": 5, "lease_expires_at": NOW + LEASE},
    ),
    "counters": (
        RUN,
        unit(records=(), add={"tool_calls": 2, "pending": -1}),
        {"tool_calls": 2, "pending": -1, "lease_expires_at": NOW + LEASE},
    ),
}


@pytest.mark.parametrize("state, wanted, changes", SUCCESSES.values(), ids=SUCCESSES)
def test_successes(state: StreamState, wanted: Unit, changes: dict[str, Any]) -> None:
    before = state
    assert decide_append(state, wanted, NOW) == before._replace(updated_at=NOW, **changes)
    assert state == before


@given(st.dictionaries(st.sampled_from(COUNTERS), st.integers(-5, 5)), st.integers(0, 9))
def test_counters_add_up(add: dict[str, int], present: int) -> None:
    state = RUN._replace(**dict.fromkeys(COUNTERS, present))
    found = decide_append(state, unit(records=(), add=add), NOW)
    assert {name: getattr(found, name) for name in COUNTERS} == {n: present + add.get(n, 0) for n in COUNTERS}


@given(st.integers(-3, 3), st.booleans())
def test_a_lease_ends_at_its_very_microsecond(offset: int, owned: bool) -> None:
    state = RUN._replace(owner="me" if owned else None, lease_expires_at=NOW + offset)
    assert is_owned(state, NOW) is (owned and offset > 0)


@pytest.mark.parametrize("lease_end", [NOW + 1, NOW - 1])
def test_renewal(lease_end: int) -> None:
    state = RUN._replace(lease_expires_at=lease_end)
    assert decide_renewal(state, "s", MINE, NOW, 2.0) == state._replace(lease_expires_at=NOW + 2_000_000)


@pytest.mark.parametrize(
    "state, held",
    [(None, MINE), (FREE, MINE), (RUN, Held(1, "me")), (RUN, Held(3, "me")), (RUN, Held(2, "you"))],
)
def test_renewal_of_a_lost_claim_is_fenced(state: StreamState | None, held: Held) -> None:
    with pytest.raises(SessionRunFenced):
        decide_renewal(state, "s", held, NOW, 2.0)
