"""What work in stores costs the phases of a run: whose it is, in whatever thread it is done, and nobody's outside."""

from __future__ import annotations

import asyncio
import copy
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from runtime.support import (
    FakeClock,
    FakePolicy,
    FakeTool,
    StoreProxy,
    calls,
    log_of,
    make_app,
    new_run,
    play,
    types_of,
)

from cayu import AgentSpec, CayuApp, KnowledgeEntry, RuntimeConfig, SQLiteSessionStore, ToolEffect
from cayu.budgets import BudgetLimit
from cayu.environments import Environment, EnvironmentSpec
from cayu.errors import SessionRunFenced
from cayu.events import EventType as E
from cayu.knowledge import KnowledgeAccessScope
from cayu.observability import ModelStepPreparationTiming, RuntimePhaseTiming, RuntimeTimingConfig, ToolRoundTiming
from cayu.providers.base import ModelRequest, ModelStreamEvent
from cayu.providers.scripted import Batch, ScriptedModelProvider
from cayu.storage import InMemorySessionStore, SQLiteBudgetLedger, SQLiteKnowledgeStore
from cayu.storage.sql.sqlite.database import Database
from cayu.testing import SlowSQLiteSessionStore
from cayu.timing.fold import record_of
from cayu.timing.marks import Attempt
from cayu.timing.phases import (
    AUTHORIZATION,
    EXECUTION,
    PREPARATION,
    PUBLICATION,
    ROUND_COMMIT,
    STAGING,
    STARTED_PERSISTENCE,
)
from cayu.tools import KnowledgeSearchTool, SubagentTool, Tool, ToolContext, ToolPolicyDecision, ToolPolicyRequest, tool
from cayu.tools.spec import ToolResult

SCOPE = KnowledgeAccessScope(allowed_namespaces=("lab",))
COSTS = {
    "store_transaction_count",
    "store_lock_wait_seconds",
    "store_execution_seconds",
    "store_commit_seconds",
    "store_bytes_written",
}
HELD_SECONDS, HELD = 0.1, 0.09
"""How long a lock is held, and what of it is measured at least; timers of two threads may differ a little."""
Record = ToolRoundTiming | ModelStepPreparationTiming


class Begun:
    """Counts the transactions that begin on a database's connections, as SQLite tells it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.counts: Counter[str] = Counter()

    async def watch(self) -> Begun:
        """Open both connections, and count from now on."""
        await self._database.write(lambda raw: None)
        await self._database.read(lambda raw: None)
        for connection in (self._database._writer, self._database._reader):
            assert connection is not None
            await connection.hop(lambda raw: raw.set_trace_callback(self._trace))
        return self

    def _trace(self, statement: str) -> None:
        self.counts[statement] += statement.startswith("BEGIN")

    @property
    def all(self) -> int:
        return self.counts.total()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteSessionStore]:
    made = SQLiteSessionStore(tmp_path / "s.db")
    yield made
    await made.aclose()


@pytest.fixture
async def knowledge(tmp_path: Path) -> AsyncIterator[SQLiteKnowledgeStore]:
    made = SQLiteKnowledgeStore(tmp_path / "k.db")
    await made.create_entry(KnowledgeEntry(id="a", text="the cold room", namespace="lab"))
    await made.frontier()
    yield made
    await made.aclose()


def knowing(app: CayuApp, knowledge: SQLiteKnowledgeStore) -> CayuApp:
    """The application with an environment that binds the knowledge."""
    app.register_environment(
        Environment(EnvironmentSpec(name="lab"), knowledge_store=knowledge, knowledge_access_scope=SCOPE), default=True
    )
    return app


async def search(ctx: ToolContext) -> None:
    """One read of the environment's knowledge."""
    assert ctx.knowledge_store is not None
    assert await ctx.knowledge_store.frontier() == 1


