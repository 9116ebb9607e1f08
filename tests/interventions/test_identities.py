"""What a prepared record says, and which of it stays: identities for replays, and for a whole trial."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from interventions.support import (
    AT,
    KEY,
    SECRET,
    Phase,
    Status,
    digest,
    known_fields,
    make_ownership,
    make_parts,
    make_record,
    make_request,
    make_run_request,
    make_spec,
    prepare,
    walk,
)
from pydantic import ValidationError

from cayu.errors import MemoryInterventionExecutionConflict
from cayu.evals import EvalCaseContractV1
from cayu.interventions.journal import decide_begin
from cayu.interventions.records import MemoryInterventionExecutionRecord
from cayu.interventions.requests import MemoryInterventionRequestFingerprintKey

PHASES = list(Phase)
PARTS = make_parts()
KNOWN = known_fields(PARTS)
CONFLICT = MemoryInterventionExecutionConflict


@pytest.mark.requirement("B020")
def test_a_prepared_record_says_what_was_asked_and_of_whom() -> None:
    request = make_request(make_spec("omit_items"))
    record = MemoryInterventionExecutionRecord.prepare(
        request,
        key=KEY,
        overlay_provider_fingerprint=digest("overlay provider"),
        overlay_provider_id="overlay",
        runtime_runner_fingerprint=digest("runner"),
        runtime_execution_profile_fingerprint=digest("runtime profile"),
        evaluator_fingerprint=digest("evaluator"),
        created_at=AT,
    )
    assert record.model_dump(exclude_none=True) == {
        "record_type": "cayu.memory-intervention-execution",
        "schema_version": 2,
        "execution_id": request.execution_id,
        "request_key_id": "key-1",
        "request_fingerprint": KEY.fingerprint(request),
        "spec_fingerprint": request.spec.fingerprint,
        "candidate_id": "candidate",
        "trial_id": "trial-1",
        "case_id": "tea-time",
        "case_revision": digest("case"),
        "required_execution_profile_fingerprint": digest("profile"),
        "runtime_execution_profile_fingerprint": digest("runtime profile"),
        "overlay_provider_id": "overlay",
        "overlay_provider_fingerprint": digest("overlay provider"),
        "runtime_runner_fingerprint": digest("runner"),
        "evaluator_fingerprint": digest("evaluator"),
        "session_id": request.session_id,
        "causal_budget_id": request.causal_budget_id,
        "phase": Phase.PREPARED,
        "status": Status.ACTIVE,
        "revision": 0,
        "runtime_cancellation_observed": False,
        "runtime_timeout_observed": False,
        "created_at": AT,
        "updated_at": AT,
    }


@pytest.mark.requirement("B020")
@pytest.mark.parametrize(
    "fields",
    [
        *({name: "short"} for name in ("overlay_provider_fingerprint", "runtime_runner_fingerprint")),
        *({name: "short"} for name in ("runtime_execution_profile_fingerprint", "evaluator_fingerprint")),
        *({"overlay_provider_id": " "}, {"created_at": datetime(2026, 3, 1)}),
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_components_without_an_identity_prepare_nothing(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        prepare(**fields)


@pytest.mark.requirement("B027", "B029")
def test_a_record_holds_neither_the_prompt_nor_the_secret() -> None:
    request = make_request(run_request=make_run_request("my private prompt", metadata={"token": "hunter2"}))
    written = prepare(request).model_dump_json()
    assert not [hidden for hidden in ("private prompt", "hunter2", SECRET.decode(), SECRET.hex()) if hidden in written]


@pytest.mark.requirement("B021")
def test_the_same_request_to_the_same_components_has_the_same_replay_identity() -> None:
    first, later = prepare(), prepare(created_at=AT + timedelta(days=1))
    assert first.replay_identity() == later.replay_identity()
    assert first.immutable_identity() != later.immutable_identity()
    assert hash(first.replay_identity()) == hash(later.replay_identity())
    assert decide_begin(first, later) is None


OTHER_REQUESTS = {
    "spec": make_request(make_spec("omit_items")),
    "candidate": make_request(candidate_id="another"),
    "trial": make_request(trial_id="another"),
    "case": make_request(case=EvalCaseContractV1(case_id="another", case_revision=digest("case"))),
    "revision": make_request(case=EvalCaseContractV1(case_id="tea-time", case_revision=digest("another"))),
    "question": make_request(run_request=make_run_request("Another question?")),
    "timeout": make_request(timeout_seconds=301),
}
OTHER_COMPONENTS = {
    "overlay_provider_id": "another",
    "overlay_provider_fingerprint": digest("another"),
    "runtime_runner_fingerprint": digest("another"),
    "runtime_execution_profile_fingerprint": digest("another"),
    "evaluator_fingerprint": digest("another"),
}


@pytest.mark.requirement("B021")
@pytest.mark.parametrize("name", [*OTHER_REQUESTS, *OTHER_COMPONENTS, "key", "secret"])
def test_another_request_or_component_has_another_replay_identity(name: str) -> None:
    first = prepare()
    if name in OTHER_REQUESTS:
        other = prepare(OTHER_REQUESTS[name])
    elif name in OTHER_COMPONENTS:
        other = prepare(**{name: OTHER_COMPONENTS[name]})
    else:
        fields = {"key_id": "another", "secret": SECRET} if name == "key" else {"key_id": "key-1", "secret": b"0" * 32}
        other = prepare(key=MemoryInterventionRequestFingerprintKey(**fields))
    assert other.replay_identity() != first.replay_identity()
    assert other.immutable_identity() != first.immutable_identity()
    with pytest.raises(CONFLICT, match="another request, or over other components"):
        decide_begin(first, other)


@pytest.mark.requirement("B021")
def test_identities_stay_through_a_whole_trial() -> None:
    records = walk()
    assert [record.phase for record in records] == PHASES
    assert len({record.immutable_identity() for record in records}) == 1
    assert len({record.replay_identity() for record in records}) == 1
    owned = make_record(Phase.SESSION_BOUND, runtime_dispatch_ownership=make_ownership(PARTS.request.execution_id))
    observed = owned.advanced(runtime_cancellation_observed=True)
    assert {owned.immutable_identity(), observed.immutable_identity()} == {records[0].immutable_identity()}
    ended = make_record(Phase.EFFECT_RESOLVED, Status.CONFLICTING)
    assert ended.immutable_identity() == records[0].immutable_identity()


@pytest.mark.requirement("B021")
def test_every_field_either_stays_or_belongs_to_the_progress() -> None:
    progress = {
        *("phase", "status", "revision", "runtime_cancellation_observed", "runtime_timeout_observed"),
        *("updated_at", "failure_code", *KNOWN),
    }
    first = prepare()
    for name in set(type(first).model_fields) - progress:
        other = first.model_copy(update={name: "another"})
        assert other.immutable_identity() != first.immutable_identity(), name
        assert (other.replay_identity() != first.replay_identity()) is (name != "created_at"), name
    for name in progress:
        other = first.model_copy(update={name: "another"})
        assert other.immutable_identity() == first.immutable_identity(), name


@pytest.mark.parametrize("phase", PHASES[1:])
def test_what_comes_next_is_checked_as_any_record(phase: Phase) -> None:
    before = walk()[PHASES.index(phase) - 1]
    with pytest.raises(ValidationError, match="an execution that is"):
        before.advanced(phase)
