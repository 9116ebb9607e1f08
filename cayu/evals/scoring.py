"""How well an answer says what is expected: exactly, by containing it, or by the words they share."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from enum import StrEnum

_WORD = re.compile(r"\w+")
_ARTICLES = frozenset({"a", "an", "the"})


class AnswerScoring(StrEnum):
    """The rule by which an answer gets its score, from 0 to 1."""

    EXACT = "exact"
    """1 when the words are the same, in order."""
    CONTAINS = "contains"
    """1 when the expected words stand in the answer, in order and together."""
    F1 = "f1"
    """The harmonic mean of precision and recall over words (Rajpurkar et al. 2016, SQuAD)."""


def score_answer(answer: str, expected: str, scoring: AnswerScoring) -> float:
    """Return the score of an answer, from 0 to 1; case, punctuation and articles do not count."""
    said, wanted = _words(answer), _words(expected)
    if scoring is AnswerScoring.EXACT:
        return float(said == wanted)
    if scoring is AnswerScoring.CONTAINS:
        starts = range(len(said) - len(wanted) + 1)
        return float(bool(wanted) and any(said[at : at + len(wanted)] == wanted for at in starts))
    shared = sum((Counter(said) & Counter(wanted)).values())
    return 2 * shared / (len(said) + len(wanted)) if shared else 0.0


def _words(text: str) -> list[str]:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return [word for word in _WORD.findall(folded) if word not in _ARTICLES]
