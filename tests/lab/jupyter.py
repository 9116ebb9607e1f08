"""A real JupyterLab server, and a page that drives it with clicks and keys.

The server runs in a throw-away home, so neither the settings of the person who runs the tests nor the network reach it.
Its own settings stand in `settings.json`: all cells in the page, no news, no update or build check, no toasts, editors
that add no brackets. The page acts only by menus, clicks and keys, so whatever passes here can be repeated by hand;
what it looks at stands in `page.js`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

_HERE = Path(__file__).parent
_KERNELSPEC: dict[str, Any] = {
    "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    "display_name": "Python 3 (ipykernel)",
    "language": "python",
    "metadata": {"debugger": True},
}


class LabTimeout(AssertionError):
    """Something that should have happened in the server or on the page did not happen in time."""


class JupyterServer:
    """`jupyter lab` on a free local port, serving one folder; its kernels end with it."""

    def __init__(self, root: Path, env: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.token = os.urandom(16).hex()
        self.url = ""
        self._extra = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="jupyter-", ignore_cleanup_errors=True)
        self._home = Path(self._folder.name)
        self.log_path = self._home / "server.log"
        self._restore_settings()
        _write_json(self._home / "JUPYTER_PATH/kernels/python3/kernel.json", _KERNELSPEC)  # comes before installed ones
        env = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON"))}
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_PATH"):
            env[name] = str(self._home / name)
        env["HOME"] = str(self._home)
        arguments = {"ip": "127.0.0.1", "port": 0, "root_dir": self.root, "open_browser": False}
        command = [sys.executable, "-m", "jupyterlab", "--allow-root", f"--IdentityProvider.token={self.token}"]
        command += [f"--ServerApp.{name}={value}" for name, value in arguments.items()]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self.root, env=env | self._extra, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self._wait_until_up(timeout=60)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        import psutil

        assert self._process is not None
        family: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
        with self._process:  # waits at its end
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
        for child in psutil.wait_procs(family, timeout=2)[1]:
            child.kill()
        self._folder.cleanup()

    def api(self, method: str, path: str) -> Any:
        """Call the server's REST API; gives the decoded answer, None where it is empty."""
        request = urllib.request.Request(f"{self.url}api/{path}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # not through a proxy of the machine
        with direct.open(request, timeout=20) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def reset(self) -> None:
        """End all kernels and put the settings back (a theme that one test chose would greet the next)."""
        for session in self.api("GET", "sessions"):
            self.api("DELETE", f"sessions/{session['id']}")
        self._restore_settings()

    def log_tail(self, lines: int = 20) -> str:
        with self.log_path.open(encoding="utf-8", errors="replace") as log:
            return "".join(deque(log, maxlen=lines))

    def _restore_settings(self) -> None:
        shutil.rmtree(self._home / "JUPYTER_CONFIG_DIR", ignore_errors=True)
        for name, values in json.loads((_HERE / "settings.json").read_text(encoding="utf-8")).items():
            _write_json(self._home / "JUPYTER_CONFIG_DIR" / name, values)

    def _wait_until_up(self, timeout: float) -> None:
        assert self._process is not None
        card = self._home / "JUPYTER_RUNTIME_DIR" / f"jpserver-{self._process.pid}.json"
        deadline = time.monotonic() + timeout
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                self.url = json.loads(card.read_text(encoding="utf-8"))["url"]
                self.api("GET", "status")
                return
            except (OSError, ValueError):  # not there yet, half written, or not listening yet
                time.sleep(0.05)
        end = f"(exit code {self._process.poll()})"
        raise LabTimeout(f"waited up to {timeout:g} s for the server to answer {end}; its log:\n{self.log_tail()}")


class NotebookPage:
    """One browser page with one notebook open in JupyterLab. Cells count from 0 and include Markdown cells."""

    def __init__(self, page: Page, server: JupyterServer) -> None:
        self.page = page
        self.server = server
        page.set_default_timeout(15_000)
        page.add_init_script(path=_HERE / "page.js")

    def open(self, name: str, timeout: float = 60) -> Self:
        """Open a notebook of the server's root and wait until its kernel is ready."""
        with self._doing(f"opening {name}"):
            self.page.goto(f"{self.server.url}lab/tree/{quote(name)}?token={self.server.token}&reset")
        # The light says idle before there is a kernel, so idle counts only after it has said something else.
        self._until(f"the kernel of {name} to be ready", lambda s: s["prompts"] and _settled(s, 0), timeout)
        return self

    def run_all(self) -> None:
        """Run > Run All Cells. Returns once the first cell is under way; see `wait_idle`."""
        with self._running("Run All Cells"):
            self._menu("Run", "Run All Cells")

    def run_cell(self, index: int) -> None:
        """Select a code cell and press Ctrl+Enter. Returns once it is under way."""
        with self._running(f"cell {index}"), self._doing(f"running cell {index}"):
            self._cell(index).locator(".jp-InputPrompt").click()
            self.page.keyboard.press("Control+Enter")

    def wait_idle(self, timeout: float = 60) -> None:
        """Wait until nothing runs and nothing is queued."""
        self._until("all cells to finish", lambda s: s["light"] == "idle" and "[*]" not in s["prompts"], timeout)

    def restart_kernel(self, timeout: float = 60) -> None:
        """Kernel > Restart Kernel, confirmed; waits until the new kernel is ready."""
        before = len(self._state()["seen"]["lights"])
        self._menu("Kernel", "Restart Kernel…")
        with self._doing("confirming the restart"):
            self.page.locator(".jp-Dialog .jp-mod-accept").click()
        self._until("the kernel to restart", lambda s: _settled(s, before, "restarting"), timeout)

    def cell_prompts(self) -> list[str]:
        """The prompt of each cell, such as "[3]", "[*]", "[ ]", and "" for Markdown."""
        return list(self._state()["prompts"])

    def output_text(self, index: int) -> str:
        """What a reader sees below a cell."""
        with self._doing(f"reading the output of cell {index}"):
            return str(self._cell(index).evaluate("cell => labTest.outputText(cell)")).strip()

    def wait_output(self, index: int, text: str, timeout: float = 10) -> None:
        """Wait until a text stands in the output of a cell."""
        try:
            self._until(f"{text!r} below cell {index}", lambda _: text in self.output_text(index), timeout)
        except LabTimeout as error:
            error.add_note(f"below cell {index} stands: {self.output_text(index)!r}")
            raise

    def errors(self) -> list[str]:
        """The traceback of every error output, without its colours; plain stderr is none."""
        return list(self.page.evaluate("labTest.errors()"))

    def click_button(self, text: str, nth: int = 0) -> None:
        """Click a button in the outputs by its words; waits while it is missing or off."""
        words = re.compile(rf"^\s*{re.escape(text)}\s*$")
        with self._doing(f"clicking the button {text!r} ({nth})"):
            self.page.locator(".jp-OutputArea-output button").filter(has_text=words).nth(nth).click()

    def type_cell(self, index: int, source: str) -> None:
        """Replace the source of a code cell."""
        with self._doing(f"typing into cell {index}"):
            self._cell(index).locator(".cm-content").click()
            self.page.keyboard.press("Control+A")
            self.page.keyboard.press("Delete")
            self.page.keyboard.insert_text(source)

    def append_cell(self, source: str) -> int:
        """Add a code cell at the end, by the button that stands there; gives its index."""
        index = len(self.cell_prompts())
        with self._doing("adding a cell"):
            self.page.locator(".jp-Notebook-footer").click()
        self._until("the new cell", lambda s: len(s["prompts"]) > index)
        self.type_cell(index, source)
        return index

    def save(self) -> None:
        """File > Save Notebook, and wait until the tab's dirty mark is gone."""
        self._menu("File", "Save Notebook")
        self._until("the notebook to be saved", lambda _: not self.page.locator(".lm-TabBar .jp-mod-dirty").count())

    def set_theme(self, name: str) -> None:
        """Settings > Theme > name, such as "JupyterLab Dark"."""
        self._menu("Settings", "Theme", name)
        with self._doing(f"putting on the theme {name}"):
            self.page.locator(f'body[data-jp-theme-name="{name}"]').wait_for(state="attached")

    def screenshot(self, path: Path) -> None:
        self.page.screenshot(path=path)

    def _cell(self, index: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-Notebook-cell").nth(index)

    def _menu(self, *labels: str) -> None:
        with self._doing(f"choosing {' > '.join(labels)}"):
            for bar, label in zip((".lm-MenuBar", ".lm-Menu", ".lm-Menu"), labels, strict=False):
                self.page.locator(bar).get_by_text(label, exact=True).click()

    def _state(self) -> dict[str, Any]:
        return dict(self.page.evaluate("labTest.state()"))

    @contextmanager
    def _running(self, what: str) -> Iterator[None]:
        before = self._state()["seen"]["prompts"]
        yield
        self._until(f"{what} to start", lambda s: s["seen"]["prompts"] > before)

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        from playwright.sync_api import Error

        try:
            yield
        except Error as error:
            raise LabTimeout(self._story(f"failed while {what}: {error}")) from error

    def _until(self, what: str, look: Callable[[dict[str, Any]], object], timeout: float = 15) -> None:
        """Look until it holds twice in a row, 50 ms apart: JupyterLab passes through states that only look final."""
        deadline = time.monotonic() + timeout
        hits = 0
        with self._doing(f"waiting for {what}"):
            while hits < 2:
                hits = hits + 1 if look(self._state()) else 0
                if not hits and time.monotonic() > deadline:
                    raise LabTimeout(self._story(f"waited {timeout:g} s for {what}"))
                self.page.wait_for_timeout(50)

    def _story(self, headline: str) -> str:
        try:
            state = json.dumps(self._state())
        except Exception as error:  # the page may be gone, which is worth saying too
            state = repr(error)
        return f"{headline}\nthe page: {state}\nthe server's log:\n{self.server.log_tail()}"


def _settled(state: dict[str, Any], before: int, via: str = "") -> bool:
    """Is the kernel idle, and has its light (since `before`) shown what lies between two kernels?"""
    since = state["seen"]["lights"][before:]
    return state["light"] == "idle" and "unknown" in since and (not via or via in since)


def make_notebook(path: Path, sources: Sequence[str]) -> Path:
    """Write a notebook of code cells; a source whose first line is `%%markdown` becomes a Markdown cell."""
    cells: list[dict[str, Any]] = []
    for number, source in enumerate(sources):
        kind: dict[str, Any] = {"cell_type": "code", "execution_count": None, "outputs": []}
        if source.startswith("%%markdown\n"):
            kind, source = {"cell_type": "markdown"}, source.removeprefix("%%markdown\n")
        cells.append({"id": f"cell-{number}", "metadata": {}, "source": source, **kind})
    kernel = {"name": "python3", "display_name": _KERNELSPEC["display_name"], "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    _write_json(path, {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells})
    return path


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
