"""Holds the floors of the house: imports point down only, and heavy libraries stay at the rim."""

from dataclasses import dataclass
from enum import Enum

import pytest
from house.source import ASIDES, FACES, Import, Module, imports_of, is_below, modules, own_imports, sample


class Neighbours(Enum):
    """What two places on one floor may import from each other."""

    LEFT = "the right one may import the left one"
    APART = "neither imports the other"


@dataclass(frozen=True)
class Floor:
    """One floor: its places from left to right."""

    places: tuple[str, ...]
    neighbours: Neighbours


# From the ground up; the index is the number of the floor. A place is a module or package directly below `cayu`.
FLOORS = (
    Floor(("errors", "canonical", "clock", "crashpoints", "shielding"), Neighbours.LEFT),
    Floor(("messages", "events", "identity", "effects", "agents"), Neighbours.LEFT),
    Floor(
        (
            *("timing", "sessions", "knowledge", "environments", "tools"),
            *("budgets", "recall", "evals", "snapshots", "interventions"),
        ),
        Neighbours.LEFT,
    ),
    Floor(("storage", "providers", "observability"), Neighbours.APART),
    Floor(("runtime",), Neighbours.APART),
    Floor(("memory", "experiments"), Neighbours.LEFT),
    Floor(("notebook", "server", "cli"), Neighbours.APART),
    Floor(("cayu_widgets",), Neighbours.APART),
)
TOP = len(FLOORS) - 1

# Library -> the modules and packages that may import it. The asides may import anything.
HEAVY = {
    "pandas": ("cayu.notebook", "cayu.experiments", "cayu_widgets"),
    "plotly": ("cayu.notebook",),
    "ipywidgets": ("cayu_widgets", "cayu.notebook"),
    "IPython": ("cayu.notebook", "cayu_widgets"),
    "nest_asyncio": ("cayu.notebook",),
    "scipy": ("cayu.experiments",),
    "statsmodels": ("cayu.experiments",),
    "dask": ("cayu.experiments",),
    "distributed": ("cayu.experiments",),
    "psycopg": ("cayu.storage.sql.postgres",),
    "psycopg_pool": ("cayu.storage.sql.postgres",),
    "opentelemetry": ("cayu.observability",),
    "anthropic": ("cayu.providers.anthropic",),
    "openai": ("cayu.providers.openai",),
    "fastapi": ("cayu.server",),
    "starlette": ("cayu.server",),
    "uvicorn": ("cayu.server",),
    "typer": ("cayu.cli",),
    "rich": ("cayu.cli",),
}
# (library, package): imported there only inside a function, so that loading the package stays light.
LATE = {("ipywidgets", "cayu.notebook")}


def place_of(module: str) -> str:
    """The name by which the tables know a module: `cayu.tools.spec` lies in `tools`."""
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] if top == "cayu" and rest else top


# They may look into every floor below the top; only they import each other.
BESIDE = tuple(place_of(name) for name in ASIDES)
# They may gather from every floor below the top; no floor below the top imports them.
GATHERING = tuple(place_of(name) for name in FACES)


def floor_of(place: str) -> int | None:
    """The number of the floor that a place stands on, if it stands on one."""
    return next((number for number, floor in enumerate(FLOORS) if place in floor.places), None)


def label(place: str) -> str:
    """A place with where it stands, for messages."""
    floor = floor_of(place)
    if floor is not None:
        return f"{place} (L{floor})"
    return f"{place} ({'aside' if place in BESIDE else 'face' if place in GATHERING else 'no place in the table'})"


def refusal(source: str, target: str) -> str | None:
    """Why the module `source` may not import the module `target` of this project, or None when it may."""
    here, there = place_of(source), place_of(target)
    floor_here, floor_there = floor_of(here), floor_of(there)
    why = None
    if here == there:
        return None
    if there in GATHERING:
        free = here in BESIDE or floor_here == TOP
        why = None if free else "a face: import the module that owns the name"
    elif there in BESIDE:
        why = None if here in BESIDE else "an aside: only asides import it"
    elif floor_there is None:
        why = "it has no place in the table of floors"
    elif floor_there == TOP:
        why = "the top: nothing imports it"
    elif floor_here is not None:
        why = _between_floors(here, floor_here, there, floor_there)
    return f"{label(here)} may not import {there} ({why})" if why else None


