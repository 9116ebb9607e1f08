"""Holds the public surface: honest `__all__` lists, the names of the `cayu` face, and a light first import."""

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from conftest import require_tool
from house.source import Module, modules, sample

FACE_NAMES = (
    *("AgentSpec", "CayuApp", "Environment", "EnvironmentSpec", "Event", "EventType"),
    *("ExecutionProfileBehaviorIdentity", "ExecutionProfileMismatchError", "KnowledgeQuery", "KnowledgeStore"),
    *("Message", "ResumeRequest", "RunRequest", "SQLiteSessionStore", "SessionStatus", "Tool", "ToolContext"),
    *("ToolEffect", "ToolPolicy", "ToolResult", "ToolSpec", "run_to_completion"),
)

# Libraries of the optional extras: a module of the rim may need one merely to load.
EXTRAS = frozenset(
    ("psycopg", "psycopg_pool", "fastapi", "uvicorn", "opentelemetry", "anthropic", "openai", "dask", "distributed")
)

# What a first import leaves for later.
LATER = frozenset(
    (
        *(
            "pandas",
            "plotly",
            "ipywidgets",
            "IPython",
            "scipy",
            "statsmodels",
            "psycopg",
            "dask",
            "fastapi",
            "opentelemetry",
        ),
        *("typer", "rich", "nest_asyncio", "jupyterlab", "numpy"),
    )
)
FIRST_IMPORT = "import cayu; cayu.CayuApp"
PEAK_BYTES = 120_000_000

# Runs in the child after the statement. Linux carries the parent's peak into getrusage of a child, so the peak of the
# new address space is read first; elsewhere getrusage has to do (in bytes on macOS).
REPORT = """
import json, re, resource, sys
loaded = sorted({name.partition(".")[0] for name in sys.modules})
try:
    with open("/proc/self/status") as status:
        peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1]) * 1024
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({"loaded": loaded, "peak": peak}))
"""


@dataclass(frozen=True)
class Footprint:
    """What a statement leaves behind in a fresh interpreter: top-level modules, and the peak of memory in bytes."""

    loaded: frozenset[str]
    peak: int


def footprint(statement: str, directory: Path) -> Footprint:
    """Run a statement in a fresh interpreter, away from the sources, and look at it."""
    child = subprocess.run(
        [sys.executable, "-c", statement + REPORT], cwd=directory, capture_output=True, text=True, timeout=60
    )
    assert child.returncode == 0, child.stderr
    told = json.loads(child.stdout.splitlines()[-1])
    return Footprint(frozenset(told["loaded"]), told["peak"])


def list_faults(name: str, listed: Sequence[str], module: object) -> list[str]:
    """What is wrong with an `__all__`: order, repetition, names that are not there."""
    faults = [] if list(listed) == sorted(listed) else [f"{name}.__all__ is not sorted"]
    faults += [f"{name}.__all__ repeats {each!r}" for each in sorted(set(listed)) if listed.count(each) > 1]
    faults += [f"{name}.__all__ offers {each!r}, which is not there" for each in listed if not hasattr(module, each)]
    return faults


def has_list(module: Module) -> bool:
    """Whether a module assigns `__all__`."""
    stored = (node for node in ast.walk(module.tree) if isinstance(node, ast.Name) and node.id == "__all__")
    return any(isinstance(node.ctx, ast.Store) for node in stored)


def load(name: str) -> ModuleType:
    """Import a module of the project, or say which optional extra is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        require_tool(f"{missing} (for {name})", False)
        raise


@pytest.mark.parametrize("name", [module.name for module in modules() if has_list(module)])
def test_lists_of_public_names_are_sorted_and_true(name: str) -> None:
    module = load(name)
    faults = list_faults(name, module.__all__, module)
    assert not faults, "\n" + "\n".join(faults)


def test_faults_of_a_list_are_caught() -> None:
    assert list_faults("m", ["Path", "sys"], sys.modules[__name__]) == []
    assert list_faults("m", ["b", "Path", "Path"], sys.modules[__name__]) == [
        "m.__all__ is not sorted",
        "m.__all__ repeats 'Path'",
        "m.__all__ offers 'b', which is not there",
    ]
    assert has_list(sample("m", "__all__ = []"))
    assert has_list(sample("m", "__all__: list[str] = []"))
    assert not has_list(sample("m", "from x import y"))


def test_the_face_offers_what_a_first_application_needs() -> None:
    face = importlib.import_module("cayu")
    listed = getattr(face, "__all__", ())
    missing = [name for name in FACE_NAMES if name not in listed or not hasattr(face, name)]
    assert not missing, f"cayu does not offer {', '.join(missing)}"


@pytest.mark.slow
def test_the_first_import_is_light(tmp_path: Path) -> None:
    seen = footprint(FIRST_IMPORT, tmp_path)
    assert "cayu" in seen.loaded
    assert not seen.loaded & LATER
    assert seen.peak < PEAK_BYTES, f"the first import needs {seen.peak / 1e6:.0f} MB"


@pytest.mark.slow
def test_a_heavy_import_is_seen(tmp_path: Path) -> None:
    assert "numpy" in footprint("import numpy", tmp_path).loaded
    assert footprint("held = b'x' * 150_000_000", tmp_path).peak > PEAK_BYTES
    assert footprint("pass", tmp_path).peak < PEAK_BYTES
