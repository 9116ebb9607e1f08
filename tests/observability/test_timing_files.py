"""Timing records in files: what is read back, what a kill or a full disk leaves, the bound, and whose it is."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cayu import AgentSpec, CayuApp, Message, RunRequest, SQLiteSessionStore, ToolEffect, run_to_completion
from cayu.errors import InvalidInput
from cayu.observability import (
    ModelStepPreparationTiming,
    RuntimePhaseTiming,
    TimingRecord,
    ToolCallTiming,
    ToolRoundTiming,
)
from cayu.observability.timing_files import LEAST_MAX_BYTES, TimingFileSink, TimingsRead, read_timings
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.testing import run_child
from cayu.timing.phases import PREPARATION_PHASES, ROUND_PHASES
from cayu.tools import tool

BEGIN = datetime(2026, 5, 1, 12, tzinfo=UTC)
AWKWARD = 'ü "quoted"\n\\ \u2028 .m7'


def phases(names: tuple[str, ...], begun: datetime) -> tuple[RuntimePhaseTiming, ...]:
    """Every second phase was observed."""
    seen = RuntimePhaseTiming(
        name="x",
        first_started_at=begun,
        last_completed_at=begun + timedelta(microseconds=1),
        duration_seconds=0.1 + 0.2,
        store_transaction_count=1,
        store_lock_wait_seconds=1e-9,
        store_bytes_written=7,
    )
    return tuple(
        seen.model_copy(update={"name": name}) if index % 2 else RuntimePhaseTiming(name=name)
        for index, name in enumerate(names)
    )


def round_record(number: int, session: str = "s", calls: int = 2) -> ToolRoundTiming:
    begun = BEGIN + timedelta(milliseconds=number)
    return ToolRoundTiming(
        session_id=session,
        tool_round_id=f"i-{session}.r{number}",
        model_step_id=f"i-{session}.m{number}",
        model_attempt_id=f"i-{session}.m{number}.a1",
        started_at=begun,
        completed_at=begun + timedelta(seconds=1),
        duration_seconds=1.0000001,
        recovered=True,
        phases=phases(ROUND_PHASES, begun),
        calls=tuple(
            ToolCallTiming(
                session_id=session,
                tool_round_id=f"i-{session}.r{number}",
                tool_call_id=f"i-{session}.r{number}.c{call}",
                tool_name="look" if call else None,
                phases=phases(ROUND_PHASES, begun),
                tool_effect_completed_at=begun,
            )
            for call in range(calls)
        ),
    )


def preparation_record(number: int, session: str = "s") -> ModelStepPreparationTiming:
    begun = BEGIN + timedelta(milliseconds=number, microseconds=1)
    return ModelStepPreparationTiming(
        session_id=session,
        model_step_id=f"i-{session}.m{number}",
        started_at=begun,
        completed_at=begun,
        duration_seconds=0.0,
        phases=phases(PREPARATION_PHASES, begun),
    )


async def write(sink: TimingFileSink, *records: TimingRecord) -> None:
    for record in records:
        await sink.emit_timing(record)


def sizes(folder: Path) -> dict[str, int]:
    """Bytes by name; what another process deletes in the meantime is left out."""
    found = {}
    for name in sorted(os.listdir(folder)):
        with suppress(FileNotFoundError):
            found[name] = (folder / name).stat().st_size
    return found


def the_segment(folder: Path) -> Path:
    (name,) = os.listdir(folder)
    return folder / name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs.db.timing"


# Reading back.


async def test_records_are_read_back_as_they_were(folder: Path) -> None:
    written = [record for n in range(3) for record in (round_record(n), preparation_record(n))]
    await write(TimingFileSink(folder), *written)
    assert read_timings(folder) == TimingsRead(tuple(written), 0)
    text = the_segment(folder).read_bytes()
    assert text.count(b"\n") == len(written)
    assert text.endswith(b"\n")


async def test_the_oldest_come_first_whoever_wrote_them(folder: Path) -> None:
    early, late = TimingFileSink(folder), TimingFileSink(str(folder))
    await write(late, round_record(4), round_record(2))
    await write(early, round_record(3), round_record(1))
    assert [record.tool_round_id for record in rounds_in(folder)] == [f"i-s.r{n}" for n in (1, 2, 3, 4)]
    assert len(os.listdir(folder)) == 2


def rounds_in(folder: Path) -> list[ToolRoundTiming]:
    return [record for record in read_timings(folder).records if isinstance(record, ToolRoundTiming)]


async def test_a_session_is_named_by_its_id_or_its_public_reference(folder: Path) -> None:
    names = ("s", "s2", AWKWARD, "i-s")
    await write(TimingFileSink(folder), *(record for name in names for record in (round_record(1, name),)))
    for name in ("s2", AWKWARD):
        assert [record.session_id for record in read_timings(folder, name).records] == [name]
        assert [record.session_id for record in read_timings(folder, f"i-{name}").records] == [name]
    assert [record.session_id for record in read_timings(folder, "i-s").records] == ["s", "i-s"]
    assert read_timings(folder, "nobody") == TimingsRead()
    assert read_timings(folder, "look") == TimingsRead()  # it stands in every line, but names no session


async def test_a_new_sink_goes_on_beside_the_old_files(folder: Path) -> None:
    await write(TimingFileSink(folder), round_record(1))
    await write(TimingFileSink(folder), round_record(2))
    assert len(os.listdir(folder)) == 2
    assert read_timings(folder).records == (round_record(1), round_record(2))


def test_no_folder_holds_no_records(folder: Path) -> None:
    TimingFileSink(folder)
    assert not folder.exists()
    assert read_timings(folder) == TimingsRead()
    folder.touch()
    assert read_timings(folder) == TimingsRead()


# Lines that are no records.


async def test_a_line_cut_off_anywhere_costs_that_line_alone(folder: Path) -> None:
    await write(TimingFileSink(folder), preparation_record(1), preparation_record(2))
    segment = the_segment(folder)
    text = segment.read_bytes()
    first = text.index(b"\n") + 1
    assert len(text) > first + 100
    for cut in range(first + 1, len(text) - 1):
        segment.write_bytes(text[:cut])
        assert read_timings(folder) == TimingsRead((preparation_record(1),), 1), cut
    segment.write_bytes(text[:-1])
    assert read_timings(folder) == TimingsRead((preparation_record(1), preparation_record(2)), 0)


@pytest.mark.parametrize(
    "line",
    [
        *(b"\x00" * 40, b"rubbish", b"{}", b"[1, 2]", b"null", b"\xff\xfe", b"{" * 5000, b"[" * 5000, b" "),
        *(b'{"kind": "tool_round"}', b'{"kind": "something_new", "schema_version": 1}'),
    ],
)
async def test_a_line_that_is_no_record_is_skipped_and_counted(folder: Path, line: bytes) -> None:
    await write(TimingFileSink(folder), round_record(1))
    with the_segment(folder).open("ab") as segment:
        segment.write(line + b"\n")
    await write(TimingFileSink(folder), round_record(2))
    assert read_timings(folder) == TimingsRead((round_record(1), round_record(2)), 1)


async def test_a_record_of_a_newer_version_is_skipped(folder: Path) -> None:
    sink = TimingFileSink(folder)
    await write(sink, round_record(1), preparation_record(1))
    segment = the_segment(folder)
    text = segment.read_bytes()
    segment.write_bytes(text + text.replace(b'"schema_version":1', b'"schema_version":2'))
    assert read_timings(folder) == TimingsRead((round_record(1), preparation_record(1)), 2)
    segment.write_bytes(text.replace(b'{"schema_version":1', b'{"new_field":true,"schema_version":1'))
    assert read_timings(folder) == TimingsRead((), 2)


async def test_nothing_follows_a_line_that_a_full_disk_tore(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = TimingFileSink(folder)
    await write(sink, round_record(1))
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: real(file, data[:100]))
        with pytest.raises(OSError, match="room on the disk"):
            await sink.emit_timing(round_record(2))
    await write(sink, round_record(3))
    assert read_timings(folder) == TimingsRead((round_record(1), round_record(3)), 1)


@pytest.mark.parametrize("kind", ["folder", "unreadable"])
async def test_what_is_only_named_like_a_segment_is_skipped(folder: Path, kind: str) -> None:
    await write(TimingFileSink(folder), round_record(1))
    odd = folder / "20200101T000000.000000Z-12345678.jsonl"
    odd.mkdir() if kind == "folder" else odd.symlink_to(odd)  # whoever follows the link gets an `OSError`
    assert read_timings(folder) == TimingsRead((round_record(1),), 1)
    assert read_timings(folder, "s").records == (round_record(1),)


@pytest.mark.parametrize("kind", ["folder", "unreadable"])
async def test_what_is_only_named_like_a_segment_does_not_end_the_writing(folder: Path, kind: str) -> None:
    folder.mkdir()
    odd = folder / "20200101T000000.000000Z-12345678.jsonl"
    odd.mkdir() if kind == "folder" else odd.symlink_to(odd)
    sink = TimingFileSink(folder, max_bytes=LEAST_MAX_BYTES)
    for number in range(150):
        await sink.emit_timing(preparation_record(number))
    assert read_timings(folder).records[-1] == preparation_record(149)


# The bound.


async def test_the_folder_stays_within_its_bound(folder: Path) -> None:
    sink = TimingFileSink(folder, max_bytes=LEAST_MAX_BYTES)
    seen: set[str] = set()
    for number in range(120):
        await sink.emit_timing(preparation_record(number))
        assert sum(sizes(folder).values()) <= LEAST_MAX_BYTES
        assert max(sizes(folder).values()) <= LEAST_MAX_BYTES // 8
        seen |= sizes(folder).keys()
    assert len(seen) > len(sizes(folder)) > 4
    kept = read_timings(folder)
    assert kept.skipped == 0
    assert kept.records == tuple(preparation_record(n) for n in range(120 - len(kept.records), 120))
    assert sum(sizes(folder).values()) > LEAST_MAX_BYTES * 3 // 4


async def test_the_oldest_segments_go_whoever_wrote_them(folder: Path) -> None:
    old, young = (TimingFileSink(folder, max_bytes=LEAST_MAX_BYTES) for _ in range(2))
    await write(old, preparation_record(0, "old"))
    for number in range(120):
        await young.emit_timing(preparation_record(number))
    assert {record.session_id for record in read_timings(folder).records} == {"s"}
    await write(old, preparation_record(121, "old"))  # its segment is gone: it begins another
    assert read_timings(folder, "old").records == (preparation_record(121, "old"),)


async def test_what_is_not_a_segment_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    others = ("notes.jsonl", "0.txt", "20200101T000000.000000Z-12345678.jsonl.bak")
    for name in others:
        (folder / name).write_bytes(b"x" * LEAST_MAX_BYTES)
    old = folder / "20200101T000000.000000Z-12345678.jsonl"
    old.write_bytes(b"x" * LEAST_MAX_BYTES)
    await write(TimingFileSink(folder, max_bytes=LEAST_MAX_BYTES), round_record(1))
    assert not old.exists()
    assert all((folder / name).stat().st_size == LEAST_MAX_BYTES for name in others)
    assert read_timings(folder) == TimingsRead((round_record(1),), 0)


async def test_the_segment_at_work_stays_even_if_the_clock_went_back(folder: Path) -> None:
    folder.mkdir()
    ahead = folder / "29990101T000000.000000Z-12345678.jsonl"
    ahead.write_bytes(b"x" * LEAST_MAX_BYTES)
    await write(TimingFileSink(folder, max_bytes=LEAST_MAX_BYTES), round_record(1))
    assert not ahead.exists()
    assert read_timings(folder) == TimingsRead((round_record(1),), 0)


async def test_one_record_larger_than_a_segment_is_kept(folder: Path) -> None:
    sink = TimingFileSink(folder, max_bytes=LEAST_MAX_BYTES)
    await write(sink, round_record(1), round_record(2, calls=8), round_record(3))
    assert len(os.listdir(folder)) == 3
    assert read_timings(folder).records == (round_record(1), round_record(2, calls=8), round_record(3))


async def test_a_folder_that_was_deleted_is_made_again(folder: Path) -> None:
    sink = TimingFileSink(folder)
    await write(sink, round_record(1))
    the_segment(folder).unlink()
    folder.rmdir()
    await write(sink, round_record(2))
    assert read_timings(folder).records == (round_record(2),)


@pytest.mark.parametrize("size", [0, -1, LEAST_MAX_BYTES - 1])
def test_a_bound_that_holds_nothing_is_refused(folder: Path, size: int) -> None:
    with pytest.raises(InvalidInput, match=f"at least {LEAST_MAX_BYTES}, not {size}"):
        TimingFileSink(folder, max_bytes=size)


# In an application.


def application(path: Path | None, *sinks: Any, word: str = "w") -> CayuApp:
    """An application whose agent calls `look` with a word, and a tool that does not exist, once per run."""

    @tool(version="1", effect=ToolEffect.NONE)
    def look(word: str) -> str:
        """Look a word up."""
        return f"about {word}"

    asked = [ModelStreamEvent.tool_call("look", {"word": word}, "p1"), ModelStreamEvent.tool_call(f"no-{word}")]
    app = CayuApp(session_store=SQLiteSessionStore(path) if path else None, timing_sinks=sinks)
    app.register_provider(ScriptedModelProvider([asked, f"said {word}"]))
    app.register_agent(AgentSpec(name="a", model="m", system_prompt=f"mind {word}"), tools=[look])
    return app


def a_run(word: str = "w") -> RunRequest:
    return RunRequest(agent_name="a", messages=(Message.text("user", f"asks {word}"),), session_id="s")


async def test_the_files_of_an_application_hold_no_content(folder: Path) -> None:
    async with application(None, TimingFileSink(folder), word="CANARY") as app:
        await run_to_completion(app, a_run("CANARY"))
        await app.flush_runtime_timing()
        (recent,) = await app.inspect_recent_tool_round_timing("s")
    assert rounds_in(folder) == [recent]
    assert [call.tool_name for call in recent.calls] == ["look", None]
    assert b"CANARY" not in the_segment(folder).read_bytes()


async def test_a_folder_that_cannot_be_written_fails_no_run(folder: Path) -> None:
    folder.write_text("a file stands where the folder should be")
    missing = folder.with_name("missing") / "timing"
    async with application(None, TimingFileSink(folder), TimingFileSink(missing)) as app:
        outcome = await run_to_completion(app, a_run())
        await app.flush_runtime_timing()
        status = app.runtime_timing_status()
    assert outcome.status == "completed"
    assert (status.failed_deliveries, status.queued_records) == (2 * status.recent_records, 0)
    assert status.recent_records == 3
    assert not missing.parent.exists()


# Processes.


async def write_in_a_child(folder: str, session: str, records: int, max_bytes: int) -> int:
    """Write as many records as asked, then say how many."""
    sink = TimingFileSink(folder, max_bytes=max_bytes)
    await write(sink, *(round_record(number, session) for number in range(records)))
    return records


async def write_until_killed(folder: str, seconds: float) -> None:
    """Write until a SIGKILL comes, and say each record that was taken."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    sink = TimingFileSink(folder)
    for number in range(1_000_000):
        await sink.emit_timing(preparation_record(number))
        os.write(1, b".")


