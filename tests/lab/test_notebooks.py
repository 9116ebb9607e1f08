"""The notebooks as a reader meets them: Run All in a real JupyterLab, buttons clicked, the kernel restarted."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lab.jupyter import JupyterServer, NotebookPage

if TYPE_CHECKING:
    from lab.conftest import OpenNotebook

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = ("01_first_session", "02_approvals", "03_restart", "04_phase_timing", "05_memory_interventions")
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"

OpenCopy = Callable[[str], NotebookPage]


@pytest.fixture
def open_copy(open_notebook: OpenNotebook, lab_server: JupyterServer, tmp_path: Path) -> OpenCopy:
    """Opens a copy of a notebook that begins with an empty folder."""

    def open_(name: str) -> NotebookPage:
        shutil.rmtree(lab_server.root / "lab-work", ignore_errors=True)
        shutil.copy(NOTEBOOKS / f"{name}.ipynb", lab_server.root)
        return open_notebook(f"{name}.ipynb")

    return open_


def cell_with(name: str, words: str) -> int:
    """The first cell of a notebook whose source holds some words."""
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return next(number for number, cell in enumerate(cells) if words in "".join(cell["source"]))


def code_cells(name: str) -> list[int]:
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return [number for number, cell in enumerate(cells) if cell["cell_type"] == "code"]


def run_all(notebook: NotebookPage, name: str) -> None:
    """Run every cell and hold that each ran, in order, and none failed."""
    notebook.run_all()
    notebook.wait_idle(90)
    assert notebook.errors() == []
    prompts = notebook.cell_prompts()
    ran = [prompts[number] for number in code_cells(name)]
    assert ran == [f"[{number}]" for number in range(1, len(ran) + 1)]


def receipts(notebook: NotebookPage, name: str) -> list[str]:
    path = notebook.server.root / "lab-work" / name / "receipts.db"
    with closing(sqlite3.connect(path)) as raw:
        (table,) = raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchone()
        return [str(row[-1]) for row in raw.execute(f"SELECT * FROM {table}")]


def look(notebook: NotebookPage, folder: Path, name: str, height: int = 4200) -> None:
    """Keep a picture of the whole notebook in both themes."""
    size = notebook.page.viewport_size
    assert size is not None
    notebook.page.set_viewport_size({"width": 1280, "height": height})
    for theme in ("Dark", "Light"):
        notebook.set_theme(f"JupyterLab {theme}")
        notebook.page.locator("#jupyterlab-splash").wait_for(state="detached")
        notebook.page.wait_for_timeout(300)
        notebook.screenshot(folder / f"{name}-{theme.lower()}.png")
    notebook.page.set_viewport_size(size)


def assert_fits(notebook: NotebookPage) -> None:
    """Hold that no card of ours is cut off or wider than the output it stands in."""
    too_wide = notebook.page.evaluate(
        """() => [...document.querySelectorAll('.jp-OutputArea-output .cayu, .jp-OutputArea-output .cayu-live')]
            .filter((el) => el.offsetParent)
            .map((el) => [el, el.closest('.jp-OutputArea-output')])
            .filter(([el, out]) => el.getBoundingClientRect().right > out.getBoundingClientRect().right + 1
                || (el.scrollWidth > el.clientWidth + 1 && getComputedStyle(el).overflowX === 'visible'))
            .map(([el]) => el.className + ': ' + el.innerText.slice(0, 80))"""
    )
    assert too_wide == []


@pytest.mark.parametrize("name", NAMES)
def test_run_all_with_a_reader_present(open_copy: OpenCopy, tmp_path: Path, name: str) -> None:
    notebook = open_copy(name)
    run_all(notebook, name)
    assert_fits(notebook)
    look(notebook, tmp_path, name)
    run_all_again = notebook  # a second time, over what the first left behind
    run_all_again.run_all()
    notebook.wait_idle(90)
    assert notebook.errors() == []


def test_the_first_notebook_shows_sessions(open_copy: OpenCopy, tmp_path: Path) -> None:
    name = "01_first_session"
    notebook = open_copy(name)
    run_all(notebook, name)
    session = cell_with(name, 'lab.run("reader"')
    assert "completed" in notebook.output_text(session)
    assert "search_knowledge" in notebook.output_text(session)
    browser = cell_with(name, "SessionBrowser(lab)")
    notebook.wait_output(browser, "1-12 of 12")
    notebook.page.locator(".cayu-rows button").nth(11).click()
    notebook.wait_output(browser, "finished, completed")
    assert_fits(notebook)
    look(notebook, tmp_path, "browser")


def test_approve_in_the_prompt(open_copy: OpenCopy, tmp_path: Path) -> None:
    name = "02_approvals"
    notebook = open_copy(name)
    run_all(notebook, name)
    prompt, refreshed = cell_with(name, "ApprovalPrompt("), cell_with(name, "session.refresh()")
    notebook.wait_output(prompt, "pending")
    assert "order_supplies" in notebook.output_text(prompt)
    assert "nitrile gloves" in notebook.output_text(prompt)
    assert "1 decision pending" in notebook.output_text(refreshed)
    assert receipts(notebook, name) == ["1 x nitrile gloves"]  # only what the cells decided
    look(notebook, tmp_path, "pending")
    notebook.click_button("Approve")
    notebook.wait_output(prompt, "approved, applied")
    assert "ran in" in notebook.output_text(prompt)
    notebook.run_cell(refreshed)
    notebook.wait_idle()
    notebook.wait_output(refreshed, "completed")
    assert "Receipt 2: 2 x nitrile gloves" in notebook.output_text(refreshed)
    assert receipts(notebook, name) == ["1 x nitrile gloves", "2 x nitrile gloves"]
    queue = cell_with(name, "ApprovalQueue(lab)")
    notebook.wait_output(queue, "decided elsewhere")  # the queue's own prompt tells of the click above
    look(notebook, tmp_path, "approved")
    assert notebook.errors() == []


def test_deny_in_the_prompt(open_copy: OpenCopy, tmp_path: Path) -> None:
    name = "02_approvals"
    notebook = open_copy(name)
    run_all(notebook, name)
    prompt, refreshed = cell_with(name, "ApprovalPrompt("), cell_with(name, "session.refresh()")
    notebook.wait_output(prompt, "pending")
    notebook.click_button("Deny")
    notebook.wait_output(prompt, "denied, applied")
    notebook.run_cell(refreshed)
    notebook.wait_idle()
    notebook.wait_output(refreshed, "The order was not placed.")
    assert receipts(notebook, name) == ["1 x nitrile gloves"]
    look(notebook, tmp_path, "denied")
    assert notebook.errors() == []


def test_edit_in_the_prompt(open_copy: OpenCopy) -> None:
    name = "02_approvals"
    notebook = open_copy(name)
    run_all(notebook, name)
    prompt = cell_with(name, "ApprovalPrompt(")
    notebook.wait_output(prompt, "pending")
    notebook.page.locator(".jp-OutputArea-output button").filter(has_text="Edit").first.click()
    editor = notebook.page.locator(".jp-OutputArea-output textarea").first
    editor.fill('{"item": "nitrile gloves", "quantity": 5}')
    notebook.page.locator(".jp-OutputArea-output button").filter(has_text="Approve edited").first.click()
    notebook.wait_output(prompt, "edited, applied")
    assert receipts(notebook, name) == ["1 x nitrile gloves", "5 x nitrile gloves"]
    assert notebook.errors() == []


def test_what_waits_outlives_the_kernel(open_copy: OpenCopy, tmp_path: Path) -> None:
    name = "02_approvals"
    notebook = open_copy(name)
    run_all(notebook, name)
    notebook.wait_output(cell_with(name, "ApprovalPrompt("), "pending")
    notebook.restart_kernel()
    opening, queue = cell_with(name, "Lab.open"), cell_with(name, "ApprovalQueue(lab)")
    notebook.run_cell(opening)
    notebook.wait_idle()
    notebook.wait_output(opening, "1 decision pending")
    assert "order_supplies" in notebook.output_text(opening)
    notebook.run_cell(queue)
    notebook.wait_idle()
    notebook.wait_output(queue, "1 decision pending")
    look(notebook, tmp_path, "restarted")
    # The prompt further up is the old kernel's, whose buttons no longer do anything.
    notebook._cell(queue).locator("button").filter(has_text=re.compile(r"^\s*Approve\s*$")).click()
    notebook.wait_output(queue, "approved, applied")
    notebook.run_cell(opening)  # the first cell again: nothing waits any more, and the old lab is let go
    notebook.wait_idle()
    notebook.wait_output(opening, "Nothing waits for a decision")
    assert receipts(notebook, name) == ["1 x nitrile gloves", "2 x nitrile gloves"]
    assert notebook.errors() == []


def test_what_a_tool_writes_is_shown_as_text(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    application = f"""
from cayu import AgentSpec, CayuApp, ToolEffect
from cayu.notebook import Lab
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.tools import AlwaysRequireApprovalToolPolicy, tool
HOSTILE = {HOSTILE!r}
@tool(version="1", effect=ToolEffect.NONE)
def look(word: str) -> str:
    "Look a word up."
    return HOSTILE
