"""The demonstration runs to its end, and really kills a process on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from cayu.examples import demo
from cayu.examples.receipts import ReceiptBook


@pytest.mark.slow
def test_the_demonstration_shows_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.main(["--dir", str(tmp_path / "demo")])
    shown = capsys.readouterr().out
    for words in ("72 hours", "waits for you", "died by SIGKILL", "It acted once", "session.completed", "make lab"):
        assert words in shown
    assert ReceiptBook(tmp_path / "demo" / "receipts.db").all() == [(1, "2 x nitrile gloves")]
