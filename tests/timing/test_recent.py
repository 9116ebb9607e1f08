"""The recent view: on by default, bounded, in this process only, and free of anything that a session is about."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from runtime.support import (
    QUICK,
    SESSION,
    FakePolicy,
    FakeTool,
    StoreProxy,
    approval,
    calls,
    make_app,
    new_run,
    next_turn,
    play,
    waiting_ids,
)
from timing.support import flags, rounds_of, slow_store, steps_of, write_of

from cayu import AgentSpec, CayuApp, Message, RunRequest, SQLiteSessionStore, ToolEffect
from cayu.canonical import dumps
from cayu.errors import CayuError, InvalidInput
from cayu.events import EventType as E
from cayu.observability import InMemoryEventSink, RuntimeTimingConfig, TimingRecord
from cayu.providers.base import ModelStreamEvent
from cayu.providers.scripted import ScriptedModelProvider
from cayu.storage import InMemorySessionStore
from cayu.testing import FakeClock
from cayu.timing.phases import PUBLICATION
from cayu.tools import (
    AlwaysRequireApprovalToolPolicy,
    ToolContext,
    ToolOutcomeUnknown,
    ToolPolicyDecision,
    ToolPolicyResult,
    ToolResult,
)

CANARY = "canary"


async def everything(app: CayuApp) -> str:
    """All that is kept, as JSON."""
    records = [*await rounds_of(app, None), *await steps_of(app, None)]
    return "\n".join(record.model_dump_json() for record in records)


# What is kept.


@pytest.mark.requirement("A086")
async def test_timing_is_on_by_default() -> None:
    app = make_app(None, [calls("t"), "done"], [FakeTool("t")])
    await play(app.run(new_run()))
    [record] = await app.inspect_recent_tool_round_timing(SESSION)
    assert [call.tool_name for call in record.calls] == ["t"]
    assert record.duration_seconds > 0
    assert len(await app.inspect_recent_model_step_preparation_timing(SESSION)) == 2
    assert app.runtime_timing_status().recent_records == 3


@pytest.mark.requirement("A086")
async def test_timing_stays_in_its_application() -> None:
    store = InMemorySessionStore()
    for _ in range(2):
        app = make_app(store, [calls("t"), "done"], [FakeTool("t")])
        assert await everything(app) == ""
        await play(app.run(new_run(f"s{id(app)}")))


@pytest.mark.requirement("A089")
async def test_the_newest_record_comes_first() -> None:
    app = make_app(None, [calls("t"), calls("t"), calls("t"), "done"], [FakeTool("t")])
    await play(app.run(new_run()))
    rounds = await app.inspect_recent_tool_round_timing(SESSION, limit=2)
    steps = await app.inspect_recent_model_step_preparation_timing(SESSION, limit=3)
    instance = (await app.get_session(SESSION)).instance_id
    assert [record.tool_round_id for record in rounds] == [f"{instance}.r3", f"{instance}.r2"]
    assert [record.model_step_id for record in steps] == [f"{instance}.m{number}" for number in (4, 3, 2)]


@pytest.mark.requirement("A089")
async def test_twenty_records_are_read_unless_more_are_asked_for() -> None:
    app = make_app(None, [*[calls("t")] * 25, "done"], [FakeTool("t")])
    await play(app.run(new_run()))
    rounds = await app.inspect_recent_tool_round_timing(SESSION)
    assert (len(rounds), len(await app.inspect_recent_model_step_preparation_timing(SESSION))) == (20, 20)
    assert len(await app.inspect_recent_tool_round_timing(SESSION, limit=64)) == 25
    assert rounds == (await app.inspect_recent_tool_round_timing(SESSION, 64))[:20]


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_below_one_is_refused(limit: int) -> None:
    app = make_app()
    with pytest.raises(InvalidInput, match="limit"):
        await app.inspect_recent_tool_round_timing(SESSION, limit=limit)
    with pytest.raises(InvalidInput, match="limit"):
        await app.inspect_recent_model_step_preparation_timing(SESSION, limit=limit)


@pytest.mark.requirement("A090")
async def test_the_public_reference_of_a_session_selects_its_records_as_its_id_does() -> None:
    app = make_app(None, [calls("t"), "done"], [FakeTool("t")])
    for name in ("one", "other"):
        await play(app.run(new_run(name)))
    for name in ("one", "other"):
        reference = (await app.get_session(name)).instance_id
        assert reference != name
        by_id = await app.inspect_recent_tool_round_timing(name), await steps_of(app, name)
        assert by_id == (await app.inspect_recent_tool_round_timing(reference), await steps_of(app, reference))
        assert {record.session_id for record in (*by_id[0], *by_id[1])} == {name}
    assert await app.inspect_recent_tool_round_timing("nobody") == ()
    assert len(await app.inspect_recent_tool_round_timing()) == 2


class Untouched:
    """A store that nobody may touch."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the read touched the store: {name}")