def _between_floors(here: str, floor_here: int, there: str, floor_there: int) -> str | None:
    if floor_there != floor_here:
        return f"above it, on L{floor_there}" if floor_there > floor_here else None
    floor = FLOORS[floor_here]
    if floor.neighbours is Neighbours.APART:
        return f"beside it: the places of L{floor_here} stand apart"
    return "right of it" if floor.places.index(there) > floor.places.index(here) else None


def homelessness(module: str) -> str | None:
    """What is wrong with a module that the tables do not know, or None when they know it."""
    place = place_of(module)
    if floor_of(place) is not None or place in BESIDE or place in GATHERING:
        return None
    return f"{place} has no place in the table of floors; move it to its owner, or add it to FLOORS in test_layers.py"


def heavy_refusal(source: str, used: Import) -> str | None:
    """Why the module `source` may not import a heavy library there, or None when it may."""
    library = used.target.partition(".")[0]
    if library not in HEAVY or is_below(source, *ASIDES):
        return None
    if not is_below(source, *HEAVY[library]):
        return f"{place_of(source)} may not import {library} (heavy: only {', '.join(HEAVY[library])} and the asides)"
    late = any(library == name and is_below(source, package) for name, package in LATE)
    if late and not used.in_function:
        return f"{place_of(source)} may import {library} inside a function only (heavy)"
    return None


def findings(module: Module, imports: list[Import]) -> list[str]:
    """One readable line per broken rule of one module."""
    lines = []
    homeless = homelessness(module.name)
    if homeless:
        lines.append(module.line(1, homeless))
    for used in imports:
        ours = is_below(used.target, "cayu", "cayu_widgets")
        why = refusal(module.name, used.target) if ours else heavy_refusal(module.name, used)
        if why:
            lines.append(module.line(used.line, why))
    return lines


def test_every_import_keeps_to_the_floors() -> None:
    broken = [line for module in modules() for line in findings(module, own_imports(module))]
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.parametrize(
    "source, target",
    [
        ("cayu.canonical", "cayu.errors"),
        ("cayu.agents", "cayu.messages"),
        ("cayu.tools.spec", "cayu.errors"),
        ("cayu.tools.spec", "cayu.tools.policy"),
        ("cayu.interventions", "cayu.timing"),
        ("cayu.storage.sql", "cayu.sessions"),
        ("cayu.runtime.loop", "cayu.storage"),
        ("cayu.experiments", "cayu.memory"),
        ("cayu.cli", "cayu.runtime"),
        ("cayu_widgets.queue", "cayu.notebook"),
        ("cayu_widgets.queue", "cayu"),
        ("cayu.testing", "cayu.notebook"),
        ("cayu.examples.demo", "cayu.testing"),
        ("cayu.examples.demo", "cayu"),
        ("cayu", "cayu.notebook"),
        ("cayu.approvals", "cayu.tools"),
    ],
)
def test_what_points_down_is_allowed(source: str, target: str) -> None:
    assert refusal(source, target) is None


@pytest.mark.parametrize(
    "source, target, why",
    [
        ("cayu.errors", "cayu.canonical", "right of it"),
        ("cayu.canonical", "cayu.messages", "above it"),
        ("cayu.messages", "cayu.events", "right of it"),
        ("cayu.agents", "cayu.timing", "above it"),
        ("cayu.tools.spec", "cayu.budgets.ledger", "right of it"),
        ("cayu.timing", "cayu.interventions", "right of it"),
        ("cayu.sessions", "cayu.storage", "above it"),
        ("cayu.storage", "cayu.providers", "stand apart"),
        ("cayu.providers", "cayu.storage", "stand apart"),
        ("cayu.observability", "cayu.storage", "stand apart"),
        ("cayu.storage", "cayu.runtime", "above it"),
        ("cayu.runtime", "cayu.memory", "above it"),
        ("cayu.memory", "cayu.experiments", "right of it"),
        ("cayu.notebook", "cayu.server", "stand apart"),
        ("cayu.cli", "cayu.notebook", "stand apart"),
        ("cayu.notebook", "cayu_widgets", "nothing imports it"),
        ("cayu.examples.demo", "cayu_widgets", "nothing imports it"),
        ("cayu", "cayu_widgets", "nothing imports it"),
        ("cayu.notebook", "cayu.testing", "an aside"),
        ("cayu_widgets", "cayu.testing.decide", "an aside"),
        ("cayu", "cayu.examples", "an aside"),
        ("cayu.tools", "cayu", "a face"),
        ("cayu.cli", "cayu.approvals", "a face"),
        ("cayu", "cayu.approvals", "a face"),
        ("cayu.runtime", "cayu.helpers", "no place"),
    ],
)
def test_each_kind_of_wrong_direction_is_caught(source: str, target: str, why: str) -> None:
    assert why in (refusal(source, target) or "")


