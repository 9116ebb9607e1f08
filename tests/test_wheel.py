"""The built wheel stands on its own: installed apart from the checkout, with its data, its SQL and its types."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import require_tool

ROOT = Path(__file__).parents[1]
LEFT_OUT = (".git", ".venv", ".ci", "dist", "build", "lab-work", "__pycache__", ".*_cache", "*.egg-info", ".hypothesis")
TIMEOUT_SECONDS = 300

# Runs isolated (`-I`: no PYTHONPATH, no working directory, no user's packages). The editable install of the checkout
# puts its folders on sys.path through a .pth file, so they are taken away again; third-party packages stay.
ISOLATED = """
import sys
target, checkout, work = sys.argv[1:4]
sys.argv = [work]
sys.path = [target, *(each for each in sys.path if "site-packages" in each or not each.startswith(checkout))]
sys.meta_path = [each for each in sys.meta_path if "editable" not in repr(each).lower()]
"""
LOOK = """
import importlib, importlib.metadata, json, pkgutil
from importlib.resources import files
import cayu, cayu_widgets
from cayu.storage import handbook_entries, handbook_questions
from cayu.storage.sql.queries import load_migrations, load_queries
modules = []
for package in (cayu, cayu_widgets):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        modules.append(module.name)
        importlib.import_module(module.name)
