"""Collects which requirement rows the tests hold, and says what an absent optional tool means."""

import os
import signal
from collections import defaultdict
from typing import Any

import pytest
from house.traceability import TABLE, Coverage, is_whole, mark_faults, read_rows

# Areas of which every row must have a test. An area joins when its work is done.
FINISHED_AREAS = ("core", "recovery", "timing", "interventions")

COVERAGE = pytest.StashKey[Coverage]()
TOLD = pytest.StashKey[str]()
SUMMARY = "requirements"


def require_tool(name: str, found: object) -> None:
    """Go on when an optional tool was found; otherwise skip, or fail where `CAYU_REQUIRE_ALL=1` asks for everything.

    `name` is what the reader would install; `found` is anything whose truth says that it is there.
    """
    if found:
        return
    if os.environ.get("CAYU_REQUIRE_ALL") == "1":
        pytest.fail(f"{name} is missing, and CAYU_REQUIRE_ALL=1 asks for every optional tool", pytrace=False)
    pytest.skip(f"{name} is missing", allow_module_level=True)


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes that tests start, also where this run was put in the background and ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Read the requirement marks of every collected test, before `-m` and `-k` take tests away."""
    rows = read_rows(TABLE.read_text(encoding="utf-8"))
    known = {row.id for row in rows}
    held: defaultdict[str, list[str]] = defaultdict(list)
    faults: list[str] = []
    for item in items:
        for mark in item.iter_markers("requirement"):
            faults += mark_faults(item.nodeid, mark.args, known)
            for each in mark.args:
                held[each].append(item.nodeid)
    if faults:
        raise pytest.UsageError("\n".join(dict.fromkeys(faults)))
    narrowed = any(config.getoption(name, None) for name in ("lf", "ignore", "ignore_glob"))
    whole = is_whole(config.args, config.invocation_params.dir) and not narrowed and not session.testsfailed
    config.stash[COVERAGE] = Coverage(rows, FINISHED_AREAS, {each: tuple(nodes) for each, nodes in held.items()}, whole)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where several processes share the tests, hand what each has collected to the one that reports."""
    coverage = session.config.stash.get(COVERAGE, None)
    told = getattr(session.config, "workeroutput", None)
    if told is not None and coverage is not None and coverage.whole:
        told[SUMMARY] = coverage.summary()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take in what a process has collected; it is the same in all."""
    summary = getattr(node, "workeroutput", {}).get(SUMMARY)
    if summary is not None:
        node.config.stash[TOLD] = summary


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """After a run over everything, say which rows still have no test."""
    coverage = config.stash.get(COVERAGE, None)
    summary = coverage.summary() if coverage is not None and coverage.whole else config.stash.get(TOLD, None)
    if summary is not None:
        terminalreporter.write_line(summary)


@pytest.fixture(scope="session")
def requirement_coverage(pytestconfig: pytest.Config) -> Coverage:
    """What the tests of this run hold, as collected before any were taken away."""
    return pytestconfig.stash[COVERAGE]
