"""What a trial costs its stores, and what never stands in a journal, a log line or an error."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from memory.support import CODE, QUESTION, SAYS, SECRET, Bench, JournalProxy, Lost, arm, at, change, once
from runtime.support import FakeTool, calls

from cayu import Message, ToolContext
from cayu.canonical import dumps
from cayu.errors import CayuError
from cayu.experiments import StudyStores, omit_expected, recall_off
from cayu.memory import (
    CayuMemoryInterventionRuntimeRunner,
    MemoryInterventionExecutionConflict,
    MemoryInterventionRequestFingerprintKey,
)
from cayu.providers import ScriptedModelProvider
from cayu.snapshots.components import OVERLAYS
from cayu.snapshots.coordinator import MATERIALIZATIONS, PROGRESS, RESULTS, TRIALS
from cayu.storage import SQLiteSessionStore
from cayu.storage.interventions import COLLECTION
from cayu.storage.sql.sqlite.database import Database
from cayu.storage.sql.sqlite.documents import SQLiteDocuments
from cayu.tools import ToolResult

MOST_COMMITS = 16
"""Of one trial, without its session's and those that open its copy of the memory."""
FIXTURE = "a text that an intervention puts in"


def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], Counter[str]]:
    """Count writing transactions: of documents by collection, and all of them with those of sessions among them."""
    collections: Counter[str] = Counter()
    writes: Counter[str] = Counter()
    transact, write, append = SQLiteDocuments.transact, Database.write, SQLiteSessionStore.append

    async def counting(self: Any, collection: str, *args: Any) -> Any:
        collections[collection] += 1
        return await transact(self, collection, *args)

    async def writing(self: Any, *args: Any, **options: Any) -> Any:
        writes["all"] += 1
        return await write(self, *args, **options)

    async def appending(self: Any, unit: Any) -> Any:
        writes["session"] += 1
        return await append(self, unit)

    monkeypatch.setattr(SQLiteDocuments, "transact", counting)
    monkeypatch.setattr(Database, "write", writing)
    monkeypatch.setattr(SQLiteSessionStore, "append", appending)
    return collections, writes