@pytest.mark.slow
def test_a_kill_in_the_middle_costs_at_most_the_last_record(folder: Path) -> None:
    written = 0
    for tries, seconds in enumerate((0.03, 0.07, 0.11, 0.2), 1):
        child = run_child(f"{__file__}:write_until_killed", [str(folder), seconds])
        assert child.killed, child.stderr
        written += child.stdout.count(".")
        found = read_timings(folder)
        assert written <= len(found.records) <= written + tries
        assert found.skipped <= tries
    assert written > 40


@pytest.mark.slow
async def test_two_processes_write_at_once(folder: Path) -> None:
    target = f"{__file__}:write_in_a_child"
    children = await asyncio.gather(
        *(asyncio.to_thread(run_child, target, [str(folder), name, 200, 1 << 24]) for name in ("a", "b"))
    )
    assert [child.result for child in children] == [200, 200]
    assert len(os.listdir(folder)) == 2
    for name in ("a", "b"):
        assert read_timings(folder, name) == TimingsRead(tuple(round_record(n, name) for n in range(200)), 0)


@pytest.mark.slow
async def test_two_processes_hold_the_bound_together(folder: Path) -> None:
    target, bound = f"{__file__}:write_in_a_child", 4 * LEAST_MAX_BYTES
    children = asyncio.gather(
        *(asyncio.to_thread(run_child, target, [str(folder), name, 300, bound]) for name in ("a", "b"))
    )
    largest = 0
    while not children.done():
        largest = max(largest, sum(sizes(folder).values()) if folder.exists() else 0)
        await asyncio.sleep(0.002)
    assert [child.result for child in await children] == [300, 300]
    assert bound * 3 // 4 < largest <= bound + bound // 64
    found = read_timings(folder)
    assert found.skipped == 0
    assert any(record in found.records for record in (round_record(299, "a"), round_record(299, "b")))


