"""Sinks that come with the library: what they keep, what they write, and what they never write."""

from __future__ import annotations

import json
import logging

import pytest
from pydantic import TypeAdapter
from runtime.support import FakeTool, calls, make_app, new_run, play

from cayu import CayuApp, Event
from cayu.observability import EventSink, InMemoryEventSink, LoggingEventSink, TimingRecord
from cayu.timing.records import AnyTimingRecord

READER: TypeAdapter[TimingRecord] = TypeAdapter(AnyTimingRecord)


async def ran(*sinks: EventSink) -> CayuApp:
    """An application whose session has had a round, with everything delivered."""
    app = make_app(None, (calls("act"), "done"), [FakeTool("act")], event_sinks=sinks)
    await play(app.run(new_run()))
    await app.flush_runtime_timing()
    return app


def timing_lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The lines that tell of durations, in whatever logger."""
    return [line for line in caplog.records if "duration_seconds" in line.getMessage()]


@pytest.mark.requirement("A137")
async def test_timing_is_logged_as_json_at_debug_when_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        app = await ran(LoggingEventSink(log_runtime_timing=True))
    lines = timing_lines(caplog)
    assert {(line.levelno, line.name) for line in lines} == {(logging.DEBUG, "cayu.events")}
    read = [READER.validate_json(line.getMessage()) for line in lines]
    assert [record.kind for record in read] == ["model_step_preparation", "tool_round", "model_step_preparation"]
    assert read[1] == (await app.inspect_recent_tool_round_timing("s"))[0]
    assert app.runtime_timing_status().failed_deliveries == 0


@pytest.mark.requirement("A137")
async def test_nothing_is_logged_above_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await ran(LoggingEventSink(log_runtime_timing=True))
    assert timing_lines(caplog) == []
    assert caplog.records != []


@pytest.mark.requirement("A137")
async def test_timing_is_not_logged_unless_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    sink = LoggingEventSink()
    assert not sink.takes_timing
    with caplog.at_level(logging.DEBUG):
        app = await ran(sink)
    assert timing_lines(caplog) == []
    assert any(line.getMessage().startswith("tool.call.completed session=s ") for line in caplog.records)
    assert app.runtime_timing_status().dropped_records == 0


@pytest.mark.requirement("A138")
async def test_an_application_by_itself_writes_no_timing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        app = await ran()
        await app.aclose()
    assert app.runtime_timing_status().recent_records == 3
    assert timing_lines(caplog) == []
    assert not any(line.name.startswith("cayu") for line in caplog.records)


async def test_timing_goes_to_the_logger_that_was_given(caplog: pytest.LogCaptureFixture) -> None:
    own = logging.getLogger("mine.alone")
    with caplog.at_level(logging.DEBUG):
        await ran(LoggingEventSink(own, logging.WARNING, log_runtime_timing=True))
    assert {line.name for line in caplog.records if line.name.startswith(("cayu", "mine"))} == {"mine.alone"}
    assert {json.loads(line.getMessage())["kind"] for line in timing_lines(caplog)} == {
        "model_step_preparation",
        "tool_round",
    }


async def test_a_sink_in_memory_keeps_events_and_timing() -> None:
    sink = InMemoryEventSink()
    app = await ran(sink)
    assert [event.sequence for event in sink.events] == list(range(1, len(sink.events) + 1))
    assert len(sink.timings) == 3
    assert sink.timings[1] is (await app.inspect_recent_tool_round_timing("s"))[0]


@pytest.mark.requirement("A135")
async def test_a_sink_that_overrides_it_is_given_timing() -> None:
    class Plain(EventSink):
        async def emit(self, event: Event) -> None:
            """Take it."""

    class Own(Plain):
        taken = 0

        async def emit_timing(self, record: TimingRecord) -> None:
            self.taken += 1

    class Later(Own):
        """Inherits what it wants."""

    sinks = [Own(), Later()]
    await ran(Plain(), *sinks)
    assert [sink.taken for sink in sinks] == [3, 3]


async def test_a_logging_sink_that_overrides_it_is_given_timing() -> None:
    class Own(LoggingEventSink):
        taken = 0

        async def emit_timing(self, record: TimingRecord) -> None:
            self.taken += 1

    sink = Own()
    await ran(sink)
    assert sink.taken == 3
