"""Recall and what goes wrong around it: lost writes, lost processes, takeovers - one receipt, one exposure per step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from runtime import recall_scenarios as scenarios
from runtime.recall_scenarios import BUDGET, QUESTION, RECALL
from runtime.recall_support import Agent, Looking, asking, going_on, shelf, texts
from runtime.support import (
    SESSION,
    FakeClock,
    FakeTool,
    StoreProxy,
    assert_consistent,
    calls,
    has,
    log_of,
    logged,
    play,
    status_of,
)

from cayu import CayuApp
from cayu.errors import SessionNeedsRecovery, SessionRunFenced, StoreBusy, StoreFull, StoreOutcomeUnknown
from cayu.events import EventType as E
from cayu.knowledge import KnowledgeQuery
from cayu.recall import MemoryAttributionBounds, attribute
from cayu.runtime.outcome import session_view
from cayu.sessions import (
    BlockerCode,
    RecoveryAction,
    RecoveryDecision,
    RecoveryExecutionRequest,
    RecoveryPlanRequest,
)
from cayu.sessions.streams import Unit
from cayu.storage import InMemorySessionStore
from cayu.testing import run_child

SCENARIOS = str(Path(scenarios.__file__))
UNKNOWN = (BlockerCode.MODEL_EFFECT_OUTCOME_UNKNOWN,)


def losing(type: str, step: int = 1) -> StoreProxy:
    """A store that is full when the n-th write with that event comes, until it is told otherwise."""
    left = [step]

    async def lose(unit: Unit) -> None:
        if has(unit, type):
            left[0] -= 1
            if left[0] <= 0:
                raise StoreFull(path="disk")

    return StoreProxy(InMemorySessionStore(), before=lose)


async def assert_told_once(app: CayuApp, steps: int) -> None:
    """One receipt, and one start and one exposure for each step."""
    assert [receipt["recall"] for receipt in await logged(app, E.RECALL_COMPLETED)] == [1]
    for type in (E.EXPOSURE_RECORDED, E.MODEL_STARTED):
        assert [each["step"] for each in await logged(app, type)] == list(range(1, steps + 1)), type
    found = attribute((await log_of(app)).records, b"k" * 32, MemoryAttributionBounds())
    assert (found.status, found.observed_receipts, found.observed_exposures) == ("complete", 1, steps)
    await assert_consistent(app)


async def blockers(app: CayuApp) -> tuple[BlockerCode, ...]:
    [item] = (await app.plan_recovery(RecoveryPlanRequest(session_ids=(SESSION,)))).items
    return item.blocker_codes


async def mark_failed(app: CayuApp) -> None:
    plan = await app.plan_recovery(RecoveryPlanRequest(session_ids=(SESSION,)))
    decision = RecoveryDecision(session_id=SESSION, action=RecoveryAction.MODEL_MARK_FAILED)
    await app.execute_recovery(RecoveryExecutionRequest(plan=plan, execution_id="x", decisions=(decision,)))
    assert await status_of(app) == "failed"


# Lost between the start and the answer.


@pytest.mark.parametrize("step", [1, 2])
async def test_a_hermetic_step_that_was_lost_is_repeated_with_the_same_memory(step: int) -> None:
    store, knowledge = losing(E.MODEL_COMPLETED, step), await shelf()
    provider = Looking([calls("look"), "done"], store)
    app = Agent(knowledge, provider=provider, tools=[FakeTool("look")]).app(store)
    with pytest.raises(StoreFull):
        await play(app.run(asking()))
    assert (await session_view(app, SESSION)).model_in_flight
    store.before = None
    await knowledge.rewrite("room", "It is five now, in the cold room.")
    assert await blockers(app) == ()
    await play(app.recover_incomplete_session(SESSION))
    assert await status_of(app) == "completed"
    await assert_told_once(app, 2)
    assert len(knowledge.queries) == 1
    assert len(provider.requests) == 3
    assert len({tuple(texts(request)) for request in provider.requests}) == 1


@pytest.mark.parametrize(
    ("hermetic", "budgets", "policy", "question", "unknown"),
    [
        (True, False, RECALL, QUESTION, False),
        (True, True, RECALL, QUESTION, True),
        (True, True, None, QUESTION, True),
        (False, False, RECALL, QUESTION, True),
        (False, True, RECALL, QUESTION, True),
        (False, False, RECALL, "Who won?", True),
        (False, False, RECALL.switched_off(), QUESTION, False),
        (False, False, None, QUESTION, False),
    ],
)
async def test_whether_a_lost_step_may_be_repeated(
    hermetic: bool, budgets: bool, policy: Any, question: str, unknown: bool
) -> None:
    """What has made the start durable - a reservation, a receipt - makes the step one of which something is known."""
    store = losing(E.MODEL_COMPLETED)
    provider = Looking(["done"], store, hermetic=hermetic)
    app = Agent(await shelf(), provider=provider, recall=policy).app(store)
    limits = (BUDGET,) if budgets else ()
    with pytest.raises(StoreFull):
        await play(app.run(asking(question, budget_limits=limits)))
    store.before = None
    held = (await session_view(app, SESSION)).reservations
    assert (len(held), await blockers(app)) == (int(budgets), UNKNOWN if unknown else ())
    if not unknown:
        await play(app.recover_incomplete_session(SESSION))
        assert (await status_of(app), len(provider.requests)) == ("completed", 2)
        return
    for entry in (app.recover_incomplete_session(SESSION), app.resume(going_on())):
        with pytest.raises(SessionNeedsRecovery):
            await play(entry)
    assert len(provider.requests) == 1, "nobody was asked again"
    await mark_failed(app)
    assert (await app.services.ledger.account("shared")).reservations == ()
    await play(app.resume(going_on(question, budget_limits=limits)))
    assert await status_of(app) == "completed"
    await assert_consistent(app)


async def test_a_later_step_without_memory_is_repeated_though_the_first_had_a_receipt() -> None:
    store = losing(E.MODEL_COMPLETED, 2)
    provider = Looking([calls("look"), "done"], store, hermetic=False)
    app = Agent(await shelf(), provider=provider, tools=[FakeTool("look")]).app(store)
    with pytest.raises(StoreFull):
        await play(app.run(asking("Who won?")))
    store.before = None
    assert await blockers(app) == ()
    await play(app.recover_incomplete_session(SESSION))
    assert await status_of(app) == "completed"


# The commit itself.


@pytest.mark.parametrize("budgets", [False, True])
async def test_a_commit_that_never_came_is_recalled_for_again(budgets: bool) -> None:
    store, knowledge = losing(E.MODEL_STARTED), await shelf()
    provider = Looking(["done"], store)
    app = Agent(knowledge, provider=provider).app(store)
    with pytest.raises(StoreFull):
        await play(app.run(asking(budget_limits=(BUDGET,) if budgets else ())))
    assert [record.type for record in (await log_of(app)).records] == [E.SESSION_STARTED]
    assert provider.requests == []
    store.before = None
    await play(app.recover_incomplete_session(SESSION))
    assert (await status_of(app), len(knowledge.queries)) == ("completed", 2)
    await assert_told_once(app, 1)
    assert (await app.services.ledger.account("shared")).reservations == ()


@pytest.mark.parametrize("written", [False, True])
async def test_a_commit_that_is_not_acknowledged_is_written_once(written: bool) -> None:
    error = [StoreOutcomeUnknown(path="disk") if written else StoreBusy(path="disk")]

    async def trouble(unit: Unit) -> None:
        if has(unit, E.RECALL_COMPLETED) and error:
            raise error.pop()

    store = StoreProxy(InMemorySessionStore(), **{"after" if written else "before": trouble})
    knowledge = await shelf()
    app = Agent(knowledge).app(store)
    await play(app.run(asking()))
    assert (await status_of(app), len(knowledge.queries), error) == ("completed", 1, [])
    await assert_told_once(app, 1)


async def test_a_budget_that_refuses_leaves_no_receipt_and_the_next_run_recalls() -> None:
    knowledge = await shelf()
    provider = Looking(["done"], InMemorySessionStore())
    app = Agent(knowledge, provider=provider).app()
    small = BUDGET.model_copy(update={"max_tokens": 10})
    await play(app.run(asking(budget_limits=(small,))))
    assert (await status_of(app), provider.requests) == ("interrupted", [])
    assert await logged(app, E.RECALL_COMPLETED) == await logged(app, E.EXPOSURE_RECORDED) == []
    await play(app.resume(going_on()))
    await assert_told_once(app, 1)


# An owner that was taken over.


async def test_an_owner_that_is_taken_over_while_it_recalls_writes_nothing() -> None:
    clock, entered, go_on = FakeClock(), asyncio.Event(), asyncio.Event()

    async def wait(query: KnowledgeQuery) -> None:
        entered.set()
        await go_on.wait()

    store, knowledge = InMemorySessionStore(clock=clock), await shelf()
    slow = Agent(await shelf(before=wait)).app(store)
    running = asyncio.create_task(play(slow.run(asking())))
    await entered.wait()
    clock.advance(100)
    app = Agent(knowledge).app(store)
    await play(app.recover_incomplete_session(SESSION))
    go_on.set()
    with pytest.raises(SessionRunFenced):
        await running
    assert (await status_of(app), len(knowledge.queries)) == ("completed", 1)
    await assert_told_once(app, 1)


# Real processes.


BEFORE_MEMORY = ("session.created", "commit.prepared:3")
WITH_MEMORY = ("commit.durable:3", "model.answered", "round.closed", "commit.prepared:6", "commit.durable:6")
"""Where a run can die: the third commit is that of the first step's memory, the sixth that of the second's."""


@pytest.mark.slow
@pytest.mark.parametrize("point", [*BEFORE_MEMORY, *WITH_MEMORY, "model.answered:2"])
async def test_a_killed_hermetic_run_goes_on_with_one_receipt(point: str, tmp_path: Path) -> None:
    await scenarios.fill(tmp_path)
    child = run_child(f"{SCENARIOS}:run", [str(tmp_path), True, False], crash_at=point)
    assert child.killed, child.stderr
    async with scenarios.build(tmp_path) as app:
        before = await logged(app, E.RECALL_COMPLETED)
        assert len(before) == (point not in BEFORE_MEMORY)
        await play(app.recover_incomplete_session(SESSION))
        assert await status_of(app) == "completed"
        assert (await logged(app, E.RECALL_COMPLETED))[: len(before)] == before
        await assert_told_once(app, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("hermetic", "budgets"), [(True, True), (False, False)])
async def test_a_killed_step_of_which_something_is_known_waits_for_an_operator(
    hermetic: bool, budgets: bool, tmp_path: Path
) -> None:
    await scenarios.fill(tmp_path)
    child = run_child(f"{SCENARIOS}:run", [str(tmp_path), hermetic, budgets], crash_at="model.answered")
    assert child.killed, child.stderr
    async with scenarios.build(tmp_path, hermetic=hermetic) as app:
        with pytest.raises(SessionNeedsRecovery):
            await play(app.recover_incomplete_session(SESSION))
        assert await blockers(app) == UNKNOWN
        await mark_failed(app)
        await play(app.resume(going_on()))
        assert await status_of(app) == "completed"
        assert [receipt["recall"] for receipt in await logged(app, E.RECALL_COMPLETED)] == [1, 2]
        await assert_consistent(app)
