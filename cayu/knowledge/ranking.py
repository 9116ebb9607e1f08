"""One pure score of an entry for a query, from these two texts alone.

No statistic of the corpus enters it, so that entries which a reader may not see cannot move what they see, and every
backend, frontier and overlay ranks alike. Backends only select candidates.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from cayu.knowledge.records import KnowledgeEntry, KnowledgeHit, KnowledgeQuery

SATURATION = 0.6
"""How soon more of the same word stops to count: tf / (tf + SATURATION)."""
TITLE_SHARE = 0.15
"""Part of the score that the title decides."""
COVERAGE_SHARE = 0.35
"""Part of the score that goes to how many of the query's words occur at all."""

_WORD = re.compile(r"[^\W_]+")
_STOP_WORDS = """
a about after an and any are as at be been before by can do does for from has have how i if in into is it its long many
may me much must my not of on or our shall should so than that the their them there these they this to was we what when
where which who whom whose why will with would you your
"""
_STOP = frozenset(_STOP_WORDS.split())
_SUFFIXES = ("ings", "ing", "edly", "ied", "ies", "ed", "es", "s", "ly")
_MIN_STEM = 3


@lru_cache(maxsize=16384)
def stem(word: str) -> str:
    """Return a crude stem: close forms of an English word fall together, on every platform alike."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _MIN_STEM and not word.endswith("ss"):
            word = word[: -len(suffix)] + ("y" if suffix in ("ied", "ies") else "")
            break
    if len(word) > _MIN_STEM and word[-1] == word[-2] and word[-1] not in "sl":
        word = word[:-1]
    word = word[:-1] if len(word) > _MIN_STEM + 1 and word.endswith("e") else word
    return word if word.isascii() else "u" + word.encode().hex()


def tokens(text: str) -> list[str]:
    """Return the stems of every word of `text`, in order, in plain ASCII."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return [stem(word) for word in _WORD.findall(folded)]


def content_tokens(text: str) -> tuple[str, ...]:
    """Return the distinct stems of `text` without the words that carry no content, unless there are no others."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = _WORD.findall(folded)
    kept = [word for word in words if word not in _STOP] or words
    return tuple(dict.fromkeys(stem(word) for word in kept))


def query_tokens(query: KnowledgeQuery) -> tuple[str, ...]:
    """Return the stems that select candidates for `query`."""
    wanted = [*content_tokens(query.text)]
    for term in (*query.any_terms, *query.all_terms, *query.phrases):
        wanted += tokens(term)
    return tuple(dict.fromkeys(wanted))


def weight(token: str) -> float:
    """Return how much a word of the query counts: longer words say more."""
    return min(len(token), 8) / 8 + (0.5 if token.isdigit() else 0.0)


def text_score(wanted: Sequence[str], title: str, text: str) -> float:
    """Return how well title and text answer the words wanted, from 0 to 1."""
    if not wanted:
        return 0.0
    head, body = set(tokens(title)), Counter(tokens(text))
    total = sum(weight(token) for token in wanted)
    found = sum(weight(token) * body[token] / (body[token] + SATURATION) for token in wanted)
    covered = sum(weight(token) for token in wanted if body[token] or token in head)
    titled = sum(weight(token) for token in wanted if token in head)
    share = 1 - TITLE_SHARE - COVERAGE_SHARE
    return round((share * found + COVERAGE_SHARE * covered + TITLE_SHARE * titled) / total, 6)


def rank(query: KnowledgeQuery, candidates: Iterable[KnowledgeEntry]) -> list[KnowledgeHit]:
    """Return the candidates that satisfy the query's terms, best first, ties by id."""
    wanted = query_tokens(query)
    hits = []
    for entry in candidates:
        if not _satisfies(query, entry):
            continue
        score = text_score(wanted, entry.title, entry.text)
        if score > 0 and score >= query.min_score:
            hits.append(KnowledgeHit.model_construct(entry=entry, score=score))
    hits.sort(key=lambda hit: (-hit.score, hit.entry.id))
    return hits


def _satisfies(query: KnowledgeQuery, entry: KnowledgeEntry) -> bool:
    if not (query.any_terms or query.all_terms or query.none_terms or query.phrases):
        return True
    sequence = tokens(f"{entry.title} {entry.text}")
    present = set(sequence)
    any_of, all_of, none_of = map(_terms, (query.any_terms, query.all_terms, query.none_terms))
    return (
        (not any_of or any(present.issuperset(term) for term in any_of))
        and all(present.issuperset(term) for term in all_of)
        and not any(present.issuperset(term) for term in none_of)
        and all(_contains(sequence, phrase) for phrase in _terms(query.phrases))
    )


def _terms(terms: Iterable[str]) -> list[list[str]]:
    """Return the stems of each term; one without a word says nothing."""
    return [found for found in map(tokens, terms) if found]


def _contains(sequence: list[str], part: list[str]) -> bool:
    return any(sequence[start : start + len(part)] == part for start in range(len(sequence) - len(part) + 1))
