"""Every notebook runs headless from a clean folder, and is kept without outputs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert [path.stem for path in NOTEBOOKS] == ["01_first_session", "02_approvals", "03_restart", "04_phase_timing"]
