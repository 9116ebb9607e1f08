"""Files that are read with errors that say where, and written whole, private, or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from cayu.cli.documents import MOST_FAULTS, arguments_of, parse, write_private
from cayu.errors import InvalidInput

NUMBERS = TypeAdapter(dict[str, int])


def test_faults_are_named_by_their_place_and_never_by_their_value() -> None:
    with pytest.raises(InvalidInput) as refused:
        parse(NUMBERS, b'{"a": 1, "b": "s3cret-value"}', "here")
    assert str(refused.value).startswith("here: b: Input should be a valid integer")
    assert "s3cret-value" not in str(refused.value)
    many = ", ".join(f'"{n}": []' for n in range(MOST_FAULTS + 3))
    with pytest.raises(InvalidInput, match="and 3 more"):
        parse(NUMBERS, f"{{{many}}}".encode(), "here")


def test_arguments_are_given_or_not(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1]}')
    assert arguments_of(None) is None
    assert arguments_of('{"a": [1]}') == arguments_of(f"@{tmp_path / 'a.json'}") == {"a": [1]}
    (tmp_path / "b.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InvalidInput, match=r"b\.json: Invalid JSON"):
        arguments_of(f"@{tmp_path / 'b.json'}")


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("old")
    file.chmod(0o666)
    write_private(file, "new ü")
    assert file.read_text(encoding="utf-8") == "new ü"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plan.json"
    file.write_text("old")

    def full(handle: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInput, match=r"plan\.json cannot be written \(no space left on device\)"):
        write_private(file, "new")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("plan.json", "old")]