@pytest.mark.requirement("A091")
async def test_the_read_touches_no_store_and_outlives_it(tmp_path: Path) -> None:
    app = make_app(SQLiteSessionStore(tmp_path / "s.db"), [calls("t"), "done"], [FakeTool("t")])
    await play(app.run(new_run()))
    reference = (await app.get_session(SESSION)).instance_id
    await app.aclose()
    app.session_store = app.services.store = Untouched()  # type: ignore[assignment]
    for name in (SESSION, reference, None):
        [record] = await app.inspect_recent_tool_round_timing(name)
        assert len(await app.inspect_recent_model_step_preparation_timing(name)) == 2
    assert app.runtime_timing_status().recent_records == 3
    with pytest.raises(ValidationError):
        record.incomplete = True


@pytest.mark.requirement("A092")
async def test_sessions_share_one_view_of_64_records_and_evict_each_other() -> None:
    app = make_app(None, [*[calls("t")] * 31, "done"], [FakeTool("t")])
    app.register_provider(ScriptedModelProvider(["hello"], name="short"))
    app.register_agent(AgentSpec(name="short", model="m", provider_name="short"))

    async def greet(name: str) -> None:
        request = RunRequest(agent_name="short", messages=(Message.text("user", "go"),), session_id=name)
        await play(app.run(request))

    await greet("first")
    await play(app.run(new_run()))
    assert len(await rounds_of(app)) + len(await steps_of(app)) == 63
    assert len(await steps_of(app, "first")) == 1
    assert app.runtime_timing_status().recent_records == 64
    await greet("last")
    assert await steps_of(app, "first") == [], "the 65th record takes the place of the first"
    assert len(await rounds_of(app)) + len(await steps_of(app)) == 63
    assert app.runtime_timing_status().recent_records == 64


@pytest.mark.requirement("A093")
async def test_a_round_of_130_calls_tells_of_128_and_counts_the_rest() -> None:
    app = make_app(None, [calls(*["t"] * 130), "done"], [FakeTool("t")])
    await play(app.run(new_run()))
    [record] = await rounds_of(app)
    assert (len(record.calls), record.calls_truncated) == (128, 2)
    instance = (await app.get_session(SESSION)).instance_id
    names = [f"{instance}.r1.c{number:03d}" for number in range(1, 129)]
    assert [call.tool_call_id for call in record.calls] == names
    own = sum(call.phase(PUBLICATION).duration_seconds for call in record.calls)
    assert record.phase(PUBLICATION).duration_seconds > own, "the round has what the rest took"


# Its bounds.


@pytest.mark.requirement("A094")
async def test_a_configuration_changes_the_bounds() -> None:
    config = RuntimeTimingConfig(recent_capacity=2, max_calls_per_round=3)
    app = make_app(None, [calls(*["t"] * 5), "done"], [FakeTool("t")], runtime_timing=config)
    await play(app.run(new_run()))
    [record] = await rounds_of(app)
    assert (len(record.calls), record.calls_truncated) == (3, 2)
    assert (len(await steps_of(app)), app.runtime_timing_status().recent_records) == (1, 2)


@pytest.mark.requirement("A094")
@pytest.mark.parametrize("name", ["recent_capacity", "max_calls_per_round", "sink_queue_capacity"])
@pytest.mark.parametrize("value", [0, -1, 2.5], ids=repr)
def test_a_bound_that_is_no_count_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        RuntimeTimingConfig(**{name: value})


@pytest.mark.requirement("A094")
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_timeout_that_is_no_duration_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match="sink_timeout_seconds"):
        RuntimeTimingConfig(sink_timeout_seconds=value)


