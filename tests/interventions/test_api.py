"""Holds the documented names of the executor against a table of facts: forms, fields, parameters, defaults."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import types
from abc import ABC
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

import cayu.evals
import cayu.memory
import cayu.memory.execution
import cayu.snapshots
from cayu.interventions.base import ExecutionModel

FACTS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "api_facts.json").read_text(encoding="utf-8"))
NAMESPACES = ("cayu.memory", "cayu.memory.execution")
MODELS = ("ExecutionModel", "BaseModel")
ROWS = {
    "MemoryInterventionExecutionRecord": "B012",
    "MemoryInterventionTrialRequest": "B022",
    "MemoryInterventionExecutor": "B035",
    "MemoryInterventionExecutorAuthority": "B038",
    "MemoryInterventionRuntimeRunner": "B053",
    "MemoryInterventionRuntimeApplicationFactory": "B061",
    "MemoryInterventionIsolationAuthority": "B068",
    "MemoryInterventionRuntimeResult": "B070",
}
"""The requirement row that lists the fields and forms of a class."""
LOOKALIKES: dict[str, tuple[object, ...]] = {
    "StrictStr": (b"a" * 64, bytearray(b"a" * 64), 7),
    "StrictInt": (True, 2.0, "2"),
    "StrictBool": (1, 0, "true", "yes", 1.0),
}
"""Values that a field of a strict type refuses, although they could be read as one."""


def facts(*kinds: str, owner: str | None = None) -> list[dict[str, Any]]:
    """The rows of some kinds, in order, or those of one class."""
    return [row for row in FACTS if row["kind"] in kinds and owner in (None, row.get("owner"))]


def held(owner: str | None) -> Any:
    """The marks of what is tested of a class."""
    return [pytest.mark.requirement(ROWS[owner])] if owner in ROWS else []


def named(rows: list[dict[str, Any]]) -> Any:
    """One test case per row."""
    return [
        pytest.param(
            row,
            id=f"{row['owner']}.{row['name']}" if "owner" in row else row["name"],
            marks=held(row.get("owner")),
        )
        for row in rows
    ]


def owners(kind: str, *bases: str) -> list[str]:
    """The classes that have rows of a kind, those with one of some bases where any is named."""
    wanted = {row["name"] for row in facts("class") if not bases or set(row.get("bases", ())) & set(bases)}
    return sorted({row["owner"] for row in facts(kind)} & wanted)


def found(name: str) -> Any:
    return getattr(cayu.memory, name)


def bases_of(name: str) -> list[str]:
    return [base for row in facts("class") if row["name"] == name for base in row.get("bases", ())]


def shown(hint: Any) -> str:
    """A type as the facts write it, with a strict type or an aware time under the name of the plain one."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " | ".join(map(shown, arguments))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(shown, arguments))}]"
    if hint is Ellipsis:
        return "..."
    return {"NoneType": "None", "AwareDatetime": "datetime"}.get(hint.__name__, hint.__name__)


def plain(annotation: str) -> str:
    for name in ("StrictStr", "StrictInt", "StrictBool"):
        annotation = annotation.replace(name, name.removeprefix("Strict").lower())
    return annotation


@pytest.mark.requirement("B001")
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_every_name_imports_from_both_namespaces(namespace: str) -> None:
    names = [row["name"] for row in facts("class", "function", "constant")]
    assert len(names) == len(set(names)) == 29
    module = importlib.import_module(namespace)
    assert [name for name in names if getattr(module, name, None) is not found(name)] == []


@pytest.mark.requirement("B002")
@pytest.mark.parametrize("row", named(facts("constant")))
def test_constants_have_their_values(row: dict[str, Any]) -> None:
    assert found(row["name"]) == row["value"]
    assert type(found(row["name"])) is int


@pytest.mark.requirement("B003")
@pytest.mark.parametrize("row", named(facts("class")))
def test_classes_have_their_bases_and_flags(row: dict[str, Any]) -> None:
    each = found(row["name"])
    known = {base.__name__ for base in each.__mro__[1:]}
    assert set(row.get("bases", ())) <= known
    if "ABC" in row.get("bases", ()):
        assert ABC in each.__bases__
        assert inspect.isabstract(each)
        with pytest.raises(TypeError, match="abstract"):
            each()
    flags = row.get("dataclass")
    if flags is not None:
        assert dataclasses.is_dataclass(each)
        assert each.__dataclass_params__.frozen is flags["frozen"]
        assert each.__dataclass_params__.repr is flags.get("repr", True)
        assert ("__slots__" in vars(each)) is flags["slots"]
        assert (each.__dictoffset__ == 0) is flags["slots"]
    if set(row.get("bases", ())) & set(MODELS):
        assert issubclass(each, BaseModel)
        assert each.model_config["frozen"] is True


