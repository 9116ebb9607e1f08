"""Factories named on the command line: found, called, checked and closed; and errors that say what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
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


def test_what_fails_within_the_code_of_others_keeps_its_traceback(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LookupError, match="a fault of the factory"):
        cayu("recovery", "startup", "cli.workbench:build_badly", "--json")
    (tmp_path / "needs_more.py").write_text("import a_library_that_is_missing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_missing"):
        cayu("recovery", "startup", "needs_more:build_app")


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