class _Stuck:
    """A sink that never takes anything."""

    async def emit_timing(self, record: TimingRecord) -> None:
        await asyncio.Event().wait()


async def killed_with_records(path: str) -> None:
    """Run a session, say what is remembered and undelivered, and die."""
    app = application(Path(path), _Stuck())
    await run_to_completion(app, a_run())
    status = app.runtime_timing_status()
    os.write(1, f"{status.recent_records} {status.queued_records}".encode())
    os.kill(os.getpid(), signal.SIGKILL)


async def inspected_after(path: str) -> dict[str, Any]:
    """Say what a new process finds over the same store."""
    taken: list[TimingRecord] = []

    class Taking:
        async def emit_timing(self, record: TimingRecord) -> None:
            taken.append(record)

    async with application(Path(path), Taking()) as app:
        rounds = await app.inspect_recent_tool_round_timing()
        preparations = await app.inspect_recent_model_step_preparation_timing()
        await app.flush_runtime_timing()
        stored = await app.session_store.load("s")
        return {
            "inspected": len(rounds) + len(preparations),
            "taken": len(taken),
            "status": app.runtime_timing_status().model_dump(),
            "events": 0 if stored is None else len(stored.records),
        }


@pytest.mark.slow
@pytest.mark.requirement("A145")
def test_what_is_remembered_and_undelivered_dies_with_the_process(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    first = run_child(f"{__file__}:killed_with_records", [path])
    assert first.killed, first.stderr
    assert first.stdout == "3 3"
    second = run_child(f"{__file__}:inspected_after", [path]).result
    assert second.pop("events") > 5  # the session itself is there
    assert second == {
        "inspected": 0,
        "taken": 0,
        "status": {"recent_records": 0, "queued_records": 0, "dropped_records": 0, "failed_deliveries": 0},
    }
