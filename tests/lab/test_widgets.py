"""The live widgets in a real JupyterLab: clicked, edited, restarted and looked at in both themes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lab.jupyter import NotebookPage

if TYPE_CHECKING:
    from lab.conftest import OpenNotebook

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"

APP = f'''
from pathlib import Path
from cayu import AgentSpec, CayuApp, ToolEffect
from cayu.notebook import Lab
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.tools import AskUserTool, ByEffectToolPolicy, tool
from cayu_widgets import ApprovalPrompt, ApprovalQueue, SessionBrowser, SessionView

@tool(version="1", effect=ToolEffect.EXTERNAL)
def send(to: str, text: str = "") -> str:
    """Send a letter."""
    with open(FILE.with_suffix(".sent"), "a") as sent:
        sent.write(to + "\\n")
    return "sent to " + to + " {HOSTILE.replace(chr(34), chr(92) + chr(34))}"

def build_app(*, session_store=None, **_):
    def script(request):
        asked = request.messages[-1].plain_text
        if asked == "ask":
            return [ModelStreamEvent.tool_call("ask_user", {{"question": "Which <b>freezer</b>?",
                "options": ["The one in the cellar, at minus eighty degrees", "B"], "allow_other": True}})]
        to = asked.split(" ")
        text = {{"long": LONG}}
        return [ModelStreamEvent.tool_call("send", {{"to": each, "text": text.get(each, "hi")}}) for each in to]
    app = CayuApp(session_store=session_store)
    app.register_provider(ScriptedModelProvider([script, "All letters are on their way."]))
    app.register_agent(AgentSpec(name="clerk", model="scripted"), tools=[send, AskUserTool()],
                       tool_policy=ByEffectToolPolicy())
    return app

LONG = "unbroken" * 60 + " " + "a longer text with spaces " * 80
FILE = Path("NAME.db")
lab = Lab.open(FILE, factory=build_app)
'''.strip()


def source(name: str) -> str:
    return APP.replace("NAME", name)


def sent(notebook: NotebookPage, name: str) -> list[str]:
    path = notebook.server.root / f"{name}.sent"
    return path.read_text().splitlines() if path.exists() else []


def look(notebook: NotebookPage, folder: Path, name: str) -> None:
    """Keep a picture of a page that is tall enough for everything, in both themes."""
    size = notebook.page.viewport_size
    notebook.page.set_viewport_size({"width": 1280, "height": 2600})
    for theme in ("Dark", "Light"):
        notebook.set_theme(f"JupyterLab {theme}")
        notebook.page.locator("#jupyterlab-splash").wait_for(state="detached")
        notebook.screenshot(folder / f"{name}-{theme.lower()}.png")
    assert size is not None
    notebook.page.set_viewport_size(size)


def test_approve_deny_and_edit(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    notebook = open_notebook(
        "decide.ipynb",
        [
            source("decide"),
            "lab.run('clerk', 'ann'); lab.run('clerk', 'bob'); lab.run('clerk', 'cid'); lab.run('clerk', 'ask');",
            "ApprovalPrompt(lab.pending()[0])",
            "ApprovalPrompt(lab.pending()[1])",
            "ApprovalPrompt(lab.pending()[2])",
            "ApprovalPrompt(lab.pending()[3])",
        ],
    )
    notebook.run_all()
    notebook.wait_idle()
    for cell in range(2, 6):
        notebook.wait_output(cell, "pending")
    look(notebook, tmp_path, "pending")

    notebook.click_button("Approve")
    notebook.wait_output(2, "approved, applied")
    assert "ran in" in notebook.output_text(2)
    notebook.click_button("Deny")
    notebook.wait_output(3, "denied, applied")
    assert sent(notebook, "decide") == ["ann"]

    notebook.click_button("Edit…")
    editor = notebook.page.locator(".jp-OutputArea-output textarea")
    editor.fill('{"to": 3}')
    notebook.click_button("Approve edited")
    notebook.wait_output(4, "Refused, and nothing was written")
    look(notebook, tmp_path, "refused")
    editor.fill('{"to": "dan"}')
    notebook.click_button("Approve edited")
    notebook.wait_output(4, "edited, applied")
    assert sent(notebook, "decide") == ["ann", "dan"]

    assert "Which <b>freezer</b>?" in notebook.output_text(5)
    notebook.click_button("B")
    notebook.wait_output(5, "answered, applied")
    look(notebook, tmp_path, "decided")
    assert notebook.errors() == []


def test_a_restart_shows_what_waits_and_lets_decide(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    notebook = open_notebook(
        "restart.ipynb",
        [
            source("restart"),
            "len(lab.pending()) or lab.run('clerk', 'ann long')",
            "queue = ApprovalQueue(lab); queue",
            "view = SessionView(lab.session(lab.sessions_df()['session_id'][0])); view",
        ],
    )
    notebook.run_all()
    notebook.wait_idle()
    notebook.wait_output(2, "2 decisions pending")
    notebook.wait_output(3, "paused, 2 pending")
    look(notebook, tmp_path, "queue")
    notebook.restart_kernel()
    notebook.run_all()
    notebook.wait_idle()
    notebook.wait_output(2, "2 decisions pending")
    notebook.click_button("Deny", 0)
    notebook.wait_output(2, "1 decision pending")
    assert sent(notebook, "restart") == []
    notebook.click_button("Approve", 0)
    notebook.wait_output(2, "Nothing waits for a decision")
    notebook.wait_output(2, "approved, applied")
    notebook.wait_output(2, "denied, applied")
    notebook.wait_output(3, "finished, completed")
    assert sent(notebook, "restart") == ["long"]
    assert HOSTILE in notebook.output_text(3)
    assert notebook.page.title() != "taken"
    look(notebook, tmp_path, "finished")
    assert notebook.errors() == []


def test_the_browser_pages_filters_and_opens(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    notebook = open_notebook(
        "browse.ipynb",
        [
            source("browse"),
            "for n in range(60): lab.run('clerk', 'ask' if n % 2 else 'ann', title=f'Letter {n}')",
            "SessionBrowser(lab)",
        ],
    )
    notebook.run_all()
    notebook.wait_idle()
    notebook.wait_output(2, "1-50 of 60")
    look(notebook, tmp_path, "page")
    notebook.click_button("Next")
    notebook.wait_output(2, "51-60 of 60")
    notebook.click_button("Previous")
    notebook.wait_output(2, "1-50 of 60")
    notebook.page.get_by_placeholder("Part of an id").fill("letter 7")
    notebook.wait_output(2, "1-1 of 1")
    notebook.page.locator(".cayu-rows button").focus()
    notebook.page.keyboard.press("Space")
    notebook.wait_output(2, "paused, 1 pending")
    look(notebook, tmp_path, "browser")
    notebook.click_button("B")
    notebook.wait_output(2, "finished, completed")
    assert notebook.errors() == []


MADE_UP = """
from cayu.notebook.figures import worked_example
named = {"tool_name": HOSTILE, "tool_call_id": HOSTILE}
calls = tuple(call.model_copy(update=named) for call in worked_example().calls)
made = worked_example().model_copy(update={"calls": calls, "tool_round_id": HOSTILE})
async def read(session=None):
    return (made,)