@pytest.mark.parametrize("made", [None, recall_off(), omit_expected()], ids=["baseline", "recall_off", "omit"])
async def test_a_trial_commits_eleven_times_beside_its_session_and_its_copy(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await Bench(stores=StudyStores.in_file(tmp_path / "trials.db")).open()
    collections, writes = counted(monkeypatch)
    outcome = await bench.execute(made)
    first, session = writes["all"], writes["session"]
    writes.clear()
    again = await bench.execute(made)
    await bench.stores.aclose()
    assert outcome.execution.status == "completed"
    opening = {PROGRESS: 2, MATERIALIZATIONS: 1, OVERLAYS: 1}
    assert collections == Counter({COLLECTION: 8, TRIALS: 1, RESULTS: 1, OVERLAYS: 1}) + Counter(opening)
    beside = first - session - sum(opening.values())
    assert session > 0
    assert beside == 11
    assert beside <= MOST_COMMITS
    assert (again, writes.total()) == (outcome, 0)


@pytest.mark.parametrize("made", [None, omit_expected()], ids=["baseline", "omit"])
async def test_a_trial_survives_the_reopening_of_its_file(made: Any, tmp_path: Path) -> None:
    path = tmp_path / "trials.db"
    first = await Bench(stores=StudyStores.in_file(path)).open()
    request = first.request(made)
    journal = JournalProxy(first.stores.executions, after=at("runtime_terminal", once()))
    with pytest.raises(Lost):
        await first.executor(executions=journal).execute_trial(request)
    await first.stores.aclose()
    second = await Bench(stores=StudyStores.in_file(path)).open()
    assert second.request(made) == request
    outcome = await second.execute(made)
    assert outcome.execution.status == "completed"
    smooth = await (await Bench().open()).execute(made)
    assert outcome.binding is not None
    assert smooth.binding is not None
    assert outcome.binding.fingerprint == smooth.binding.fingerprint
    await second.stores.aclose()


@pytest.mark.parametrize("reset", [True, False])
async def test_two_specs_under_one_candidate_and_trial_do_not_mix_their_memories(reset: bool) -> None:
    """The copy belongs to candidate and trial, so another spec under the same ids is another request."""
    bench = await Bench().open()
    first = bench.request(omit_expected() if reset else None)
    before = await bench.study.executor.execute_trial(first)
    request = bench.request(None if reset else omit_expected())
    assert request.session_id == first.session_id
    with pytest.raises(MemoryInterventionExecutionConflict, match="another identity of the request"):
        await bench.study.executor.execute_trial(request)
    assert await bench.study.executor.execute_trial(first) == before


async def test_neither_content_nor_secrets_stand_in_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    bench = await Bench(stores=StudyStores.in_file(path)).open()
    journal = JournalProxy(bench.stores.executions)
    put = arm("put", "replace_items", change("cold-room", text=FIXTURE))
    await bench.executor(executions=journal).execute_trial(bench.request(put))
    for record in journal.written:
        assert not leaks(dumps(record.model_dump(mode="json")).decode())
    await bench.stores.aclose()
    everything = b"".join(found.read_bytes() for found in tmp_path.iterdir())
    assert QUESTION.encode() in everything  # the session's log holds it, and the file is read as it should be
    assert SECRET not in everything
    assert SECRET.hex().encode() not in everything


def leaks(text: str) -> list[str]:
    """Which of the things that nobody may read stand in a text."""
    known = [
        QUESTION,
        SAYS,
        CODE,
        FIXTURE,
        SECRET.decode(),
        SECRET[:9].decode(),
        SECRET.hex(),
        repr(SECRET),
        "hush-hush",
    ]
    return [what for what in known if what in text]


async def hush(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
    await asyncio.sleep(0.01)
    return ToolResult(content=f"hush-hush {SAYS}")


class Broken(CayuMemoryInterventionRuntimeRunner):
    """A runner that fails once it is stopped."""

    async def run(self, **given: Any) -> Any:
        try:
            return await super().run(**given)
        except asyncio.CancelledError:
            raise ValueError(f"hush-hush {given['request'].run_request.messages}") from None


def told_by(error: BaseException) -> str:
    """Everything that an error says in whatever way it is shown."""
    parts = [str(error), repr(error), *traceback.format_exception(error)]
    return " ".join([*parts, repr(getattr(error, "attributes", None)), repr(error.__context__)])


def speaking() -> Bench:
    """A bench whose session is full of what nobody else may read."""
    provider = ScriptedModelProvider([calls(("hush", {"word": "hush-hush"})), f"The answer is {CODE}."])
    return Bench(provider=provider, tools=[FakeTool("hush", hush)])


async def test_a_stopped_runner_that_fails_is_logged_by_its_error_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bench = await speaking().open()
    tool: Any = bench.tools[0]
    executor = bench.executor(runtime_runner=Broken(bench.factory()))
    task = asyncio.ensure_future(executor.execute_trial(bench.request()))
    await tool.entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await executor.execute_trial(bench.request())).execution.status == "cancelled"
    assert "a stopped trial's runner failed: ValueError" in caplog.text
    assert not leaks(caplog.text)


async def changed_request(bench: Bench) -> None:
    request = bench.request()
    await bench.study.executor.execute_trial(request)
    await bench.study.executor.execute_trial(request.model_copy(update={"timeout_seconds": 9}))


async def another_intervention(bench: Bench) -> None:
    await bench.execute(arm("same", "replace_items", change("cold-room", text=FIXTURE)))
    await bench.execute(arm("same", "replace_items", change("cold-room", text=f"{FIXTURE}, later")))


async def another_secret(bench: Bench) -> None:
    await bench.execute()
    changed = MemoryInterventionRequestFingerprintKey("k1", SECRET + b"!")
    await bench.executor(request_keys={"k1": changed}).execute_trial(bench.request())


async def a_short_secret(bench: Bench) -> None:
    MemoryInterventionRequestFingerprintKey("k9", SECRET[:9])


async def edited_row(bench: Bench) -> None:
    await bench.execute()
    documents: Any = bench.stores.executions
    for name in list(documents._documents._bodies):
        await documents._documents.transact(
            *name, lambda row, _: row | {"record": row["record"] | {"case_id": f"hush-hush {QUESTION} "}}
        )
    await bench.execute()


async def edited_snapshot(bench: Bench) -> None:
    snapshots: Any = bench.stores.snapshots
    for name in list(snapshots._bodies):
        await snapshots.transact(*name, lambda row, _: row | {"record_type": f"hush-hush {QUESTION}"})
    await bench.execute()


async def no_preparation(bench: Bench) -> None:
    talk = (Message.text("user", "hush-hush"), Message.text("user", QUESTION))
    await bench.execute(messages=talk, context_preparation="compact_then_resume")


@pytest.mark.parametrize(
    "act",
    [
        changed_request,
        another_intervention,
        another_secret,
        a_short_secret,
        edited_row,
        edited_snapshot,
        no_preparation,
    ],
)
async def test_neither_content_nor_secrets_are_told_in_errors_or_log_lines(
    act: Callable[[Bench], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bench = await speaking().open()
    with pytest.raises(CayuError) as refused:
        await act(bench)
    assert not leaks(told_by(refused.value))
    assert not leaks(caplog.text)
