"""What every execution store must do, as checks that run over any backend.

    @pytest.mark.parametrize("check", EXECUTION_STORE_CHECKS)
    async def test_my_store(check, tmp_path):
        await check(lambda clock: MyStore(tmp_path / "journal", ownership_clock=clock))

Each check opens a fresh store on a clock of its own and closes it. `DURABLE_EXECUTION_STORE_CHECKS` open the same place
twice. `first_record` and `next_record` make the records; what they name exists nowhere.
"""

from __future__ import annotations

import asyncio
from typing import Any

from cayu.canonical import fingerprint
from cayu.errors import InvalidInput, MemoryInterventionExecutionConflict
from cayu.interventions.ownership import DurableOperationOwnershipDisposition as D
from cayu.interventions.phases import FIELDS_OF, ORDER
from cayu.interventions.phases import MemoryInterventionExecutionPhase as Phase
from cayu.interventions.phases import MemoryInterventionExecutionStatus as Status
from cayu.interventions.requests import MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES
from cayu.testing.clocks import START, FakeClock
from cayu.testing.executions import (
    DIGESTS,
    LEASE,
    NAME,
    NAMES,
    OWNERSHIP,
    Check,
    Open,
    Record,
    ask,
    first_record,
    next_record,
    not_written,
    opened,
    refused,
    session_claim,
    taken_to,
)
from cayu.testing.ownerships import (
    check_authority,
    check_clock_set_back,
    check_operations,
    check_ownership,
    check_publication,
    check_settlement,
    check_takeover,
)


async def check_begin(open_store: Open) -> None:
    """The first record is written once; its exact replay answers what stands, anything else is a conflict."""
    async with opened(open_store) as store:
        first = first_record()
        assert await store.begin(first) == first
        later = first_record(created_at=START + LEASE, updated_at=START + LEASE)
        assert await store.begin(later) == first, "a replay wrote its own time"
        for field in (*DIGESTS, *NAMES, "session_id", "causal_budget_id"):
            other = fingerprint("cayu.testing", "another") if field in DIGESTS else "another"
            await refused(store.begin(first_record(**{field: other})))
            assert await store.load(NAME) == first, f"a conflicting {field} was written"
        second = await store.compare_and_set(first, next_record(first))
        assert await store.begin(first) == second, "a replay answers how far the execution has come"
        await refused(store.begin(next_record(first_record("trial-2"))), InvalidInput)
        assert await store.load("trial-2") is None
        begun = await asyncio.gather(*(store.begin(first_record("trial-3")) for _ in range(8)))
        assert begun == [first_record("trial-3")] * 8


async def check_unknown(open_store: Open) -> None:
    """Of an execution that was never begun there is no record, and nothing to take on or to own."""
    async with opened(open_store) as store:
        await store.begin(first_record("trial-2"))
        assert await store.load(NAME) is None
        await refused(store.compare_and_set(first_record(), next_record(first_record())))
        await refused(store.compare_and_set(first_record("trial-2"), next_record(first_record())))
        await refused(ask(store, "claim"))
        assert await store.load(NAME) is None


async def check_phases(open_store: Open) -> None:
    """An execution goes from phase to phase, one revision at a time, and is read back as it was written."""
    async with opened(open_store) as store:
        record = await store.begin(first_record())
        for phase in list(Phase)[1:]:
            if phase is Phase.RUNTIME_TERMINAL:
                record = (await ask(store, "claim")).execution
            desired = next_record(record)
            written = await store.compare_and_set(record, desired)
            assert written.phase is phase
            assert written.revision == record.revision + 1
            assert written == await store.load(NAME)
            same = desired.model_copy(update={OWNERSHIP: written.runtime_dispatch_ownership})
            assert written == same, "something else was written than was asked for"
            record = written
        assert (record.revision, record.status) == (6, Status.COMPLETED)


async def check_compare(open_store: Open) -> None:
    """Whoever read something else than what stands writes nothing."""
    async with opened(open_store) as store:
        stale = await store.begin(first_record())
        stands = await store.compare_and_set(stale, next_record(stale))
        await not_written(store, stands, next_record(stale), expected=stale)
        await not_written(store, stands, next_record(stands), expected=stale)
        other = next_record(stale, materialization_fingerprint=fingerprint("cayu.testing", "another"))
        await not_written(store, stands, next_record(stands), expected=other)
        await not_written(store, stands, next_record(stands), expected=next_record(stands))


