"""Weighted reciprocal-rank fusion, held against the formula written out in exact fractions."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cayu.recall.fusion import CONFIGURATIONS, CURRENT_CONFIGURATION, fuse

NAMES = tuple(CONFIGURATIONS[CURRENT_CONFIGURATION].weights)
RANKINGS = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.sampled_from("abcdefghij"), unique=True, max_size=10), max_size=len(NAMES)
)
ROUNDING = Fraction(1, 10**9)


def exact(rankings: dict[str, list[str]]) -> dict[str, Fraction]:
    """The weights by the formula of the paper, without rounding."""
    smoothing, weights = CONFIGURATIONS[CURRENT_CONFIGURATION]
    every = {item for ranked in rankings.values() for item in ranked}
    return {
        item: sum(
            (
                Fraction(weights[name]) / (Fraction(smoothing) + 1 + ranked.index(item))
                for name, ranked in rankings.items()
                if item in ranked
            ),
            Fraction(0),
        )
        for item in every
    }


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(RANKINGS)
def test_fusion_is_the_formula(rankings: dict[str, list[str]]) -> None:
    wanted, found = exact(rankings), fuse(rankings, CURRENT_CONFIGURATION)
    assert {item for item, _ in found} == wanted.keys()
    assert len(found) == len(wanted)
    for item, weight in found:
        assert abs(Fraction(weight) - wanted[item]) < ROUNDING
    assert found == sorted(found, key=lambda pair: (-pair[1], pair[0])), "the heaviest first, ties by id"


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(RANKINGS, st.randoms(use_true_random=False))
def test_the_order_in_which_rankings_are_given_says_nothing(rankings: dict[str, list[str]], random: object) -> None:
    names = sorted(rankings)
    random.shuffle(names)  # type: ignore[attr-defined]
    assert fuse({name: rankings[name] for name in names}, CURRENT_CONFIGURATION) == fuse(
        rankings, CURRENT_CONFIGURATION
    )


def test_one_ranking_alone_keeps_its_order() -> None:
    assert [item for item, _ in fuse({"knowledge": list("zyxab")}, CURRENT_CONFIGURATION)] == list("zyxab")


def test_knowledge_counts_more_than_a_title_and_what_both_hold_counts_most() -> None:
    found = fuse({"knowledge": ["k", "both"], "title": ["both", "t"], "transcript": ["said"]}, CURRENT_CONFIGURATION)
    assert [item for item, _ in found] == ["both", "k", "said", "t"]
    assert dict(found)["k"] == pytest.approx(1 / 61, abs=1e-9)
    assert dict(found)["both"] == pytest.approx(1 / 62 + 0.25 / 61, abs=1e-9)


def test_nothing_ranked_is_nothing_fused() -> None:
    assert fuse({}, CURRENT_CONFIGURATION) == fuse({"knowledge": []}, CURRENT_CONFIGURATION) == []


def test_a_published_configuration_stays_as_it_is() -> None:
    """Receipts name a configuration by its version: other numbers need another name."""
    smoothing, weights = CONFIGURATIONS["lexical-title-transcript-1"]
    assert (smoothing, dict(weights)) == (60.0, {"knowledge": 1.0, "title": 0.25, "transcript": 0.5})
