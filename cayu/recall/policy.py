"""What an agent is given of its memory without asking: the policy, as one fingerprinted value."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Self

from pydantic import Field, model_validator

from cayu.canonical import fingerprint
from cayu.messages import Frozen
from cayu.recall.fusion import CONFIGURATIONS, CURRENT_CONFIGURATION, STRATEGY

CALIBRATION = "lexical-1"
"""The scale of scores that the default bounds were chosen on: `cayu.knowledge.ranking`, from 0 to 1."""


class AutomaticRecallMode(StrEnum):
    """What becomes of memories that answer the user's message."""

    OFF = "off"
    """Nothing is looked up."""
    OFFER = "offer"
    """Titles are offered, to be read with a tool."""
    STRONG_MATCHES = "strong_matches"
    """The text of strong matches is put before the message."""
    OFFER_AND_STRONG_MATCHES = "offer_and_strong_matches"
    """Strong matches as text, weaker ones as offers."""

    @property
    def injects(self) -> bool:
        """True when strong matches stand in the request as text."""
        return self in (AutomaticRecallMode.STRONG_MATCHES, AutomaticRecallMode.OFFER_AND_STRONG_MATCHES)

    @property
    def offers(self) -> bool:
        """True when matches are offered by title."""
        return self in (AutomaticRecallMode.OFFER, AutomaticRecallMode.OFFER_AND_STRONG_MATCHES)


class AutomaticRecallPolicy(Frozen):
    """How memories are found for a user's message, which are let in, and how much room they get."""

    policy_version: str = Field(default="1", min_length=1, max_length=256)
    """The application's own name for these settings."""
    calibration_version: str = Field(default=CALIBRATION, min_length=1, max_length=256)
    """The scale that the minimum scores are meant on."""
    fusion_strategy_version: str = STRATEGY
    fusion_configuration_version: str = CURRENT_CONFIGURATION
    mode: AutomaticRecallMode = AutomaticRecallMode.STRONG_MATCHES
    minimum_inject_score: float = Field(default=0.3, ge=0.0, le=1.0)
    """From 0 to 1: a match of at least this score may stand in the request as text."""
    minimum_offer_score: float = Field(default=0.15, ge=0.0, le=1.0)
    """From 0 to 1: a match of at least this score may be offered."""
    max_evaluated_candidates: int = Field(default=30, ge=1, le=1000)
    max_injected_items: int = Field(default=5, ge=0, le=100)
    max_offered_items: int = Field(default=10, ge=0, le=100)
    max_candidate_text_bytes: int = Field(default=8192, ge=1)
    """UTF-8 bytes; a longer memory is never put in as text, and may be offered."""
    max_focus_bytes: int = Field(default=4096, ge=1)
    """UTF-8 bytes of the user's message that are searched for."""
    max_offer_bytes: int = Field(default=2048, ge=0)
    """UTF-8 bytes that all offers may take."""
    max_total_bytes: int = Field(default=16384, ge=0)
    """UTF-8 bytes that everything recalled for one message may take."""
    timeout_seconds: float = Field(default=5.0, gt=0.0, le=3600.0)
    required: bool = False
    """True fails the session when recall fails; otherwise the failure is recorded and the model is asked without."""

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if self.fusion_strategy_version != STRATEGY or self.fusion_configuration_version not in CONFIGURATIONS:
            known = ", ".join(sorted(CONFIGURATIONS))
            raise ValueError(f"fusion is {STRATEGY!r} with one of the configurations {known}")
        return self

    def fingerprint(self) -> str:
        """Return the digest of every setting, 64 hexadecimal digits."""
        return _fingerprint(self)

    def switched_off(self) -> AutomaticRecallPolicy:
        """Return the same policy with nothing recalled."""
        return self.model_copy(update={"mode": AutomaticRecallMode.OFF})


@lru_cache(maxsize=256)
def _fingerprint(policy: AutomaticRecallPolicy) -> str:
    return fingerprint("cayu.automatic-recall-policy", policy.model_dump(mode="json"))
