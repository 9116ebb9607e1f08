"""Scores against values worked out by hand, and against the formula written out another way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cayu.evals import AnswerScoring, score_answer

EXACT, CONTAINS, F1 = AnswerScoring.EXACT, AnswerScoring.CONTAINS, AnswerScoring.F1
TEXTS = st.text("ab the.,!Aé ", max_size=20)


@pytest.mark.parametrize(
    ("answer", "expected", "exact", "contains", "f1"),
    [
        ("four degrees", "four degrees", 1.0, 1.0, 1.0),
        ("The Four, DEGREES!", "four degrees", 1.0, 1.0, 1.0),
        ("degrees four", "four degrees", 0.0, 0.0, 1.0),
        ("it is four degrees here", "four degrees", 0.0, 1.0, 4 / 7),
        ("four cold degrees", "four degrees", 0.0, 0.0, 4 / 5),
        ("four", "four degrees", 0.0, 0.0, 2 / 3),
        ("four four four", "four degrees", 0.0, 0.0, 2 / 5),
        ("four four", "four four", 1.0, 1.0, 1.0),
        ("five", "four degrees", 0.0, 0.0, 0.0),
        ("", "four degrees", 0.0, 0.0, 0.0),
        ("four degrees", "", 0.0, 0.0, 0.0),
        ("", "", 1.0, 0.0, 0.0),
        ("a cat and the dog", "cat and dog", 1.0, 1.0, 1.0),
        ("fourteen degrees", "four", 0.0, 0.0, 0.0),
        ("\uff14 \uff44egrees", "4 degrees", 1.0, 1.0, 1.0),
        ("STRASSE", "straße", 1.0, 1.0, 1.0),
    ],
)
def test_known_values(answer: str, expected: str, exact: float, contains: float, f1: float) -> None:
    assert score_answer(answer, expected, EXACT) == exact
    assert score_answer(answer, expected, CONTAINS) == contains
    assert score_answer(answer, expected, F1) == pytest.approx(f1)


def words(text: str) -> list[str]:
    """The words that count, found another way."""
    for mark in ".,!":
        text = text.replace(mark, " ")
    return [word for word in text.casefold().split() if word not in ("a", "an", "the")]


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(TEXTS, TEXTS)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(answer: str, expected: str) -> None:
    said, left = words(answer), words(expected)
    wanted, shared = len(left), 0
    for word in said:
        if word in left:
            left.remove(word)
            shared += 1
    if not shared:
        assert score_answer(answer, expected, F1) == 0.0
        return
    precision, recall = shared / len(said), shared / wanted
    assert score_answer(answer, expected, F1) == pytest.approx(2 * precision * recall / (precision + recall))


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(TEXTS, TEXTS)
def test_scores_are_shares_and_agree_with_each_other(answer: str, expected: str) -> None:
    exact, contains, f1 = (score_answer(answer, expected, scoring) for scoring in (EXACT, CONTAINS, F1))
    assert {exact, contains} <= {0.0, 1.0}
    assert 0.0 <= f1 <= 1.0
    if words(expected):
        assert exact <= contains
        assert contains == 0.0 or f1 > 0.0
    assert score_answer(expected, answer, F1) == pytest.approx(f1)
    assert score_answer(answer, answer, EXACT) == 1.0
