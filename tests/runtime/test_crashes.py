"""A process dies at every named crash point, in every shape of a round; a new one takes over, and repeats nothing.

The death is SIGKILL of a real process over a SQLite file; over a store in memory, which would die with its process, it
is a store that from the n-th write on answers nobody any more. What holds afterwards is the same for both.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runtime import crash_scenarios as scenarios
from runtime.support import StoreProxy, assert_consistent

from cayu.crashpoints import CRASH_POINTS
from cayu.effects import MAX_ATTEMPTS, ToolEffect
from cayu.errors import SessionNotFound
from cayu.messages import Message
from cayu.runtime import CayuApp
from cayu.runtime.outcome import session_view
from cayu.sessions import CallState
from cayu.sessions.streams import HeadQuery, SessionStore
from cayu.sessions.texts import LOST, SETTLED, UNEXECUTED
from cayu.sessions.view import CallView, SessionView
from cayu.storage import InMemorySessionStore
from cayu.testing import Child, run_child

SCENARIOS = str(Path(scenarios.__file__))
EFFECTS = ("none", "idempotent", "external")


def at(names: str) -> tuple[str, ...]:
    """The points that a line of words names; `name*3` stands for its first three times, `name*2-3` for two of them."""
    points = []
    for word in names.split():
        name, _, times = word.partition("*")
        first, _, last = times.rpartition("-")
        points += [f"{name}:{n}" for n in range(int(first or 1), int(last or 1) + 1)]
    return tuple(points)


ROUND = "round.opened tool.dispatched*2 tool.returned*2 result.staged round.closing round.closed"
ENDING = "model.answered*2 session.closing session.closed"
RUNS = {
    "serial": at(f"session.created {ROUND} {ENDING} commit.prepared*6 commit.durable*6"),
    "parallel": at(f"session.created {ROUND} {ENDING} commit.prepared*3-5 commit.durable*4-4"),
    "approved": at("session.created model.answered session.paused commit.prepared*3-3 commit.durable*2-3"),
    "child": at(
        "session.created*2 model.answered*4 round.opened*2 tool.dispatched*3 tool.returned*3 result.staged"
        " round.closing*2 round.closed*2 session.closing*2 session.closed*2 commit.prepared*4-10 commit.durable*7-8"
    ),
}
"""Where a run can die, by shape: every named point that it passes, each time that it passes; the first of the commits
makes the tables."""
CONTINUATION = at(
    "decision.recorded round.continued tool.dispatched*2 tool.returned*2 result.staged round.closing round.closed"
    " model.answered session.closing session.closed commit.prepared*5 commit.durable*5"
)
"""Where the work that follows approvals can die."""
RECOVERY = at(
    "round.continued tool.dispatched*2 tool.returned*2 result.staged round.closing round.closed model.answered"
    " session.closing session.closed commit.prepared*4 commit.durable*4"
)
"""Where the recovery of a round of which two calls are replayed can die."""
RECOVERY_OF_A_TREE = at(
    "round.continued*2 tool.dispatched*3 tool.returned*2 result.staged round.closing commit.prepared*5 commit.durable*4"
)
"""Where the recovery of a parent can die whose child comes to a call of which nobody knows whether it acted."""
EXECUTION = at("round.closed model.answered session.closing session.closed commit.prepared*3 commit.durable*3")
"""Where the execution of a plan that settles the last unknown call can die; its first commit binds the execution id."""


def test_every_named_point_is_crashed_at_somewhere() -> None:
    named = {point.partition(":")[0] for points in (*RUNS.values(), CONTINUATION) for point in points}
    trials = ("materialization.", "overlay.", "trial.")  # where executions of trials die, beside the tests of those
    assert named == {name for name in CRASH_POINTS if not name.startswith(trials)}


# Real processes over a file.


@pytest.mark.slow
@pytest.mark.requirement("A003", "A050")
@pytest.mark.parametrize(("shape", "point"), [(shape, point) for shape, points in RUNS.items() for point in points])
async def test_a_run_survives(shape: str, point: str, tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    await _killed("run", folders, shape, point)
    for folder, effect in folders.items():
        async with scenarios.build(folder, effect, shape) as app:
            await _recovered(app, folder, effect, shape)


@pytest.mark.slow
@pytest.mark.parametrize("point", CONTINUATION)
async def test_an_approved_continuation_survives(point: str, tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    for folder, effect in folders.items():
        async with scenarios.build(folder, effect, "approved") as app:
            assert await scenarios.begin(app) == "interrupted"
    await _killed("approve_all", folders, "approved", point)
    for folder, effect in folders.items():
        async with scenarios.build(folder, effect, "approved") as app:
            await _recovered(app, folder, effect, "approved")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("effect", "shape", "lost_at", "points"),
    [
        ("idempotent", "parallel", "tool.dispatched:2", RECOVERY),
        ("mixed", "child", "tool.dispatched:4", RECOVERY_OF_A_TREE),
    ],
    ids=["parallel", "child"],
)
async def test_a_recovery_that_dies_is_recovered(
    effect: str, shape: str, lost_at: str, points: tuple[str, ...], tmp_path: Path
) -> None:
    """What is replayed has no third attempt, and what is external not even a second; at each point of a recovery."""
    lost = tmp_path / "lost"
    lost.mkdir()
    await _killed("run", {lost: effect}, shape, lost_at)
    await _each_way("recover_all", lost, effect, shape, points)


@pytest.mark.slow
async def test_an_execution_of_a_plan_that_dies_is_repeated(tmp_path: Path) -> None:
    """The third process repeats the very request of the second: nothing is settled twice, or otherwise."""
    lost = tmp_path / "lost"
    lost.mkdir()
    await _killed("run", {lost: "external"}, "parallel", "tool.returned:1")
    async with scenarios.build(lost, "external", "parallel") as app:
        await scenarios.recover(app)
    await _each_way("execute_all", lost, "external", "parallel", EXECUTION)


async def _each_way(name: str, lost: Path, effect: str, shape: str, points: tuple[str, ...]) -> None:
    """Let one child per point go on with a copy of what was lost, and die there; then take each over."""
    for some in (points[start : start + 4] for start in range(0, len(points), 4)):
        folders = {point: lost.parent / point.replace(":", "-") for point in some}
        for folder in folders.values():
            shutil.copytree(lost, folder)
        await asyncio.gather(*(_killed(name, {folder: effect}, shape, point) for point, folder in folders.items()))
        for folder in folders.values():
            async with scenarios.build(folder, effect, shape) as app:
                await _recovered(app, folder, effect, shape)


def _folders(home: Path) -> dict[Path, str]:
    """A folder for each effect."""
    folders = {home / effect: effect for effect in EFFECTS}
    for folder in folders:
        folder.mkdir()
    return folders


async def _killed(name: str, folders: dict[Path, str], shape: str, point: str) -> None:
    """Let one child per folder do something, all at once, and see each die at a point."""

    def start(folder: Path, effect: str) -> Child:
        return run_child(f"{SCENARIOS}:{name}", [str(folder), effect, shape], crash_at=point)

    for child in await asyncio.gather(*(asyncio.to_thread(start, *each) for each in folders.items())):
        assert child.killed, f"it has not come to {point}: {child.stderr}"


# The loss of an owner over a store that stays.


class Died(BaseException):
    """The process is no more."""


class DyingStore(StoreProxy):
    """From its n-th append on, which is written or is not, it answers nobody any more."""

    def __init__(self, inner: SessionStore, number: int, written: bool) -> None:
        super().__init__(inner)
        self._left, self._written = number, written

    @property
    def dead(self) -> bool:
        return self._left <= 0

    async def append(self, unit: Any) -> Any:
        self._left -= 1
        if self._left > 0 or (self._left == 0 and self._written):
            answer = await self.inner.append(unit)
            if not self.dead:
                return answer
        raise Died

    async def load(self, stream: str, after: int = 0) -> Any:
        return await self._answer(self.inner.load(stream, after))

    async def renew(self, *args: Any) -> Any:
        return await self._answer(self.inner.renew(*args))

    async def transact(self, *args: Any) -> Any:
        return await self._answer(self.inner.transact(*args))

    async def _answer(self, asked: Any) -> Any:
        if self.dead:
            asked.close()
            raise Died
        return await asked


Life = tuple[int, bool]
"""At which write a life ends, and whether that one is written."""


async def _live(life: Life, store: SessionStore, folder: Path, effect: str, shape: str, act: Any) -> bool:
    """Let an application do something until its store dies; False when it has come to its end before."""
    dying = DyingStore(store, *life)
    app = scenarios.build(folder, effect, shape, dying)  # type: ignore[arg-type]
    try:
        await act(app)
    except Died:
        await asyncio.sleep(0)  # whatever it had begun comes to nothing now
        return True
    return dying.dead


def _ways(most: int) -> list[Life]:
    return list(itertools.product(range(1, most + 1), (False, True)))


MOST_WRITES = {"serial": 5, "parallel": 5, "approved": 5, "child": 9}


@pytest.mark.parametrize("effect", [*(pytest.param(effect, marks=pytest.mark.slow) for effect in EFFECTS), "mixed"])
@pytest.mark.parametrize("shape", list(RUNS))
async def test_an_owner_that_is_lost_at_any_write(shape: str, effect: str, tmp_path: Path) -> None:
    died = 0
    for number, life in enumerate(_ways(12)):
        folder = tmp_path / str(number)
        folder.mkdir()
        store = InMemorySessionStore()
        if shape == "approved":
            await scenarios.begin(scenarios.build(folder, effect, shape, store))
        first = scenarios.approve if shape == "approved" else scenarios.begin
        died += await _live(life, store, folder, effect, shape, first)
        await _recovered(scenarios.build(folder, effect, shape, store), folder, effect, shape)
    extra = len(scenarios.SCRIPTS[effect]) - 2  # a call more is a write more, and a decision more
    assert died == 2 * (MOST_WRITES[shape] + extra * (2 if shape == "approved" else 1))


@pytest.mark.slow
@pytest.mark.parametrize("shape", list(RUNS))
async def test_an_owner_that_is_lost_at_any_write_of_the_recovery_too(shape: str, tmp_path: Path) -> None:
    twice = 0
    for first, written in _ways(20):
        for second, again in _ways(20):
            folder = tmp_path / f"{first}{written}{second}{again}"
            folder.mkdir()
            store = InMemorySessionStore()
            if shape == "approved":
                await scenarios.begin(scenarios.build(folder, "mixed", shape, store))
            act = scenarios.approve if shape == "approved" else scenarios.begin
            if not await _live((first, written), store, folder, "mixed", shape, act):
                assert twice > 20
                return
            died = await _live((second, again), store, folder, "mixed", shape, scenarios.recover)
            await _recovered(scenarios.build(folder, "mixed", shape, store), folder, "mixed", shape)
            shutil.rmtree(folder)
            if not died:
                break
            twice += 1


async def test_a_call_that_never_began_does_not_begin_once_its_round_is_settled(tmp_path: Path) -> None:
    """The first of two calls is lost after it has acted; the second closes unexecuted, as in any other recovery."""
    store = InMemorySessionStore()
    assert await _live((3, False), store, tmp_path, "external", "serial", scenarios.begin)
    app = scenarios.build(tmp_path, "external", "serial", store)
    await scenarios.recover(app)
    await scenarios.settle(app, tmp_path)
    view = await assert_consistent(app, scenarios.SESSION)
    assert view.status == "completed"
    assert [line.split()[1] for line in scenarios.acts(tmp_path)] == ["0"]
    assert [call.code for call in view.rounds[0].calls] == [None, "not_started"]


# What holds whatever happened.


@dataclass(frozen=True)
class Found:
    """The session that makes the calls, as a new process finds it."""

    view: SessionView
    acted: frozenset[int]
    """The calls, by number, that the world outside knew of."""


async def _recovered(app: CayuApp, folder: Path, effect: str, shape: str) -> None:
    """Take everything over as an operator would, and hold it against a run that nothing has happened to."""
    try:
        await session_view(app, scenarios.SESSION)
    except SessionNotFound:
        assert not scenarios.acts(folder), "a session that was never durable has acted"
        await scenarios.begin(app)
    name = await scenarios.acting_session(app, shape)
    found = await _find(app, folder, name) if name is not None else None
    await scenarios.recover(app)
    await scenarios.approve(app)
    await _check_unsettled(app, effect, shape)
    await scenarios.settle(app, folder)
    await _check_ends(app)
    _check_acts(folder, effect)
    plain = await _plain(effect, shape)
    name = await scenarios.acting_session(app, shape)
    if shape == "child":
        await _check_boss(app, effect, name, plain[0])
    if name is not None:
        view = await session_view(app, name)
        results = [_expected(call, found, _acted(folder)) for call in view.rounds[0].calls]
        assert _told(view) == _with_results(plain[-1], results)
        assert [call.name for call in view.rounds[0].calls] == [f"act_{kind}" for kind in scenarios.SCRIPTS[effect]]
        assert view.model_steps == 2


async def _check_boss(app: CayuApp, effect: str, worker: str | None, plain: list[Any]) -> None:
    """The boss has read what its worker said, or that it needs a human; or, after two deaths, what was settled."""
    boss = await session_view(app, scenarios.SESSION)
    [asked] = boss.rounds[0].calls
    if worker is None:
        read = (SETTLED["failed"], True)
        assert asked.attempt == MAX_ATTEMPTS
    elif effect in ("external", "mixed") and asked.answer is not None and asked.answer.is_error:
        read = (f"The child session {worker} is interrupted: manual recovery.", True)
    else:
        read = (scenarios.ANSWER, False)
    assert _told(boss) == _with_results(plain, [read])


async def _find(app: CayuApp, folder: Path, name: str) -> Found:
    view = await session_view(app, name)
    started = sum(call.attempt for opened in view.rounds for call in opened.calls)
    assert len(scenarios.acts(folder)) <= started, "a call has acted whose start is not durable"
    return Found(view, _acted(folder))


def _acted(folder: Path) -> frozenset[int]:
    return frozenset(int(line.split()[1]) for line in scenarios.acts(folder))


async def _check_unsettled(app: CayuApp, effect: str, shape: str) -> None:
    """Nothing is at work, and a call of which nothing is known is told as such: it has neither result nor end."""
    for head in (await app.session_store.heads(HeadQuery())).rows:
        view = await assert_consistent(app, head.row.id)
        assert head.state.owner is None
        unknown = view.open_round.unknown if view.open_round else []
        assert (head.state.status == "interrupted") == bool(unknown)
        for call in unknown:
            assert call.result is None
            assert call.effect is ToolEffect.EXTERNAL or call.attempt == MAX_ATTEMPTS
        assert not unknown or effect != "none" or shape == "child"


async def _check_ends(app: CayuApp) -> None:
    for head in (await app.session_store.heads(HeadQuery())).rows:
        view = await assert_consistent(app, head.row.id)
        assert (view.status, view.final_text) == ("completed", scenarios.ANSWER)
        assert head.state.owner is None
        assert len(view.rounds) == 1
        assert view.tool_calls == sum(call.attempt > 0 for call in view.rounds[0].calls)


def _check_acts(folder: Path, effect: str) -> None:
    acts = Counter(scenarios.acts(folder))
    script = scenarios.SCRIPTS[effect]
    assert len(acts) == len({line.split()[1] for line in acts}), "a call has acted under two keys"
    for line, times in acts.items():
        most = 1 if script[int(line.split()[1])] == "external" else MAX_ATTEMPTS
        assert times <= most, f"call {line} has acted {times} times"
    receipts = scenarios.ReceiptBook(folder / "receipts.db").all()
    assert sorted(detail for _, detail in receipts) == sorted(line.split()[1] for line in acts), "one receipt per key"


def _expected(call: CallView, found: Found | None, acted: frozenset[int]) -> tuple[str, bool]:
    """Say what the model must have read of a call, from what was found and from what the world outside knows."""
    n = call.arguments["n"]
    did = (scenarios.returned(n), False)
    opened = found.view.rounds[0] if found is not None and found.view.rounds else None
    if found is None or opened is None:
        return did
    before = opened.call(call.id)
    if before.result is not None:
        return before.result.content, before.result.is_error
    unknown = before.effect is not ToolEffect.NONE and before.state in (CallState.STARTED, CallState.UNKNOWN)
    if unknown and (before.effect is ToolEffect.EXTERNAL or before.attempt == MAX_ATTEMPTS):
        return did if n in found.acted else (SETTLED["failed"], True)
    if before.state == CallState.STARTED:
        return did if before.attempt < MAX_ATTEMPTS else (LOST, True)
    waits = found.view.status == "interrupted"
    if before.state in (CallState.PROPOSED, CallState.APPROVED, CallState.FAILED) and n not in acted:
        assert not waits or any(other.attempt for other in opened.calls)
        return UNEXECUTED["not_started"], True
    return did


_plain_runs: dict[tuple[str, str], list[list[Any]]] = {}
_PLAIN = tempfile.TemporaryDirectory(prefix="plain-runs-")


async def _plain(effect: str, shape: str) -> list[list[Any]]:
    """What is told in a run that nothing happens to: by the boss, if there is one, and by who makes the calls."""
    if (effect, shape) not in _plain_runs:
        folder = Path(_PLAIN.name) / f"{effect}-{shape}"
        folder.mkdir()
        app = scenarios.build(folder, effect, shape, InMemorySessionStore())
        await scenarios.begin(app)
        await scenarios.approve(app)
        names = dict.fromkeys([scenarios.SESSION, await scenarios.acting_session(app, shape)])
        views = [await session_view(app, str(name)) for name in names]
        assert {view.status for view in views} == {"completed"}
        _plain_runs[effect, shape] = [_told(view) for view in views]
    return _plain_runs[effect, shape]


def _told(view: SessionView) -> list[Any]:
    return [_message(message) for message in view.transcript]


def _message(message: Message) -> Any:
    if message.role == "tool":
        return ["tool", [(part.name, part.content, part.is_error) for part in message.content]]  # type: ignore[union-attr]
    return [message.role, message.plain_text, [(call.name, call.arguments) for call in message.tool_calls]]


def _with_results(told: list[Any], results: list[tuple[str, bool]]) -> list[Any]:
    """The same transcript with other results in its one round."""
    found = []
    for message in told:
        if message[0] == "tool":
            names = [name for name, _, _ in message[1]]
            message = ["tool", [(name, *result) for name, result in zip(names, results, strict=True)]]
        found.append(message)
    return found
