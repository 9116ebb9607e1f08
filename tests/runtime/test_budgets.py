"""Budgets around model steps: set aside before the provider is asked, settled after, given back whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from runtime import spending_scenarios as scenarios
from runtime.support import (
    QUICK,
    SESSION,
    FakeClock,
    FakeTool,
    StoreProxy,
    approval,
    assert_consistent,
    calls,
    has,
    log_of,
    logged,
    new_run,
    next_turn,
    play,
    status_of,
    types_of,
    waiting_ids,
)

from cayu import AgentSpec, CayuApp, ToolContext, ToolResult, run_to_completion
from cayu.budgets import Amount, BudgetLedger, BudgetLimit, DocumentBudgetLedger, TokenPrices
from cayu.canonical import loads
from cayu.errors import (
    InvalidInput,
    ProviderError,
    SessionNeedsRecovery,
    SessionNotFound,
    SessionRunFenced,
    SessionRunning,
    StoreBusy,
    StoreFull,
)
from cayu.events import EventType as E
from cayu.providers import ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.providers.scripted import Batch
from cayu.sessions import (
    BlockerCode,
    InterruptSessionRequest,
    RecoveryAction,
    RecoveryDecision,
    RecoveryExecution,
    RecoveryExecutionRequest,
    RecoveryPlanRequest,
    SessionStore,
)
from cayu.sessions.streams import RecordQuery, Unit
from cayu.storage import InMemoryBudgetLedger, InMemorySessionStore, SQLiteBudgetLedger, SQLiteSessionStore
from cayu.testing import run_child
from cayu.tools import SubagentTool

B = "shared"
COUNTED = 100
"""Input tokens that the provider counts before every step."""
OUTPUT = 50
"""Output tokens that are set aside."""
WANTED = COUNTED + OUTPUT
PRICES = TokenPrices(input_per_million=Decimal("0.1"), output_per_million=Decimal("0.7"))
COST_WANTED = (Decimal("0.1") * COUNTED + Decimal("0.7") * OUTPUT) / 1_000_000
MODEL_ACTIONS = (RecoveryAction.MODEL_MARK_FAILED, RecoveryAction.MODEL_MARK_INTERRUPTED)
SCENARIOS = str(Path(scenarios.__file__))
PROCESSES = 3
Enter = Callable[[ModelRequest], Awaitable[None]]


def budget(max_tokens: int | None = 10_000, budget_id: str | None = B, **fields: Any) -> BudgetLimit:
    return BudgetLimit(budget_id=budget_id, max_tokens=max_tokens, reserve_output_tokens=OUTPUT, **fields)


def used(input_tokens: int, output_tokens: int, *events: ModelStreamEvent) -> list[ModelStreamEvent]:
    usage = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    return [*(events or [ModelStreamEvent.text_delta("done")]), ModelStreamEvent.completed(usage=usage)]


class Provider(ScriptedModelProvider):
    """A script that counts as it is told, and runs a hook when it is entered."""

    def __init__(self, batches: Sequence[Batch], enter: Enter | None = None, count: Enter | None = None) -> None:
        super().__init__(batches)
        self._enter, self._count = enter, count

    async def count_input_tokens(self, request: ModelRequest) -> int:
        if self._count is not None:
            await self._count(request)
        return COUNTED

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        if self._enter is not None:
            await self._enter(request)
        async for event in super().stream(request):
            yield event


class Ledger(BudgetLedger):
    """Passes on to another ledger; `before` and `after` see each call, by its name, and may raise or wait."""

    def __init__(self, inner: BudgetLedger) -> None:
        self._inner = inner
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.after: Callable[[str], Awaitable[None]] | None = None

    async def _write(self, name: str, *given: Any) -> Any:
        if self.before is not None:
            await self.before(name)
        found = await getattr(self._inner, name)(*given)
        if self.after is not None:
            await self.after(name)
        return found

    async def reserve(self, *given: Any) -> None:
        await self._write("reserve", *given)

    async def reconcile(self, *given: Any) -> None:
        await self._write("reconcile", *given)

    async def release(self, *given: Any) -> bool:
        return bool(await self._write("release", *given))

    async def account(self, budget_id: str) -> Any:
        return await self._write("account", budget_id)

    async def aclose(self) -> None:
        await self._inner.aclose()


def make_app(provider: ScriptedModelProvider, store: Any = None, tools: Sequence[Any] = (), **options: Any) -> CayuApp:
    app = CayuApp(session_store=store or InMemorySessionStore(), config=options.pop("config", QUICK), **options)
    app.register_provider(provider)
    app.register_agent(AgentSpec(name="a", model="m"), tools=tools)
    return app


async def soon(event: asyncio.Event) -> None:
    """Wait for what has to happen; fail instead of waiting for ever."""
    await asyncio.wait_for(event.wait(), 10)


async def stands(app: CayuApp, budget_id: str = B) -> tuple[int, int]:
    """Tokens spent and tokens set aside."""
    account = await app.services.ledger.account(budget_id)
    assert (account.reserved_tokens > 0) == bool(account.reservations)
    return account.spent_tokens, account.reserved_tokens


async def assert_books(app: CayuApp, budget_id: str = B) -> int:
    """Nothing is set aside, and what the ledger calls spent is what the logs say; return it."""
    spent, cost, opened = 0, Decimal(0), set()
    scanned = await app.session_store.records(RecordQuery(types=(E.BUDGET_RESERVED, E.BUDGET_RECONCILED)))
    for _, record in scanned:
        told = loads(record.body)
        if told["budget_id"] != budget_id:
            continue
        if record.type == E.BUDGET_RESERVED:
            opened.add(told["reservation_id"])
            continue
        opened.discard(told["reservation_id"])
        if not told.get("released"):
            spent, cost = spent + told["tokens"], cost + Decimal(told["cost"])
    account = await app.services.ledger.account(budget_id)
    assert (account.spent_tokens, account.spent_cost) == (spent, cost)
    assert (account.reserved_tokens, account.reserved_cost, account.reservations) == (0, 0, ())
    assert not opened
    return spent


async def lost_step(app: CayuApp) -> str:
    """The session was lost in a paid step: everything refuses it, and the plan asks for a decision. Its plan's code."""
    before = (await log_of(app)).head
    for entry in (app.recover_incomplete_session(SESSION), app.resume(next_turn())):
        with pytest.raises(SessionNeedsRecovery):
            await play(entry)
    plan = await app.plan_recovery(RecoveryPlanRequest(session_ids=(SESSION,)))
    [item] = plan.items
    assert (item.action, item.blocker_codes) == (
        RecoveryAction.LEAVE_INTACT,
        (BlockerCode.MODEL_EFFECT_OUTCOME_UNKNOWN,),
    )
    [needed] = item.needed_decisions
    assert (needed.subject, needed.allowed_actions, needed.tool_call_id) == ("model_step", MODEL_ACTIONS, None)
    undecided = await app.execute_recovery(RecoveryExecutionRequest(plan=plan, execution_id="without"))
    assert [each.status for each in undecided.items] == ["blocked"]
    assert (await log_of(app)).head == before
    return item.item_id