def test_a_finding_is_one_line_that_names_both_sides() -> None:
    module = sample("cayu.tools.spec", '"""Doc."""\n\nfrom cayu.budgets import Ledger, Limit\n')
    assert findings(module, imports_of(module, ())) == [
        "cayu/tools/spec.py:3: tools (L2) may not import budgets (right of it)"
    ]


def test_a_module_without_a_place_is_named() -> None:
    module = sample("cayu.helpers", "")
    (line,) = findings(module, [])
    assert line.startswith("cayu/helpers.py:1: helpers has no place in the table")


@pytest.mark.parametrize(
    "text",
    [
        "import cayu.runtime.loop",
        "import cayu.runtime as engine",
        "from cayu import runtime",
        "from cayu.runtime import loop",
        "from .. import runtime",
        "from ..runtime.loop import run",
        "def late():\n    from cayu.runtime import loop",
        "class Held:\n    async def late(self):\n        import cayu.runtime",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from cayu.runtime import loop",
        "try:\n    import cayu.runtime\nexcept ImportError:\n    raise",
        "import importlib\nimportlib.import_module('cayu.runtime')",
        "from importlib import import_module\nimport_module('..runtime', __package__)",
    ],
)
def test_no_way_of_writing_an_import_escapes(text: str) -> None:
    module = sample("cayu.tools.spec", text)
    (line,) = findings(module, imports_of(module, {"cayu.runtime", "cayu.runtime.loop"}))
    assert line.endswith("tools (L2) may not import runtime (above it, on L4)")


def test_relative_imports_of_a_package_start_at_the_package_itself() -> None:
    module = sample(
        "cayu.tools", "from . import spec\nfrom .spec import Tool\nfrom ..runtime import x", is_package=True
    )
    targets = [used.target for used in imports_of(module, {"cayu.tools.spec"})]
    assert targets == ["cayu.tools.spec", "cayu.tools.spec", "cayu.runtime"]


@pytest.mark.parametrize(
    "name, text",
    [
        ("cayu.notebook.frames", "import pandas as pd"),
        ("cayu.notebook.handles", "def view():\n    import ipywidgets"),
        ("cayu_widgets.queue", "import ipywidgets"),
        ("cayu.experiments.effects", "from scipy.stats import norm"),
        ("cayu.storage.sql.postgres.driver", "import psycopg_pool"),
        ("cayu.providers.openai", "import openai"),
        ("cayu.observability.spans", "from opentelemetry import trace"),
        ("cayu.cli.main", "import typer"),
        ("cayu.server.app", "import fastapi"),
        ("cayu.examples.demo", "import plotly"),
        ("cayu.tools.spec", "import rfc8785, richer"),
    ],
)
def test_the_rim_may_import_its_own_heavy_library(name: str, text: str) -> None:
    module = sample(name, text)
    assert not findings(module, imports_of(module, ()))


@pytest.mark.parametrize("library", sorted(HEAVY))
def test_no_heavy_library_below_the_rim(library: str) -> None:
    for text in (f"import {library}", f"from {library}.x import y", f"def late():\n    import {library}"):
        module = sample("cayu.tools.spec", text)
        (line,) = findings(module, imports_of(module, ()))
        assert f"tools may not import {library} (heavy: only " in line


@pytest.mark.parametrize(
    "name, text",
    [
        ("cayu", "import pandas"),
        ("cayu.notebook.handles", "import ipywidgets"),
        ("cayu.notebook.frames", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ipywidgets"),
        ("cayu.storage.sql.sqlite", "import psycopg"),
        ("cayu.providers.openai", "import anthropic"),
        ("cayu.providers.anthropic_batch", "import anthropic"),
        ("cayu.cli.main", "import fastapi"),
        ("cayu_widgets.queue", "import plotly"),
    ],
)
def test_the_wrong_part_of_the_rim_is_caught(name: str, text: str) -> None:
    module = sample(name, text)
    assert len(findings(module, imports_of(module, ()))) == 1
