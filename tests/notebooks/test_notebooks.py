"""Every notebook runs headless from a clean folder, and is kept without outputs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from cayu.notebook.figures.drawing import PLOTLY_MIME
from cayu.observability.timing_files import read_timings
from cayu.timing import ToolRoundTiming

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
MOST_CELLS = 30


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    shutil.copy(notebook, tmp_path)
    environment = {**os.environ, "CAYU_HEADLESS": "1", "IPYTHONDIR": str(tmp_path / "ipython")}
    command = [sys.executable, "-m", "pytest", "-q", "--nbmake", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, notebook.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_kept_clean(notebook: Path) -> None:
    kept = json.loads(notebook.read_text(encoding="utf-8"))
    code = [cell for cell in kept["cells"] if cell["cell_type"] == "code"]
    assert len(kept["cells"]) < MOST_CELLS
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert kept["metadata"]["kernelspec"]["name"] == "python3"
    assert "".join(code[-1]["source"]) == "lab.check_quiet()"


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "01_first_session",
        "02_approvals",
        "03_restart",
        "04_phase_timing",
        "05_memory_interventions",
    ]


@pytest.mark.slow
@pytest.mark.requirement("A152")
def test_the_worked_example_is_drawn_beside_a_real_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    [path] = [each for each in NOTEBOOKS if each.stem == "04_phase_timing"]
    ran = nbformat.read(path, as_version=4)
    NotebookClient(ran, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()

    drawn = _bars(_output(ran, "timeline(example)", PLOTLY_MIME))
    assert {50, 1990} < {round(length) for length in drawn["execution"]}  # beside the round's own
    assert drawn["sibling_wait"] == pytest.approx([2000, 2000])
    costs = _bars(_output(ran, "store_cost(example)", PLOTLY_MIME))
    for phase, commits, spent in (("staging", 3, 300), ("publication", 2, 200), ("round_commit", 1, 100)):
        assert costs[phase][:2] == pytest.approx([commits, spent])

    table = _output(ran, "beside = ", "text/html")
    rows = {
        name: re.findall("<td>(.*?)</td>", row)
        for name, row in re.findall(r"<tr>\s*<th>(\w+)</th>(\s*<td>.*?)</tr>", table, re.S)
    }
    example, shown = ({name: (int(row[at]), float(row[at + 1])) for name, row in rows.items()} for at in (1, 4))
    kept = read_timings(tmp_path / "lab-work/04_phase_timing/runs.db.timing", None).records
    real = next(each for each in kept if isinstance(each, ToolRoundTiming))
    for name, (transactions, spent) in shown.items():
        assert transactions == real.phase(name).store_transaction_count
        assert spent == pytest.approx(1000 * real.phase(name).store_commit_seconds, abs=0.051)
    assert sum(transactions for transactions, _ in shown.values()) == len(real.calls) + 1
    costly = {name: costs for name, costs in example.items() if costs[0]}
    assert costly == {"staging": (3, 300.0), "publication": (2, 200.0), "round_commit": (1, 100.0)}


def _output(ran: Any, words: str, kind: str) -> Any:
    """What the last cell that holds some words showed, in one of its forms."""
    cell = [each for each in ran.cells if each.cell_type == "code" and words in each.source][-1]
    [shown] = [each.data[kind] for each in cell.outputs if kind in each.get("data", {})]
    return shown


def _bars(figure: Any) -> dict[str, list[float]]:
    """How long the bars of each phase are, in the order in which they are drawn."""
    found: dict[str, list[float]] = {}
    for trace in figure["data"]:
        if trace["type"] == "bar":
            found.setdefault(trace["name"], []).extend(trace["y" if trace["orientation"] == "v" else "x"])
    return found
