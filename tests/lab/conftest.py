"""Fixtures for the tests that drive JupyterLab in a browser. Every test in this folder is slow.

`chromium` lives for one module and not for the whole session: while Playwright's synchronous face is open, the main
thread counts as running an event loop, and any later async test (or `asyncio.run`) in that thread would fail.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from lab.jupyter import JupyterServer, NotebookPage, make_notebook

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_HERE = Path(__file__).parent
_FAILED = pytest.StashKey[bool]()
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)


class OpenNotebook(Protocol):
    """Opens a notebook in a browser page of its own; with `sources` it is written first."""

    def __call__(self, name: str, sources: Sequence[str] | None = None) -> NotebookPage: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


def _chromium_path() -> str | None:
    return shutil.which("chromium") or shutil.which("/usr/bin/chromium")


@pytest.fixture(scope="session")
def _browser_tools() -> str:
    """The path of Chromium, once everything these tests need has been found."""
    missing = [name for name in ("jupyterlab", "ipywidgets", "playwright") if importlib.util.find_spec(name) is None]
    path = _chromium_path()
    if path is None:
        missing.append("chromium")
    if path is None or missing:
        reason = f"the notebook tests need {', '.join(missing)}"
        if os.environ.get("CAYU_REQUIRE_ALL") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="module")
def chromium(_browser_tools: str) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_browser_tools, args=list(_FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lab_env() -> dict[str, str]:
    """More environment variables for the server and its kernels; a module overrides this fixture to set some."""
    return {}


@pytest.fixture(scope="module")
def lab_server(
    _browser_tools: str, lab_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JupyterServer]:
    with JupyterServer(tmp_path_factory.mktemp("lab"), lab_env) as server:
        yield server


@pytest.fixture
def lab_pages(
    request: pytest.FixtureRequest, lab_server: JupyterServer, tmp_path: Path
) -> Iterator[list[NotebookPage]]:
    """The pages that a test opened. When it failed, each is kept as a picture; then all are closed, kernels too."""
    pages: list[NotebookPage] = []
    yield pages
    for number, page in enumerate(pages):
        if request.node.stash.get(_FAILED, False):
            picture = tmp_path / f"failure-{number}.png"
            try:
                page.screenshot(picture)
                print(f"screenshot: {picture}")
            except Exception as error:
                print(f"no screenshot of page {number}: {error}")
        page.page.context.close()
    lab_server.reset()


@pytest.fixture
def open_notebook(chromium: Browser, lab_server: JupyterServer, lab_pages: list[NotebookPage]) -> OpenNotebook:
    def open_(name: str, sources: Sequence[str] | None = None) -> NotebookPage:
        if sources is not None:
            make_notebook(lab_server.root / name, sources)
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        page = NotebookPage(context.new_page(), lab_server)
        lab_pages.append(page)
        return page.open(name)

    return open_
