"""Timing tells of durations, counts, sizes, public ids and registered names, and of nothing that anybody has said."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime.support import QUICK, FakePolicy, FakeTool, approval, log_of, play, waiting_ids

from cayu import AgentSpec, CayuApp, Message, RunRequest, SQLiteSessionStore
from cayu.environments import Environment, EnvironmentSpec
from cayu.errors import InvalidInput, StoreError
from cayu.knowledge import KnowledgeAccessScope
from cayu.observability import InMemoryEventSink, LoggingEventSink, TimingRecord
from cayu.providers.base import ModelStreamEvent
from cayu.providers.scripted import Batch, ScriptedModelProvider
from cayu.sessions import InterruptSessionRequest, ResumeRequest
from cayu.sessions.requests import ResolutionActor, UserInputResponse
from cayu.storage import SQLiteKnowledgeStore
from cayu.timing.phases import EXECUTION, PREPARATION_PHASES, ROUND_PHASES
from cayu.tools import (
    AskUserTool,
    KnowledgeSearchTool,
    ToolContext,
    ToolPolicyDecision,
    ToolPolicyRequest,
    ToolPolicyResult,
)
from cayu.tools.spec import ToolResult

CANARY = "CANARY"
TIMING_LOGGERS = ("cayu.timing", "cayu.events")
TOOLS = ("act", "fail", "query", "deny", "review", "hang", "strict", "search_knowledge", "ask_user")
"""What is registered."""
DURABLE = (
    *("prompt", "more", "argument", "content", "structured", "artifact", "exception", "denial", "review"),
    *("policy metadata", "question", "answer", "edit", "decision", "subject", "claim", "label", "title"),
    *("metadata", "run metadata", "said", "tool", "stop", "stopper", "provider"),
)
"""What each canary stands for that the log has to hold, so that none of it was just never there."""


def canary(what: str) -> str:
    return f"{CANARY} {what}."


async def act(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    return ToolResult(
        content=canary("content"), structured={"x": canary("structured")}, artifacts=(canary("artifact"),)
    )


async def fail(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    raise ValueError(canary("exception"))


async def hang(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


def decide(request: ToolPolicyRequest) -> ToolPolicyResult | ToolPolicyDecision:
    metadata = {"note": canary("policy metadata")}
    if request.tool_name == "deny":
        return ToolPolicyResult(decision=ToolPolicyDecision.DENY, reason=canary("denial"), metadata=metadata)
    if request.tool_name == "review":
        return ToolPolicyResult(
            decision=ToolPolicyDecision.REQUIRE_APPROVAL, reason=canary("review"), metadata=metadata
        )
    return ToolPolicyDecision.ALLOW


def ask(*wanted: tuple[str, dict[str, Any]]) -> list[ModelStreamEvent]:
    """An answer that thinks, says something, and asks for tools, under ids of the provider's own."""
    spoken = [ModelStreamEvent.thinking(canary("thought")), ModelStreamEvent.text_delta(canary("said"))]
    numbered = enumerate(wanted)
    return [
        *spoken,
        *(ModelStreamEvent.tool_call(name, args, f"{canary('provider')}{n}") for n, (name, args) in numbered),
    ]


SCRIPT: list[Batch] = [
    ask(
        ("act", {"x": canary("argument")}),
        ("fail", {}),
        ("query", {}),
        ("search_knowledge", {"query": canary("argument")}),
        (f"{CANARY}_tool", {"x": canary("argument")}),
        ("deny", {"x": canary("argument")}),
        ("strict", {f"{CANARY}_key": canary("argument")}),
    ),
    ask(
        ("review", {"x": canary("argument")}),
        ("ask_user", {"question": canary("question"), "options": [canary("question")], "allow_other": True}),
    ),
    canary("said"),
    ask(("hang", {"x": canary("argument")})),
    canary("said"),
]


class Failing:
    """A sink that says why it fails."""

    async def emit_timing(self, record: TimingRecord) -> None:
        raise ValueError(canary("sink"))


