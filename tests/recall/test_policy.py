"""A recall policy is one value: every setting counts in its fingerprint, and what makes no sense is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from cayu.recall import AutomaticRecallMode, AutomaticRecallPolicy

OTHER: dict[str, Any] = {
    "policy_version": "2",
    "calibration_version": "semantic-1",
    "mode": "offer",
    "minimum_inject_score": 0.31,
    "minimum_offer_score": 0.16,
    "max_evaluated_candidates": 31,
    "max_injected_items": 6,
    "max_offered_items": 11,
    "max_candidate_text_bytes": 8193,
    "max_focus_bytes": 4097,
    "max_offer_bytes": 2049,
    "max_total_bytes": 16385,
    "timeout_seconds": 5.5,
    "required": True,
}
"""For each setting another value than its default."""
SINGLE = {"fusion_strategy_version", "fusion_configuration_version"}
"""Settings of which there is one value so far."""


def test_the_modes_say_what_becomes_of_a_match() -> None:
    told = {str(mode): (mode.injects, mode.offers) for mode in AutomaticRecallMode}
    assert told == {
        "off": (False, False),
        "offer": (False, True),
        "strong_matches": (True, False),
        "offer_and_strong_matches": (True, True),
    }


def test_the_bounds_are_those_of_the_contract() -> None:
    policy = AutomaticRecallPolicy()
    assert policy.max_evaluated_candidates == 30
    assert (policy.max_injected_items, policy.max_offered_items) == (5, 10)


def test_every_setting_has_another_value_here() -> None:
    assert OTHER.keys() | SINGLE == AutomaticRecallPolicy.model_fields.keys()


@pytest.mark.parametrize("name", OTHER)
def test_every_setting_changes_the_fingerprint(name: str) -> None:
    assert AutomaticRecallPolicy(**{name: OTHER[name]}).fingerprint() != AutomaticRecallPolicy().fingerprint()


def test_equal_policies_have_one_fingerprint_also_after_a_file() -> None:
    policy = AutomaticRecallPolicy(**OTHER)
    assert AutomaticRecallPolicy.model_validate_json(policy.model_dump_json()).fingerprint() == policy.fingerprint()
    assert len(policy.fingerprint()) == 64


def test_switched_off_it_is_the_same_policy_but_for_the_mode() -> None:
    policy = AutomaticRecallPolicy(**OTHER)
    off = policy.switched_off()
    assert off.model_dump(exclude={"mode"}) == policy.model_dump(exclude={"mode"})
    assert (off.mode, policy.mode) == ("off", "offer")
    assert off == off.switched_off()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fusion_strategy_version", "sum-1"),
        ("fusion_configuration_version", "lexical-title-transcript-0"),
        ("mode", "always"),
        ("minimum_inject_score", 1.01),
        ("minimum_offer_score", -0.01),
        ("minimum_inject_score", float("nan")),
        ("max_evaluated_candidates", 0),
        ("max_injected_items", -1),
        ("max_candidate_text_bytes", 0),
        ("max_focus_bytes", 0),
        ("max_total_bytes", -1),
        ("timeout_seconds", 0.0),
        ("timeout_seconds", float("inf")),
        ("policy_version", ""),
        ("no_such_setting", 1),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        AutomaticRecallPolicy.model_validate({name: value})


def test_an_unknown_fusion_is_told_what_is_known() -> None:
    with pytest.raises(ValidationError, match="lexical-title-transcript-1"):
        AutomaticRecallPolicy(fusion_configuration_version="mine")
