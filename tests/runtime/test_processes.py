"""Several processes on one SQLite file: nothing is lost, one decides, and a process that slept too long is fenced."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cayu import (
    AgentSpec,
    CayuApp,
    ExecutionProfileBehaviorIdentity,
    Message,
    ResumeRequest,
    RunRequest,
    RuntimeConfig,
    SQLiteSessionStore,
    Tool,
    ToolContext,
    ToolEffect,
    ToolResult,
    ToolSpec,
    run_to_completion,
)
from cayu.approvals import ToolApprovalDecision, ToolApprovalRequest
from cayu.canonical import loads
from cayu.errors import CayuError, SessionRunning
from cayu.examples.receipts import ReceiptBook
from cayu.providers import ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.runtime.outcome import outcome_of
from cayu.sessions.requests import ResolutionActor
from cayu.testing import run_child
from cayu.tools import AllowAllToolPolicy, AlwaysRequireApprovalToolPolicy

HERE = str(Path(__file__))
SESSIONS = 25
ROUNDS = 6
LEASE_SECONDS = 1.5


# The application, the same in every process.


class Acting(Tool):
    """Acts once per key, leaves a trace of who acted for which session, and takes its time afterwards."""

    def __init__(self, folder: Path, who: str, effect: str, rest: float) -> None:
        self._folder, self._who, self._rest = folder, who, rest
        self._book = ReceiptBook(folder / "receipts.db")
        self.spec = ToolSpec(
            name="act",
            description="Act.",
            input_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
            effect=ToolEffect(effect),
            parallel_safe=False,
            execution_profile_identity=ExecutionProfileBehaviorIdentity(
                name="act", behavior_version="1", implementation_version="1"
            ),
        )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Act, say so to whoever started this process, and rest."""
        note(self._folder, "acts", f"{self._who} {ctx.session_id} {args['n']}")
        number = await asyncio.to_thread(self._book.issue, ctx.idempotency_key, f"{ctx.session_id} {args['n']}")
        print("acted", flush=True)
        await asyncio.sleep(self._rest)
        return ToolResult(content=f"receipt {number}")


class SlowModel(ScriptedModelProvider):
    """A scripted model that thinks before it answers."""

    def __init__(self, batches: Sequence[Any], thinks: float) -> None:
        super().__init__(batches)
        self._thinks = thinks

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        """Say that it thinks, think, and play the batch."""
        if self._thinks:
            print("thinking", flush=True)
            await asyncio.sleep(self._thinks)
        async for event in super().stream(request):
            yield event


def note(folder: Path, name: str, line: str) -> None:
    """Append a line to a file, as one write."""
    with open(folder / f"{name}.txt", "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def notes(folder: Path, name: str) -> list[str]:
    path = folder / f"{name}.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def build(
    folder: Path,
    who: str = "parent",
    *,
    asks: bool = False,
    effect: str = "idempotent",
    calls: int = 1,
    rest: float = 0.0,
    thinks: float = 0.0,
) -> CayuApp:
    """Return the application; `rest` and `thinks` are seconds by which tool and model are slow."""
    asked = [ModelStreamEvent.tool_call("act", {"n": n}, id=f"c{n}") for n in range(calls)]
    config = RuntimeConfig(lease_seconds=LEASE_SECONDS, renew_after_seconds=0.3, cancel_grace_seconds=0.05)
    app = CayuApp(session_store=SQLiteSessionStore(folder / "runs.db"), config=config)
    app.register_provider(SlowModel([asked, "done", asked, "done again"], thinks))
    policy = AlwaysRequireApprovalToolPolicy() if asks else AllowAllToolPolicy()
    app.register_agent(
        AgentSpec(name="actor", model="m"), tools=[Acting(folder, who, effect, rest)], tool_policy=policy
    )
    return app


def said(text: str = "go") -> tuple[Message, ...]:
    return (Message.text("user", text),)


def meet(folder: Path, name: str, parties: int = 2) -> None:
    """Wait until all parties are here."""
    (folder / f"{name}.{os.getpid()}").touch()
    deadline = time.monotonic() + 30
    while len(list(folder.glob(f"{name}.*"))) < parties:
        if time.monotonic() > deadline:
            raise TimeoutError(name)
        time.sleep(0.0005)


# What the children do.


