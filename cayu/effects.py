"""What a tool does to the world outside, and what that means when its process is lost."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from cayu.canonical import fingerprint
from cayu.messages import Frozen


class ToolEffect(StrEnum):
    """The effect class that a tool declares."""

    NONE = "none"
    """Reads only; may be repeated freely."""
    IDEMPOTENT = "idempotent"
    """Acts once per idempotency key; may be repeated once with the same key."""
    EXTERNAL = "external"
    """Acts on something that cannot be asked to do it only once; never repeated by the runtime."""


class EffectState(StrEnum):
    """What is known of a dispatched effect."""

    STARTED = "started"
    """Its intent is durable, its outcome is not known yet."""
    COMPLETED = "completed"
    """The tool returned."""
    FAILED = "failed"
    """The tool raised, or was lost in a way that leaves nothing behind."""
    UNKNOWN = "unknown"
    """It was cut off; whether it acted is not known."""


class EffectOutcome(StrEnum):
    """What was found out of a call."""

    COMPLETED = "completed"
    """It acted."""
    FAILED = "failed"
    """It did not act, and will not."""
    UNKNOWN = "unknown"
    """It could not be found out now."""


class ToolEffectReceipt(Frozen):
    """A service's own word on one call; it counts only for the key and the arguments that it names."""

    idempotency_key: str = Field(min_length=1, max_length=256)
    """The key under which the call acted."""
    arguments_digest: str = Field(min_length=64, max_length=64)
    """Of the arguments that it acted on, as the plan shows it."""
    reference: str = Field(min_length=1, max_length=256)
    """How the service names the effect: an order, a message, a transaction."""


MAX_ATTEMPTS = 2
"""A lost NONE or IDEMPOTENT call is replayed once."""


def idempotency_key(instance_id: str, tool_round_id: str, tool_call_id: str) -> str:
    """Return the key under which a call acts: the same for every attempt, and in every process."""
    return fingerprint("cayu.idempotency-key", [instance_id, tool_round_id, tool_call_id])[:40]
