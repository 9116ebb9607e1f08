"""Sinks that receive what a runtime does and how long it took, and the timing records themselves."""

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
