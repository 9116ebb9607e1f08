"""Factories named on the command line: found, called, checked and closed; and errors that say what to do."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
from cli import workbench
from cli.support import TARGET, Bench, cayu
from cli.workbench import OWN_STORE

from cayu import CayuApp


def swept(target: str, *more: object) -> dict[str, str]:
    return cayu("recovery", "startup", target, *more, "--json").error


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no_such", "has no 'no_such'"),
        ("no_function", "is no function"),
        ("build_nothing", "The factory returned str; it returns a CayuApp."),
        ("build_apart", "not on the session_store that it was given"),
        ("build_fixed", "cannot be called with session_store; write build_app(*, session_store=None)"),
    ],
)
def test_a_factory_that_is_none_is_refused(bench: Bench, name: str, told: str) -> None:
    bench.run("talk")
    error = swept(f"cli.workbench:{name}", "--store", bench.store)
    assert error["type"] == "InvalidInput"
    assert told in error["message"]


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.inner", "cli.no_such"])
def test_a_module_that_is_not_there_is_named(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    message = swept(f"{module}:build_app")["message"]
    assert f"There is no module {module.partition('.inner')[0]!r}" in message
    assert repr(str(tmp_path)) in message


@pytest.mark.parametrize("target", ["cli.workbench", "cli.workbench:", ":build_app"])
def test_a_target_without_its_two_parts_is_wrong_usage(target: str) -> None:
    done = cayu("recovery", "startup", target)
    assert (done.code, done.out) == (2, "")
    assert "is not MODULE:FACTORY" in done.err
    assert cayu("recovery", "resume", "s", "--target", target).code == 2


def line_of(function: object) -> int:
    """The line on which the last statement of a function stands."""
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return first + len(lines) - 1


@pytest.mark.parametrize(
    ("function", "raised"),
    [(workbench.build_badly, "LookupError"), (workbench.build_from_elsewhere, "JSONDecodeError")],
)
def test_what_a_factory_raises_is_told_by_its_place_and_not_by_its_text(
    function: Any, raised: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run("talk")
    monkeypatch.delenv("CAYU_TRACEBACK", raising=False)
    target, at = f"cli.workbench:{function.__name__}", f"workbench.py:{line_of(function)}"
    told = f"factory {target!r} raised {raised} at {at}; set CAYU_TRACEBACK=1 for the whole traceback"
    error = swept(target, "--store", bench.store)
    assert (error["type"], error["message"], error["raised"], error["at"]) == ("InvalidInput", told, raised, at)
    done = cayu("recovery", "startup", target, "--store", bench.store)
    assert (done.code, done.out, done.err) == (1, "", f"Error: {told}\n")
    monkeypatch.setenv("CAYU_TRACEBACK", "1")
    whole = cayu("recovery", "startup", target, "--store", bench.store)
    assert whole.code == 1
    assert whole.err.startswith("Traceback (most recent call last):")
    assert whole.err.endswith(f"Error: {told}\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import a_library_that_is_missing\n",
         "ModuleNotFoundError at {}.py:1 (there is no module 'a_library_that_is_missing')"),
        ("\ndef build_app(:\n    pass\n", "SyntaxError at {}.py:2"),
        ("def inner():\n    return {}['s3cret-value']\n\n\ninner()\n", "KeyError at {}.py:2"),
        ("import json\njson.loads('s3cret-value')\n", "JSONDecodeError at {}.py:2"),
        ("raise SystemExit('s3cret-value')\n", "SystemExit at {}.py:1"),
    ],
)  # fmt: skip
def test_what_a_module_raises_is_told_by_its_place(
    text: str, told: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    importlib.invalidate_caches()
    message = swept(f"{name}:build_app")["message"]
    assert message == f"module {name!r} raised {told.format(name)}; set CAYU_TRACEBACK=1 for the whole traceback"


def test_a_factory_that_wants_more_is_told_the_shape(bench: Bench) -> None:
    bench.run("talk")
    for more in ((), ("--store", bench.store)):
        message = swept("cli.workbench:build_configured", *more)["message"]
        assert message.startswith("The signature of 'cli.workbench:build_configured' needs 'config', ")
        assert message.endswith("build_app(*, session_store=None).")


@pytest.mark.parametrize(
    "command",
    [("recovery", "plan", TARGET), ("recovery", "startup", TARGET), ("recovery", "resume", "s", "--target", TARGET),
     ("sessions", "resume", "s", "go on", "--target", TARGET), ("sessions", "interrupt", "s", "--target", TARGET),
     ("approve", "a", "--target", TARGET)],
)  # fmt: skip
def test_an_own_store_that_is_not_there_is_refused_and_not_created(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWN_STORE, str(tmp_path / "runs.db"))
    error = cayu(*command, "--json").error
    assert error["type"] == "StoreNotADatabase"
    assert error["message"].startswith(f"There is no store at {tmp_path / 'runs.db'}; go to the folder ")
    assert "--store" in error["message"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    for command in (("pending",), ("sessions", "list"), ("recovery", "startup", TARGET)):
        assert "it is a folder" in cayu(*command, "--store", tmp_path, "--json").error["message"]
    assert list(tmp_path.iterdir()) == []


def test_the_store_is_named_on_stderr_and_in_the_document(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.lose("send x")
    monkeypatch.chdir(bench.folder)
    for command in (
        ("pending",), ("sessions", "list"), ("sessions", "show", "s"), ("recovery", "plan", TARGET),
        ("recovery", "startup", TARGET),
    ):  # fmt: skip
        done = cayu(*command, "--store", "runs.db")
        assert (done.code, done.err) == (0, f"store {bench.store}\n")
        assert str(bench.store) not in done.out
        told = cayu(*command, "--store", "runs.db", "--json")
        assert (told.json["store"], told.err) == (str(bench.store), "")
    assert cayu("sessions", "show", "no", "--store", "runs.db", "--json").error["store"] == str(bench.store)
    nowhere = cayu("recovery", "startup", "cli.workbench:build_fixed")
    assert (nowhere.code, nowhere.err) == (0, "store in memory\n")
    assert cayu("recovery", "startup", "cli.workbench:build_fixed", "--json").json["store"] == "in memory"


def test_without_a_store_the_application_uses_its_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.lose("send x")
    monkeypatch.setenv(OWN_STORE, str(bench.store))
    for target in (TARGET, "cli.workbench:build_later"):
        told = cayu("recovery", "plan", target, "--json").json
        assert [item["session_id"] for item in told["plan"]["items"]] == ["s"]


def test_a_store_has_to_be_there(tmp_path: Path) -> None:
    error = swept(TARGET, "--store", tmp_path / "none.db")
    assert error["type"] == "StoreNotADatabase"
    assert "there is no such file" in error["message"]
    assert list(tmp_path.iterdir()) == []


def test_the_application_is_closed_whatever_happens(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run("talk")
    closed = []
    original = CayuApp.aclose

    async def aclose(self: CayuApp) -> None:
        closed.append(self)
        await original(self)

    monkeypatch.setattr(CayuApp, "aclose", aclose)
    assert cayu("recovery", "startup", TARGET, "--store", bench.store).code == 0
    assert cayu("recovery", "resume", "no", "--target", TARGET, "--store", bench.store).code == 1
    assert cayu("recovery", "startup", "cli.workbench:build_apart", "--store", bench.store).code == 1
    assert len(closed) == 3
