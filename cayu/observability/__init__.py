"""Sinks that receive what a runtime does and how long it took, and the timing records themselves.

`OpenTelemetryEventSink` is here as well; its library, of the extra `otel`, is loaded when the name is first used.
"""

from typing import TYPE_CHECKING, Any

from cayu.observability.sinks import EventSink, InMemoryEventSink, LoggingEventSink, TimingSink
from cayu.observability.timing_files import TimingFileSink, read_timings
from cayu.timing import (
    ModelStepPreparationTiming,
    RuntimePhaseTiming,
    RuntimeTimingConfig,
    RuntimeTimingStatus,
    TimingRecord,
    ToolCallTiming,
    ToolRoundTiming,
)

if TYPE_CHECKING:
    from cayu.observability.telemetry import OpenTelemetryEventSink as OpenTelemetryEventSink

__all__ = [
    "EventSink",
    "InMemoryEventSink",
    "LoggingEventSink",
    "ModelStepPreparationTiming",
    "RuntimePhaseTiming",
    "RuntimeTimingConfig",
    "RuntimeTimingStatus",
    "TimingFileSink",
    "TimingRecord",
    "TimingSink",
    "ToolCallTiming",
    "ToolRoundTiming",
    "read_timings",
]


def __getattr__(name: str) -> Any:
    if name == "OpenTelemetryEventSink":
        from cayu.observability.telemetry import OpenTelemetryEventSink

        return OpenTelemetryEventSink
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
