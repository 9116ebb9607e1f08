"""Two trials are compared when they differ in nothing but the intervention; each other difference has its name."""

from __future__ import annotations

from typing import Any

import pytest
from interventions.support import Parts, digest, make_attribution, make_parts, make_request, make_spec
from pydantic import ValidationError

from cayu.evals import EvalCaseContractV1
from cayu.interventions.comparability import MemoryInterventionComparability, MemoryInterventionMismatch
from cayu.interventions.evidence import MemoryInterventionTrialBinding

pytestmark = pytest.mark.exhaustive

OTHER = digest("another")
ACCUMULATING = {"trial_state_mode": "accumulate_within_candidate"}
TRUNCATED = make_attribution(status="truncated", truncated=True)


def parts_of(kind: str = "as_declared", spec: dict[str, Any] | None = None, **asked: Any) -> Parts:
    """A trial of a kind; `spec` goes over the spec's fields, and what is left over the parts' and the request's."""
    made = {name: asked.pop(name) for name in ("receipt_status", "attribution", "bound") if name in asked}
    request = make_request(make_spec(kind, **(spec or {})), **({"trial_id": f"trial-{kind}"} | asked))
    return make_parts(request, **made)


def reasons(baseline: Parts, other: Parts) -> list[str]:
    return [str(each) for each in compare(baseline.binding, other.binding).mismatches]


def compare(
    baseline: MemoryInterventionTrialBinding, intervention: MemoryInterventionTrialBinding
) -> MemoryInterventionComparability:
    return MemoryInterventionComparability.create(baseline=baseline, intervention=intervention)


def test_reasons_have_their_values() -> None:
    assert list(map(str, MemoryInterventionMismatch)) == [
        *("baseline_memory_state", "intervention_identity", "recall_policy", "materialization_overlay"),
        *("changed_item_revisions", "trial_mode", "required_attribution_availability"),
    ]


@pytest.mark.parametrize("kind", ["automatic_recall_off", "omit_items", "replace_items", "negative_control"])
def test_trials_that_differ_in_the_intervention_are_compared(kind: str) -> None:
    baseline, other = parts_of(), parts_of(kind)
    verdict = compare(baseline.binding, other.binding)
    assert verdict.comparable
    assert verdict.mismatches == ()
    assert verdict.baseline_fingerprint == baseline.binding.fingerprint
    assert verdict.intervention_fingerprint == other.binding.fingerprint
    assert MemoryInterventionComparability.model_validate_json(verdict.model_dump_json()) == verdict


@pytest.mark.parametrize("kind", ["automatic_recall_off", "omit_items", "replace_items", "negative_control"])
@pytest.mark.parametrize(
    "reason, changed",
    [
        ("baseline_memory_state", {"spec": {"snapshot_fingerprint": OTHER}}),
        ("baseline_memory_state", {"spec": {"memory_state_fingerprint": OTHER}}),
        ("baseline_memory_state", {"spec": {"authority_scope_fingerprint": OTHER}}),
        ("intervention_identity", {"spec": {"execution_profile_fingerprint": OTHER}}),
        ("intervention_identity", {"case": EvalCaseContractV1(case_id="another", case_revision=digest("case"))}),
        ("intervention_identity", {"bound": {"evaluator_fingerprint": OTHER}}),
        ("changed_item_revisions", {"receipt_status": "matched_no_items"}),
        ("changed_item_revisions", {"receipt_status": "conflicting"}),
        ("changed_item_revisions", {"receipt_status": "indeterminate"}),
        ("trial_mode", {"spec": ACCUMULATING}),
        ("required_attribution_availability", {"attribution": TRUNCATED}),
        ("required_attribution_availability", {"attribution": make_attribution(status="contradictory")}),
        ("required_attribution_availability", {"attribution": make_attribution(status="redacted")}),
    ],
)
def test_each_difference_of_the_intervention_has_its_one_reason(
    kind: str, reason: str, changed: dict[str, Any]
) -> None:
    if kind == "automatic_recall_off" and "receipt_status" in changed:
        with pytest.raises(ValidationError, match="verified exactly when none was asked for"):
            parts_of(kind, **changed)
        return
    verdict = compare(parts_of().binding, parts_of(kind, **changed).binding)
    assert list(verdict.mismatches) == [reason]
    assert not verdict.comparable