async def check_steps(open_store: Open) -> None:
    """One step is one revision, into the next phase or with a new control, and keeps the identity."""
    async with opened(open_store) as store:
        stands = await taken_to(store, Phase.TRIAL_BOUND)
        step = next_record(stands)
        await not_written(store, stands, next_record(stands, revision=stands.revision + 2))
        await not_written(store, stands, next_record(stands, revision=stands.revision))
        await not_written(store, stands, next_record(step, revision=stands.revision + 1))
        await not_written(store, stands, stands.advanced())
        await not_written(store, stands, stands)
        await not_written(store, stands, first_record(revision=stands.revision + 1))
        for changed in (
            {"request_fingerprint": fingerprint("cayu.testing", "another")},
            {"case_id": "another"},
            {"created_at": START - LEASE},
        ):
            await not_written(store, stands, next_record(stands, **changed))
        assert await store.compare_and_set(stands, step) == step


async def check_evidence(open_store: Open) -> None:
    """What is known of an execution stays as it was written."""
    async with opened(open_store) as store:
        record = await store.begin(first_record())
        known: list[str] = []
        for _ in range(ORDER[Phase.FINALIZED]):
            if record.phase is Phase.SESSION_BOUND:
                record = (await ask(store, "claim")).execution
            for field in known:
                await not_written(store, record, next_record(record, **_changed(record, field)))
            record = await store.compare_and_set(record, next_record(record))
            known += [field for field in FIELDS_OF[record.phase] if field != OWNERSHIP]
        assert len(known) == 12


def _changed(record: Record, field: str) -> dict[str, Any]:
    match field:
        case "runtime_session_create_claim":
            return {field: session_claim(record).model_copy(update={"claim_id": "another"})}
        case "runtime_deadline_at":
            return {field: START + LEASE * 60}
        case "runtime_result_payload":
            return {field: {"words": ["another"]}}
        case "operation_fingerprint":
            other = fingerprint("cayu.testing", "another")
            claimed = ORDER[record.phase] >= ORDER[Phase.EFFECT_RESOLVED]
            return {field: other} | ({"runtime_session_create_claim": session_claim(record, other)} if claimed else {})
    return {field: fingerprint("cayu.testing", "another")}


async def check_controls(open_store: Open) -> None:
    """An observed control is a step of its own within the phase, and is never forgotten."""
    async with opened(open_store) as store:
        await taken_to(store, Phase.SESSION_BOUND)
        record = (await ask(store, "claim")).execution
        record = await store.compare_and_set(record, record.advanced(runtime_cancellation_observed=True))
        record = await store.compare_and_set(record, record.advanced(runtime_timeout_observed=True))
        assert record.phase is Phase.SESSION_BOUND
        for control in ("runtime_cancellation_observed", "runtime_timeout_observed"):
            forgotten: dict[str, Any] = {control: False}
            await not_written(store, record, record.advanced(**forgotten))
            await not_written(store, record, next_record(record, **forgotten))
        for _ in (Phase.RUNTIME_TERMINAL, Phase.EVALUATED):
            record = await store.compare_and_set(record, next_record(record))
        final = next_record(record, status=Status.CANCELLED, failure_code="runtime_cancelled")
        await not_written(store, record, final.model_copy(update={"runtime_cancellation_observed": False}))
        record = await store.compare_and_set(record, final)
        assert (record.runtime_cancellation_observed, record.runtime_timeout_observed) == (True, True)


async def check_terminal(open_store: Open) -> None:
    """An execution that has ended, at its last phase or before, goes no further."""
    async with opened(open_store) as store:
        final = await taken_to(store, Phase.FINALIZED)
        await not_written(store, final, final.advanced(runtime_timeout_observed=True))
        await not_written(store, final, final.advanced(status=Status.FAILED, failure_code="runtime_failed"))
        bound = await taken_to(store, Phase.TRIAL_BOUND, "trial-2")
        refused = next_record(bound, status=Status.CONFLICTING, failure_code="intervention_conflicting")
        ended = await store.compare_and_set(bound, refused)
        assert ended.is_terminal
        await not_written(store, ended, next_record(ended, status=Status.ACTIVE, failure_code=None))
        assert (await ask(store, "claim", name="trial-2")).ownership.disposition is D.OPERATION_ADVANCED


async def check_writers(open_store: Open) -> None:
    """Of several who write the next revision at once exactly one succeeds, and what it wrote stands."""
    async with opened(open_store) as store:
        record = await taken_to(store, Phase.TRIAL_BOUND)
        steps = [next_record(record, receipt_fingerprint=fingerprint("cayu.testing", n)) for n in range(8)]
        race = [store.compare_and_set(record, step) for step in steps]
        results = await asyncio.gather(*race, return_exceptions=True)
        won = [result for result in results if isinstance(result, Record)]
        assert len(won) == 1
        assert sum(isinstance(result, MemoryInterventionExecutionConflict) for result in results) == 7
        assert await store.load(NAME) == won[0]


