"""Sinks that receive what a runtime does and how long it took, and the timing records themselves."""

from cayu.observability.sinks import EventSink, InMemoryEventSink, LoggingEventSink, TimingSink
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
    "TimingRecord",
    "TimingSink",
    "ToolCallTiming",
    "ToolRoundTiming",
]
