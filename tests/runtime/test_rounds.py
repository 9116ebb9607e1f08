"""Tool rounds: n + 1 writes for n calls, promises just before their acts, ordered results, tools that misbehave."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from runtime.support import (
    SESSION,
    FakePolicy,
    FakeTool,
    StoreProxy,
    assert_consistent,
    calls,
    has,
    logged,
    make_app,
    new_run,
    play,
    types_of,
)

from cayu import RuntimeConfig, ToolEffect, run_to_completion
from cayu.canonical import loads
from cayu.events import EventType as E
from cayu.messages import ToolResultPart
from cayu.providers.base import ModelRequest, ModelStreamEvent
from cayu.sessions import CallState
from cayu.sessions.streams import Unit
from cayu.storage import InMemorySessionStore, SQLiteSessionStore
from cayu.tools import ToolContext, ToolPolicyDecision, ToolResult

EXTERNAL, IDEMPOTENT, NONE = ToolEffect.EXTERNAL, ToolEffect.IDEMPOTENT, ToolEffect.NONE
# One letter a call: p runs beside its neighbours, s runs alone.
SHAPES = ["p", "s", "pp", "ss", "ppp", "sss", "ppppp", "sssss", "pps", "spp", "psp", "sps", "ppspp", "pspsp"]


def tools_of(shape: str, work: Callable[..., Any] | None = None) -> list[FakeTool]:
    return [
        FakeTool(f"t{index}", work, effect=EXTERNAL, parallel_safe=letter == "p") for index, letter in enumerate(shape)
    ]


def round_writes(store: StoreProxy) -> list[Unit]:
    """The writes from the opening of the only round to its receipt."""
    first = next(index for index, unit in enumerate(store.units) if has(unit, E.ROUND_OPENED))
    last = next(index for index, unit in enumerate(store.units) if has(unit, E.ROUND_COMMITTED))
    return store.units[first : last + 1]


async def jitter(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    await asyncio.sleep(random.random() / 200)
    return ToolResult(content="ok")


@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_round_of_n_calls_is_n_plus_one_writes(shape: str, width: int) -> None:
    store = StoreProxy(InMemorySessionStore())
    tools = tools_of(shape, jitter)
    app = make_app(store, [calls(*(tool.spec.name for tool in tools)), "done"], tools)
    app.services.config = RuntimeConfig(parallel_width=width)
    await play(app.run(new_run()))
    assert len(round_writes(store)) == len(shape) + 1
    assert len(store.units) == 1 + len(shape) + 1 + 1
    assert store.renewals == 0
    await assert_consistent(app)


@pytest.mark.parametrize("shape", ["p", "pp", "sss", "ppspp"])
async def test_a_round_is_n_plus_one_real_transactions(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = traced_statements(monkeypatch)
    store = SQLiteSessionStore(tmp_path / "s.db")
    tools = tools_of(shape, jitter)
    app = make_app(store, [calls(*(tool.spec.name for tool in tools)), "done"], tools)
    async for event in app.run(new_run()):
        if event.type == E.SESSION_STARTED:
            statements.clear()
    await app.aclose()
    writes = sum(statement.startswith("BEGIN IMMEDIATE") for statement in statements)
    assert writes == len(shape) + 1 + 1  # the round, and the end of the session
    assert statements.count("COMMIT") == sum(statement.startswith("BEGIN") for statement in statements)


def traced_statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that any SQLite connection of this test runs from now on."""
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    return statements


async def test_the_cost_of_a_round_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = traced_statements(monkeypatch)
    sizes: list[int] = []
    store = SQLiteSessionStore(tmp_path / "s.db")
    app = make_app(store, [*[calls("t", "t")] * 51, "done"], [FakeTool("t", effect=IDEMPOTENT)])
    async for event in app.run(new_run()):
        if event.type == E.ROUND_COMMITTED:
            sizes.append(len(statements))
    await app.aclose()
    costs = [after - before for before, after in itertools.pairwise(sizes)]
    assert len(costs) == 50
    assert costs[4] == costs[49]
    assert len(set(costs)) == 1
    assert costs[0] < 40