@pytest.mark.parametrize(
    "reason, changed",
    [
        ("baseline_memory_state", {"spec": {"snapshot_fingerprint": OTHER}}),
        ("baseline_memory_state", {"spec": {"memory_state_fingerprint": OTHER}}),
        ("baseline_memory_state", {"spec": {"authority_scope_fingerprint": OTHER}}),
        ("intervention_identity", {"spec": {"execution_profile_fingerprint": OTHER}}),
        ("intervention_identity", {"bound": {"evaluator_fingerprint": OTHER}}),
        ("trial_mode", {"spec": ACCUMULATING}),
        ("required_attribution_availability", {"attribution": TRUNCATED}),
    ],
)
def test_each_difference_of_the_baseline_has_its_one_reason(reason: str, changed: dict[str, Any]) -> None:
    assert reasons(parts_of(**changed), parts_of("omit_items")) == [reason]


def test_another_recall_policy_to_begin_with_is_a_reason() -> None:
    policy = {"starting_recall_policy_fingerprint": OTHER, "trial_recall_policy_fingerprint": OTHER}
    assert reasons(parts_of(), parts_of("omit_items", spec=policy)) == ["recall_policy"]
    started = {"starting_recall_policy_fingerprint": OTHER}
    assert reasons(parts_of(), parts_of("automatic_recall_off", spec=started)) == ["recall_policy"]


def sharing(kind: str, spec: dict[str, Any]) -> Parts:
    """A trial whose copy of the memory is the one that all trials made here share."""
    request = make_request(make_spec(kind, **spec), trial_id=f"trial-{kind}")
    materialization = make_parts(request).materialization
    component = materialization.components[0].model_copy(update={"materialization_ref": digest("shared")})
    return make_parts(request, materialized={"components": (component,)})


def test_one_copy_for_both_is_a_reason_when_each_trial_has_its_own() -> None:
    assert reasons(sharing("as_declared", {}), sharing("omit_items", {})) == ["materialization_overlay"]
    assert reasons(sharing("as_declared", ACCUMULATING), sharing("omit_items", ACCUMULATING)) == []
    mixed = reasons(sharing("as_declared", {}), sharing("omit_items", ACCUMULATING))
    assert mixed == ["materialization_overlay", "trial_mode"]


@pytest.mark.parametrize(
    "kind, expected",
    [
        ("omit_items", ["baseline_memory_state", "changed_item_revisions"]),
        ("automatic_recall_off", ["baseline_memory_state", "recall_policy"]),
    ],
)
def test_a_baseline_changes_nothing(kind: str, expected: list[str]) -> None:
    assert reasons(parts_of(kind), parts_of("replace_items")) == expected


def test_an_intervention_changes_something() -> None:
    assert reasons(parts_of(), parts_of(trial_id="trial-2")) == ["intervention_identity"]


def test_a_trial_is_not_compared_with_itself() -> None:
    baseline = parts_of()
    assert reasons(baseline, baseline) == ["intervention_identity", "materialization_overlay"]


def test_all_reasons_are_given_in_order() -> None:
    fields = {
        **ACCUMULATING,
        "memory_state_fingerprint": OTHER,
        "execution_profile_fingerprint": OTHER,
        "starting_recall_policy_fingerprint": OTHER,
        "trial_recall_policy_fingerprint": OTHER,
    }
    other = parts_of("omit_items", spec=fields, receipt_status="matched_no_items", attribution=TRUNCATED)
    assert reasons(parts_of(), other) == [
        *("baseline_memory_state", "intervention_identity", "recall_policy", "changed_item_revisions"),
        *("trial_mode", "required_attribution_availability"),
    ]


@pytest.mark.parametrize(
    "same",
    [
        {"candidate_id": "another"},
        {"spec": {"spec_id": "another"}},
        {"spec": {"reason": "another"}},
        {"attribution": make_attribution(observed_exposures=0, exposures=())},
    ],
    ids=["candidate", "spec id", "reason", "exposures"],
)
def test_names_and_what_was_seen_are_no_reasons(same: dict[str, Any]) -> None:
    assert reasons(parts_of(), parts_of("omit_items", **same)) == []