async def decide(app: CayuApp, action: RecoveryAction, session_id: str = SESSION) -> RecoveryExecution:
    plan = await app.plan_recovery(RecoveryPlanRequest(session_ids=(session_id,)))
    decision = RecoveryDecision(session_id=session_id, action=action)
    return await app.execute_recovery(
        RecoveryExecutionRequest(plan=plan, execution_id="decided", decisions=(decision,))
    )


# Before and after the provider.


@pytest.mark.parametrize("sqlite", [False, True])
async def test_the_reservation_and_the_start_are_durable_when_the_provider_is_entered(
    sqlite: bool, tmp_path: Path
) -> None:
    store: SessionStore = SQLiteSessionStore(tmp_path / "s.db") if sqlite else InMemorySessionStore()
    seen: list[list[str]] = []
    held: list[tuple[int, int]] = []

    async def look(request: ModelRequest) -> None:
        reader = SQLiteSessionStore(tmp_path / "s.db", mode="ro") if sqlite else store
        loaded = await reader.load(SESSION)
        assert loaded is not None
        seen.append([record.type for record in loaded.records])
        held.append(await stands(app))
        if sqlite:
            await reader.aclose()

    tool = FakeTool("look")
    app = make_app(Provider([used(90, 20, *calls("look")), used(80, 10)], look), store, [tool])
    outcome = await run_to_completion(app, new_run(budget_limits=(budget(),)))
    assert outcome.status == "completed"
    first, second = seen
    assert first == [E.SESSION_STARTED, E.BUDGET_RESERVED, E.MODEL_STARTED]
    assert second[-2:] == [E.BUDGET_RESERVED, E.MODEL_STARTED]
    assert second.count(E.BUDGET_RECONCILED) == 1
    assert held == [(0, WANTED), (110, WANTED)]
    assert await assert_books(app) == 200
    await assert_consistent(app)
    await app.aclose()


async def test_the_actual_usage_is_what_is_charged() -> None:
    limit = budget(max_cost=Decimal(1), prices=PRICES)
    app = make_app(Provider([used(333, 77)]))
    await play(app.run(new_run(budget_limits=(limit,))))
    [reserved] = await logged(app, E.BUDGET_RESERVED)
    assert (reserved["tokens"], Decimal(reserved["cost"])) == (WANTED, COST_WANTED)
    [settled] = await logged(app, E.BUDGET_RECONCILED)
    cost = (Decimal("0.1") * 333 + Decimal("0.7") * 77) / 1_000_000
    assert (settled["tokens"], Decimal(settled["cost"])) == (410, cost)
    account = await app.services.ledger.account(B)
    assert (account.spent_tokens, account.spent_cost) == (410, cost)
    await assert_books(app)


async def test_costs_of_many_steps_add_up_exactly() -> None:
    limit = budget(None, max_cost=Decimal(1), prices=PRICES)
    steps = [used(1, 1, *calls("look"))] * 30
    app = make_app(Provider([*steps, used(1, 1)]), tools=[FakeTool("look")])
    await play(app.run(new_run(budget_limits=(limit,))))
    assert (await app.services.ledger.account(B)).spent_cost == 31 * Decimal("0.0000008")
    await assert_books(app)


@pytest.mark.parametrize(
    "usage", [{}, {"input_tokens": 5}, {"output_tokens": 5}, {"input_tokens": -1, "output_tokens": 5}]
)
async def test_a_provider_that_reports_no_usage_is_charged_what_was_set_aside(usage: dict[str, int]) -> None:
    app = make_app(Provider([[ModelStreamEvent.text_delta("done"), ModelStreamEvent.completed(usage=usage)]]))
    outcome = await run_to_completion(app, new_run(budget_limits=(budget(),)))
    assert (outcome.status, await assert_books(app)) == ("completed", WANTED)


async def test_an_honest_zero_is_charged_as_zero() -> None:
    app = make_app(Provider([used(0, 0)]))
    await play(app.run(new_run(budget_limits=(budget(),))))
    assert await assert_books(app) == 0