def searching(
    name: str = "act", *, one_by_one: int = 0, at_once: int = 0, work: Callable[[], Awaitable[object]] | None = None
) -> FakeTool:
    """A tool that reads knowledge so often."""

    async def act(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        for _ in range(one_by_one):
            await search(ctx)
        await asyncio.gather(*(search(ctx) for _ in range(at_once)))
        if work is not None:
            await work()
        return ToolResult(content="found")

    return FakeTool(name, act)


async def only_round(app: CayuApp, session_id: str = "s") -> ToolRoundTiming:
    [record] = await app.inspect_recent_tool_round_timing(session_id)
    return record


async def records(app: CayuApp) -> list[Record]:
    """Everything in the recent view."""
    rounds = await app.inspect_recent_tool_round_timing(limit=1000)
    return [*rounds, *await app.inspect_recent_model_step_preparation_timing(limit=1000)]


def phases(record: Record) -> list[RuntimePhaseTiming]:
    """The phases of a record and of its calls."""
    inner = record.calls if isinstance(record, ToolRoundTiming) else ()
    return [*record.phases, *(phase for call in inner for phase in call.phases)]


def transactions(record: Record) -> dict[str, int]:
    """The phases of a record that began transactions."""
    return {phase.name: phase.store_transaction_count for phase in record.phases if phase.store_transaction_count}


def costs(phase: RuntimePhaseTiming) -> list[float]:
    return [getattr(phase, name) for name in sorted(COSTS)]


# Whose they are


@pytest.mark.requirement("A127")
async def test_each_phase_has_five_costs_which_are_parts_of_its_time(store: SQLiteSessionStore) -> None:
    app = make_app(store, (calls("act"), "done"), [FakeTool("act")])
    await play(app.run(new_run()))
    assert {name for name in RuntimePhaseTiming.model_fields if name.startswith("store_")} == COSTS
    record = await only_round(app)
    for phase in phases(record):
        assert all(cost >= 0 for cost in costs(phase))
        parts = phase.store_execution_seconds + phase.store_commit_seconds
        assert parts <= phase.duration_seconds
        assert phase.store_lock_wait_seconds <= phase.duration_seconds
    for name in (STARTED_PERSISTENCE, ROUND_COMMIT):
        assert all(cost > 0 for cost in costs(record.phase(name)))
    assert transactions(record) == {STARTED_PERSISTENCE: 1, ROUND_COMMIT: 1}


@pytest.mark.parametrize("count", [1, 3])
async def test_a_round_of_n_calls_counts_every_transaction_once(store: SQLiteSessionStore, count: int) -> None:
    app = make_app(store, (calls(*["act"] * count), "done"), [FakeTool("act", parallel_safe=False)])
    begun = await Begun(store._database).watch()
    await play(app.run(new_run()))
    record = await only_round(app)
    expected = {STARTED_PERSISTENCE: 1, STAGING: count - 1, ROUND_COMMIT: 1}
    assert transactions(record) == {name: number for name, number in expected.items() if number}
    staged = [call.phase(STAGING).store_transaction_count for call in record.calls]
    assert staged == [1] * (count - 1) + [0]
    assert begun.all == sum(transactions(record).values()) + 2  # the beginning of the session, and its end


async def test_the_bytes_of_a_payload_are_those_of_its_json_in_the_log(store: SQLiteSessionStore) -> None:
    async def act(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        return ToolResult(content="ö" * 1000)

    app = make_app(store, (calls("act", "act"), "done"), [FakeTool("act", act)])
    await play(app.run(new_run()))
    record, sizes = await only_round(app), Counter[str]()
    for stored in (await log_of(app)).records:
        sizes[stored.type] += len(stored.body)
    assert record.phase(STAGING).store_bytes_written >= sizes[E.TOOL_STAGED] > 4000
    assert record.phase(PUBLICATION).store_bytes_written == sizes[E.TOOL_COMPLETED]
    assert [call.phase(PUBLICATION).store_bytes_written for call in record.calls] == [sizes[E.TOOL_COMPLETED] / 2] * 2


@pytest.mark.requirement("A128")
async def test_a_search_in_a_tool_is_a_cost_of_execution(knowledge: SQLiteKnowledgeStore) -> None:
    asked = calls(("search_knowledge", {"query": "cold"}), "act")
    app = knowing(make_app(batches=(asked, "done"), tools=[KnowledgeSearchTool(), FakeTool("act")]), knowledge)
    begun = await Begun(knowledge._database).watch()
    await play(app.run(new_run()))
    record = await only_round(app)
    assert begun.all > 0
    assert transactions(record) == {EXECUTION: begun.all}
    searched, other = record.calls
    for execution in (record.phase(EXECUTION), searched.phase(EXECUTION)):
        assert execution.store_transaction_count == begun.all
        assert execution.store_execution_seconds > 0
        assert execution.store_lock_wait_seconds > 0
        assert (execution.store_commit_seconds, execution.store_bytes_written) == (0, 0)
    assert not any(any(costs(phase)) for phase in other.phases)


@pytest.mark.requirement("A128")
async def test_a_budget_is_a_cost_of_the_preparation(tmp_path: Path) -> None:
    ledger = SQLiteBudgetLedger(tmp_path / "b.db")
    app = make_app(batches=(calls("act"), "done"), tools=[FakeTool("act")], budget_ledger=ledger)
    limit = BudgetLimit(budget_id="grant", max_tokens=1_000_000, reserve_output_tokens=10)
    await play(app.run(new_run(budget_limits=(limit,))))
    prepared = await app.inspect_recent_model_step_preparation_timing("s")
    assert [transactions(record) for record in prepared] == [{PREPARATION: 1}] * 2
    for record in prepared:
        assert record.phase(PREPARATION).store_bytes_written > 0
        assert record.phase(PREPARATION).store_commit_seconds > 0
    assert transactions(await only_round(app)) == {}
    await app.aclose()


async def test_a_policy_that_looks_something_up_is_a_cost_of_authorization(knowledge: SQLiteKnowledgeStore) -> None:
    class Looking(FakePolicy):
        async def authorize(self, request: ToolPolicyRequest) -> Any:
            await knowledge.frontier()
            return await super().authorize(request)

    policy = Looking(lambda request: ToolPolicyDecision.ALLOW)
    app = make_app(batches=(calls("act"), "done"), tools=[FakeTool("act")], policy=policy)
    await play(app.run(new_run()))
    assert transactions(await only_round(app)) == {AUTHORIZATION: len(policy.asked)}


class OwnStore(StoreProxy):
    """A store of somebody's own, on a driver's connection that nobody measures."""

    def __init__(self, path: Path) -> None:
        super().__init__(InMemorySessionStore(), before=self._write)
        self._raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._raw.execute("CREATE TABLE log (body)")

    async def _write(self, unit: Any) -> None:
        await asyncio.to_thread(self._raw.execute, "INSERT INTO log VALUES (?)", (repr(unit),))

    async def aclose(self) -> None:
        self._raw.close()


@pytest.mark.requirement("A129")
@pytest.mark.parametrize("own", [False, True], ids=["memory", "custom"])
async def test_memory_and_custom_stores_cost_nothing(tmp_path: Path, own: bool) -> None:
    made = OwnStore(tmp_path / "own.db") if own else InMemorySessionStore()
    app = make_app(made, (calls("act", "act"), "done"), [FakeTool("act")])
    await play(app.run(new_run(budget_limits=(BudgetLimit(max_tokens=1000, reserve_output_tokens=10),))))
    found = await records(app)
    assert len(found) == 3
    assert not any(any(costs(phase)) for record in found for phase in phases(record))
    await app.aclose()


async def test_slow_commits_show_in_the_phases_that_commit(tmp_path: Path) -> None:
    app = make_app(
        SlowSQLiteSessionStore(tmp_path / "s.db", commit_seconds=0.03),
        (calls("act", "act"), "done"),
        [FakeTool("act", parallel_safe=False)],
    )
    await play(app.run(new_run()))
    record = await only_round(app)
    for phase in record.phases:
        commits = phase.name in (STARTED_PERSISTENCE, STAGING, ROUND_COMMIT)
        assert (phase.store_commit_seconds >= 0.03) is commits
        assert phase.store_commit_seconds <= phase.duration_seconds
    await app.aclose()


@pytest.mark.requirement("A134")
async def test_another_writer_shows_as_lock_wait_and_as_execution(store: SQLiteSessionStore) -> None:
    holders: list[threading.Thread] = []

    async def act(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        locked = threading.Event()

        def hold() -> None:
            with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                locked.set()
                time.sleep(HELD_SECONDS)
                other.execute("COMMIT")

        holders.append(threading.Thread(target=hold))
        holders[0].start()
        await asyncio.to_thread(locked.wait)
        return ToolResult(content="held")

    app = make_app(store, (calls("act"), "done"), [FakeTool("act", act)])
    await play(app.run(new_run()))
    holders[0].join()
    record = await only_round(app)
    for phase in record.phases:
        waited = phase.name == ROUND_COMMIT
        assert (phase.store_lock_wait_seconds >= HELD - 0.02) is waited
        assert (phase.store_execution_seconds >= HELD - 0.02) is waited


@pytest.mark.requirement("A133")
async def test_a_busy_connection_shows_as_lock_wait_alone(knowledge: SQLiteKnowledgeStore) -> None:
    reader = knowledge._database._reader
    assert reader is not None

    async def hold() -> None:
        held = asyncio.ensure_future(reader.hop(lambda raw: time.sleep(HELD_SECONDS)))
        await asyncio.sleep(0)
        await knowledge.frontier()
        await held

    app = knowing(make_app(batches=(calls("act"), "done"), tools=[searching(work=hold)]), knowledge)
    await play(app.run(new_run()))
    execution = (await only_round(app)).phase(EXECUTION)
    assert execution.store_lock_wait_seconds >= HELD
    assert execution.store_execution_seconds < HELD
    assert execution.store_transaction_count == 1


# Outside a phase


class Curious(ScriptedModelProvider):
    """A model that reads knowledge while it answers."""

    def __init__(self, script: Sequence[Batch], knowledge: SQLiteKnowledgeStore) -> None:
        super().__init__(script)
        self._knowledge = knowledge

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        await self._knowledge.frontier()
        async for event in super().stream(request):
            yield event


@pytest.mark.requirement("A126")
async def test_a_query_outside_a_phase_counts_nothing(knowledge: SQLiteKnowledgeStore) -> None:
    begun = await Begun(knowledge._database).watch()
    app = CayuApp()
    app.register_provider(Curious([calls("act"), "done"], knowledge))
    app.register_agent(AgentSpec(name="a", model="m"), tools=[FakeTool("act")])
    async for _ in app.run(new_run()):
        await knowledge.frontier()
    assert begun.all > 5
    found = await records(app)
    assert len(found) == 3
    assert not any(any(costs(phase)) for record in found for phase in phases(record))


@pytest.mark.requirement("A126")
async def test_what_a_tool_has_left_behind_counts_nothing(knowledge: SQLiteKnowledgeStore) -> None:
    gone, left = asyncio.Event(), asyncio.Event()
    leaving: list[asyncio.Task[None]] = []

    async def later() -> None:
        await gone.wait()
        await knowledge.frontier()
        left.set()

    async def leave(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        leaving.append(asyncio.create_task(later()))
        return ToolResult(content="gone")

    async def stay(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        while not any(E.TOOL_STAGED in types for types in proxy.types):
            await asyncio.sleep(0.001)
        gone.set()
        await left.wait()
        return ToolResult(content="stayed")

    proxy = StoreProxy(InMemorySessionStore())
    begun = await Begun(knowledge._database).watch()
    app = make_app(proxy, (calls("leave", "stay"), "done"), [FakeTool("leave", leave), FakeTool("stay", stay)])
    await play(app.run(new_run()))
    await leaving[0]
    assert begun.all == 1
    assert not any(any(costs(phase)) for phase in phases(await only_round(app)))


async def test_a_renewal_is_nobodys(tmp_path: Path, store: SQLiteSessionStore) -> None:
    proxy = StoreProxy(store)

    async def act(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        async with asyncio.timeout(5):
            while proxy.renewals < 3:
                await asyncio.sleep(0.01)
        return ToolResult(content="renewed")

    config = RuntimeConfig(lease_seconds=30, renew_after_seconds=0.01)
    app = make_app(proxy, (calls("act"), "done"), [FakeTool("act", act)], config=config)
    begun = await Begun(store._database).watch()
    await play(app.run(new_run()))
    record = await only_round(app)
    assert transactions(record) == {STARTED_PERSISTENCE: 1, ROUND_COMMIT: 1}
    assert begun.all >= 4 + 2


async def test_a_renewal_that_finds_the_session_taken_is_nobodys(store: SQLiteSessionStore) -> None:
    raised: list[str] = []

    class Watched(StoreProxy):
        async def renew(self, *args: Any) -> Any:
            try:
                return await super().renew(*args)
            except SessionRunFenced:
                raised.append("fenced")
                raise

    async def act(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        with closing(sqlite3.connect(store.path)) as other:
            other.execute("UPDATE streams SET epoch = epoch + 1, owner = 'somebody else'")
            other.commit()
        async with asyncio.timeout(5):
            while not raised:
                await asyncio.sleep(0.01)
        return ToolResult(content="too late")

    config = RuntimeConfig(lease_seconds=30, renew_after_seconds=0.01, cancel_grace_seconds=0.05)
    app = make_app(Watched(store), (calls("act"), "done"), [FakeTool("act", act)], config=config)
    with pytest.raises(SessionRunFenced):
        await play(app.run(new_run()))
    record = await only_round(app)
    assert record.incomplete
    assert transactions(record).get(EXECUTION, 0) == 0
    assert transactions(record)[STARTED_PERSISTENCE] == 1


# In whatever thread


async def test_a_tool_in_a_worker_thread_is_charged(knowledge: SQLiteKnowledgeStore) -> None:
    @tool(version="1", effect=ToolEffect.NONE)
    def act(ctx: ToolContext) -> str:
        """Search from a thread."""
        asyncio.run(search(ctx))
        asyncio.run(search(ctx))
        return threading.current_thread().name

    app = knowing(make_app(batches=(calls("act"), "done"), tools=[act]), knowledge)
    events = await play(app.run(new_run()))
    assert types_of(events).count(E.TOOL_COMPLETED) == 1
    assert transactions(await only_round(app)) == {EXECUTION: 2}


@pytest.mark.parametrize("one_by_one, at_once", [(0, 40), (40, 0), (7, 13)])
async def test_reads_in_one_phase_lose_no_update(
    knowledge: SQLiteKnowledgeStore, one_by_one: int, at_once: int
) -> None:
    app = knowing(
        make_app(batches=(calls("act"), "done"), tools=[searching(one_by_one=one_by_one, at_once=at_once)]), knowledge
    )
    await play(app.run(new_run()))
    assert transactions(await only_round(app)) == {EXECUTION: one_by_one + at_once}


def test_units_at_once_never_count_on_one_account() -> None:
    attempt = Attempt(FakeClock(), ("s", "i"), 1, "i.r1", is_round=True)
    with attempt.enter(AUTHORIZATION):
        first, second = attempt.measure(), attempt.measure()
        assert first is not second
        first.transactions, second.transactions = 1, 2
        second.end()
        third = attempt.measure()
        assert third is not first
        third.transactions += 4
        third.end()
        first.end()
    attempt.close()
    assert transactions(record_of(attempt)) == {AUTHORIZATION: 7}


async def test_reads_and_writes_of_several_stores_at_once_lose_no_update(
    store: SQLiteSessionStore, knowledge: SQLiteKnowledgeStore
) -> None:
    async def both() -> None:
        writes = (store.transact("notes", f"{n:02}", lambda current, now: "four") for n in range(20))
        await asyncio.gather(*writes, *(knowledge.frontier() for _ in range(20)))

    app = knowing(make_app(batches=(calls("act"), "done"), tools=[searching(at_once=20, work=both)]), knowledge)
    await play(app.run(new_run()))
    record = await only_round(app)
    assert transactions(record) == {EXECUTION: 60}
    assert record.phase(EXECUTION).store_bytes_written == 20 * len('notes00"four"')


async def test_calls_that_run_together_are_charged_each_for_itself(knowledge: SQLiteKnowledgeStore) -> None:
    tools = [searching("one", one_by_one=1), searching("many", one_by_one=3, at_once=5), FakeTool("none")]
    app = knowing(make_app(batches=(calls("one", "many", "none"), "done"), tools=tools), knowledge)
    await play(app.run(new_run()))
    record = await only_round(app)
    assert [transactions(call) for call in record.calls] == [{EXECUTION: 1}, {EXECUTION: 8}, {}]  # type: ignore[arg-type]
    assert transactions(record) == {EXECUTION: 9}


async def test_sessions_that_commit_together_are_charged_one_each_and_the_whole_commit(tmp_path: Path) -> None:
    many, seconds = 6, 0.03
    store = SlowSQLiteSessionStore(tmp_path / "s.db", commit_seconds=seconds)
    app = CayuApp(session_store=store)
    for n in range(many):
        app.register_provider(ScriptedModelProvider([calls("act"), "done"], name=f"p{n}"))
        app.register_agent(AgentSpec(name=f"a{n}", model="m", provider_name=f"p{n}"), tools=[FakeTool("act")])
    begun = await Begun(store._database).watch()
    requests = [new_run(f"s{n}").model_copy(update={"agent_name": f"a{n}"}) for n in range(many)]
    await asyncio.gather(*(play(app.run(request)) for request in requests))
    rounds = [await only_round(app, f"s{n}") for n in range(many)]
    for record in rounds:
        assert transactions(record) == {STARTED_PERSISTENCE: 1, ROUND_COMMIT: 1}
        for name in (STARTED_PERSISTENCE, ROUND_COMMIT):
            phase = record.phase(name)
            assert seconds <= phase.store_commit_seconds <= phase.duration_seconds
            assert phase.store_lock_wait_seconds <= phase.duration_seconds
    assert begun.counts["BEGIN IMMEDIATE"] < 4 * many
    await app.aclose()


# Sessions inside


def family(knowledge: SQLiteKnowledgeStore, leaf: Tool, generations: int, store: Any = None) -> CayuApp:
    """An application whose first agent asks the next, down to one with a tool of its own."""
    app = knowing(CayuApp(session_store=store), knowledge)
    names = [chr(ord("a") + n) for n in range(generations)]
    for name, below in zip(names, [*names[1:], None], strict=True):
        asked = calls(leaf.spec.name) if below is None else calls((f"ask_{below}", {"task": "work"}))
        app.register_provider(ScriptedModelProvider([asked, "done"], name=f"p{name}"))
        spec = AgentSpec(name=name, model="m", provider_name=f"p{name}")
        app.register_agent(spec, tools=[leaf if below is None else SubagentTool(below)])
    return app


@pytest.mark.parametrize("generations", [2, 3])
@pytest.mark.parametrize("one_by_one, at_once", [(1, 0), (3, 0), (0, 5), (4, 6)])
async def test_a_childs_costs_are_its_own_and_its_parents(
    knowledge: SQLiteKnowledgeStore, generations: int, one_by_one: int, at_once: int
) -> None:
    app = family(knowledge, searching(one_by_one=one_by_one, at_once=at_once), generations)
    await play(app.run(new_run()))
    found = await app.inspect_recent_tool_round_timing()
    assert len({record.session_id for record in found}) == generations
    assert [transactions(record) for record in found] == [{EXECUTION: one_by_one + at_once}] * generations


async def test_a_parent_is_charged_with_all_that_its_child_wrote_and_read(
    store: SQLiteSessionStore, knowledge: SQLiteKnowledgeStore
) -> None:
    begun = [await Begun(made._database).watch() for made in (store, knowledge)]
    spent: list[int] = []

    class Counting(SubagentTool):
        async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
            before = sum(each.all for each in begun)
            result = await super().run(ctx, args)
            spent.append(sum(each.all for each in begun) - before)
            return result

    app = knowing(CayuApp(session_store=store), knowledge)
    agents: dict[str, tuple[list[Batch], Tool]] = {
        "a": ([calls(("ask_b", {"task": "work"})), "done"], Counting("b")),
        "b": ([calls("act", "act"), calls("act"), "done"], searching(one_by_one=2, at_once=2)),
    }
    for name, (script, made) in agents.items():
        app.register_provider(ScriptedModelProvider(script, name=f"p{name}"))
        app.register_agent(AgentSpec(name=name, model="m", provider_name=f"p{name}"), tools=[made])
    await play(app.run(new_run()))
    assert spent[0] > 12
    assert (await only_round(app)).phase(EXECUTION).store_transaction_count == spent[0]
    children = [record for record in await app.inspect_recent_tool_round_timing() if record.session_id != "s"]
    assert [record.phase(EXECUTION).store_transaction_count for record in children] == [4, 8]


# What it costs to look


@pytest.mark.parametrize("budget", [False, True])
async def test_timing_begins_no_transaction_of_its_own(tmp_path: Path, budget: bool) -> None:
    counted: list[Counter[str]] = []
    logs: list[list[str]] = []
    for enabled in (True, False):
        store = SQLiteSessionStore(tmp_path / f"{enabled}.db")
        batches: list[Batch] = [calls("act", "act"), calls("act"), "done"]
        app = make_app(store, batches, [FakeTool("act")], runtime_timing=RuntimeTimingConfig(enabled=enabled))
        begun = await Begun(store._database).watch()
        limits = (BudgetLimit(max_tokens=10_000, reserve_output_tokens=10),) if budget else ()
        await play(app.run(new_run(budget_limits=limits)))
        counted.append(begun.counts)
        logs.append([record.type for record in (await log_of(app)).records])
        assert bool(await records(app)) is enabled
        await app.aclose()
    assert counted[0] == counted[1]
    assert logs[0] == logs[1]


# At its borders


@pytest.mark.requirement("A129")
async def test_what_a_policy_writes_elsewhere_is_the_policys_alone(store: SQLiteSessionStore) -> None:
    class Noting(FakePolicy):
        async def authorize(self, request: ToolPolicyRequest) -> Any:
            await store.transact("notes", request.tool_call_id, lambda current, now: "x" * 20)
            return await super().authorize(request)

    policy = Noting(lambda request: ToolPolicyDecision.ALLOW)
    app = make_app(InMemorySessionStore(), (calls("act", "act"), "done"), [FakeTool("act")], policy)
    await play(app.run(new_run()))
    record = await only_round(app)
    assert transactions(record) == {AUTHORIZATION: 2}
    for phase in phases(record):
        assert (phase.name == AUTHORIZATION) is any(costs(phase))
        assert all(cost >= 0 for cost in costs(phase))
    written = record.phase(AUTHORIZATION).store_bytes_written
    assert written == sum(len(f'notes{request.tool_call_id}"{"x" * 20}"') for request in policy.asked)


async def test_a_custom_store_that_notes_little_in_a_native_one_is_told_without_a_negative_number(
    store: SQLiteSessionStore,
) -> None:
    async def note(unit: Any) -> None:
        await store.transact("notes", "n", lambda current, now: "x")

    proxy = StoreProxy(InMemorySessionStore(), before=note)
    app = make_app(proxy, (calls("act", "act"), "done"), [FakeTool("act")])
    await play(app.run(new_run()))
    record = await only_round(app)
    assert all(phase.store_bytes_written >= 0 for phase in phases(record))
    assert transactions(record) == {STARTED_PERSISTENCE: 1, STAGING: 1, ROUND_COMMIT: 1}


def read_now(attempt: Attempt) -> Any:
    """The record of an attempt as somebody who reads it at this moment gets it, without making it for others."""
    twin = copy.copy(attempt)
    twin._marks = list(attempt._marks)
    return record_of(twin)


def test_a_unit_that_outlives_the_attempt_counts_as_far_as_it_got() -> None:
    attempt = Attempt(FakeClock(), ("s", "i"), 1, "i.r1", is_round=True)
    line = attempt.call_line("c", None)
    with line.within(EXECUTION):
        cost = line.measure()
        assert cost is not None
        cost.transactions, cost.execution_ns = 1, 20
        attempt.close()
        early = read_now(attempt)
        assert (transactions(early), early.phase(EXECUTION).store_execution_seconds) == ({EXECUTION: 1}, 20e-9)
        cost.transactions, cost.execution_ns, cost.commit_ns, cost.bytes_written = 3, 50, 9, 70
        cost.end()
        assert line.measure() is None
    assert record_of(attempt) == early


async def test_a_record_is_the_same_whenever_it_is_first_read(tmp_path: Path) -> None:
    slow = SlowSQLiteSessionStore(tmp_path / "slow.db", commit_seconds=0.2)
    await slow.transact("notes", "n", lambda current, now: "first")
    written = asyncio.Event()

    async def act(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        try:
            await slow.transact("notes", "n", lambda current, now: "second")
        finally:
            written.set()
        return ToolResult(content="too late")

    config = RuntimeConfig(tool_timeout_seconds=0.05, cancel_grace_seconds=0.02)
    app = make_app(InMemorySessionStore(), (calls("act"), "done"), [FakeTool("act", act)], config=config)
    await play(app.run(new_run()))
    assert not written.is_set()
    [attempt] = [attempt for attempt in app.services.timing.recent._attempts if attempt.is_round]
    early = read_now(attempt)
    async with asyncio.timeout(5):
        await written.wait()
    await asyncio.sleep(0)
    record = await only_round(app)
    assert record == early
    assert transactions(record) == {EXECUTION: 1}
    assert record.phase(EXECUTION).store_commit_seconds == 0, "the commit was not over when the round was"
    await slow.aclose()


def test_two_lines_that_take_turns_leave_few_marks_and_none_with_the_record() -> None:
    attempt, reads = Attempt(FakeClock(), ("s", "i"), 1, "i.r1", is_round=True), 5000
    lines = [attempt.call_line(call_id, None) for call_id in ("c1", "c2")]
    with lines[0].within(EXECUTION), lines[1].within(EXECUTION):
        for _ in range(reads):
            for line in lines:
                cost = line.measure()
                assert cost is not None
                cost.transactions += 1
                cost.end()
    attempt.close()
    assert len(attempt.marks) == 2 * len(("enter", "store", "leave")) + 1
    assert transactions(record_of(attempt)) == {EXECUTION: 2 * reads}
    assert len(attempt.marks) == 0
    assert record_of(attempt) is record_of(attempt)


async def test_two_calls_that_read_a_lot_leave_few_marks_and_none_with_the_record(
    knowledge: SQLiteKnowledgeStore,
) -> None:
    marks: list[int] = []
    for reads in (1, 400):
        app = make_app(batches=(calls("act", "act"), "done"), tools=[searching(one_by_one=reads)])
        knowing(app, knowledge)
        await play(app.run(new_run()))
        [attempt] = [attempt for attempt in app.services.timing.recent._attempts if attempt.is_round]
        marks.append(len(attempt.marks))
        assert transactions(await only_round(app)) == {EXECUTION: 2 * reads}
        assert len(attempt.marks) == 0
    assert marks[0] == marks[1] < 60
