"""The rules of the execution journal, as pure functions of what stands and what is asked."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interventions.support import AT, digest, make_ownership, make_record, prepare
from pydantic import ValidationError

from cayu.canonical import dumps, loads
from cayu.errors import InvalidInput, MemoryInterventionExecutionConflict
from cayu.interventions.journal import (
    as_row,
    decide_begin,
    decide_compare_and_set,
    decide_transition,
    from_row,
)
from cayu.interventions.ownership import DurableOperationOwnershipDisposition as D
from cayu.interventions.ownership import DurableOperationOwnershipState as State
from cayu.interventions.ownership import DurableOperationOwnershipTransition as Transition
from cayu.interventions.phases import ORDER
from cayu.interventions.phases import MemoryInterventionExecutionPhase as Phase
from cayu.interventions.records import MemoryInterventionExecutionRecord, dispatch_operation
from cayu.interventions.requests import MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES as MOST

pytestmark = pytest.mark.exhaustive

Record = MemoryInterventionExecutionRecord
PHASES = list(Phase)
EXECUTION = prepare().execution_id
OWNER = make_ownership(EXECUTION)
SECOND = timedelta(seconds=1)
SECRET = "words that no error shows"
CONTROLS = ("runtime_cancellation_observed", "runtime_timeout_observed")


def bound(**fields: Any) -> Record:
    """The trial with its dispatch in hand."""
    return make_record(Phase.SESSION_BOUND, **{"runtime_dispatch_ownership": OWNER} | fields)


def conflict(reason: str) -> Any:
    return pytest.raises(MemoryInterventionExecutionConflict, match=reason)


@pytest.mark.requirement("B073")
def test_what_is_not_there_is_begun_and_a_replay_is_not_written() -> None:
    first = prepare()
    assert decide_begin(None, first) is first
    for phase in PHASES:
        assert decide_begin(make_record(phase), first) is None
    assert decide_begin(first, prepare(created_at=AT + SECOND)) is None


@pytest.mark.requirement("B073")
@pytest.mark.parametrize("phase", PHASES)
def test_another_request_or_component_is_a_conflict(phase: Phase) -> None:
    for field in ("overlay_provider_fingerprint", "runtime_runner_fingerprint", "evaluator_fingerprint"):
        with conflict(EXECUTION):
            decide_begin(make_record(phase), prepare(**{field: digest("another")}))
    with conflict("another request"):
        decide_begin(make_record(phase, request_fingerprint=digest("another")), prepare())


@pytest.mark.parametrize("phase", PHASES[1:])
def test_an_execution_begins_at_its_beginning(phase: Phase) -> None:
    with pytest.raises(InvalidInput, match="prepared record of revision 0"):
        decide_begin(None, make_record(phase))
    with pytest.raises(InvalidInput):
        decide_begin(None, make_record(revision=1))


@pytest.mark.requirement("B014")
@pytest.mark.parametrize("here, there", list(product(PHASES, PHASES)))
def test_a_step_leads_to_the_next_phase_and_to_no_other(here: Phase, there: Phase) -> None:
    stands = bound() if here is Phase.SESSION_BOUND else make_record(here)
    desired = make_record(there, revision=stands.revision + 1)
    if ORDER[there] == ORDER[here] + 1:
        written = decide_compare_and_set(stands, stands, desired, AT)
        assert (written.phase, written.revision) == (there, stands.revision + 1)
        return
    with conflict("has ended" if here is Phase.FINALIZED else f"does not go from {here} to {there}"):
        decide_compare_and_set(stands, stands, desired, AT)


@pytest.mark.requirement("B014")
@pytest.mark.parametrize("revision", [0, 1, 3, 4])
def test_a_revision_follows_the_one_before_it(revision: int) -> None:
    stands = make_record(Phase.TRIAL_BOUND)
    with conflict(f"revision {revision} does not follow 1"):
        decide_compare_and_set(stands, stands, make_record(Phase.EFFECT_RESOLVED, revision=revision), AT)


@pytest.mark.requirement("B014")
@pytest.mark.parametrize("revision", [-1, True, 1.0, "1", None])
def test_a_revision_is_a_whole_number_from_0_on(revision: Any) -> None:
    with pytest.raises(ValidationError):
        make_record(Phase.TRIAL_BOUND, revision=revision)


@pytest.mark.requirement("B075")
def test_nothing_stands_or_something_else_than_was_read() -> None:
    stands = make_record(Phase.TRIAL_BOUND)
    desired = make_record(Phase.EFFECT_RESOLVED)
    with conflict("nothing was begun"):
        decide_compare_and_set(None, stands, desired, AT)
    for expected in (
        make_record(),
        make_record(Phase.EFFECT_RESOLVED),
        stands.model_copy(update={"updated_at": AT + SECOND}),
    ):
        with conflict("it stands at revision 1"):
            decide_compare_and_set(stands, expected, desired, AT)


@pytest.mark.requirement("B075")
@pytest.mark.parametrize("phase", PHASES[:-1])
def test_the_identity_and_the_evidence_of_a_phase_stay(phase: Phase) -> None:
    stands = bound() if phase is Phase.SESSION_BOUND else make_record(phase)
    following = make_record(PHASES[ORDER[phase] + 1])
    never = {"phase", "revision", "status", "failure_code", "updated_at", "runtime_dispatch_ownership", *CONTROLS}
    kept = [name for name in Record.model_fields if name not in never and getattr(stands, name) is not None]
    for name in kept:
        changed = following.model_copy(update={name: "another"})
        with conflict("would change"):
            decide_compare_and_set(stands, stands, changed, AT)


@pytest.mark.requirement("B017")
@pytest.mark.parametrize("control", CONTROLS)
def test_a_control_is_observed_once_and_for_all(control: str) -> None:
    stands = bound()
    seen = decide_compare_and_set(stands, stands, stands.advanced(**{control: True}), AT)
    assert getattr(seen, control) is True
    for desired in (seen.advanced(**{control: False}), make_record(Phase.RUNTIME_TERMINAL, revision=seen.revision + 1)):
        with conflict("would be forgotten"):
            decide_compare_and_set(seen, seen, desired, AT)
    with conflict("does not go"):
        decide_compare_and_set(seen, seen, seen.advanced(), AT)


@pytest.mark.requirement("B017")
@pytest.mark.parametrize("value", ["yes", 1, 0, None, "true"])
@pytest.mark.parametrize("control", CONTROLS)
def test_a_control_is_a_real_boolean(control: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        bound(**{control: value})


@pytest.mark.requirement("B076")
@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("phase", [Phase.EFFECT_RESOLVED, Phase.RUNTIME_TERMINAL, Phase.EVALUATED])
def test_nobody_observes_a_control_of_a_session_that_nobody_owns(phase: Phase, control: str) -> None:
    stands = make_record(phase)
    following = make_record(PHASES[ORDER[phase] + 1], **{control: True})
    with conflict(EXECUTION):
        decide_compare_and_set(stands, stands, following, AT)
    if phase is not Phase.EFFECT_RESOLVED:
        with conflict(EXECUTION):
            decide_compare_and_set(stands, stands, stands.advanced(**{control: True}), AT)


OWNERSHIPS = {
    "none": None,
    "released": make_ownership(EXECUTION, "released"),
    "expired": make_ownership(EXECUTION, lease_expires_at=AT),
    "another claim's": make_ownership(EXECUTION, claim_id="claim-2"),
    "another owner's": make_ownership(EXECUTION, owner_id="owner-2"),
    "a later generation": make_ownership(EXECUTION, generation=2),
}


@pytest.mark.requirement("B076")
@pytest.mark.parametrize("standing", OWNERSHIPS)
@pytest.mark.parametrize("end", [True, False])
def test_only_the_live_owner_publishes(standing: str, end: bool) -> None:
    stands = bound(runtime_dispatch_ownership=OWNERSHIPS[standing])
    desired = make_record(Phase.RUNTIME_TERMINAL) if end else bound().advanced(runtime_timeout_observed=True)
    with conflict("not, or no longer, the caller's"):
        decide_compare_and_set(stands, bound(), desired, AT)
    if not end:
        with conflict("not, or no longer, the caller's"):
            decide_compare_and_set(
                bound(), bound(), desired.model_copy(update={"runtime_dispatch_ownership": None}), AT
            )


@pytest.mark.requirement("B076")
def test_a_lease_counts_to_its_last_microsecond() -> None:
    stands, desired = bound(), make_record(Phase.RUNTIME_TERMINAL)
    last = OWNER.lease_expires_at - timedelta(microseconds=1)
    written = decide_compare_and_set(stands, stands, desired, last)
    assert written.runtime_dispatch_ownership == OWNER.settled(last), "the ownership is settled at the store's time"
    assert Record.model_validate(written.model_dump()) == written
    with conflict("no longer"):
        decide_compare_and_set(stands, stands, desired, OWNER.lease_expires_at)


def test_a_write_keeps_the_lease_that_stands_and_not_the_one_that_was_read() -> None:
    longer = make_ownership(EXECUTION, renewed_at=AT + SECOND, lease_expires_at=AT + 20 * SECOND)
    stands = bound(runtime_dispatch_ownership=longer)
    seen = decide_compare_and_set(stands, bound(), bound().advanced(runtime_timeout_observed=True), AT + 15 * SECOND)
    assert seen.runtime_dispatch_ownership == longer


@pytest.mark.requirement("B077")
def test_a_step_cannot_bring_an_ownership_that_the_store_has_not_given() -> None:
    stands = make_record(Phase.EFFECT_RESOLVED)
    forged = make_ownership(EXECUTION, lease_expires_at=AT + timedelta(days=365))
    with conflict(EXECUTION):
        decide_compare_and_set(stands, stands, bound(runtime_dispatch_ownership=forged), AT)


@pytest.mark.requirement("B077")
@pytest.mark.parametrize("phase", [Phase.RUNTIME_TERMINAL, Phase.EVALUATED])
def test_a_settled_ownership_stays_its_owners(phase: Phase) -> None:
    stands = make_record(phase)
    other = make_ownership(EXECUTION, "settled", claim_id="claim-2", owner_id="owner-2", generation=9)
    desired = make_record(PHASES[ORDER[phase] + 1], runtime_dispatch_ownership=other)
    with conflict(EXECUTION):
        decide_compare_and_set(stands, stands, desired, AT)


def ask(action: str = "claim", execution: str = EXECUTION, **fields: Any) -> Transition:
    common = {"operation_id": dispatch_operation(execution), "claim_id": "claim-1", "owner_id": "owner-1"}
    generation = None if action == "claim" else 1
    return Transition(**{**common, "action": action, "generation": generation, **fields})


@pytest.mark.requirement("B077")
def test_a_transition_changes_the_ownership_and_nothing_else() -> None:
    stands = make_record(Phase.SESSION_BOUND)
    taken = decide_transition(stands, EXECUTION, ask(), AT + SECOND)
    assert (taken.ownership.disposition, taken.ownership.observed_at) == (D.ACQUIRED, AT + SECOND)
    assert taken.execution == stands.model_copy(update={"runtime_dispatch_ownership": taken.ownership.ownership})
    assert Record.model_validate(taken.execution.model_dump()) == taken.execution
    released = decide_transition(taken.execution, EXECUTION, ask("release"), AT + 2 * SECOND)
    assert released.ownership.disposition is D.RELEASED
    assert released.execution.runtime_dispatch_ownership is not None
    assert released.execution.runtime_dispatch_ownership.state is State.RELEASED


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase is not Phase.SESSION_BOUND])
@pytest.mark.parametrize("action", ["claim", "renew", "release", "settle"])
def test_there_is_nothing_to_own_before_or_after_a_session(phase: Phase, action: str) -> None:
    stands = make_record(phase)
    result = decide_transition(stands, EXECUTION, ask(action), AT)
    assert result.ownership.disposition is D.OPERATION_ADVANCED
    assert result.execution is stands


def test_an_ownership_is_settled_by_the_end_of_the_session_alone() -> None:
    stands = bound()
    result = decide_transition(stands, EXECUTION, ask("settle"), AT)
    assert (result.ownership.disposition, result.ownership.ownership) == (D.OPERATION_ADVANCED, OWNER)
    assert result.execution is stands


@pytest.mark.parametrize("phase", PHASES)
def test_a_transition_of_another_operation_is_a_conflict_of_identity(phase: Phase) -> None:
    stands = bound() if phase is Phase.SESSION_BOUND else make_record(phase)
    result = decide_transition(stands, EXECUTION, ask(execution="trial-2"), AT)
    assert (result.ownership.disposition, result.execution) == (D.IDENTITY_CONFLICT, stands)


def test_a_transition_of_nothing_is_a_conflict() -> None:
    with conflict("nothing was begun"):
        decide_transition(None, EXECUTION, ask(), AT)


@pytest.mark.parametrize("phase", PHASES)
def test_a_row_is_read_back_as_it_was_written(phase: Phase) -> None:
    record = make_record(phase)
    assert from_row(EXECUTION, loads(dumps(as_row(record)))) == record


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_any_result_survives_its_row(payload: dict[str, Any]) -> None:
    record = make_record(Phase.RUNTIME_TERMINAL, runtime_result_payload=payload)
    read = from_row(EXECUTION, loads(dumps(as_row(record))))
    assert read == record
    assert repr(read.runtime_result_payload) == repr(record.runtime_result_payload)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_no_change_of_one_character_goes_unseen(data: st.DataObject) -> None:
    """Whatever character of a row is changed: it is refused, or says the same as before."""
    record = RECORD
    text = TEXT
    place = data.draw(st.integers(0, len(text) - 1))
    put = data.draw(st.sampled_from('0123456789abcdefT":,{}[] -'))
    edited = text[:place] + put + text[place + 1 :]
    try:
        row = json.loads(edited)
    except json.JSONDecodeError:
        return
    try:
        assert from_row(EXECUTION, row) == record
    except MemoryInterventionExecutionConflict:
        assert edited != text


RECORD = make_record(Phase.FINALIZED)
TEXT = dumps(as_row(RECORD)).decode()


@pytest.mark.requirement("B007")
def test_a_record_of_more_than_a_mebibyte_is_refused_without_its_content() -> None:
    empty = make_record(Phase.RUNTIME_TERMINAL, runtime_result_payload={"n": ""})
    room = MOST - len(dumps(empty.model_dump(mode="json")))
    fits = make_record(Phase.RUNTIME_TERMINAL, runtime_result_payload={"n": "x" * room})
    assert from_row(EXECUTION, as_row(fits)) == fits
    large = SECRET + "x" * (room - len(SECRET) + 1)
    with pytest.raises(InvalidInput, match=f"{EXECUTION}.* {MOST + 1} bytes") as refused:
        as_row(make_record(Phase.RUNTIME_TERMINAL, runtime_result_payload={"n": large}))
    assert SECRET not in str(refused.value)


@pytest.mark.requirement("B083")
@pytest.mark.parametrize(
    "row", [None, 7, "text", [], {}, {"record": {}}, {"record": None, "sha256": None}, {"sha256": "0" * 64}]
)
def test_what_is_no_row_is_a_conflict(row: Any) -> None:
    with conflict("edited, or is damaged"):
        from_row(EXECUTION, row)


@pytest.mark.requirement("B083")
@pytest.mark.parametrize("value", [float("nan"), 2**70, [[[[]]]] * 3, {"deep": {"n": 1.0}}])
def test_a_row_with_a_strange_value_is_a_conflict(value: Any) -> None:
    row = as_row(make_record())
    for edited in (row | {"sha256": value}, {**row, "record": row["record"] | {"case_id": value}}):
        with conflict("edited, or is damaged"):
            from_row(EXECUTION, edited)


def test_a_record_that_was_put_together_without_its_checks_makes_no_row() -> None:
    stands = make_record(Phase.TRIAL_BOUND)
    with pytest.raises((ValueError, MemoryInterventionExecutionConflict)):
        as_row(stands.model_copy(update={"phase": Phase.EFFECT_RESOLVED}))