async def test_nothing_is_set_aside_while_tools_run() -> None:
    during = []

    async def look(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        during.append(await stands(app))
        return ToolResult(content="looked")

    app = make_app(Provider([used(90, 20, *calls("look")), used(1, 1)]), tools=[FakeTool("look", look)])
    await play(app.run(new_run(budget_limits=(budget(),))))
    assert during == [(110, 0)]


async def test_without_budgets_no_ledger_is_asked_and_no_write_is_added() -> None:
    async def refuse(name: str) -> None:
        raise AssertionError(name)

    ledger = Ledger(InMemoryBudgetLedger())
    ledger.before = refuse
    plain, budgeted = StoreProxy(InMemorySessionStore()), StoreProxy(InMemorySessionStore())
    app = make_app(Provider([*[used(1, 1, *calls("look"))], used(1, 1)]), plain, [FakeTool("look")])
    app.services.ledger = ledger
    await play(app.run(new_run()))
    other = make_app(Provider([*[used(1, 1, *calls("look"))], used(1, 1)]), budgeted, [FakeTool("look")])
    await play(other.run(new_run(budget_limits=(budget(),))))
    assert len(budgeted.units) == len(plain.units) + 2, "one write more per step, and no more"


# Whatever happens to the step.


async def raising(request: ModelRequest) -> None:
    raise ProviderError(code="overloaded")


async def breaking(request: ModelRequest) -> None:
    raise RuntimeError("a bug")


@pytest.mark.parametrize(
    ("provider", "code"),
    [
        (Provider(["unused"], raising), "overloaded"),
        (Provider(["unused"], breaking), "RuntimeError"),
        (Provider([[ModelStreamEvent.error("refused")]]), "refused"),
        (Provider([]), "script_ended"),
    ],
)
async def test_a_provider_that_fails_costs_nothing(provider: Provider, code: str) -> None:
    app = make_app(provider)
    limits = (budget(), budget(budget_id="other"))
    outcome = await run_to_completion(app, new_run(budget_limits=limits))
    assert (outcome.status, outcome.error) == ("failed", {"code": "provider_failed", "detail": code})
    assert await assert_books(app) == await assert_books(app, "other") == 0
    assert [told.get("released") for told in await logged(app, E.BUDGET_RECONCILED)] == [True, True]
    await assert_consistent(app)


@pytest.mark.parametrize("counting", [False, True])
@pytest.mark.parametrize("way", ["interrupt", "close", "cancel", "aclose"])
async def test_an_interruption_in_the_model_step_gives_back(way: str, counting: bool) -> None:
    entered = asyncio.Event()

    async def wait(request: ModelRequest) -> None:
        entered.set()
        await asyncio.sleep(60)

    app = make_app(Provider(["unused"], None if counting else wait, wait if counting else None))
    stream = app.run(new_run(budget_limits=(budget(),)))
    task = asyncio.create_task(play(stream))
    await soon(entered)
    assert await stands(app) == (0, 0 if counting else WANTED)
    if way == "interrupt":
        await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
        await task
    elif way == "aclose":
        await app.aclose()
        await task
    else:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if way == "close":
            await stream.aclose()
    view = await assert_consistent(app)
    assert (view.status, view.model_in_flight, view.reservations) == ("interrupted", False, {})
    assert await assert_books(app) == 0
    later = make_app(Provider(["unused"]), app.session_store)
    outcome = await run_to_completion(later, next_turn(budget_limits=(budget(),)))
    assert (outcome.status, await assert_books(later)) == ("completed", WANTED)


async def test_a_generator_that_is_closed_in_the_model_step_gives_back() -> None:
    app = make_app(Provider([[ModelStreamEvent.text_delta("a word"), *used(5, 5)]]))
    async with aclosing(app.run(new_run(budget_limits=(budget(),)))) as events:
        async for event in events:
            if event.type == E.MODEL_TEXT_DELTA:
                break
    assert await status_of(app) in ("interrupted", "completed")
    await assert_books(app)


@pytest.mark.parametrize("moment", ["before reserve", "after reserve", "before reconcile", "after reconcile"])
async def test_a_cancellation_at_the_ledger_leaves_nothing_set_aside(moment: str) -> None:
    when, name = moment.split()
    ledger = Ledger(InMemoryBudgetLedger())
    there = asyncio.Event()

    async def wait(write: str) -> None:
        if write == name:
            there.set()
            await asyncio.sleep(60)

    setattr(ledger, when, wait)
    app = make_app(Provider([used(60, 6)]), budget_ledger=ledger)
    task = asyncio.create_task(play(app.run(new_run(budget_limits=(budget(), budget(budget_id="other"))))))
    await soon(there)
    ledger.before = ledger.after = None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    view = await assert_consistent(app)
    assert (view.status, view.reservations, view.model_in_flight) == ("interrupted", {}, False)
    assert (await stands(app))[1] == (await stands(app, "other"))[1] == 0
    outcome = await run_to_completion(app, next_turn(budget_limits=(budget(),)))
    assert (outcome.status, (await stands(app))[1]) == ("completed", 0)


async def test_the_log_does_not_call_released_what_the_ledger_has_charged() -> None:
    ledger = Ledger(InMemoryBudgetLedger())
    there = asyncio.Event()

    async def wait(write: str) -> None:
        if write == "reconcile" and not there.is_set():
            there.set()
            await asyncio.sleep(60)

    ledger.after = wait
    app = make_app(Provider([used(60, 6)]), budget_ledger=ledger)
    task = asyncio.create_task(play(app.run(new_run(budget_limits=(budget(),)))))
    await soon(there)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await stands(app) == (66, 0)
    assert await assert_books(app) == 66


# Refusals.


@pytest.mark.parametrize(("cap", "fits"), [(WANTED - 1, False), (WANTED, True), (WANTED + 1, True)])
async def test_the_cap_holds_at_its_very_number(cap: int, fits: bool) -> None:
    provider = Provider([used(100, 50)])
    app = make_app(provider)
    outcome = await run_to_completion(app, new_run(budget_limits=(budget(cap),)))
    assert outcome.status == ("completed" if fits else "interrupted")
    assert len(provider.requests) == fits


@pytest.mark.parametrize(("cap", "fits"), [(COST_WANTED - Decimal("1E-9"), False), (COST_WANTED, True)])
async def test_a_cost_cap_holds_to_the_last_digit(cap: Decimal, fits: bool) -> None:
    provider = Provider([used(100, 50)])
    app = make_app(provider)
    limit = budget(None, max_cost=cap, prices=PRICES)
    outcome = await run_to_completion(app, new_run(budget_limits=(limit,)))
    assert outcome.status == ("completed" if fits else "interrupted")
    assert len(provider.requests) == fits


async def test_a_refusal_ends_the_run_and_a_higher_cap_goes_on() -> None:
    provider = Provider([used(100, 50, *calls("look")), used(100, 50)])
    app = make_app(provider, tools=[FakeTool("look")])
    events = await play(app.run(new_run(budget_limits=(budget(WANTED + 10),))))
    assert types_of(events)[-3:] == [E.BUDGET_LIMIT_REACHED, E.SESSION_LIMIT_REACHED, E.SESSION_INTERRUPTED]
    told = {"budget_id": B, "unit": "tokens", "cap": "160", "left": "10", "wanted": str(WANTED)}
    assert events[-3].payload == told
    assert events[-2].payload == {"limit": "budget", "value": WANTED + 10}
    assert events[-1].payload == {"reason": "limit_reached", "limit": "budget"}
    view = await assert_consistent(app)
    assert (view.status, view.model_in_flight, view.open_round) == ("interrupted", False, None)
    assert len(provider.requests) == 1
    assert await assert_books(app) == 150
    plan = await app.plan_recovery(RecoveryPlanRequest())
    assert plan.items == (), "a session that a budget stopped needs no recovery"

    again = await run_to_completion(app, next_turn(budget_limits=(budget(WANTED + 149),)))
    assert (again.status, len(provider.requests)) == ("interrupted", 1)
    before = list((await log_of(app)).records)
    outcome = await run_to_completion(app, next_turn(budget_limits=(budget(2 * WANTED),)))
    assert (outcome.status, outcome.final_text) == ("completed", "done")
    assert list((await log_of(app)).records)[: len(before)] == before
    assert await assert_books(app) == 300


async def test_a_resume_without_budgets_is_not_held_by_an_earlier_one() -> None:
    app = make_app(Provider([used(100, 50)]))
    assert (await run_to_completion(app, new_run(budget_limits=(budget(1),)))).status == "interrupted"
    assert (await run_to_completion(app, next_turn())).status == "completed"


async def test_a_step_that_took_more_than_it_reserved_is_charged_in_full_and_stops_the_next() -> None:
    provider = Provider([used(5000, 5000, *calls("look")), used(1, 1)])
    app = make_app(provider, tools=[FakeTool("look")])
    outcome = await run_to_completion(app, new_run(budget_limits=(budget(1000),)))
    assert (outcome.status, len(provider.requests)) == ("interrupted", 1)
    [told] = await logged(app, E.BUDGET_LIMIT_REACHED)
    assert (told["left"], await assert_books(app)) == ("0", 10_000)


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_all_limits_are_reserved_or_none(position: int) -> None:
    provider = Provider([used(100, 50)])
    app = make_app(provider)
    limits = [budget(budget_id=f"b{n}", max_tokens=WANTED - (n == position)) for n in range(3)]
    events = await play(app.run(new_run(budget_limits=tuple(limits))))
    assert [event.payload["budget_id"] for event in events if event.type == E.BUDGET_LIMIT_REACHED] == [f"b{position}"]
    assert E.BUDGET_RESERVED not in types_of(events)
    assert provider.requests == []
    for n in range(3):
        assert await assert_books(app, f"b{n}") == 0


@pytest.mark.parametrize("second", [None, SESSION])
async def test_two_limits_on_one_budget_are_refused_before_anything_is_written(second: str | None) -> None:
    limits = (budget(2 * WANTED, budget_id=None), budget(None, budget_id=second, max_cost=Decimal(1), prices=PRICES))
    app = make_app(Provider([used(100, 50)]))
    with pytest.raises(InvalidInput, match="name one budget"):
        await run_to_completion(app, new_run(budget_limits=limits))
    with pytest.raises(SessionNotFound):
        await app.get_session(SESSION)


async def test_reservations_of_steps_sessions_and_runs_differ() -> None:
    script = [used(1, 1, *calls("look")), used(1, 1), used(1, 1)]
    app = make_app(Provider(script), tools=[FakeTool("look")])
    for session in ("s", "t"):
        await play(app.run(new_run(session, budget_limits=(budget(),))))
        await play(app.resume(next_turn(session, budget_limits=(budget(),))))
    scanned = await app.session_store.records(RecordQuery(types=(E.BUDGET_RESERVED,)))
    ids = [loads(record.body)["reservation_id"] for _, record in scanned]
    assert len(set(ids)) == len(ids) == 6
    assert await assert_books(app) == 12


# Who shares a budget.


async def test_a_limit_without_an_id_takes_the_sessions_causal_budget() -> None:
    app = make_app(Provider([used(10, 5)]))
    limit = budget(budget_id=None)
    await play(app.run(new_run("own", budget_limits=(limit,))))
    await play(app.run(new_run("one", budget_limits=(limit,), causal_budget_id="both")))
    await play(app.run(new_run("two", budget_limits=(limit,), causal_budget_id="both")))
    await play(app.run(new_run("child", budget_limits=(limit,), parent_session_id="two")))
    assert await assert_books(app, "own") == 15
    assert await assert_books(app, "both") == 45


def family(child_batches: Sequence[Batch], ledger: BudgetLedger | None = None, **limits: Any) -> CayuApp:
    """An agent `a` that gives a task to an agent `kid`."""
    task = ModelStreamEvent.tool_call("ask_kid", {"task": "work"}, id="p0")

    def play_both(request: ModelRequest) -> Any:
        asked = any(part.plain_text == "work" for part in request.messages if part.role == "user")
        turn = sum(message.role == "assistant" for message in request.messages)
        return child_batches[turn] if asked else [used(100, 50, task), used(20, 10)][turn]

    app = make_app(Provider([play_both] * 4), tools=[SubagentTool("kid", **limits)], budget_ledger=ledger)
    app.register_agent(AgentSpec(name="kid", model="m"), tools=[FakeTool("look")])
    return app


async def test_a_child_session_spends_under_its_parents_causal_budget() -> None:
    app = family([used(40, 4, *calls("look")), used(40, 4)])
    outcome = await run_to_completion(app, new_run(budget_limits=(budget(budget_id=None),)))
    assert outcome.status == "completed"
    [call] = outcome.tool_calls
    child = call.structured["child_session_id"]
    assert (call.content, (await app.get_session(child)).causal_budget_id) == ("done", SESSION)
    assert [told["budget_id"] for told in await logged(app, E.BUDGET_RESERVED, child)] == [SESSION] * 2
    assert await assert_books(app, SESSION) == 150 + 44 + 44 + 30


@pytest.mark.parametrize("budget_id", [None, B])
async def test_a_child_is_stopped_by_what_its_parent_has_spent(budget_id: str | None) -> None:
    app = family([used(40, 4, *calls("look")), used(40, 4)])
    cap = 150 + 44 + WANTED - 1
    outcome = await run_to_completion(app, new_run(budget_limits=(budget(cap, budget_id),)))
    [call] = outcome.tool_calls
    child = call.structured["child_session_id"]
    assert (call.is_error, call.structured["status"]) == (True, "interrupted")
    [told] = await logged(app, E.BUDGET_LIMIT_REACHED, child)
    assert (told["left"], told["budget_id"]) == (str(WANTED - 1), budget_id or SESSION)
    assert outcome.status == "interrupted", "nothing is left for the parent either"
    assert await assert_books(app, budget_id or SESSION) == 194


@pytest.mark.parametrize("action", MODEL_ACTIONS)
async def test_a_childs_lost_step_is_decided_by_itself(action: RecoveryAction) -> None:
    ledger = Ledger(InMemoryBudgetLedger())
    settled = []

    async def lose(name: str) -> None:
        if name == "reconcile":
            settled.append(name)
            if len(settled) > 1:
                raise StoreFull(path="disk")

    app = family([used(40, 4)], ledger)
    ledger.before = lose

    outcome = await run_to_completion(app, new_run(budget_limits=(budget(),)))
    assert (outcome.status, (outcome.interruption or {})["reason"]) == ("interrupted", "manual_recovery")
    ledger.before = None
    child = outcome.tool_calls[0].tool_call_id + ".child"
    assert (await status_of(app, child), await stands(app)) == ("running", (150, WANTED)), "nobody decided for it"
    executed = await decide(app, action, child)
    assert [each.status for each in executed.items] == ["executed"]
    assert await assert_books(app) == 150
    plan = await app.plan_recovery(RecoveryPlanRequest(session_ids=(SESSION,)))
    await app.execute_recovery(RecoveryExecutionRequest(plan=plan, execution_id="parent"))
    assert (await status_of(app), await assert_books(app)) == ("completed", 180)


# Many at once.


@pytest.mark.slow
async def test_fifty_sessions_share_one_budget(tmp_path: Path) -> None:
    cap = 2000
    completed, stopped, most = await scenarios.spend_together(str(tmp_path), "p", 50, cap, 1)
    assert completed + stopped == 50
    assert stopped
    assert cap - 60 < most <= cap, "the sessions did come to the cap, and none passed it"
    async with CayuApp(session_store=SQLiteSessionStore(tmp_path / "together.db")) as app:
        assert 90 * completed <= await assert_books(app) <= cap


@pytest.mark.slow
async def test_several_processes_share_one_budget(tmp_path: Path) -> None:
    cap = 1500
    with ThreadPoolExecutor(PROCESSES) as pool:
        arguments = [[str(tmp_path), f"p{number}", 12, cap, PROCESSES] for number in range(PROCESSES)]
        found = [pool.submit(run_child, f"{SCENARIOS}:spend_together", given) for given in arguments]
        results = [each.result().result for each in found]
    assert sum(completed + stopped for completed, stopped, _ in results) == 12 * PROCESSES
    assert cap - 60 < max(most for _, _, most in results) <= cap
    async with CayuApp(session_store=SQLiteSessionStore(tmp_path / "together.db")) as app:
        assert 90 * sum(completed for completed, _, _ in results) <= await assert_books(app) <= cap


async def test_sessions_at_once_in_one_process_never_pass_the_cap() -> None:
    most = 0

    async def look(request: ModelRequest) -> None:
        nonlocal most
        await asyncio.sleep(0)
        most = max(most, sum(await stands(app)))

    app = make_app(Provider([used(40, 20, *calls("look")), used(30, 10)], look), tools=[FakeTool("look")])
    requests = [new_run(f"s{n}", budget_limits=(budget(1000),)) for n in range(50)]
    outcomes = await asyncio.gather(*(run_to_completion(app, request) for request in requests))
    assert {outcome.status for outcome in outcomes} == {"completed", "interrupted"}
    assert 1000 - WANTED < most <= 1000
    assert await assert_books(app) == sum(sum(outcome.usage.values()) for outcome in outcomes) <= 1000


# Crashes.


def lost_at(write: str, ledger: Ledger, *, after: bool = False) -> None:
    """Lose the process at a write of the ledger, as far as one that lives on can."""

    async def lose(name: str) -> None:
        if name == write:
            raise StoreFull(path="disk")

    setattr(ledger, "after" if after else "before", lose)


@pytest.mark.parametrize("action", MODEL_ACTIONS)
@pytest.mark.parametrize("moment", ["answered", "reconciled", "written"])
async def test_a_step_that_was_lost_after_its_start_is_decided_by_an_operator(
    moment: str, action: RecoveryAction
) -> None:
    ledger = Ledger(InMemoryBudgetLedger())

    async def lose(unit: Unit) -> None:
        if has(unit, E.MODEL_COMPLETED) and moment == "written":
            raise StoreFull(path="disk")

    if moment != "written":
        lost_at("reconcile", ledger, after=moment == "reconciled")
    app = make_app(Provider([used(60, 6)]), StoreProxy(InMemorySessionStore(), before=lose), budget_ledger=ledger)
    with pytest.raises(StoreFull):
        await play(app.run(new_run(budget_limits=(budget(),))))
    ledger.before = ledger.after = None
    moment = moment if moment == "answered" else "charged"
    spent = 0 if moment == "answered" else 66
    assert await stands(app) == (spent, WANTED - WANTED * (moment == "charged"))
    await lost_step(app)
    executed = await decide(app, action)
    assert [each.status for each in executed.items] == ["executed"]
    view = await assert_consistent(app)
    failed = action is RecoveryAction.MODEL_MARK_FAILED
    assert view.status == ("failed" if failed else "interrupted")
    assert (view.error if failed else view.interruption) == (
        {"code": "model_marked_failed"} if failed else {"reason": "model_marked_interrupted"}
    )
    assert (view.model_in_flight, view.reservations) == (False, {})
    assert await stands(app) == (spent, 0), "what was charged stays charged"
    app.session_store.before = None  # type: ignore[attr-defined]
    outcome = await run_to_completion(app, next_turn(budget_limits=(budget(),)))
    assert (outcome.status, outcome.model_steps) == ("completed", 1)
    assert await stands(app) == (spent + 66, 0)


@pytest.mark.parametrize("end", ["recover", "plan", "interrupt"])
@pytest.mark.parametrize("second", [False, True])
async def test_a_reservation_that_the_log_does_not_know_is_given_back(end: str, second: bool) -> None:
    """Lost between the ledger's write and the log's, after one or after both of two reservations."""
    ledger = Ledger(InMemoryBudgetLedger())
    left = [None] * (1 + second)

    async def lose(name: str) -> None:
        if name == "reserve":
            left.pop()
            if not left:
                raise StoreFull(path="disk")

    async def lose_for_good(name: str) -> None:
        if name == "release":
            raise StoreFull(path="disk")  # so that the run itself cannot give it back

    ledger.after, ledger.before = lose, lose_for_good
    provider = Provider([used(60, 6)])
    app = make_app(provider, budget_ledger=ledger)
    limits = (budget(), budget(budget_id="other"))
    with pytest.raises(StoreFull):
        await play(app.run(new_run(budget_limits=limits)))
    ledger.after = ledger.before = None
    assert (await stands(app), await stands(app, "other")) == ((0, WANTED), (0, WANTED * second))
    assert E.BUDGET_RESERVED not in [record.type for record in (await log_of(app)).records]
    assert provider.requests == []
    if end == "recover":
        await play(app.recover_incomplete_session(SESSION))
    elif end == "plan":
        plan = await app.plan_recovery(RecoveryPlanRequest())
        assert [item.action for item in plan.items] == [RecoveryAction.AUTOMATIC_REPAIR]
        await app.execute_recovery(RecoveryExecutionRequest(plan=plan, execution_id="x"))
    else:
        await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
    expected = 0 if end == "interrupt" else 66
    assert await status_of(app) == ("interrupted" if end == "interrupt" else "completed")
    assert await assert_books(app) == await assert_books(app, "other") == expected


async def test_a_lost_step_that_is_interrupted_gives_back() -> None:
    ledger = Ledger(InMemoryBudgetLedger())
    lost_at("reconcile", ledger)
    app = make_app(Provider([used(60, 6)]), budget_ledger=ledger)
    with pytest.raises(StoreFull):
        await play(app.run(new_run(budget_limits=(budget(),))))
    ledger.before = None
    await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
    view = await assert_consistent(app)
    assert (view.status, view.model_in_flight, view.reservations) == ("interrupted", False, {})
    assert await assert_books(app) == 0


async def test_a_crash_in_a_round_holds_nothing_and_needs_no_decision() -> None:
    async def lose(unit: Unit) -> None:
        if has(unit, E.ROUND_COMMITTED):
            raise StoreFull(path="disk")

    store = StoreProxy(InMemorySessionStore(), before=lose)
    app = make_app(Provider([used(60, 6, *calls("look")), used(5, 5)]), store, [FakeTool("look")])
    with pytest.raises(StoreFull):
        await play(app.run(new_run(budget_limits=(budget(),))))
    assert await stands(app) == (66, 0)
    store.before = None
    await play(app.recover_incomplete_session(SESSION))
    assert (await status_of(app), await assert_books(app)) == ("completed", 76)


@pytest.mark.slow
@pytest.mark.parametrize("action", MODEL_ACTIONS)
@pytest.mark.parametrize(("step", "where"), [(1, "model.answered"), (1, "stream"), (2, "stream")])
async def test_a_killed_process_leaves_its_paid_step_to_an_operator(
    step: int, where: str, action: RecoveryAction, tmp_path: Path
) -> None:
    dies = step if where == "stream" else None
    crash = None if where == "stream" else where
    child = run_child(f"{SCENARIOS}:run", [str(tmp_path), SESSION, True, dies], crash_at=crash)
    assert child.killed, child.stderr
    before = scenarios.steps_of(scenarios.USAGES[: step - 1])
    async with scenarios.build(tmp_path) as app:
        account = await app.services.ledger.account(B)
        assert (account.spent_tokens, account.spent_cost) == before
        assert len(account.reservations) == 1
        await lost_step(app)
        await decide(app, action)
        assert await assert_books(app) == before.tokens
        view = await assert_consistent(app)
        assert view.status == ("failed" if action is RecoveryAction.MODEL_MARK_FAILED else "interrupted")
    async with scenarios.build(tmp_path) as app:
        await play(app.resume(next_turn(budget_limits=(scenarios.LIMIT,))))
        [waiting] = await waiting_ids(app)
        await play(app.resolve_tool_approval(approval(waiting)))
        assert await status_of(app) == "completed"
        account = await app.services.ledger.account(B)
        assert (account.spent_tokens, account.spent_cost) == scenarios.steps_of()
        await assert_books(app)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["recover", "interrupt"])