print(json.dumps({
    "cayu": cayu.__file__,
    "cayu_widgets": cayu_widgets.__file__,
    "modules": modules,
    "elsewhere": [name for name in modules if not str(sys.modules[name].__file__).startswith(target)],
    "entries": len(handbook_entries()),
    "questions": len(handbook_questions()),
    "queries": len(load_queries("cayu.storage.sql.sqlite")),
    "migrations": [migration.number for migration in load_migrations("cayu.storage.sql.sqlite")],
    "typed": [files(name).joinpath("py.typed").is_file() for name in ("cayu", "cayu_widgets")],
    "widgets": sorted(cayu_widgets.__all__),
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that the checkout stays as it is."""
    copy, out = tmp_path_factory.mktemp("copy") / "tree", tmp_path_factory.mktemp("out")
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    if importlib.util.find_spec("hatchling"):
        command = ["build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    else:
        command = ["pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check", "-w", str(out), str(copy)]
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if "hatchling" in done.stderr and "Could not find a version" in done.stderr:
        require_tool("hatchling, or a network to fetch it from,", False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (made,) = out.glob("cayu_lab-*.whl")
    return made


@pytest.fixture(scope="module")
def target(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that holds nothing but the installed wheel."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    run([*pip, "--target", str(folder), str(wheel)])
    return folder


def run(command: list[str], **more: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, **more)
    assert done.returncode == 0, (
        f"{command[:4]} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    )
    return done.stdout


def run_isolated(target: Path, work: Path, code: str, *options: str) -> str:
    """Run code that sees the installed wheel, the third-party packages, and not the checkout."""
    command = [sys.executable, "-I", *options, "-c", ISOLATED + code, str(target), str(ROOT), str(work)]
    return run(command, cwd=work)


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as packed:
        return set(packed.namelist())


def tracked(folder: str, pattern: str) -> set[str]:
    """The files of the checkout below a folder."""
    found = (ROOT / folder).rglob(pattern)
    return {str(path.relative_to(ROOT)) for path in found if path.is_file() and "__pycache__" not in path.parts}


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    packed = {name for name in names(wheel) if ".dist-info/" not in name}
    expected = (
        tracked("cayu", "*.py") | tracked("cayu", "*.sql") | tracked("cayu", "py.typed") | tracked("cayu", "*.md")
    )
    expected |= {name.removeprefix("widgets/") for name in tracked("widgets", "*.py") | tracked("widgets", "py.typed")}
    expected |= {f"cayu/{name}" for name in tracked("datasets", "*")}
    assert packed == expected
    assert any(name.endswith("0001_foundation.sql") for name in packed)
    information = {name.rpartition("/")[2] for name in names(wheel) if ".dist-info/" in name}
    assert {"METADATA", "WHEEL", "RECORD", "LICENSE"} <= information


@pytest.mark.slow
def test_the_installed_wheel_loads_everything_from_itself(target: Path, tmp_path: Path) -> None:
    told = json.loads(run_isolated(target, tmp_path, LOOK, "-W", "error").splitlines()[-1])
    assert told["cayu"] == str(target / "cayu/__init__.py")
    assert told["cayu_widgets"] == str(target / "cayu_widgets/__init__.py")
    assert told["elsewhere"] == []
    assert len(told["modules"]) > 60
    assert told["entries"] > 100
    assert told["questions"] == 60
    assert told["queries"] > 10
    assert told["migrations"][0] == 1
    assert told["typed"] == [True, True]
    assert {"ApprovalPrompt", "ApprovalQueue", "SessionBrowser", "SessionView"} <= set(told["widgets"])


@pytest.mark.slow
def test_a_damaged_data_file_is_refused(target: Path, tmp_path: Path) -> None:
    copy = tmp_path / "damaged"
    shutil.copytree(target, copy)
    damaged = next(
        path
        for path in sorted((copy / "cayu/datasets").iterdir())
        if "entries" in path.name.lower() or "handbook" in path.name.lower()
    )
    damaged.write_bytes(damaged.read_bytes() + b"\n")
    code = """
from cayu.errors import DatasetError
from cayu.storage import handbook_entries
try:
    print(len(handbook_entries()))
except DatasetError as error:
    print("refused", error)
"""
    assert run_isolated(copy, tmp_path, code).startswith("refused")


@pytest.mark.slow
def test_the_demonstration_runs_from_the_wheel(target: Path, tmp_path: Path) -> None:
    # The demonstration starts children of its own by `python -m` and `-c`, which find the wheel by PYTHONPATH. A .pth
    # file comes after it, so the wheel is found first; the children prove it by where they keep their bytecode.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CAYU", "PYTHON"))}
    env |= {"PYTHONPATH": str(target), "PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode"), "COLUMNS": "120"}
    work = tmp_path / "work"
    work.mkdir()
    where = run([sys.executable, "-c", "import cayu; print(cayu.__file__)"], cwd=work, env=env)
    assert where.strip() == str(target / "cayu/__init__.py")
    out = run([sys.executable, "-m", "cayu.examples.demo", "--dir", str(work / "demo")], cwd=work, env=env)
    assert "Done in" in out
    assert "It acted once" in out
    compiled = {str(path) for path in (tmp_path / "bytecode").rglob("*.pyc")}
    ours = {path for path in compiled if "/cayu/" in path and "site-packages" not in path}
    assert any("/cayu/examples/durable_service_tools" in path for path in ours)
    assert [path for path in ours if str(target)[1:] not in path] == []
    assert [path for path in compiled if str(ROOT / "cayu")[1:] in path] == []


GUIDES = (
    *("durable-service-tools", "durable-operations", "tool-effects", "anatomy"),
    *("references#sessions", "references#knowledge"),
)
GUIDE = """
import socket
from cayu.cli.main import app
def refused(*_, **__):
    raise OSError("no network")
socket.socket.connect = socket.create_connection = refused
app(["guide", PLACE])
"""


@pytest.mark.slow
@pytest.mark.requirement("A001")
@pytest.mark.parametrize("place", GUIDES)
def test_a_guide_is_printed_offline_from_the_wheel(target: Path, tmp_path: Path, place: str) -> None:
    told = run_isolated(target, tmp_path, GUIDE.replace("PLACE", repr(place)))
    text = (target / "cayu/guides" / f"{place.partition('#')[0]}.md").read_text(encoding="utf-8")
    assert told.strip() in text
    assert len(told) > 200


@pytest.mark.slow
def test_the_script_runs_from_the_wheel(target: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CAYU", "PYTHON"))}
    out = run([str(target / "bin" / "cayu"), "guide"], cwd=tmp_path, env=env | {"PYTHONPATH": str(target)})
    assert "durable-service-tools" in out


@pytest.mark.slow
def test_the_checkout_stays_clean(wheel: Path) -> None:
    assert not (ROOT / "dist").exists() or not list((ROOT / "dist").glob(wheel.name))
    assert not (ROOT / "build").exists()