@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize("shape", SHAPES)
async def test_promises_ride_in_the_write_just_before_their_act(shape: str, width: int) -> None:
    """When a tool begins, the last write has its start and intent; no write promises a call that still waits."""
    store = StoreProxy(InMemorySessionStore(), before=lambda unit: asyncio.sleep(0))  # as a store on a disk suspends
    seen: dict[str, int] = {}

    async def work(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        seen[args["me"]] = len(store.units) - 1
        await asyncio.sleep(random.random() / 300)
        return ToolResult(content="ok")

    tools = tools_of(shape, work)
    wanted = [(tool.spec.name, {"me": tool.spec.name}) for tool in tools]
    app = make_app(store, [calls(*wanted), "done"], tools, config=RuntimeConfig(parallel_width=width))
    await play(app.run(new_run()))
    promised: dict[str, set[int]] = {}
    for index, unit in enumerate(store.units):
        for record in unit.records:
            if record.type in (E.TOOL_STARTED, E.EFFECT_INTENT_RECORDED):
                promised.setdefault(loads(record.body)["tool_name"], set()).add(index)
    assert promised == {name: {index} for name, index in seen.items()}
    assert len(seen) == len(shape)


async def test_each_call_has_one_start_one_intent_and_one_key() -> None:
    tools = [FakeTool("none"), FakeTool("idem", effect=IDEMPOTENT), FakeTool("ext", effect=EXTERNAL)]
    app = make_app(None, [calls("none", "idem", "ext", "idem"), "done"], tools)
    await play(app.run(new_run()))
    started = await logged(app, E.TOOL_STARTED)
    intents = await logged(app, E.EFFECT_INTENT_RECORDED)
    assert [each["attempt"] for each in started] == [1, 1, 1, 1]
    assert [each["tool_name"] for each in intents] == ["idem", "ext", "idem"]
    keys = [intents[0]["idempotency_key"], intents[2]["idempotency_key"]]
    assert [context.idempotency_key for context in tools[1].contexts] == keys
    assert len({each["idempotency_key"] for each in intents}) == 3


async def test_results_stand_in_model_order_though_finished_out_of_order() -> None:
    turns = [asyncio.Event() for _ in range(4)]
    order = [3, 1, 2, 0]

    async def work(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await turns[args["n"]].wait()
        return ToolResult(content=str(args["n"]))

    app = make_app(None, [calls(*(("t", {"n": number}) for number in range(4))), "done"], [FakeTool("t", work)])
    staged, ended = [], []
    async for event in app.run(new_run()):
        if event.type == E.TOOL_STAGED:
            staged.append(event.payload["content"])
        elif event.type == E.TOOL_COMPLETED:
            ended.append(event.payload["tool_call_id"])
        if event.type in (E.TOOL_STARTED, E.TOOL_STAGED) and len(staged) < len(order):
            turns[order[len(staged)]].set()
    assert staged == [str(number) for number in order]
    assert ended == sorted(ended)
    view = await assert_consistent(app)
    assert [part.content for part in answers(view.transcript)] == ["0", "1", "2", "3"]


def answers(transcript: list[Any]) -> list[ToolResultPart]:
    return [part for message in transcript for part in message.content if isinstance(part, ToolResultPart)]


class Overlap:
    """How many calls run at once, at most, and which ran together."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        self.peak = 0
        self.together: set[frozenset[str]] = set()

    async def work(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        self.now.add(args["me"])
        self.peak = max(self.peak, len(self.now))
        await asyncio.sleep(0.01)
        self.together |= {frozenset((args["me"], other)) for other in self.now - {args["me"]}}
        await asyncio.sleep(0.01)
        self.now.remove(args["me"])
        return ToolResult(content="ok")


@pytest.mark.parametrize(
    "shape, width, pairs, peak",
    [
        ("ppp", 8, {"01", "02", "12"}, 3),
        ("sss", 8, set(), 1),
        ("pps", 8, {"01"}, 2),
        ("sps", 8, set(), 1),
        ("ppspp", 8, {"01", "34"}, 2),
        ("ppp", 1, set(), 1),
    ],
)
async def test_who_runs_beside_whom(shape: str, width: int, pairs: set[str], peak: int) -> None:
    overlap = Overlap()
    tools = tools_of(shape, overlap.work)
    wanted = [(tool.spec.name, {"me": str(index)}) for index, tool in enumerate(tools)]
    app = make_app(None, [calls(*wanted), "done"], tools, config=RuntimeConfig(parallel_width=width))
    await play(app.run(new_run()))
    assert overlap.together == {frozenset(pair) for pair in pairs}
    assert overlap.peak == peak


async def test_the_width_bounds_and_fills() -> None:
    overlap = Overlap()
    tools = tools_of("p" * 7, overlap.work)
    wanted = [(tool.spec.name, {"me": tool.spec.name}) for tool in tools]
    app = make_app(None, [calls(*wanted), "done"], tools, config=RuntimeConfig(parallel_width=3))
    await play(app.run(new_run()))
    assert overlap.peak == 3


async def test_parallel_tools_that_wait_for_each_other_meet() -> None:
    barrier = asyncio.Barrier(3)

    async def meet(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        async with asyncio.timeout(2):
            await barrier.wait()
        return ToolResult(content="met")

    tools = tools_of("ppp", meet)
    app = make_app(None, [calls("t0", "t1", "t2"), "done"], tools)
    outcome = await run_to_completion(app, new_run())
    assert [call.content for call in outcome.tool_calls] == ["met"] * 3


class Odd(BaseException):
    """Neither an Exception nor one of the interpreter's own."""


@pytest.mark.parametrize("parallel_safe", [True, False])
@pytest.mark.parametrize("error", [ValueError("its words"), SystemExit(3), Odd("odd")], ids=repr)
async def test_a_tool_that_raises_fails_alone(error: BaseException, parallel_safe: bool) -> None:
    async def raises(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        raise error

    bad = FakeTool("bad", raises, effect=EXTERNAL, parallel_safe=parallel_safe)
    good = FakeTool("good", effect=EXTERNAL, parallel_safe=parallel_safe)
    store = StoreProxy(InMemorySessionStore())
    app = make_app(store, [calls("good", "bad", "good"), "done"], [bad, good])
    outcome = await run_to_completion(app, new_run())
    assert (outcome.status, outcome.final_text) == ("completed", "done")
    assert [call.state for call in outcome.tool_calls] == [CallState.COMPLETED, CallState.FAILED, CallState.COMPLETED]
    assert [call.is_error for call in outcome.tool_calls] == [False, True, False]
    assert outcome.tool_calls[1].code == "raised"
    assert len(round_writes(store)) == 4
    await assert_consistent(app)


async def test_a_traceback_goes_to_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    async def deep_inside(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        raise RuntimeError("its words")

    app = make_app(None, [calls("t"), "done"], [FakeTool("t", deep_inside)])
    with caplog.at_level(logging.ERROR, "cayu.tools"):
        events = await play(app.run(new_run()))
    [record] = [record for record in caplog.records if record.name == "cayu.tools"]
    assert record.exc_info
    assert "deep_inside" in caplog.text
    assert "its words" in str([event.payload for event in events])
    for event in events:
        assert "Traceback" not in str(event.payload)
        assert "deep_inside" not in str(event.payload)


async def test_calls_that_cannot_run_are_answered_and_cost_no_write() -> None:
    strict = FakeTool("strict", schema={"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})
    good = FakeTool("good", effect=EXTERNAL)
    denied = FakeTool("denied", effect=EXTERNAL)
    policy = FakePolicy(lambda r: ToolPolicyDecision.DENY if r.tool_name == "denied" else ToolPolicyDecision.ALLOW)
    store = StoreProxy(InMemorySessionStore())
    wanted = calls("nowhere", "good", ("strict", {"x": "a private value"}), "denied")
    app = make_app(store, [wanted, "done"], [strict, good, denied], policy)
    outcome = await run_to_completion(app, new_run())
    assert [call.code for call in outcome.tool_calls] == ["unknown_tool", None, "invalid_arguments", "policy_denied"]
    assert [call.state for call in outcome.tool_calls] == ["failed", "completed", "failed", "blocked"]
    assert len(good.calls) == 1
    assert strict.calls == denied.calls == []
    assert [request.tool_name for request in policy.asked] == ["good", "denied"]
    assert len(round_writes(store)) == 2
    view = await assert_consistent(app)
    texts = [part.content for part in answers(view.transcript)]
    assert "no tool of this name" in texts[0]
    assert "schema" in texts[2]
    assert "a private value" not in texts[2]
    assert "policy" in texts[3]
    ends = await logged(app, E.TOOL_FAILED) + await logged(app, E.TOOL_BLOCKED)
    assert [each["executed"] for each in ends] == [False] * 3
    assert (await logged(app, E.ROUND_COMMITTED))[0]["executed"] == 1


async def test_a_round_in_which_nothing_can_run_is_one_write() -> None:
    store = StoreProxy(InMemorySessionStore())
    app = make_app(store, [calls("nowhere", "nowhere"), "done"])
    outcome = await run_to_completion(app, new_run())
    assert outcome.status == "completed"
    assert len(round_writes(store)) == 1
    await assert_consistent(app)


async def test_a_policy_that_fails_to_decide_denies() -> None:
    def fails(request: Any) -> ToolPolicyDecision:
        raise RuntimeError("secret words")

    tool = FakeTool("t", effect=EXTERNAL)
    app = make_app(None, [calls("t"), "done"], [tool], FakePolicy(fails))
    outcome = await run_to_completion(app, new_run())
    assert (outcome.status, outcome.tool_calls[0].code, tool.calls) == ("completed", "policy_failed", [])
    assert "secret words" not in str([event.payload for event in outcome.events])


LONE = "a\ud800b"
UNSTORABLE = {
    "over its bound": ToolResult(content="x" * 600),
    "NaN in structured": ToolResult(content="ok", structured={"x": [1, float("nan")]}),
    "infinity in artifacts": ToolResult(content="ok", artifacts=(float("inf"),)),
    "an object in structured": ToolResult(content="ok", structured={"x": object()}),
    "an integer that no reader keeps": ToolResult(content="ok", structured=2**70),
    "text instead of a result": "just text",
    "nothing": None,
}


@pytest.mark.parametrize("effect", [NONE, EXTERNAL])
@pytest.mark.parametrize("given", UNSTORABLE.values(), ids=UNSTORABLE)
async def test_a_result_that_cannot_be_kept_is_an_error_of_a_completed_call(given: object, effect: ToolEffect) -> None:
    async def gives(ctx: ToolContext, args: dict[str, Any]) -> object:
        return given

    app = make_app(
        None, [calls("t", "good"), "done"], [FakeTool("t", gives, effect=effect, max_bytes=500), FakeTool("good")]
    )
    outcome = await run_to_completion(app, new_run())
    assert outcome.status == "completed"
    assert (outcome.tool_calls[0].state, outcome.tool_calls[0].is_error) == (CallState.COMPLETED, True)
    assert "cannot be stored" in (outcome.tool_calls[0].content or "")
    assert outcome.tool_calls[1].state == CallState.COMPLETED
    await assert_consistent(app)


@pytest.mark.slow  # its log lines hold what cannot travel between the processes of a shared run
@pytest.mark.parametrize("store_kind", ["memory", "sqlite"])
async def test_lone_surrogates_are_replaced_wherever_they_enter(store_kind: str, tmp_path: Path) -> None:
    async def gives(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        return ToolResult.model_construct(
            content=LONE, structured={LONE: LONE}, artifacts=({"a": LONE},), is_error=False
        )

    async def raises(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        raise ValueError(LONE)

    store = InMemorySessionStore() if store_kind == "memory" else SQLiteSessionStore(tmp_path / "s.db")
    batch = [ModelStreamEvent.text_delta(LONE), *calls(("t", {"x": LONE}), ("raises", {LONE: 1}))]
    tool = FakeTool("t", gives)
    app = make_app(store, [batch, "done"], [tool, FakeTool("raises", raises)])
    outcome = await run_to_completion(app, new_run())
    assert outcome.status == "completed"
    assert tool.calls == [{"x": "a\ufffdb"}]
    assert outcome.tool_calls[0].content == "a\ufffdb"
    assert outcome.tool_calls[0].structured == {"a\ufffdb": "a\ufffdb"}
    assert outcome.tool_calls[1].content == "ValueError: a\ufffdb"
    await assert_consistent(app)
    await app.aclose()


async def test_a_result_is_detached_from_what_the_tool_keeps() -> None:
    kept: dict[str, Any] = {"list": [1]}

    async def gives(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        args["changed"] = True
        return ToolResult(content="ok", structured=kept)

    app = make_app(None, [calls(("t", {"x": 1})), "done"], [FakeTool("t", gives)])
    async for event in app.run(new_run()):
        kept["list"].append(event.type)
    view = await assert_consistent(app)
    call = view.rounds[0].calls[0]
    assert call.result is not None
    assert call.result.structured == {"list": [1, *call.result.structured["list"][1:]]}
    assert E.ROUND_COMMITTED not in call.result.structured["list"]
    assert call.arguments == {"x": 1}


@pytest.mark.parametrize(
    "ids",
    [("x", "x", "x"), ("", "", ""), ("call_2", "call_2", "other"), ("call_3", "a", "call_3"), ("call_1", "", "call_1")],
    ids=str,
)
async def test_provider_ids_that_repeat_are_told_apart(ids: tuple[str, ...]) -> None:
    batch = [ModelStreamEvent.tool_call("t", {"n": index}, id) for index, id in enumerate(ids)]
    tool = FakeTool("t", effect=EXTERNAL)
    requests: list[ModelRequest] = []

    def last(request: ModelRequest) -> str:
        requests.append(request)
        return "done"

    app = make_app(None, [batch, batch, last], [tool])
    outcome = await run_to_completion(app, new_run())
    assert outcome.status == "completed"
    assert len({call.tool_call_id for call in outcome.tool_calls}) == 6
    assert sorted(args["n"] for args in tool.calls) == [0, 0, 1, 1, 2, 2]
    asking, answer = requests[0].messages[1:3]
    told = [part.id for part in asking.tool_calls]
    assert len(set(told)) == 3
    assert told == [cast(ToolResultPart, part).tool_call_id for part in answer.content]
    for wanted, found in zip(ids, told, strict=True):
        assert found == wanted or ids.count(wanted) > 1 or wanted == ""


async def test_a_batch_that_stages_meets_a_policy_that_changed_its_mind() -> None:
    """A call that waits for its slot is authorized again when its turn comes."""
    tools = [FakeTool("first", effect=EXTERNAL, parallel_safe=False), FakeTool("second", effect=EXTERNAL)]
    policy = FakePolicy(
        lambda r: ToolPolicyDecision.DENY if r.tool_name == "second" and tools[0].calls else ToolPolicyDecision.ALLOW
    )
    store = StoreProxy(InMemorySessionStore())
    app = make_app(store, [calls("first", "second"), "done"], tools, policy)
    outcome = await run_to_completion(app, new_run())
    assert [call.state for call in outcome.tool_calls] == [CallState.COMPLETED, CallState.BLOCKED]
    assert tools[1].calls == []
    assert len(round_writes(store)) == 2
    assert [each["tool_name"] for each in await logged(app, E.TOOL_STARTED)] == ["first"]
    await assert_consistent(app)


async def test_what_a_tool_is_told() -> None:
    tool = FakeTool("t")
    app = make_app(None, [calls("t"), "done"], [tool])
    await play(app.run(new_run(metadata={"k": [1]})))
    [context] = tool.contexts
    assert (context.session_id, context.agent_name, context.environment_name) == (SESSION, "a", None)
    assert context.metadata == {"k": [1]}
    assert context.knowledge_store is None
    assert context.knowledge_access_scope is None


async def test_the_order_of_one_round_in_the_log() -> None:
    app = make_app(None, [calls("t"), "done"], [FakeTool("t", effect=EXTERNAL)])
    assert types_of(await play(app.run(new_run()))) == [
        "session.started",
        "model.started",
        "model.completed",
        "tool.round.opened",
        "tool.call.started",
        "tool.effect.intent_recorded",
        "tool.call.staged",
        "tool.call.completed",
        "tool.round.committed",
        "model.started",
        "model.completed",
        "session.completed",
    ]