def build_app(*, session_store=None, **_):
    app = CayuApp(session_store=session_store)
    app.register_provider(ScriptedModelProvider([[ModelStreamEvent.tool_call("look", {{"word": HOSTILE}})], HOSTILE]))
    app.register_agent(AgentSpec(name="a", model="m"), tools=[look], tool_policy=AlwaysRequireApprovalToolPolicy())
    return app
lab = Lab.open("hostile.db", factory=build_app)
""".strip()
    notebook = open_notebook(
        "hostile.ipynb",
        [
            application,
            "session = lab.run('a', HOSTILE, title=HOSTILE); session",
            "session.pending[0]",
            "from cayu_widgets import ApprovalPrompt, SessionView; ApprovalPrompt(session.pending[0])",
            "lab.approve(session.pending[0].action); session.refresh()",
            "SessionView(session)",
            "lab.pending()",
            "lab.messages_df(columns=['role', 'text'])",
        ],
    )
    notebook.run_all()
    notebook.wait_idle()
    notebook.wait_output(5, "finished, completed")
    for cell in (1, 4, 5):
        assert HOSTILE in notebook.output_text(cell), f"cell {cell}"
    assert "<img src=x" in notebook.output_text(7)  # pandas cuts long text
    assert notebook.page.locator(".jp-OutputArea-output img").count() == 0
    assert notebook.page.title() != "taken"
    assert notebook.errors() == []
    assert_fits(notebook)
    look(notebook, tmp_path, "hostile", 3000)


def test_cards_keep_their_own_look(open_copy: OpenCopy) -> None:
    """JupyterLab has rules of its own for tables, code and headings in outputs; the cards' rules are to win."""
    name = "03_restart"
    notebook = open_copy(name)
    run_all(notebook, name)
    styles = """() => {
        const cards = '.jp-RenderedHTML .cayu ';
        const all = (what, of) => [...document.querySelectorAll(cards + what)].map((el) => getComputedStyle(el)[of]);
        return {
            cells: [...new Set([...all('td', 'textAlign'), ...all('th', 'textAlign')])],
            stripes: [...new Set(all('tr', 'backgroundColor'))],
            padding: [...new Set(all('pre', 'paddingLeft'))],
            badges: [...document.querySelectorAll(cards + '.cayu-badge')].map(
                (el) => parseFloat(getComputedStyle(el).lineHeight) / parseFloat(getComputedStyle(el).fontSize)),
        };
    }"""
    found = notebook.page.evaluate(styles)
    assert found["cells"] in (["left"], ["start"], ["left", "start"])
    assert found["stripes"] == ["rgba(0, 0, 0, 0)"]
    assert "0px" not in found["padding"]
    assert min(found["badges"]) >= 1.3, "the badges' words touch their borders"
    separators = """() => [...document.querySelectorAll('.jp-RenderedHTML .cayu-turn')].map((el) => [
        getComputedStyle(el).borderTopColor, getComputedStyle(el.closest('.cayu-card')).backgroundColor])"""
    for theme in ("Dark", "Light"):
        notebook.set_theme(f"JupyterLab {theme}")
        assert all(line != behind for line, behind in notebook.page.evaluate(separators)), f"no lines in {theme}"