lab.atimings = read
PhaseTimeline(session)
""".strip()


def test_the_timeline_shows_a_round_and_takes_in_the_next(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    notebook = open_notebook(
        "timeline.ipynb",
        [
            "from cayu.examples.sensors import build_app\n"
            "from cayu.notebook import Lab\n"
            "from cayu_widgets import PhaseTimeline\n"
            "lab = Lab.open('timeline.db', factory=build_app)\n"
            "session = lab.run('caretaker', 'Read them one after the other.')",
            "PhaseTimeline(session)",
            "lab.resume(session, 'Read them all at once.');",
            f"HOSTILE = {HOSTILE!r}\n{MADE_UP}",
        ],
    )
    notebook.run_cell(0)
    notebook.wait_idle()
    notebook.run_cell(1)
    notebook.wait_output(1, "As of ")
    picker = notebook._cell(1).locator("select")
    drawn = notebook._cell(1).locator("svg.cayu-figure")
    assert picker.locator("option").count() == 1
    assert "1. read_by_hand" in drawn.inner_html()
    assert "round_commit" in notebook.output_text(1)

    notebook.run_cell(2)
    notebook.wait_idle()
    notebook.click_button("Refresh")
    picker.locator("option").nth(1).wait_for(state="attached")
    notebook.wait_output(1, "1. read_remotely")  # the newest was shown, so the newest is
    look(notebook, tmp_path, "timeline-newest")
    picker.select_option(index=0)
    notebook.wait_output(1, "1. read_by_hand")
    assert "read_remotely" not in drawn.inner_html()
    notebook.click_button("Refresh")
    notebook.wait_idle()
    notebook.page.wait_for_timeout(500)
    assert "1. read_by_hand" in drawn.inner_html()  # a chosen one stays
    box, room = drawn.bounding_box(), notebook._cell(1).bounding_box()
    assert box is not None
    assert room is not None
    assert box["x"] + box["width"] <= room["x"] + room["width"]

    notebook.run_cell(3)
    notebook.wait_output(3, "As of ")
    assert "<img src=x" in notebook.output_text(3)
    assert notebook.page.locator(".jp-OutputArea-output img").count() == 0
    assert notebook._cell(3).locator("b", has_text="bold").count() == 0
    assert notebook.page.title() != "taken"
    look(notebook, tmp_path, "timeline-markup")
    assert notebook.errors() == []


SWEEP = """
import asyncio
from functools import partial
from pathlib import Path
from cayu.examples.handbook import load_handbook
from cayu.examples.memory import handbook_subject, handbook_sweep, reader
from cayu.notebook import Lab
from cayu.providers import ExtractiveModelProvider
from cayu.storage import SQLiteKnowledgeStore
from cayu_widgets import ExperimentBoard

