"""Timing records in files beside a store, so that they outlive the process: a line of JSON each, in bounded segments.

Every process writes segments of its own, and whoever needs room deletes the oldest. Nothing is synced to the disk: what
is written survives the death of a process, though perhaps not that of the machine.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cayu.canonical import dumps
from cayu.errors import InvalidInput
from cayu.timing.records import AnyTimingRecord, TimingRecord

MAX_BYTES = 16 * 1024 * 1024
LEAST_MAX_BYTES = 64 * 1024
SEGMENTS = 8
"""A segment is at most this part of what the folder may hold."""
LOOKS = 64
"""The size of the folder is looked at when this part of what it may hold was written."""

UNREADABLE = b"unreadable"
"""Stands for the lines of a segment that cannot be read."""
_SEGMENT = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}\.jsonl")
_RECORD: TypeAdapter[TimingRecord] = TypeAdapter(AnyTimingRecord)


class TimingFileSink:
    """Appends timing records to files in `folder`, which is made at the first record; the one around it has to exist.

    `max_bytes` bounds the folder, whoever writes to it; each further process that writes at the same time may pass it
    by a 64th. Raises `InvalidInput` for a bound below 64 KiB, and when a record cannot be written an `OSError`, which
    the delivery of timing counts as failed.
    """

    def __init__(self, folder: str | Path, max_bytes: int = MAX_BYTES) -> None:
        if max_bytes < LEAST_MAX_BYTES:
            raise InvalidInput(f"max_bytes is at least {LEAST_MAX_BYTES}, not {max_bytes}.")
        self.folder = Path(folder)
        self._max_bytes = max_bytes
        self._segment: Path | None = None
        self._written = 0
        """Bytes in the segment."""
        self._room = 0
        """Bytes that may be written before the size of the folder is looked at again."""

    async def emit_timing(self, record: TimingRecord) -> None:
        """Append one record, in one write; it is on its way to the disk when this returns."""
        self._append(_line(record))

    def _append(self, line: bytes) -> None:
        if self._written + len(line) > self._max_bytes // SEGMENTS:
            self._segment = None
        file = self._open()
        try:
            if self._room < len(line):
                self._room = max(len(line), self._max_bytes // LOOKS)
                self._prune(self._max_bytes - self._room)
            written = os.write(file, line)
        finally:
            os.close(file)
        self._written += written
        self._room -= written
        if written < len(line):
            self._segment = None  # nothing may follow a torn line
            raise OSError(errno.ENOSPC, "Only a part of a timing record was written; make room on the disk")

    def _open(self) -> int:
        """Open the segment, or begin one when there is none, or when somebody who needed room deleted it."""
        if self._segment is not None:
            try:
                return os.open(self._segment, os.O_WRONLY | os.O_APPEND)
            except FileNotFoundError:
                self._segment = None
        self.folder.mkdir(exist_ok=True)
        begun = self.folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(4)}.jsonl"
        file = os.open(begun, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)
        self._segment, self._written = begun, 0
        return file

    def _prune(self, size: int) -> None:
        """Delete the oldest segments, but not the one at work, until the folder is no larger than `size`."""
        sizes = {path: _size(path) for path in _segments(self.folder)}
        excess = sum(sizes.values()) - size
        for path in sizes:
            if excess <= 0:
                return
            if path != self._segment and _is_deleted(path):
                excess -= sizes[path]


@dataclass(frozen=True, slots=True)
class TimingsRead:
    """What was found in a folder of timing records."""

    records: tuple[TimingRecord, ...] = ()
    """Oldest first, by the moment at which they begin."""
    skipped: int = 0
    """Lines that are no record this version knows: cut off when a process died, damaged, or of a newer version."""


def read_timings(folder: str | Path, session: str | None = None) -> TimingsRead:
    """Return the records of one session, named by its id or public reference, or of all; no folder, no records.

    A line or a file that cannot be read is skipped and counted. With `session`, lines that do not name it are not
    looked at.
    """
    name = None if session is None else dumps(session)[1:-1]
    records: list[TimingRecord] = []
    skipped = 0
    for line in _lines(Path(folder)):
        if name is not None and name not in line:
            continue
        try:
            record = _RECORD.validate_json(line)
        except ValidationError:
            skipped += 1
            continue
        if session in (None, record.session_id, _reference(record)):
            records.append(record)
    records.sort(key=lambda record: record.started_at)
    return TimingsRead(tuple(records), skipped)


def _reference(record: TimingRecord) -> str:
    """Return the session's public reference: the name of a model step begins with it."""
    return record.model_step_id.rpartition(".m")[0]


def _line(record: TimingRecord) -> bytes:
    """Return a record as one line, without what is zero or empty anyway."""
    told = record.model_dump(mode="json", exclude_defaults=True)
    return dumps({"schema_version": record.schema_version, "kind": record.kind, **told}) + b"\n"


def _lines(folder: Path) -> Iterator[bytes]:
    for path in _segments(folder):
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            continue  # pruned in the meantime
        except OSError:
            text = UNREADABLE
        yield from filter(None, text.split(b"\n"))


def _segments(folder: Path) -> list[Path]:
    """Return the segments in a folder, oldest first; whatever else lies there is nobody's business here."""
    try:
        return [folder / name for name in sorted(os.listdir(folder)) if _SEGMENT.fullmatch(name)]
    except OSError:
        return []


def _is_deleted(path: Path) -> bool:
    """Delete a segment, of this process or of another; what only has its name stays."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # pruned in the meantime, or nothing that can be read
