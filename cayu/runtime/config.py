"""The numbers of a runtime, each with its unit, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from cayu.errors import InvalidInput
from cayu.sessions.streams import LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How one application runs its sessions. Raises `InvalidInput` for numbers that make no sense together."""

    parallel_width: int = 8
    """How many calls of one round run at once."""
    lease_seconds: float = LEASE_SECONDS
    """How long a claim on a session holds without a write."""
    renew_after_seconds: float = 10.0
    """How long a run may be silent before it renews its claim."""
    cancel_grace_seconds: float = 5.0
    """How long an interrupted tool may take to give its result after all."""
    tool_timeout_seconds: float | None = None
    """How long a call may run before it is cut off, which leaves its outcome to be found out; None sets no end.
    A call that runs a child session is cut off as well."""
    reconcile_timeout_seconds: float = 30.0
    """How long a reconciler may take."""
    max_child_depth: int = 4
    """How deep child sessions may nest."""
    max_result_bytes: int = 1 << 20
    """Largest tool result to keep, as JSON, for tools that set no bound of their own."""
    sink_timeout_seconds: float = 1.0
    """How long a sink may take for one event."""

    def __post_init__(self) -> None:
        if self.parallel_width < 1 or self.max_result_bytes < 1:
            raise InvalidInput("parallel_width and max_result_bytes are at least 1.")
        if not 0 < self.renew_after_seconds < self.lease_seconds:
            raise InvalidInput("renew_after_seconds lies between 0 and lease_seconds.")
        if self.reconcile_timeout_seconds <= 0 or (self.tool_timeout_seconds or 1.0) <= 0 or self.max_child_depth < 0:
            raise InvalidInput("tool_timeout_seconds and reconcile_timeout_seconds are positive, max_child_depth too.")
        if self.cancel_grace_seconds < 0 or self.sink_timeout_seconds <= 0:
            raise InvalidInput("cancel_grace_seconds is not negative and sink_timeout_seconds is positive.")