@pytest.mark.requirement("B003", "B004", "B005")
@pytest.mark.parametrize("owner", owners("member"))
def test_enumerations_have_their_values_in_order(owner: str) -> None:
    each = found(owner)
    assert issubclass(each, StrEnum)
    assert [(member.name, member.value) for member in each] == [
        (row["name"], row["value"]) for row in facts("member", owner=owner)
    ]
    assert [str(member) for member in each] == [row["value"] for row in facts("member", owner=owner)]


def test_phases_and_statuses_are_counted() -> None:
    assert len(found("MemoryInterventionExecutionPhase")) == 7
    assert len(found("MemoryInterventionExecutionStatus")) == 8


@pytest.mark.parametrize("owner", [pytest.param(each, marks=held(each)) for each in owners("field", *MODELS)])
def test_models_have_their_fields_in_order(owner: str) -> None:
    fields = found(owner).model_fields
    rows = facts("field", owner=owner)
    assert list(fields) == [row["name"] for row in rows]
    assert {name for name, field in fields.items() if field.is_required()} == {
        row["name"] for row in rows if row["required"]
    }
    for row in rows:
        if not row["required"]:
            default = fields[row["name"]].get_default(call_default_factory=True, validated_data={})
            assert (default, type(default) is bool) == (row["default"], type(row["default"]) is bool), row["name"]


@pytest.mark.parametrize("row", named([row for row in facts("field") if set(bases_of(row["owner"])) & set(MODELS)]))
def test_fields_of_models_have_their_types_and_limits(row: dict[str, Any]) -> None:
    each = found(row["owner"])
    assert shown(get_type_hints(each)[row["name"]]) == plain(row["annotation"])
    hint = get_type_hints(each, include_extras=True)[row["name"]]
    strict = [name for name in LOOKALIKES if name in row["annotation"]]
    adapter = TypeAdapter(hint)
    for value in [value for name in strict for value in LOOKALIKES[name]]:
        with pytest.raises(ValidationError):
            adapter.validate_python(value)
    for name, limit in row.get("limits", {}).items():
        if name == "left_out_when":
            excluded = each.model_fields[row["name"]].exclude_if
            assert excluded is not None
            assert excluded(limit)
            assert not excluded("compact_then_resume")
        else:
            over = {"ge": limit - 1, "le": limit + 1, "max_length": "x" * (limit + 1)}[name]
            at = "x" * limit if name == "max_length" else limit
            assert adapter.validate_python(at) == at
            with pytest.raises(ValidationError):
                adapter.validate_python(over)


@pytest.mark.requirement("B003")
@pytest.mark.parametrize("row", named([row for row in facts("field") if not set(bases_of(row["owner"])) & set(MODELS)]))
def test_fields_of_other_classes_have_their_types_and_defaults(row: dict[str, Any]) -> None:
    each = found(row["owner"])
    assert shown(get_type_hints(each)[row["name"]]) == row["annotation"]
    missing = object()
    default = inspect.getattr_static(each, row["name"], missing)
    if isinstance(default, types.MemberDescriptorType):
        listed = {field.name: field.default for field in dataclasses.fields(each)}
        default = missing if listed[row["name"]] is dataclasses.MISSING else listed[row["name"]]
    assert (default is missing) is row["required"]
    if not row["required"]:
        assert default == row["default"]


@pytest.mark.requirement("B003")
@pytest.mark.parametrize("owner", [row["name"] for row in facts("class") if "dataclass" in row])
def test_dataclasses_have_their_fields_in_order(owner: str) -> None:
    fields = dataclasses.fields(found(owner))
    assert [field.name for field in fields] == [row["name"] for row in facts("field", owner=owner)]
    assert all(field.init and not field.kw_only for field in fields)


def check_parameters(called: Any, row: dict[str, Any]) -> None:
    """Hold a signature against its row; what the row leaves open stays open."""
    signature = inspect.signature(called)
    found_parameters = [each for each in signature.parameters.values() if each.name != "self"]
    assert [each.name for each in found_parameters] == [each["name"] for each in row["parameters"]]
    for each, listed in zip(found_parameters, row["parameters"], strict=True):
        kind = inspect.Parameter.KEYWORD_ONLY if listed.get("keyword_only") else inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert each.kind is kind, each.name
        if "annotation" in listed:
            assert str(each.annotation) == listed["annotation"], each.name
        if "default" in listed:
            assert repr(each.default) == listed["default"], each.name
        else:
            assert each.default is inspect.Parameter.empty, each.name
    if row["returns"] is not None:
        assert str(signature.return_annotation) == row["returns"]


