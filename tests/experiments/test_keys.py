"""The request key beside a store: made once, readable by its owner only, and never half written."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cayu.errors import InvalidInput
from cayu.experiments import key_beside, keys


def test_a_key_is_made_once_and_kept(tmp_path: Path) -> None:
    first = key_beside(tmp_path / "runs.db")
    assert [path.name for path in tmp_path.iterdir()] == ["runs.db.key"]
    assert stat.S_IMODE((tmp_path / "runs.db.key").stat().st_mode) == 0o600
    assert len(first.secret) == keys.SECRET_BYTES
    assert key_beside(str(tmp_path / "runs.db")) == first
    assert key_beside(tmp_path / "other.db") != first
    assert first.secret.hex() not in repr(first)


@pytest.mark.parametrize("content", [b"", b"no key", b"abcd", b"\xff\xfe", b"ab" * 8 + b"!"])
def test_a_file_that_holds_no_key_is_not_written_over(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "runs.db.key"
    place.write_bytes(content)
    with pytest.raises(InvalidInput) as refused:
        key_beside(tmp_path / "runs.db")
    assert place.read_bytes() == content
    assert "key" in str(refused.value)
    assert str(place) in str(refused.value)


def test_the_loser_of_a_race_takes_the_winner_s_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    winner = key_beside(tmp_path / "runs.db")
    monkeypatch.setattr(Path, "exists", lambda self: False)  # as it was when the loser looked
    assert key_beside(tmp_path / "runs.db") == winner
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["runs.db.key"]


def test_many_at_once_get_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: key_beside(tmp_path / "runs.db"), range(32)))
    assert len(set(made)) == 1
    assert os.listdir(tmp_path) == ["runs.db.key"]


def test_a_crash_while_the_key_is_written_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="no space"):
        key_beside(tmp_path / "runs.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_processes_at_once_get_one_key(tmp_path: Path) -> None:
    code = "import sys; from cayu.experiments.keys import key_beside; print(key_beside(sys.argv[1]).secret.hex())"
    command = [sys.executable, "-c", code, str(tmp_path / "runs.db")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = {child.communicate(timeout=60)[0] for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert told == {key_beside(tmp_path / "runs.db").secret.hex() + "\n"}