async def check_detached(open_store: Open) -> None:
    """What a caller does to a record that it gave or was given changes nothing in the store."""
    async with opened(open_store) as store:
        await taken_to(store, Phase.SESSION_BOUND)
        held = (await ask(store, "claim")).execution
        desired = next_record(held, runtime_result_payload={"words": ["kept"]})
        written = await store.compare_and_set(held, desired)
        loaded = await store.load(NAME)
        assert loaded is not None
        for record in (desired, written, loaded):
            assert record.runtime_result_payload is not None
            record.runtime_result_payload["words"].append("changed")
        again = await store.load(NAME)
        assert again is not None
        assert again.runtime_result_payload == {"words": ["kept"]}


async def check_size(open_store: Open) -> None:
    """A record of more than 1 MiB is refused, and nothing is changed; a large one that fits is kept whole."""
    async with opened(open_store) as store:
        await taken_to(store, Phase.SESSION_BOUND)
        held = (await ask(store, "claim")).execution
        most = MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES
        await not_written(store, held, next_record(held, runtime_result_payload={"n": "x" * most}), InvalidInput)
        wide = {"n": "ü" * (most // 2)}
        await not_written(store, held, next_record(held, runtime_result_payload=wide), InvalidInput)
        kept = {"n": "x" * (most - 8192)}
        written = await store.compare_and_set(held, next_record(held, runtime_result_payload=kept))
        assert written.runtime_result_payload == kept
        assert await store.load(NAME) == written


async def check_malformed(open_store: Open) -> None:
    """A record that was put together without its checks is refused, and what stands stays readable."""
    async with opened(open_store) as store:
        stands = await taken_to(store, Phase.TRIAL_BOUND)
        following = {"phase": Phase.EFFECT_RESOLVED, "revision": stands.revision + 1}
        for update in (following, following | {"receipt_fingerprint": "none"}):
            desired = stands.model_copy(update=update)
            await not_written(store, stands, desired, MemoryInterventionExecutionConflict, ValueError)
        broken = first_record("trial-2").model_copy(update={"receipt_fingerprint": fingerprint("cayu.testing", "r")})
        await refused(store.begin(broken), MemoryInterventionExecutionConflict, ValueError)
        assert await store.load("trial-2") is None


async def check_cancellation(open_store: Open) -> None:
    """A cancelled write is whole or absent, and the store goes on."""
    async with opened(open_store) as store:
        record = await taken_to(store, Phase.TRIAL_BOUND)
        desired = next_record(record)
        task = asyncio.ensure_future(store.compare_and_set(record, desired))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        stands = await store.load(NAME)
        assert stands in (record, desired)
        assert stands is not None
        following = await store.compare_and_set(stands, next_record(stands))
        assert following.revision == stands.revision + 1


async def check_reopening(open_store: Open) -> None:
    """A second life reads what the first one wrote, ownership and all, and goes on from there."""
    clock = FakeClock()
    async with opened(open_store, clock) as store:
        await taken_to(store, Phase.SESSION_BOUND)
        held = (await ask(store, "claim")).execution
        stopped = await store.compare_and_set(held, held.advanced(runtime_cancellation_observed=True))
    async with opened(open_store, clock) as again:
        assert await again.load(NAME) == stopped
        assert await again.begin(first_record()) == stopped
        assert (await ask(again, "claim", "b")).ownership.disposition is D.EQUIVALENT_LIVE_OWNER
        ended = await again.compare_and_set(stopped, next_record(stopped))
        assert ended.runtime_cancellation_observed
        assert again.durable_state_paths()


EXECUTION_STORE_CHECKS: tuple[Check, ...] = (
    check_begin,
    check_unknown,
    check_phases,
    check_compare,
    check_steps,
    check_evidence,
    check_controls,
    check_terminal,
    check_writers,
    check_ownership,
    check_takeover,
    check_publication,
    check_settlement,
    check_authority,
    check_operations,
    check_clock_set_back,
    check_detached,
    check_size,
    check_malformed,
    check_cancellation,
)
"""Checks for every backend."""

DURABLE_EXECUTION_STORE_CHECKS: tuple[Check, ...] = (check_reopening,)
"""Checks for backends that outlive their process."""
