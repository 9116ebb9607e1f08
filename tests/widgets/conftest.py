"""Labs for the tests of the live widgets, closed after each test along with every widget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
from widgets.support import FREE, SENT, factory

from cayu.notebook import Lab, headless

OpenLab = Callable[..., Lab]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(headless.HEADLESS, raising=False)
    headless.script_decisions([])
    SENT.clear()
    FREE.clear()
    yield
    ipywidgets.Widget.close_all()
    headless.script_decisions([])


@pytest.fixture
def open_lab(tmp_path: Path) -> Iterator[OpenLab]:
    """Opens labs on one file; arguments go to the application's factory."""
    labs: list[Lab] = []

    def open_(*arguments: Any, **more: Any) -> Lab:
        labs.append(Lab.open(tmp_path / "runs.db", factory=factory(*arguments, **more)))
        return labs[-1]

    yield open_
    for lab in labs:
        lab.close()