class Told:
    """Everything that timing has told of a life with canaries in every place."""

    def __init__(self, app: CayuApp, sink: InMemoryEventSink, lines: list[logging.LogRecord]) -> None:
        self.app = app
        self.delivered = sink.timings
        self.lines = lines

    async def records(self) -> list[TimingRecord]:
        """What can be inspected, and what was delivered."""
        rounds = await self.app.inspect_recent_tool_round_timing(limit=100)
        prepared = await self.app.inspect_recent_model_step_preparation_timing(limit=100)
        return [*rounds, *prepared, *self.delivered]

    async def round(self, step: int) -> Any:
        rounds = await self.app.inspect_recent_tool_round_timing("s", limit=100)
        return next(record for record in reversed(rounds) if record.model_step_id.endswith(f".m{step}"))


def app_of(folder: Path, *sinks: Any) -> tuple[CayuApp, FakeTool]:
    """An application that has a canary wherever it takes words."""
    store = SQLiteSessionStore(folder / "s.db")
    knowledge = SQLiteKnowledgeStore(folder / "s.db")

    async def query(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        read = store._database.read
        await read(lambda raw: raw.execute("SELECT ?, 'CANARY sql.'", (canary("parameter"),)).fetchall())
        await read(lambda raw: raw.execute("SELECT 'CANARY sql.' FROM nowhere"))
        raise AssertionError("there is no such table")

    hanging = FakeTool("hang", hang)
    closed = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [FakeTool("act", act), FakeTool("fail", fail), FakeTool("query", query), FakeTool("deny")]
    tools += [FakeTool("review", act), hanging, FakeTool("strict", schema=closed)]
    logging_sink = LoggingEventSink(log_runtime_timing=True)
    app = CayuApp(session_store=store, timing_sinks=sinks, event_sinks=[logging_sink], config=QUICK)
    app.register_provider(ScriptedModelProvider(SCRIPT))
    app.register_environment(
        Environment(
            EnvironmentSpec(name="lab", metadata={"note": canary("environment")}),
            knowledge_store=knowledge,
            knowledge_access_scope=KnowledgeAccessScope(allowed_namespaces=("lab",)),
        ),
        default=True,
    )
    spec = AgentSpec(
        name="a",
        model="m",
        system_prompt=canary("system prompt"),
        provider_options={"note": canary("option")},
        metadata={"note": canary("agent metadata")},
    )
    app.register_agent(spec, [*tools, KnowledgeSearchTool(), AskUserTool()], FakePolicy(decide))
    return app, hanging


async def live(app: CayuApp, hanging: FakeTool) -> None:
    """Refusals, failures, an approval with an edit, a question, and an interruption."""
    who = ResolutionActor(subject=canary("subject"), claims={"note": canary("claim")})
    begin = RunRequest(
        agent_name="a",
        messages=(Message.text("user", canary("prompt")),),
        session_id="s",
        title=canary("title"),
        labels={canary("label"): canary("label")},
        metadata={"note": canary("metadata")},
    )
    await play(app.run(begin))
    pending = await waiting_ids(app)
    question = next(each for each in pending if each.endswith("input"))
    [to_approve] = [each for each in pending if each != question]
    edited = approval(to_approve, arguments={"x": canary("edit")}, reason=canary("decision"))
    await play(app.resolve_tool_approval(edited.model_copy(update={"resolved_by": who})))
    answer = UserInputResponse(session_id="s", input_id=question, answer=canary("answer"), resolved_by=who)
    await play(app.resolve_user_input(answer))
    more = ResumeRequest(
        session_id="s", messages=(Message.text("user", canary("more")),), metadata={"note": canary("run metadata")}
    )
    running = asyncio.create_task(play(app.resume(more)))
    async with asyncio.timeout(5):
        await hanging.entered.wait()
        stop = InterruptSessionRequest(session_id="s", reason=canary("stop"), requested_by=canary("stopper"))
        await play(app.interrupt_session(stop))
        await running


@pytest.fixture
async def told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Told]:
    sink = InMemoryEventSink()
    app, hanging = app_of(tmp_path, sink, Failing())
    with caplog.at_level(logging.DEBUG, "cayu"):
        await live(app, hanging)
        await app.flush_runtime_timing()
    yield Told(app, sink, list(caplog.records))
    await app.aclose()


