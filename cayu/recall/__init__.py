"""Automatic recall: what an agent is given of its memory without asking, and what of it stood before the model."""

from cayu.recall.attribution import (
    MemoryAttribution,
    MemoryAttributionBounds,
    MemoryExposure,
    MemoryReceipt,
    attribute,
    memory_alias,
)
from cayu.recall.policy import AutomaticRecallMode, AutomaticRecallPolicy

__all__ = [
    "AutomaticRecallMode",
    "AutomaticRecallPolicy",
    "MemoryAttribution",
    "MemoryAttributionBounds",
    "MemoryExposure",
    "MemoryReceipt",
    "attribute",
    "memory_alias",
]