async def test_a_process_killed_between_ledger_and_log_leaves_nothing_set_aside(end: str, tmp_path: Path) -> None:
    child = run_child(f"{SCENARIOS}:reserve_then_die", [str(tmp_path)])
    assert child.killed, child.stderr
    async with scenarios.build(tmp_path) as app:
        session = scenarios.SESSION
        assert len((await app.services.ledger.account(B)).reservations) == 1
        assert await logged(app, E.BUDGET_RESERVED, session) == []
        if end == "recover":
            await play(app.recover_incomplete_session(session))
        else:
            await play(app.interrupt_session(InterruptSessionRequest(session_id=session)))
        assert (await app.services.ledger.account(B)).reservations == ()
        await assert_books(app)


@pytest.mark.slow
async def test_a_process_killed_after_its_commits_has_charged_once(tmp_path: Path) -> None:
    for point, spent in (("round.opened", 1), ("round.closed", 1), ("session.paused", 2)):
        folder = tmp_path / point
        folder.mkdir()
        child = run_child(f"{SCENARIOS}:run", [str(folder)], crash_at=point)
        assert child.killed, child.stderr
        async with scenarios.build(folder) as app:
            assert await assert_books(app) == scenarios.steps_of(scenarios.USAGES[:spent]).tokens


# A ledger that fails.