async def run_many(folder: str, who: str) -> list[str]:
    """Run many sessions at once, from the moment at which the other process does."""
    home = Path(folder)
    app = build(home, who)
    meet(home, "start")
    async with app:
        requests = [RunRequest(agent_name="actor", session_id=f"{who}-{n}", messages=said()) for n in range(SESSIONS)]
        outcomes = await asyncio.gather(*(run_to_completion(app, request) for request in requests))
        return [str(outcome.status) for outcome in outcomes]


async def race(folder: str, who: str, what: str) -> list[str]:
    """Do something to each of several sessions at the same moment as the other process; return what came of it."""
    home, found = Path(folder), []
    async with build(home, who, asks=what != "resume", rest=0.3) as app:
        await outcome_of(app, "s0")  # connections are open, modules are loaded
        for number in range(ROUNDS):
            request = await _request(app, f"s{number}", who, what)
            meet(home, f"round{number}")
            try:
                found.append(str((await run_to_completion(app, request)).status))
            except CayuError as error:
                found.append(type(error).__name__)
    return found


async def _request(app: CayuApp, session_id: str, who: str, what: str) -> Any:
    if what == "resume":
        return ResumeRequest(session_id=session_id, messages=said(who))
    view = await outcome_of(app, session_id)
    return ToolApprovalRequest(
        session_id=session_id,
        approval_id=f"{view.tool_calls[0].tool_call_id}.approval",
        decision=ToolApprovalDecision.DENY if what == "deny" else ToolApprovalDecision.APPROVE,
        arguments={"n": 7} if what == "edit" else None,
        resolved_by=ResolutionActor(subject=who),
    )


async def run_slowly(folder: str, options: dict[str, Any]) -> None:
    """Run one session, so slowly that the parent can suspend this process in the middle; say how it ended."""
    ended = "returned"
    async with build(Path(folder), "child", **options) as app:
        try:
            request = RunRequest(agent_name="actor", session_id="s", messages=said())
            ended = str((await run_to_completion(app, request)).status)
        except CayuError as error:
            ended = type(error).__name__
    print(json.dumps({"ended": ended}), flush=True)


# What the parent looks at.


async def log_of(app: CayuApp, session_id: str) -> list[Any]:
    loaded = await app.session_store.load(session_id)
    assert loaded is not None
    return list(loaded.records)


async def assert_dense(app: CayuApp, session_id: str) -> list[Any]:
    records = await log_of(app, session_id)
    assert [record.sequence for record in records] == list(range(1, len(records) + 1))
    return records


def both(name: str, *arguments: Sequence[Any]) -> list[Any]:
    """Run one function in two processes at once and return what both returned."""
    with ThreadPoolExecutor(2) as pool:
        children = list(pool.map(lambda given: run_child(f"{HERE}:{name}", given), arguments))
    return [child.result for child in children]