@pytest.mark.requirement("B003")
@pytest.mark.parametrize("row", named(facts("method", "function")))
def test_methods_and_functions_have_their_parameters(row: dict[str, Any]) -> None:
    called = getattr(found(row["owner"]), row["name"]) if "owner" in row else found(row["name"])
    assert inspect.iscoroutinefunction(called) is row.get("async", False)
    assert inspect.isroutine(called)
    check_parameters(called, row)


@pytest.mark.requirement("B003", "B036")
@pytest.mark.parametrize("row", named(facts("property")))
def test_properties_have_their_types_and_cannot_be_set(row: dict[str, Any]) -> None:
    each = inspect.getattr_static(found(row["owner"]), row["name"])
    assert isinstance(each, property)
    assert each.fset is None
    assert each.fdel is None
    assert each.fget is not None
    check_parameters(each.fget, row)


@pytest.mark.requirement("B036")
@pytest.mark.parametrize(
    "name", ["snapshots", "executions", "overlay_provider", "runtime_runner", "evaluator", "execution_authority"]
)
def test_an_executor_keeps_the_components_it_was_made_with(name: str) -> None:
    given: dict[str, Any] = {
        each: object() for each in ("snapshots", "executions", "overlay_provider", "runtime_runner", "evaluator")
    }
    key = cayu.memory.MemoryInterventionRequestFingerprintKey("key", b"0123456789abcdef")
    executor = cayu.memory.MemoryInterventionExecutor(request_keys={"key": key}, current_request_key_id="key", **given)
    if name in given:
        assert getattr(executor, name) is given[name]
    with pytest.raises(AttributeError):
        setattr(executor, name, object())
    with pytest.raises(AttributeError):
        delattr(executor, name)


@pytest.mark.requirement("B035")
def test_an_executor_is_made_by_keywords_and_misses_none() -> None:
    key = cayu.memory.MemoryInterventionRequestFingerprintKey("key", b"0123456789abcdef")
    given: dict[str, Any] = dict.fromkeys(
        ("snapshots", "executions", "overlay_provider", "runtime_runner", "evaluator"), object()
    )
    given |= {"request_keys": {"key": key}, "current_request_key_id": "key"}
    assert cayu.memory.MemoryInterventionExecutor(**given, clock=None)
    for missing in given:
        with pytest.raises(TypeError, match=missing):
            cayu.memory.MemoryInterventionExecutor(**{name: given[name] for name in given if name != missing})
    with pytest.raises(TypeError, match="positional"):
        cayu.memory.MemoryInterventionExecutor(*given.values())


@pytest.mark.requirement("B059")
@pytest.mark.parametrize("name", ["MemoryInterventionRuntimeRunner", "CayuMemoryInterventionRuntimeRunner"])
def test_runners_say_which_profile_a_spec_requires(name: str) -> None:
    rows = [row for row in facts("method", owner=name) if row["name"] == "required_execution_profile_fingerprint"]
    assert len(rows) == 1
    check_parameters(found(name).required_execution_profile_fingerprint, rows[0])


@pytest.mark.requirement("B051")
def test_the_earlier_name_of_a_results_identity_is_the_canonical_one() -> None:
    results = [
        cayu.evals.EvalTrialResult(status="passed", session_id="s", score=1.0, final_output="At four."),
        cayu.evals.EvalTrialResult(status="error", error="timed_out", usage_summary={"input_tokens": 3}),
        cayu.evals.EvalTrialResult(status="failed", structured_output={"answer": [1, 2.5, None]}),
    ]
    revisions = [cayu.memory.memory_intervention_eval_result_revision(each) for each in results]
    assert revisions == [cayu.evals.eval_trial_result_revision(each) for each in results]
    assert len(set(revisions)) == len(results)