@pytest.mark.parametrize("which", [1, 2])
async def test_a_ledger_that_fails_before_the_provider_is_asked_ends_typed(which: int) -> None:
    error = StoreFull(path="ledger.db")
    ledger = Ledger(InMemoryBudgetLedger())
    left = [None] * which

    async def fail(name: str) -> None:
        if name == "reserve":
            left.pop()
            if not left:
                raise error

    ledger.before = fail
    provider = Provider([used(60, 6)])
    app = make_app(provider, budget_ledger=ledger)
    limits = (budget(), budget(budget_id="other"))
    with pytest.raises(type(error)):
        await play(app.run(new_run(budget_limits=limits)))
    assert provider.requests == []
    assert E.MODEL_STARTED not in [record.type for record in (await log_of(app)).records]
    ledger.before = None
    if await status_of(app) == "running":
        await play(app.recover_incomplete_session(SESSION))
    else:
        await play(app.resume(next_turn(budget_limits=limits)))
    assert await status_of(app) == "completed"
    assert await assert_books(app) == await assert_books(app, "other") == 66


async def test_a_ledger_that_raises_anything_else_fails_the_run(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(InMemoryBudgetLedger())

    async def fail(name: str) -> None:
        if name == "reserve":
            raise RuntimeError("a bug")

    ledger.before = fail
    provider = Provider([used(60, 6)])
    app = make_app(provider, budget_ledger=ledger)
    with pytest.raises(RuntimeError):
        await play(app.run(new_run(budget_limits=(budget(),))))
    assert (await status_of(app), provider.requests) == ("failed", [])
    assert await assert_books(app) == 0


async def test_a_provider_that_cannot_count_ends_the_run_before_it_is_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = make_app(Provider(["unused"], count=raising))
    try:
        await play(app.run(new_run(budget_limits=(budget(),))))
    except ProviderError:
        pass
    assert await status_of(app) == "failed"
    assert await assert_books(app) == 0


async def test_an_answer_is_not_lost_to_a_ledger_that_is_busy_for_a_moment() -> None:
    """What was dispatched is written again while the lease holds; a paid answer is no less."""
    ledger = Ledger(InMemoryBudgetLedger())
    busy = [True]

    async def fail(name: str) -> None:
        if name == "reconcile" and busy:
            busy.pop()
            raise StoreBusy(path="ledger.db")

    ledger.before = fail
    app = make_app(Provider([used(60, 6)]), budget_ledger=ledger)
    outcome = await run_to_completion(app, new_run(budget_limits=(budget(),)))
    assert (outcome.status, await assert_books(app)) == ("completed", 66)


async def test_an_interruption_is_recorded_though_the_ledger_is_busy_for_a_moment() -> None:
    ledger = Ledger(InMemoryBudgetLedger())
    entered, busy = asyncio.Event(), [True]

    async def wait(request: ModelRequest) -> None:
        entered.set()
        await asyncio.sleep(60)

    async def fail(name: str) -> None:
        if name == "release" and busy:
            busy.pop()
            raise StoreBusy(path="ledger.db")

    ledger.before = fail
    app = make_app(Provider(["unused"], wait), budget_ledger=ledger)
    task = asyncio.create_task(play(app.run(new_run(budget_limits=(budget(),)))))
    await soon(entered)
    await play(app.interrupt_session(InterruptSessionRequest(session_id=SESSION)))
    await asyncio.gather(task, return_exceptions=True)
    view = await assert_consistent(app)
    assert (view.status, len(view.reservations), await stands(app)) == ("interrupted", 1, (0, WANTED))
    app.services.registry.assemble("a", None).provider._enter = None  # type: ignore[attr-defined]
    await play(app.resume(next_turn(budget_limits=(budget(),))))
    assert (await status_of(app), await assert_books(app)) == ("completed", WANTED)


# A run that was taken over.


class Gate:
    """Holds whoever comes until it is opened."""

    def __init__(self) -> None:
        self.reached, self._open = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: object) -> None:
        self.reached.set()
        await self._open.wait()

    def open(self) -> None:
        self._open.set()


