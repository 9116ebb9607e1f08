"""Requests and their keys: what may be asked for, the ids that follow from it, and an identity that shows no secret."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from interventions.support import (
    KEY,
    SECRET,
    changes_of,
    digest,
    make_fixture,
    make_request,
    make_run_request,
    make_runtime_result,
    make_spec,
)
from pydantic import ValidationError

from cayu.canonical import canonical_bytes, keyed_fingerprint
from cayu.errors import InvalidInput
from cayu.evals import EvalCaseContractV1
from cayu.interventions.requests import (
    MemoryInterventionRequestFingerprintKey,
    MemoryInterventionTrialRequest,
    RuntimeSessionCreateClaimReferenceKey,
    memory_intervention_request_key,
)
from cayu.interventions.results import memory_intervention_runtime_result_fingerprint
from cayu.interventions.specs import MemoryInterventionChange, MemoryInterventionKind
from cayu.messages import Message
from cayu.sessions.limits import RunLimits

pytestmark = pytest.mark.exhaustive

TESTS = Path(__file__).resolve().parents[1]
OTHER_SECRET = b"another secret of a root key"
TURNS = (Message.text("user", "First."), Message.text("assistant", "Yes."), Message.text("user", "Second."))


# What may be asked for


@pytest.mark.requirement("B008")
@pytest.mark.parametrize("value", [0, -1, 3601, 1.0, 300.0, True, False, "300", None, 10**30])
def test_a_timeout_is_a_whole_number_of_seconds_from_1_to_3600(value: object) -> None:
    with pytest.raises(ValidationError, match="timeout_seconds"):
        make_request(timeout_seconds=value)
    with pytest.raises(ValidationError, match="timeout_seconds"):
        read(timeout_seconds=value)


@pytest.mark.requirement("B008")
def test_a_timeout_is_300_seconds_unless_it_is_given() -> None:
    assert make_request().timeout_seconds == 300
    assert [make_request(timeout_seconds=value).timeout_seconds for value in (1, 3600)] == [1, 3600]
    assert read(timeout_seconds=3600).timeout_seconds == 3600


def read(**fields: Any) -> MemoryInterventionTrialRequest:
    """A request that comes in as JSON, with some fields replaced."""
    written = json.loads(make_request().model_dump_json())
    return MemoryInterventionTrialRequest.model_validate_json(json.dumps(written | fields))


def test_a_request_is_read_back_as_it_was_written() -> None:
    request = make_request(
        make_spec("replace_items"), run_request=make_run_request(metadata={"deep": [1, {"a": None}]})
    )
    assert MemoryInterventionTrialRequest.model_validate_json(request.model_dump_json()) == request
    assert MemoryInterventionTrialRequest.model_validate(request.model_dump()) == request


@pytest.mark.requirement("B025")
@pytest.mark.parametrize("name", ["session_id", "task_id", "parent_session_id", "causal_budget_id"])
def test_ids_that_the_executor_chooses_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=rf"the executor chooses {name} of a trial; leave it out"):
        make_request(run_request=make_run_request(**{name: "mine"}))


@pytest.mark.requirement("B025")
def test_all_refused_ids_are_named_at_once_and_none_is_quoted() -> None:
    names = ("session_id", "task_id", "parent_session_id", "causal_budget_id")
    with pytest.raises(ValidationError) as caught:
        make_request(run_request=make_run_request(**dict.fromkeys(names, "private-name")))
    assert all(name in str(caught.value) for name in names)
    assert "private-name" not in str(caught.value)


@pytest.mark.parametrize(
    "messages, legal",
    [
        (TURNS, True),
        (TURNS[1:], True),
        (TURNS[:1], False),
        (TURNS[:2], False),
        ((*TURNS, Message.text("system", "Be brief.")), False),
    ],
)
def test_a_context_is_prepared_before_a_last_message_of_the_user(messages: Any, legal: bool) -> None:
    fields: dict[str, Any] = {
        "run_request": make_run_request(messages=messages),
        "context_preparation": "compact_then_resume",
    }
    if legal:
        assert make_request(**fields).context_preparation == "compact_then_resume"
    else:
        with pytest.raises(ValidationError, match="compact_then_resume needs messages"):
            make_request(**fields)
    assert make_request(**(fields | {"context_preparation": "none"})).context_preparation == "none"


@pytest.mark.parametrize("value", ["", "NONE", "compact", None, True])
def test_another_context_preparation_is_refused(value: object) -> None:
    with pytest.raises(ValidationError, match="context_preparation"):
        make_request(context_preparation=value)


@pytest.mark.requirement("B013")
@pytest.mark.parametrize("name", ["candidate_id", "trial_id"])
@pytest.mark.parametrize("value", ["", " ", "\t", " padded", "padded ", "line\n", "x" * 257, None, 7, True, b"bytes"])
def test_ids_of_a_request_are_strict(name: str, value: object) -> None:
    assert getattr(make_request(**{name: "x" * 256}), name) == "x" * 256
    with pytest.raises(ValidationError, match=name):
        make_request(**{name: value})


@pytest.mark.requirement("B015")
@pytest.mark.parametrize(
    "value", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n", "\u0660" * 64, None, b"a" * 64]
)
def test_the_revision_of_a_case_is_a_fingerprint(value: Any) -> None:
    with pytest.raises(ValidationError, match="case_revision"):
        EvalCaseContractV1(case_id="case", case_revision=value)


@pytest.mark.requirement("B010")
def test_an_unknown_field_is_refused_without_its_value() -> None:
    with pytest.raises(ValidationError, match="metadata") as caught:
        make_request(metadata={"password": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_wrong_request_is_refused_without_its_prompt() -> None:
    with pytest.raises(ValidationError) as caught:
        make_request(run_request={"agent_name": "", "messages": ["my private prompt"]})
    assert "private prompt" not in str(caught.value)


# Detached copies


@pytest.mark.requirement("B019")
def test_a_request_is_detached_from_what_it_was_made_of() -> None:
    labels, metadata_, fixture_labels = {"team": "a"}, {"deep": {"list": [1]}}, {"room": "1"}
    fixture = make_fixture(labels=fixture_labels)
    change = MemoryInterventionChange(entry_id="tea", revision=1, fixture=fixture)
    spec = make_spec("replace_items", changes=(change,))
    run_request = make_run_request(labels=labels, metadata=metadata_)
    case = EvalCaseContractV1(case_id="tea-time", case_revision=digest("case"))
    request = make_request(spec, run_request=run_request, case=case)
    before, identity = request.model_dump_json(), KEY.fingerprint(request)
    labels["team"] = metadata_["deep"] = fixture_labels["room"] = "other"  # type: ignore[assignment]
    run_request.labels["team"] = "other"
    run_request.metadata["deep"]["list"].append("other")
    fixture.labels["room"] = "other"
    spec.changes[0].fixture.labels["room"] = "other"  # type: ignore[union-attr]
    object.__setattr__(case, "case_id", "other")
    assert (request.model_dump_json(), KEY.fingerprint(request)) == (before, identity)
    assert "other" not in before


@pytest.mark.requirement("B019")
def test_what_a_request_gives_out_is_detached() -> None:
    request = make_request(run_request=make_run_request(metadata={"deep": {"list": [1]}}))
    material = request.identity_material()
    material["run_request"]["metadata"]["deep"]["list"].append("other")
    material["spec"]["changes"].append("other")
    assert "other" not in json.dumps(request.identity_material())


@pytest.mark.parametrize("name", list(MemoryInterventionTrialRequest.model_fields))
def test_a_request_is_frozen(name: str) -> None:
    request = make_request()
    with pytest.raises(ValidationError, match="frozen"):
        setattr(request, name, getattr(request, name))


# Ids


@pytest.mark.requirement("B026")
def test_ids_follow_from_snapshot_candidate_and_trial_alone() -> None:
    def ids(request: MemoryInterventionTrialRequest) -> tuple[str, str, str]:
        return request.execution_id, request.session_id, request.causal_budget_id

    request = make_request()
    others = [
        make_request(make_spec(snapshot_fingerprint=digest("another"))),
        make_request(candidate_id="another"),
        make_request(trial_id="another"),
    ]
    same = [
        make_request(make_spec(reason="another")),
        make_request(make_spec(spec_id="another")),
        make_request(case=EvalCaseContractV1(case_id="another", case_revision=digest("another"))),
        make_request(run_request=make_run_request("Another question?")),
        make_request(timeout_seconds=7),
    ]
    assert {ids(each) for each in same} == {ids(request)}
    assert len({each for one in [request, *others] for each in ids(one)}) == 12
    assert all(len(each) <= 64 and each.isascii() for each in ids(request))


def test_ids_do_not_run_together() -> None:
    left, right = make_request(candidate_id="a", trial_id="bc"), make_request(candidate_id="ab", trial_id="c")
    assert left.execution_id != right.execution_id


TOLD = """
import json
from interventions.support import *
request = make_request(
    make_spec("replace_items"), run_request=make_run_request(labels={"b": "2", "a": "1"}, metadata={"x": [1, 2.5]})
)
print(json.dumps([
    request.execution_id, request.session_id, request.causal_budget_id, KEY.fingerprint(request),
    KEY.runtime_session_create_reference_key().secret.hex(), make_record("finalized").model_dump_json(),
    memory_intervention_runtime_result_fingerprint(make_runtime_result()),
]))
"""


@pytest.mark.slow
@pytest.mark.requirement("B026", "B052")
def test_two_processes_find_the_same_ids_and_identities() -> None:
    told = []
    for seed in ("1", "2"):
        child = subprocess.run(
            [sys.executable, "-c", TOLD],
            cwd=TESTS,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert child.returncode == 0, child.stderr
        told.append(json.loads(child.stdout))
    assert told[0] == told[1]
    assert told[0][:3] == [make_request(make_spec("replace_items")).execution_id, *ids_of("replace_items")]
    assert told[0][-1] == memory_intervention_runtime_result_fingerprint(make_runtime_result())


def ids_of(kind: str) -> list[str]:
    request = make_request(make_spec(kind))
    return [request.session_id, request.causal_budget_id]


# Identity


@pytest.mark.requirement("B024")
def test_a_context_preparation_of_none_is_left_out_of_dump_and_identity() -> None:
    absent, given = make_request(), make_request(context_preparation="none")
    for dumped in (absent.model_dump(), given.model_dump(), given.model_dump(mode="json"), given.identity_material()):
        assert "context_preparation" not in dumped
    assert "context_preparation" not in json.loads(given.model_dump_json())
    assert absent == given
    assert KEY.fingerprint(absent) == KEY.fingerprint(given)
    prepared = make_request(run_request=make_run_request(messages=TURNS), context_preparation="compact_then_resume")
    for dumped in (prepared.model_dump(), json.loads(prepared.model_dump_json()), prepared.identity_material()):
        assert dumped["context_preparation"] == "compact_then_resume"


@pytest.mark.requirement("B024")
def test_the_oldest_admitted_pydantic_can_leave_fields_out() -> None:
    asked = [each for each in metadata.requires("cayu-lab") or () if re.match(r"pydantic\b(?!-)", each)]
    lowest = [tuple(map(int, found)) for each in asked for found in re.findall(r">=\s*(\d+)\.(\d+)", each)]
    assert lowest == [(2, 12)]


OTHERS: dict[str, Any] = {
    "spec": make_spec("omit_items"),
    "candidate_id": "another",
    "trial_id": "another",
    "case": EvalCaseContractV1(case_id="tea-time", case_revision=digest("another")),
    "timeout_seconds": 301,
    "context_preparation": "compact_then_resume",
    "run_request": make_run_request("When is tea served!", messages=TURNS[::-1]),
}


@pytest.mark.requirement("B027")
@pytest.mark.parametrize("name", [*OTHERS])
def test_every_field_is_in_the_identity(name: str) -> None:
    request = make_request(run_request=make_run_request(messages=TURNS))
    other = make_request(**({"run_request": make_run_request(messages=TURNS)} | {name: OTHERS[name]}))
    assert other.identity_material() != request.identity_material()
    assert KEY.fingerprint(other) != KEY.fingerprint(request)


@pytest.mark.parametrize(
    "fields",
    [
        *({"agent_name": "another"}, {"title": "another"}, {"environment_name": "another"}, {"labels": {"a": "b"}}),
        *({"metadata": {"a": 1}}, {"max_steps": 7}, {"limits": RunLimits(max_tool_calls=1)}),
        {"messages": (Message.text("user", "Another question?"),)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_every_part_of_the_run_is_in_the_identity(fields: dict[str, Any]) -> None:
    other = make_request(run_request=make_run_request(**fields))
    assert KEY.fingerprint(other) != KEY.fingerprint(make_request())


@pytest.mark.requirement("B027")
def test_the_identity_covers_exactly_its_material() -> None:
    request = make_request(make_spec("negative_control"))
    material = request.identity_material()
    assert material == make_request(make_spec("negative_control")).identity_material()
    assert json.loads(json.dumps(material)) == material
    assert MemoryInterventionTrialRequest.model_validate_json(json.dumps(material)) == request
    assert set(material) == set(type(request).model_fields) - {"context_preparation"}
    assert KEY.fingerprint(request) == keyed_fingerprint(SECRET, "cayu.memory-intervention-request", material)


@pytest.mark.requirement("B027")
def test_the_material_holds_no_secret_and_no_key() -> None:
    material = canonical_bytes(make_request().identity_material())
    assert SECRET not in material
    assert KEY.key_id.encode() not in material


# Keys


@pytest.mark.requirement("B030")
def test_an_identity_is_keyed() -> None:
    request = make_request()
    same = MemoryInterventionRequestFingerprintKey(key_id="another-id", secret=SECRET)
    other = MemoryInterventionRequestFingerprintKey(key_id=KEY.key_id, secret=OTHER_SECRET)
    assert re.fullmatch(r"[0-9a-f]{64}", KEY.fingerprint(request))
    assert KEY.fingerprint(request) == KEY.fingerprint(make_request()) == same.fingerprint(request)
    assert other.fingerprint(request) != KEY.fingerprint(request)


@pytest.mark.requirement("B029")
def test_a_key_is_frozen_and_has_slots() -> None:
    for name in ("key_id", "secret"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(KEY, name, getattr(KEY, name))
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(KEY, name)
    assert not hasattr(KEY, "__dict__")
    assert MemoryInterventionRequestFingerprintKey(key_id=KEY.key_id, secret=SECRET) == KEY
    assert copy.deepcopy(KEY) == pickle.loads(pickle.dumps(KEY)) == KEY


def shows(text: str, secret: bytes) -> bool:
    """Whether a text gives a secret away, as it is or written out."""
    return any(form in text for form in (secret.decode(), repr(secret), secret.hex()))


@pytest.mark.requirement("B029")
def test_no_representation_shows_the_secret() -> None:
    derived = KEY.runtime_session_create_reference_key()
    for text in (repr(KEY), str(KEY), f"{KEY}", format(KEY), repr([KEY]), repr({"key": KEY}), f"{KEY!r:>100}"):
        assert not shows(text, SECRET)
    for text in (repr(derived), str(derived)):
        assert derived.secret.hex() not in text
        assert repr(derived.secret) not in text


WRONG_KEYS: list[tuple[Any, Any]] = [
    *((key_id, SECRET) for key_id in ("", " ", " padded", "padded ", None, 7, b"id")),
    *(("key", secret) for secret in (b"", b"short and known", SECRET.decode(), bytearray(SECRET), None, 7)),
]


def told_by(error: BaseException) -> str:
    """Everything that a traceback says, with the local values of our own frames."""
    plain = traceback.format_exception(error)
    verbose = traceback.TracebackException.from_exception(error, capture_locals=True)
    return "".join(plain) + "".join(str(frame.locals) for frame in verbose.stack if "/tests/" not in frame.filename)


@pytest.mark.requirement("B029")
@pytest.mark.parametrize("key_id, secret", WRONG_KEYS, ids=range(len(WRONG_KEYS)))
def test_a_wrong_key_is_refused_without_showing_its_secret(key_id: Any, secret: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        MemoryInterventionRequestFingerprintKey(key_id=key_id, secret=secret)
    for hidden in {SECRET, bytes(secret) if isinstance(secret, bytes | bytearray) and secret else SECRET}:
        assert not shows(repr(caught.value) + "".join(traceback.format_exception(caught.value)), hidden)


@pytest.mark.parametrize("secret", [b"x" * 16, bytes(range(256))])
def test_a_secret_has_16_bytes_or_more(secret: bytes) -> None:
    assert MemoryInterventionRequestFingerprintKey(key_id="key", secret=secret).secret == secret
    with pytest.raises(InvalidInput, match=r"'key'.*16"):
        MemoryInterventionRequestFingerprintKey(key_id="key", secret=secret[:15])


@pytest.mark.requirement("B029")
@pytest.mark.parametrize(
    "act",
    [
        lambda: KEY.fingerprint(None),  # type: ignore[arg-type]
        lambda: KEY.fingerprint(make_request, 1),  # type: ignore[call-arg, arg-type]
        lambda: memory_intervention_request_key({"key-1": KEY}, "removed"),
        lambda: memory_intervention_request_key({"another": KEY}, "another"),
        lambda: make_request(spec=KEY),  # type: ignore[arg-type]
        lambda: setattr(KEY, "secret", b""),
        lambda: KEY < KEY,  # type: ignore[operator]
        lambda: json.dumps(KEY),
    ],
    ids=["no request", "two requests", "removed", "renamed", "no spec", "frozen", "order", "json"],
)
def test_no_error_shows_the_secret(act: Any) -> None:
    with pytest.raises((InvalidInput, TypeError, AttributeError, ValidationError)) as caught:
        act()
    assert not shows(told_by(caught.value), SECRET)


@pytest.mark.requirement("B031")
def test_the_key_that_names_sessions_is_derived_and_can_do_nothing_else() -> None:
    derived = KEY.runtime_session_create_reference_key()
    assert type(derived) is RuntimeSessionCreateClaimReferenceKey
    assert derived == KEY.runtime_session_create_reference_key()
    assert derived.key_id == KEY.key_id
    assert len(derived.secret) == 32
    assert derived.secret != SECRET
    assert SECRET not in derived.secret
    assert not hasattr(derived, "fingerprint")
    assert not hasattr(derived, "runtime_session_create_reference_key")
    assert not hasattr(derived, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        derived.secret = b""  # type: ignore[misc]
    others = [
        MemoryInterventionRequestFingerprintKey(key_id=KEY.key_id, secret=OTHER_SECRET),
        MemoryInterventionRequestFingerprintKey(key_id="another", secret=SECRET),
    ]
    secrets = {derived.secret, *(each.runtime_session_create_reference_key().secret for each in others)}
    assert len(secrets) == 3


@pytest.mark.requirement("B031")
def test_the_derived_secret_identifies_no_request_as_the_root_does() -> None:
    derived = KEY.runtime_session_create_reference_key()
    as_root = MemoryInterventionRequestFingerprintKey(key_id=derived.key_id, secret=derived.secret)
    assert as_root.fingerprint(make_request()) != KEY.fingerprint(make_request())


@pytest.mark.requirement("B032")
def test_a_key_is_found_by_its_id() -> None:
    other = MemoryInterventionRequestFingerprintKey(key_id="key-2", secret=OTHER_SECRET)
    keys = {"key-1": KEY, "key-2": other}
    assert memory_intervention_request_key(keys, "key-1") is KEY
    assert memory_intervention_request_key(keys, "key-2") is other
    del keys["key-1"]
    with pytest.raises(InvalidInput, match=r"no request key 'key-1'.*keep a rotated key"):
        memory_intervention_request_key(keys, "key-1")
    with pytest.raises(InvalidInput, match="no request key 'key-3'"):
        memory_intervention_request_key({"key-3": other}, "key-3")
    with pytest.raises(InvalidInput, match="no request key ''"):
        memory_intervention_request_key({}, "")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": (Message.text("user", "half a \ud83d pair"),)},
        {"labels": {"team": "half a \ud83d pair"}},
        {"title": "half a \ud83d pair"},
    ],
    ids=["message", "label", "title"],
)
def test_text_that_no_encoding_knows_is_refused_or_has_an_identity(fields: dict[str, Any]) -> None:
    try:
        request = make_request(run_request=make_run_request(**fields))
    except ValidationError:
        return
    assert re.fullmatch(r"[0-9a-f]{64}", KEY.fingerprint(request))


@pytest.mark.parametrize("kind", list(MemoryInterventionKind))
def test_each_kind_of_spec_can_be_asked_for(kind: MemoryInterventionKind) -> None:
    request = make_request(make_spec(kind, **changes_of(kind)))
    assert request.spec.kind is kind
    assert request.schema_version == 1