SHAPES: list[tuple[Any, list[str], set[str]]] = [
    (
        cayu.memory.DurableOperationOwnershipTransition,
        ["operation_id", "claim_id", "owner_id", "action", "generation", "lease_seconds"],
        {"generation", "lease_seconds"},
    ),
    (
        cayu.memory.DurableOperationOwnership,
        [
            *("operation_id", "claim_id", "owner_id", "generation", "state"),
            *("acquired_at", "renewed_at", "lease_expires_at", "released_at", "settled_at"),
        ],
        {"released_at", "settled_at"},
    ),
    (cayu.memory.DurableOperationOwnershipResult, ["disposition", "observed_at", "ownership"], set()),
    (cayu.memory.MemoryInterventionRuntimeOwnershipResult, ["execution", "ownership"], set()),
    (
        cayu.memory.RuntimeSessionCreateClaimReference,
        [
            *("session_id", "operation_id", "request_authority_key_id"),
            *("request_authority_hmac_sha256", "claim_id"),
        ],
        set(),
    ),
    (
        cayu.snapshots.AgentSnapshotExecutionProfileRef,
        ["schema_version", "fingerprint", "components"],
        {"schema_version"},
    ),
    (
        cayu.snapshots.AgentSnapshotMaterialization,
        [
            *("fingerprint", "progress_id", "snapshot_fingerprint", "candidate_id", "state_scope_id", "state_mode"),
            *("authority_scope_fingerprint", "created_at", "components"),
        ],
        set(),
    ),
    (cayu.evals.EvalMemorySourceAliasV1, ["algorithm", "key_id", "digest"], {"algorithm"}),
]
"""Public records beside the listed ones: their fields in order, and those that have a default."""


@pytest.mark.requirement("B079", "B080")
@pytest.mark.parametrize("each, names, optional", SHAPES, ids=[each.__name__ for each, _, _ in SHAPES])
def test_records_beside_the_listed_ones_have_a_public_shape(each: Any, names: list[str], optional: set[str]) -> None:
    assert list(each.model_fields) == names
    assert {name for name, field in each.model_fields.items() if not field.is_required()} == optional


@pytest.mark.requirement("B079")
def test_transitions_and_dispositions_have_their_values() -> None:
    transition = cayu.memory.DurableOperationOwnershipTransition
    assert get_args(get_type_hints(transition)["action"]) == ("claim", "renew", "release", "settle")
    assert [str(each) for each in cayu.memory.DurableOperationOwnershipState] == ["active", "released", "settled"]
    assert [str(each) for each in cayu.memory.DurableOperationOwnershipDisposition] == [
        *("acquired", "renewed", "equivalent_live_owner", "expired_taken_over", "released", "settled", "fenced"),
        *("operation_advanced", "identity_conflict", "indeterminate"),
    ]


@pytest.mark.requirement("B080")
def test_limitations_and_aliases_have_their_values() -> None:
    assert [str(each) for each in cayu.evals.EvalMemoryEvidenceLimitation] == [
        *("source_limit", "source_bytes_limit", "projection_bytes_limit", "runtime_attribution_truncated"),
        *("store_unsupported", "evidence_read_failed", "alias_key_unavailable", "missing", "deleted", "legacy"),
        *("contradictory_lineage", "source_tree_incomplete", "closure_changed", "deadline_expired"),
    ]
    alias = cayu.evals.EvalMemorySourceAliasV1(key_id="key", digest="a" * 64)
    assert alias.algorithm == "hmac-sha256"
    component = get_args(get_type_hints(cayu.snapshots.AgentSnapshotExecutionProfileRef)["components"])[0]
    assert list(component.model_fields) == ["name", "fingerprint", "availability"]
    copied = get_args(get_type_hints(cayu.snapshots.AgentSnapshotMaterialization)["components"])[0]
    assert list(copied.model_fields) == ["kind", "baseline_fingerprint", "materialization_ref", "overlay"]


@pytest.mark.requirement("B081")
def test_both_stores_take_a_clock_for_ownerships(tmp_path: Path) -> None:
    for made in (
        cayu.memory.InMemoryMemoryInterventionExecutionStore,
        cayu.memory.SQLiteMemoryInterventionExecutionStore,
    ):
        parameter = inspect.signature(made).parameters["ownership_clock"]
        assert (parameter.kind, parameter.default) == (inspect.Parameter.KEYWORD_ONLY, None)
        with pytest.raises(TypeError, match="positional"):
            made(tmp_path / "store.db", None)


def test_the_models_share_one_strict_base() -> None:
    rows = [row["name"] for row in facts("class") if "ExecutionModel" in row.get("bases", ())]
    assert len(rows) == 5
    assert all(issubclass(found(name), ExecutionModel) for name in rows)
    assert ExecutionModel.model_config["extra"] == "forbid"
    assert ExecutionModel.model_config["hide_input_in_errors"] is True
