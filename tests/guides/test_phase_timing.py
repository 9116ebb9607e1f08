"""What the guide to timing says of phases, bounds and costs is what the code does."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import require_tool
from guides.reading import guide

from cayu import AgentSpec, CayuApp, Message, RunRequest, RuntimeTimingConfig, ToolEffect, run_to_completion, tool
from cayu.benchmarks.phase_timing import make_parser
from cayu.observability import RuntimePhaseTiming
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.timing.phases import PHASE_OF_EVENT, PREPARATION_PHASES, ROUND_PHASES

TIMING = guide("phase-timing")


def section(title: str) -> str:
    """One section of the second level, with its lines joined."""
    found = TIMING.text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert found, f"the guide has no section {title!r}"
    return found


def rows(title: str) -> list[list[str]]:
    """The rows of the first table of a section, as cells, without the head."""
    table = re.findall(r"^\|.*\|$", section(title), re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_the_twelve_phases_stand_in_their_order() -> None:
    assert [cells[0] for cells in rows("The twelve phases")] == [f"`{name}`" for name in ROUND_PHASES]


def test_each_event_stands_at_its_phase() -> None:
    shown = {
        event: name.strip("`")
        for name, _, events in rows("The twelve phases")
        for event in re.findall(r"`([^`]+)`", events)
    }
    assert shown == dict(PHASE_OF_EVENT)


def test_the_phases_of_a_preparation_stand_in_their_order() -> None:
    assert [cells[0] for cells in rows("Before a model step")] == [f"`{name}`" for name in PREPARATION_PHASES]


def test_every_cost_of_a_store_is_explained() -> None:
    costs = [f"`{name}`" for name in RuntimePhaseTiming.model_fields if name.startswith("store_")]
    assert [cells[0] for cells in rows("Store costs")] == costs


def test_the_bounds_have_the_defaults_shown() -> None:
    shown = {name.strip("`"): default for name, default, _ in rows("Bounds")}
    assert shown == {field.name: str(field.default) for field in dataclasses.fields(RuntimeTimingConfig)}


def test_the_benchmark_takes_the_arguments_shown() -> None:
    shown = [command.split() for command in TIMING.commands if "cayu.benchmarks.phase_timing" in command]
    assert {words[words.index("--backend") + 1] for words in shown} == {"sqlite", "memory"}
    for words in shown:
        make_parser().parse_args(words[3:])


@pytest.mark.requirement("A103")
async def test_tools_run_in_this_process_and_the_guide_says_what_another_would_count_as() -> None:
    @tool(version="1", effect=ToolEffect.NONE)
    def in_a_thread() -> str:
        """Say which process this is."""
        return str(os.getpid())

    @tool(version="1", effect=ToolEffect.NONE)
    async def on_the_loop() -> str:
        """Say which process this is."""
        return str(os.getpid())

    calls = [ModelStreamEvent.tool_call(name, id=name) for name in ("in_a_thread", "on_the_loop")]
    app = CayuApp()
    app.register_provider(ScriptedModelProvider([calls, "done"]))
    app.register_agent(AgentSpec(name="teller", model="scripted"), tools=[in_a_thread, on_the_loop])
    async with app:
        request = RunRequest(agent_name="teller", messages=(Message.text("user", "Where are you?"),))
        outcome = await run_to_completion(app, request)
        [record] = await app.inspect_recent_tool_round_timing(outcome.session_id)
    assert [call.content for call in outcome.tool_calls] == [str(os.getpid())] * 2
    assert all(call.phase("execution").duration_seconds > 0 for call in record.calls)

    told = " ".join(section("Tools run in this process").split())
    assert "A tool runs in the process of the application" in told
    assert "Isolating tools in a process of their own is out of scope." in told
    assert "all of that time is `execution`" in told


async def test_the_trace_shown_has_the_spans_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("the extra otel", importlib.util.find_spec("opentelemetry.sdk"))
    [block] = [block for block in TIMING.blocks if block.file_name]
    tmp_path.joinpath("traced.py").write_text(block.text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    exporter = importlib.import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    await importlib.import_module("traced").trace(exporter)
    monkeypatch.delitem(sys.modules, "traced")

    spans: list[Any] = list(exporter.get_finished_spans())
    assert {span.name.split()[0] for span in spans} == {cells[0] for cells in rows("OpenTelemetry")}
    tools = {span.context.span_id: span for span in spans if span.name.startswith("execute_tool")}
    phases = [span for span in spans if span.name == "cayu.tool.phases"]
    assert {span.parent.span_id for span in phases} == set(tools)
    for span in phases:
        parent = tools[span.parent.span_id]
        assert span.start_time <= parent.start_time
        assert span.end_time >= parent.end_time
        assert {event.name for event in span.events} <= {f"cayu.phase.{name}" for name in ROUND_PHASES}