@pytest.mark.slow
async def test_two_processes_fill_one_file_and_nothing_is_lost(tmp_path: Path) -> None:
    found = both("run_many", [str(tmp_path), "left"], [str(tmp_path), "right"])
    assert found == [["completed"] * SESSIONS] * 2
    names = {f"{who}-{n}" for who in ("left", "right") for n in range(SESSIONS)}
    async with build(tmp_path) as app:
        for name in names:
            records = await assert_dense(app, name)
            assert [record.type for record in records].count("session.completed") == 1
            outcome = await outcome_of(app, name)
            assert (outcome.status, outcome.final_text) == ("completed", "done")
            assert [call.state for call in outcome.tool_calls] == ["completed"]
    receipts = ReceiptBook(tmp_path / "receipts.db").all()
    assert sorted(detail for _, detail in receipts) == sorted(f"{name} 0" for name in names)
    assert len(notes(tmp_path, "acts")) == 2 * SESSIONS
    assert len(list(tmp_path.glob("start.*"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair", [("approve", "deny"), ("approve", "edit"), ("approve", "approve"), ("resume", "resume")]
)
async def test_two_processes_at_one_session_act_once(tmp_path: Path, pair: tuple[str, str]) -> None:
    resuming = pair[0] == "resume"
    async with build(tmp_path, asks=not resuming) as app:
        for number in range(ROUNDS):
            request = RunRequest(agent_name="actor", session_id=f"s{number}", messages=said())
            assert (await run_to_completion(app, request)).status == ("completed" if resuming else "interrupted")
    earlier = len(notes(tmp_path, "acts"))
    found = both("race", [str(tmp_path), "left", pair[0]], [str(tmp_path), "right", pair[1]])
    acts = notes(tmp_path, "acts")[earlier:]
    winners = []
    async with build(tmp_path, asks=not resuming) as app:
        for number, ends in enumerate(zip(*found, strict=True)):
            records = await assert_dense(app, f"s{number}")
            outcome = await outcome_of(app, f"s{number}")
            assert outcome.status == "completed"
            mine = [line.split()[0] for line in acts if line.split()[1] == f"s{number}"]
            if resuming:
                assert sorted(ends) == ["SessionRunning", "completed"], f"round {number}: {ends}"
                assert mine == [("left", "right")[ends.index("completed")]]
                assert [record.type for record in records].count("session.resumed") == 1
                winners.append(mine[0])
                continue
            kinds = ("tool.call.approved", "tool.call.approval_denied")
            (decision,) = [record for record in records if record.type in kinds]
            decided = loads(decision.body)
            winner = decided["resolved_by"]["subject"]
            winners.append(winner)
            position = ("left", "right").index(winner)
            assert ends[position] == "completed"
            if pair == ("approve", "approve"):  # an exact repeat is no second decision, and does nothing
                assert ends[1 - position] in ("completed", "running", "interrupting", "SessionRunning")
            else:
                assert ends[1 - position] == "AlreadyDecided"
            assert mine == ([] if pair[position] == "deny" else [winner])
            assert [call.arguments for call in outcome.tool_calls] == [{"n": 7 if pair[position] == "edit" else 0}]
    print(f"{pair}: {winners}")
    assert len(ReceiptBook(tmp_path / "receipts.db").all()) == len(notes(tmp_path, "acts"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "at", "acted_by_child"),
    [
        ({"effect": "idempotent", "calls": 2, "rest": 0.8}, "acted", ["0"]),
        ({"effect": "none", "calls": 2, "rest": 0.8}, "acted", ["0"]),
        ({"effect": "external", "calls": 2, "rest": 0.8}, "acted", ["0"]),
        ({"effect": "idempotent", "calls": 2, "thinks": 0.8}, "thinking", []),
    ],
    ids=["idempotent", "none", "external", "model"],
)
async def test_a_suspended_process_is_fenced_when_it_wakes(
    tmp_path: Path, options: dict[str, Any], at: str, acted_by_child: list[str]
) -> None:
    command = [sys.executable, HERE, str(tmp_path), json.dumps(options)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == f"{at}\n"
        child.send_signal(signal.SIGSTOP)
        quick = {name: value for name, value in options.items() if name in ("effect", "calls")}
        async with build(tmp_path, **quick) as app:
            with pytest.raises(SessionRunning):  # the claim has not run out, and its owner may be alive
                await run_to_end(app)
            await asyncio.sleep(LEASE_SECONDS + 0.2)
            await run_to_end(app)
            before, acts = await assert_dense(app, "s"), notes(tmp_path, "acts")
            outcome = await outcome_of(app, "s")
            child.send_signal(signal.SIGCONT)
            out, err = await asyncio.to_thread(child.communicate, timeout=20)
            assert child.returncode == 0, err
            assert json.loads(out.splitlines()[-1]) == {"ended": "SessionRunFenced"}
            assert await log_of(app, "s") == before, "it wrote after it had lost the session"
            assert notes(tmp_path, "acts") == acts, "it acted after it had lost the session"
    finally:
        child.kill()
        child.wait()
    assert [line.split()[2] for line in acts if line.startswith("child")] == acted_by_child
    states = [call.state for call in outcome.tool_calls]
    receipts = ReceiptBook(tmp_path / "receipts.db").all()
    if options["effect"] == "external":
        assert (outcome.status, states[0]) == ("interrupted", "unknown")
        assert [detail for _, detail in receipts] == ["s 0"]
    else:
        assert outcome.status == "completed"
        assert [detail for _, detail in receipts][:1] == ["s 0"]
    if at == "thinking":
        assert states == ["completed", "completed"]
        assert [detail for _, detail in receipts] == ["s 0", "s 1"]
    elif options["effect"] == "idempotent":  # the second call had not begun, so the recovery closed it unexecuted
        assert states == ["completed", "failed"]
        assert outcome.tool_calls[1].code == "not_started"
        assert [detail for _, detail in receipts] == ["s 0"]


async def run_to_end(app: CayuApp) -> None:
    async for _ in app.recover_incomplete_session("s"):
        pass


if __name__ == "__main__":
    asyncio.run(run_slowly(sys.argv[1], json.loads(sys.argv[2])))
