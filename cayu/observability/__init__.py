"""Sinks that receive what a runtime does."""

from cayu.observability.sinks import EventSink, InMemoryEventSink, LoggingEventSink

__all__ = ["EventSink", "InMemoryEventSink", "LoggingEventSink"]