def leaves(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys included."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    elif isinstance(value, str):
        yield value


def is_clean(text: str) -> bool:
    return CANARY.casefold() not in text.casefold()


@pytest.mark.requirement("A087")
async def test_no_record_repeats_what_anybody_said(told: Told) -> None:
    log = b"".join(stored.body for stored in (await log_of(told.app)).records).decode()
    loaded = await log_of(told.app)
    log += repr(loaded.head.row)
    assert [what for what in DURABLE if f"{CANARY} {what}" not in log and f"{CANARY}_{what}" not in log] == []
    found = await told.records()
    assert len(told.delivered) == len(found) / 2 > 6
    for record in found:
        assert is_clean(record.model_dump_json())
        assert is_clean(repr(record))
    assert is_clean(told.app.runtime_timing_status().model_dump_json())


@pytest.mark.requirement("A087")
async def test_every_word_of_a_record_is_an_id_a_registered_name_or_a_word_of_ours(told: Told) -> None:
    session = await told.app.get_session("s")
    ours = {*ROUND_PHASES, *PREPARATION_PHASES, "tool_round", "model_step_preparation"}
    for record in await told.records():
        dumped = record.model_dump(mode="json")
        names = set(type(record).model_fields)
        for inner in (*record.phases, *getattr(record, "calls", ())):
            names |= set(type(inner).model_fields)
        for text in leaves(dumped):
            is_id = text == "s" or text.startswith(f"{session.instance_id}.")
            is_time = text[:2] == "20" and text.endswith("Z")
            assert is_id or is_time or text in names or text in ours or text in TOOLS


@pytest.mark.requirement("A087")
async def test_no_line_of_a_timing_logger_repeats_what_anybody_said(told: Told) -> None:
    assert {line.name for line in told.lines} >= {"cayu.timing", "cayu.events", "cayu.tools"}
    formatter = logging.Formatter("%(levelname)s %(name)s %(message)s")
    lines = [line for line in told.lines if line.name in TIMING_LOGGERS]
    assert sum("duration_seconds" in line.getMessage() for line in lines) == len(told.delivered)
    assert len(told.delivered) > 1
    assert sum("failed on a timing record: ValueError" in line.getMessage() for line in lines) == 1
    for line in lines:
        assert is_clean(formatter.format(line))
    assert any(not is_clean(formatter.format(line)) for line in told.lines if line.name == "cayu.tools")


@pytest.mark.requirement("A088")
async def test_a_name_that_the_model_invents_is_not_repeated(told: Told) -> None:
    names = [call.tool_name for call in (await told.round(1)).calls]
    assert names == ["act", "fail", "query", "search_knowledge", None, "deny", "strict"]
    assert [call.tool_name for call in (await told.round(2)).calls] == ["review", "ask_user"]


@pytest.mark.requirement("A087")
async def test_what_ran_is_counted_and_its_words_are_not(told: Told) -> None:
    queried = (await told.round(1)).calls[2].phase(EXECUTION)
    assert queried.store_transaction_count == 2
    assert queried.store_bytes_written == 0
    read = told.app.session_store._database.read  # type: ignore[attr-defined]
    with pytest.raises(StoreError) as caught:
        await read(lambda raw: raw.execute("SELECT 'CANARY sql.' FROM nowhere"))
    assert is_clean(str(caught.value))
    for wrong in (0, -1):
        with pytest.raises(InvalidInput) as refused:
            await told.app.inspect_recent_tool_round_timing(canary("session"), limit=wrong)
        assert is_clean(str(refused.value))
    assert await told.app.inspect_recent_tool_round_timing(canary("session")) == ()