class Slow(ExtractiveModelProvider):
    async def stream(self, request):
        await asyncio.sleep(0.2)
        async for event in super().stream(request):
            yield event

import cayu.examples.memory
cayu.examples.memory.ExtractiveModelProvider = Slow
handbook = SQLiteKnowledgeStore("knowledge.db")
subject = handbook_subject(handbook)
lab = Lab.open("memory.db", factory=partial(reader, knowledge_store=subject.knowledge, recall=subject.recall))
lab.call(load_handbook(handbook))
experiment = handbook_sweep(NAME, questions=12)
study = lab.study(subject, experiment.cases)
run = lab.experiment(experiment, study)
""".strip()


def test_the_board_of_an_experiment_is_stopped_and_outlives_the_kernel(
    open_notebook: OpenNotebook, tmp_path: Path
) -> None:
    notebook = open_notebook(
        "board.ipynb", [SWEEP.replace("NAME", repr(HOSTILE)), "ExperimentBoard(run)", "lab.check_quiet()"]
    )
    notebook.run_cell(0)
    notebook.wait_idle()
    notebook.run_cell(1)
    notebook.wait_output(1, "running, ")
    look(notebook, tmp_path, "board-running")
    notebook.click_button("Stop")
    notebook.wait_output(1, "cancelled, ")
    # Plain HTML takes the place of the live board.
    notebook._cell(1).locator(".jp-OutputArea-output button").wait_for(state="detached")
    assert HOSTILE in notebook.output_text(1)
    notebook.run_cell(2)
    notebook.wait_idle()
    assert notebook.errors() == []

    notebook.save()
    notebook.restart_kernel()
    notebook.page.reload()
    notebook.wait_output(1, "cancelled, ", 30)
    assert "model not found" not in notebook.output_text(1)
    assert "recall_off" in notebook.output_text(1)
    assert notebook.page.locator(".jp-OutputArea-output img").count() == 0
    assert notebook.page.title() != "taken"
    look(notebook, tmp_path, "board-restarted")