def test_the_figures_of_the_fourth_notebook(open_copy: OpenCopy, tmp_path: Path) -> None:
    """Every figure is a plot as wide as its output at most, waits are hatched, and the widget has both rounds."""
    name = "04_phase_timing"
    notebook = open_copy(name)
    run_all(notebook, name)
    widget = cell_with(name, "PhaseTimeline(lab")
    notebook.wait_output(widget, "As of ")
    size = notebook.page.viewport_size
    assert size is not None
    notebook.page.set_viewport_size({"width": 1280, "height": 9000})
    notebook.page.wait_for_timeout(500)
    plots = notebook.page.evaluate(
        """() => [...document.querySelectorAll('.js-plotly-plot')].map((plot) => ({
            right: plot.querySelector('.main-svg').getBoundingClientRect().right,
            room: plot.closest('.jp-OutputArea-output').getBoundingClientRect().right,
            bars: plot.querySelectorAll('.bars path').length,
            hatched: plot.querySelectorAll('.bars path[style*="url("]').length,
        }))"""
    )
    assert [plot["bars"] > 0 for plot in plots] == [True] * 7 + [False]  # the last one is a curve
    assert [plot["hatched"] > 0 for plot in plots] == [True, False, True, True, False, False, True, False]
    assert all(plot["right"] <= plot["room"] + 1 for plot in plots)
    assert "sibling_wait 2.00 s" in notebook.output_text(cell_with(name, "timeline(example)"))
    notebook.page.set_viewport_size(size)
    options = notebook.page.locator(".jp-OutputArea-output select option").all_inner_texts()
    assert [option.split(":")[0] for option in options] == ["1", "2"]
    assert_fits(notebook)
    look(notebook, tmp_path, "figures", 9000)
    assert notebook.errors() == []