class HeldSink(InMemoryEventSink):
    """Takes its records when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def emit_timing(self, record: TimingRecord) -> None:
        await self.go.wait()
        await super().emit_timing(record)


@pytest.mark.requirement("A095")
@pytest.mark.parametrize("enabled", [False, True])
async def test_nothing_is_collected_or_delivered_when_it_is_off(enabled: bool) -> None:
    sink, config = HeldSink(), RuntimeTimingConfig(enabled=enabled)
    app = make_app(None, [calls("t"), "done"], [FakeTool("t")], runtime_timing=config, timing_sinks=[sink])
    before = asyncio.all_tasks()
    events = await play(app.run(new_run()))
    assert len(asyncio.all_tasks() - before) == (1 if enabled else 0), "whoever delivers is a task"
    sink.go.set()
    await app.flush_runtime_timing()
    wanted = 3 if enabled else 0
    assert len(await rounds_of(app)) + len(await steps_of(app)) == len(sink.timings) == wanted
    assert app.runtime_timing_status().recent_records == wanted
    assert events[-1].type == E.SESSION_COMPLETED


# What is in a record.


@pytest.mark.requirement("A088")
@pytest.mark.parametrize("decision", [ToolPolicyDecision.ALLOW, ToolPolicyDecision.REQUIRE_APPROVAL])
async def test_a_name_that_the_model_invented_enters_no_record(decision: ToolPolicyDecision) -> None:
    """Neither in a round that runs, nor in one that waits, nor in its continuation."""
    script = [calls("t", CANARY, "t"), calls(CANARY), "done"]
    app = make_app(None, script, [FakeTool("t")], FakePolicy(lambda request: decision))
    await play(app.run(new_run()))
    for waiting in await waiting_ids(app):
        await play(app.resolve_tool_approval(approval(waiting)))
    records = list(reversed(await rounds_of(app)))
    assert len(records) == (2 if decision is ToolPolicyDecision.ALLOW else 3)
    assert [[call.tool_name for call in record.calls] for record in records[:-1]] == [["t", None, "t"]] * (
        len(records) - 1
    )
    assert [call.tool_name for call in records[-1].calls] == [None]
    assert CANARY not in await everything(app)


def canary_tool(name: str, error: BaseException | None = None, **options: Any) -> FakeTool:
    """A tool whose result, or exception, must not be told."""

    async def work(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        if error is not None:
            raise error
        return ToolResult(content=CANARY, structured={CANARY: CANARY}, artifacts=({"name": CANARY},))

    return FakeTool(name, work, **options)


@pytest.mark.requirement("A087")
async def test_records_tell_nothing_of_what_a_session_is_about(tmp_path: Path) -> None:
    secret = {CANARY: [CANARY]}
    answers = [ModelStreamEvent.tool_call(name, secret, f"{CANARY}{name}") for name in ("good", "bad", "barred")]
    script = [[ModelStreamEvent.text_delta(CANARY), *answers], [*calls(("unsure", secret))], CANARY]
    app = CayuApp(session_store=SQLiteSessionStore(tmp_path / f"{CANARY}.db"), config=QUICK)
    app.register_provider(ScriptedModelProvider(script))

    def decide(request: Any) -> ToolPolicyResult | ToolPolicyDecision:
        if request.tool_name == "barred":
            return ToolPolicyResult(decision=ToolPolicyDecision.DENY, reason=CANARY, metadata=secret)
        return ToolPolicyDecision.ALLOW

    tools = [
        canary_tool("good"),
        canary_tool("bad", ValueError(CANARY)),
        canary_tool("barred"),
        canary_tool("unsure", ToolOutcomeUnknown(CANARY), effect=ToolEffect.EXTERNAL),
    ]
    spec = AgentSpec(name="a", model=CANARY, system_prompt=CANARY)
    app.register_agent(spec, tools=tools, tool_policy=FakePolicy(decide))
    messages = (Message.text("user", CANARY),)
    request = new_run(title=CANARY, labels={CANARY: CANARY}, metadata=secret).model_copy(update={"messages": messages})
    await play(app.run(request))
    kept = await everything(app)
    assert CANARY.encode() in dumps([message.model_dump(mode="json") for message in messages])
    assert len(await rounds_of(app)) == 2
    assert CANARY not in kept
    for word in ("select", "insert", "update ", "begin immediate", "valueerror", "arguments", "prompt"):
        assert word not in kept.lower()
    await app.aclose()


@pytest.mark.requirement("A087")
@pytest.mark.parametrize("kind", ["open", "stage", "close"])
async def test_records_of_what_went_wrong_tell_no_words_of_an_exception(kind: str) -> None:
    async def fail(unit: Any) -> None:
        if write_of(unit) == kind:
            raise CayuError(CANARY)

    store = StoreProxy(InMemorySessionStore(), before=fail)
    app = make_app(store, [calls("t", "t"), "done"], [FakeTool("t")], config=QUICK)
    with pytest.raises(CayuError):
        await play(app.run(new_run()))
    assert CANARY not in await everything(app)
    assert flags((await rounds_of(app))[0]) == (True, False)


async def test_an_id_that_a_provider_made_up_enters_no_record() -> None:
    script = [[ModelStreamEvent.tool_call("t", {}, CANARY)], "done"]
    app = make_app(slow_store(FakeClock()), script, [FakeTool("t")], AlwaysRequireApprovalToolPolicy())
    await play(app.run(new_run()))
    [waiting] = await waiting_ids(app)
    await play(app.resolve_tool_approval(approval(waiting)))
    await play(app.resume(next_turn()))
    assert len(await rounds_of(app)) == 2
    assert CANARY not in await everything(app)