async def test_a_run_that_was_taken_over_does_not_settle_what_its_successor_holds() -> None:
    clock = FakeClock()
    store = InMemorySessionStore(clock=clock)
    slow, held = Gate(), Gate()
    old = make_app(Provider([used(60, 6)], slow), store)
    task = asyncio.create_task(play(old.run(new_run(budget_limits=(budget(),)))))
    await soon(slow.reached)
    clock.advance(100)
    new = make_app(Provider([used(70, 7)], held), store)
    await decide(new, RecoveryAction.MODEL_MARK_INTERRUPTED)
    resumed = asyncio.create_task(play(new.resume(next_turn(budget_limits=(budget(),)))))
    await soon(held.reached)
    slow.open()
    with pytest.raises(SessionRunFenced):
        await task
    assert (await stands(new))[1] == WANTED, "the successor's reservation stands while it asks its provider"
    held.open()
    await resumed
    spent, reserved = await stands(new)
    assert (spent in (77, 77 + 66), reserved) == (True, 0), "the answer that counts is charged"


async def test_a_run_that_was_taken_over_leaves_no_reservation_behind() -> None:
    clock = FakeClock()
    store = InMemorySessionStore(clock=clock)
    slow = Gate()
    old = make_app(Provider([used(60, 6)], count=slow), store)
    task = asyncio.create_task(play(old.run(new_run(budget_limits=(budget(),)))))
    await soon(slow.reached)
    clock.advance(100)
    new = make_app(Provider([used(70, 7)]), store)
    await play(new.recover_incomplete_session(SESSION))
    assert (await status_of(new), await assert_books(new)) == ("completed", 77)
    slow.open()
    with pytest.raises(SessionRunFenced):
        await task
    assert await assert_books(new) == 77


