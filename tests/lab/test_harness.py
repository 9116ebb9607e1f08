"""The harness does what its other users rely on: shown on scratch notebooks, without the kit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from lab.jupyter import JupyterServer, LabTimeout, make_notebook

if TYPE_CHECKING:
    from lab.conftest import OpenNotebook

WIDGET = """
import ipywidgets
button = ipywidgets.Button(description="Count", icon="plus")
label = ipywidgets.Label("clicked 0 times")
clicks = []
def on_click(_):
    clicks.append(1)
    label.value = f"clicked {len(clicks)} times"
button.on_click(on_click)
ipywidgets.HBox([button, label])
""".strip()


def test_made_notebooks_are_valid(tmp_path: Path) -> None:
    book = nbformat.read(make_notebook(tmp_path / "a.ipynb", ["%%markdown\n# Title", "1 + 1"]), as_version=4)
    nbformat.validate(book)
    assert [cell.cell_type for cell in book.cells] == ["markdown", "code"]
    assert (book.nbformat, book.nbformat_minor) == (4, 5)


def test_queued_cells_run_and_a_click_reaches_its_callback(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    sleepy = [f"import time; time.sleep(0.3); print('cell', {n})" for n in range(2, 6)]
    filler = "\n".join(f"# line {n}" for n in range(60))  # pushes what follows far out of view
    notebook = open_notebook("queue.ipynb", ["import sys; sys.executable", WIDGET, *sleepy, filler, "print('the end')"])
    notebook.run_all()
    assert notebook.cell_prompts().count("[*]") > 4  # it returned while cells still wait
    with pytest.raises(LabTimeout, match=r"waited 0.2 s for all cells to finish(.|\n)*\[\*\](.|\n)*Kernel started"):
        notebook.wait_idle(0.2)
    notebook.wait_idle(20)

    assert notebook.cell_prompts() == [f"[{n}]" for n in range(1, 9)]
    assert notebook.output_text(0) == repr(sys.executable)
    assert [notebook.output_text(n) for n in range(2, 6)] == [f"cell {n}" for n in range(2, 6)]
    assert notebook.output_text(7) == "the end"
    assert notebook.errors() == []

    for times in (1, 2):
        notebook.click_button("Count")
        notebook.wait_output(1, f"clicked {times} times")
    notebook.screenshot(tmp_path / "light.png")
    notebook.set_theme("JupyterLab Dark")
    notebook.screenshot(tmp_path / "dark.png")


def test_a_kernel_restart_forgets_and_runs_again(
    open_notebook: OpenNotebook, lab_server: JupyterServer, tmp_path: Path
) -> None:
    notebook = open_notebook("restart.ipynb", ["import os; print(os.getpid())", "seen = 'before'", WIDGET])
    notebook.run_all()
    notebook.wait_idle()
    first = notebook.output_text(0)
    notebook.restart_kernel()
    added = notebook.append_cell("def known(name):\n    return name in globals()\n\nprint('seen', known('seen'))")
    notebook.run_cell(added)
    notebook.wait_idle()
    assert notebook.output_text(added) == "seen False"

    notebook.type_cell(1, "seen = 'after'")
    notebook.run_all()
    notebook.wait_idle()
    assert notebook.output_text(0) not in ("", first)
    assert notebook.output_text(added) == "seen True"
    notebook.click_button("Count")
    notebook.wait_output(2, "clicked 1 times")
    notebook.screenshot(tmp_path / "restarted.png")

    notebook.save()
    book = nbformat.read(lab_server.root / "restart.ipynb", as_version=4)
    assert book.cells[1].source == "seen = 'after'"


def test_two_pages_share_one_kernel(open_notebook: OpenNotebook) -> None:
    first = open_notebook("shared.ipynb", ["import os; print(os.getpid())"])
    second = open_notebook("shared.ipynb")
    for notebook in (first, second):
        notebook.run_all()
        notebook.wait_idle()
    assert first.output_text(0) == second.output_text(0) != ""


def test_errors_are_reported_and_markup_stays_text(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    hostile = "<script>document.title = 'taken'</script><b>bold</b>"
    notebook = open_notebook(
        "errors.ipynb",
        [
            f"print({hostile!r})",
            "import sys; print('only a warning', file=sys.stderr)",
            "import ipywidgets; out = ipywidgets.Output(); display(out)\nwith out:\n    raise KeyError('inside')",
            "{}['absent']",
            "print('never reached')",
        ],
    )
    notebook.run_all()
    notebook.wait_idle()
    notebook.screenshot(tmp_path / "errors.png")
    assert notebook.output_text(0) == hostile
    assert notebook.page.title() != "taken"
    assert notebook.output_text(1) == "only a warning"
    cell_error, widget_error = notebook.errors()
    assert "Traceback" in cell_error
    assert cell_error.endswith("KeyError: 'absent'")
    assert "KeyError: 'inside'" in widget_error
    assert notebook.cell_prompts()[-1] == "[ ]"
    assert notebook.output_text(4) == ""

    notebook.page.set_default_timeout(300)
    with pytest.raises(LabTimeout, match="clicking the button 'Absent'"):
        notebook.click_button("Absent")
    with pytest.raises(LabTimeout) as caught:
        notebook.wait_output(1, "absent", timeout=0.2)
    assert caught.value.__notes__ == ["below cell 1 stands: 'only a warning'"]
