"""Weighted reciprocal-rank fusion: several rankings of memories become one order (Cormack, Clarke and Buettcher 2009).

Fusion orders, and the score of a memory alone admits: a rank says nothing about whether even the best one is any good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

STRATEGY = "weighted-rrf-1"
CURRENT_CONFIGURATION = "lexical-title-transcript-1"


class Fusion(NamedTuple):
    """The numbers of one configuration."""

    smoothing: float
    """Added to every rank; the larger, the less the first places stand out."""
    weights: Mapping[str, float]
    """By the name of the ranking."""


CONFIGURATIONS: Mapping[str, Fusion] = MappingProxyType(
    {
        CURRENT_CONFIGURATION: Fusion(
            smoothing=60.0, weights=MappingProxyType({"knowledge": 1.0, "title": 0.25, "transcript": 0.5})
        )
    }
)


def fuse(rankings: Mapping[str, Sequence[str]], configuration: str) -> list[tuple[str, float]]:
    """Return every ranked id with its fused weight, the heaviest first, ties by id.

    `rankings` holds ids, best first, by the name of the ranking. The weight of an id is the sum, over the rankings that
    hold it, of weight / (smoothing + rank), with ranks from 1.
    """
    smoothing, weights = CONFIGURATIONS[configuration]
    fused: dict[str, float] = {}
    for name, ranked in rankings.items():
        for rank, item in enumerate(ranked, 1):
            fused[item] = fused.get(item, 0.0) + weights[name] / (smoothing + rank)
    return sorted(((item, round(total, 9)) for item, total in fused.items()), key=lambda found: (-found[1], found[0]))