async def test_a_recovery_holds_the_session_before_it_gives_anything_back() -> None:
    clock = FakeClock()
    store = InMemorySessionStore(clock=clock)
    ledger = Ledger(DocumentBudgetLedger(store))
    lost_at("reserve", ledger)
    first = make_app(Provider(["unused"]), store, budget_ledger=ledger)
    with pytest.raises(StoreFull):
        await play(first.run(new_run(budget_limits=(budget(),))))
    late = Gate()
    ledger.before = late
    slow = asyncio.create_task(play(first.recover_incomplete_session(SESSION)))
    await soon(late.reached)
    other = make_app(Provider([used(70, 7)]), store)
    with pytest.raises(SessionRunning):
        await play(other.recover_incomplete_session(SESSION))
    ledger.before = None
    late.open()
    await slow
    assert (await status_of(other), await assert_books(other)) == ("completed", WANTED)


# Two ledgers for one application.


async def test_an_application_may_keep_its_budgets_apart_from_its_sessions(tmp_path: Path) -> None:
    store, ledger = SQLiteSessionStore(tmp_path / "s.db"), SQLiteBudgetLedger(tmp_path / "b.db")
    async with make_app(Provider([used(60, 6)]), store, budget_ledger=ledger) as app:
        await play(app.run(new_run(budget_limits=(budget(),))))
        assert await DocumentBudgetLedger(store).account(B) == await InMemoryBudgetLedger().account(B)
    reopened = SQLiteBudgetLedger(tmp_path / "b.db")
    account = await reopened.account(B)
    assert Amount(account.spent_tokens, account.spent_cost) == Amount(66)
    await reopened.aclose()
