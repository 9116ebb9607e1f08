"""The requirement rows and the tests that hold them: reading the table, judging marks, naming what is missing."""

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TABLE = TESTS / "requirements.csv"
HEADER = ["id", "area", "requirement", "check"]
AREAS = frozenset(("core", "guides", "interventions", "recovery", "scale", "timing"))
IDS = (*(f"A{number:03}" for number in range(1, 158)), *(f"B{number:03}" for number in range(1, 85)))


@dataclass(frozen=True)
class Requirement:
    """One row: its id, the area it belongs to first, what is required, and one way to check it."""

    id: str
    area: str
    requirement: str
    check: str


@dataclass(frozen=True)
class Coverage:
    """What one collection of tests holds."""

    rows: tuple[Requirement, ...]
    """Every row of the table."""
    finished: tuple[str, ...]
    """Areas of which every row needs a test."""
    held: Mapping[str, tuple[str, ...]]
    """Row id -> the node ids of the tests that carry it."""
    whole: bool
    """Whether the whole tree of tests was collected, so that an absent mark means an absent test."""

    def due(self) -> list[str]:
        """Ids of the rows of finished areas."""
        return [row.id for row in self.rows if row.area in self.finished]

    def missing(self) -> list[str]:
        """Ids of the rows of finished areas that no test holds; none are known when only a part was collected."""
        return [each for each in self.due() if each not in self.held] if self.whole else []

    def summary(self) -> str:
        """One line for the end of a run."""
        missing = self.missing()
        held = len(self.due()) - len(missing)
        return f"requirements: {held} rows of finished areas held by tests; missing: {' '.join(missing) or 'none'}"


def read_rows(text: str) -> tuple[Requirement, ...]:
    """The rows of the table, in its order."""
    header, *lines = csv.reader(text.splitlines())
    if header != HEADER or any(len(line) != len(HEADER) for line in lines):
        raise ValueError(f"every line of requirements.csv has the columns {', '.join(HEADER)}")
    return tuple(Requirement(*line) for line in lines)


def table_faults(rows: Sequence[Requirement]) -> list[str]:
    """What is wrong with the table: ids, areas, empty cells."""
    ids = [row.id for row in rows]
    faults = [f"{each} is not in the table" for each in IDS if each not in ids]
    faults += [f"{each} is unknown or repeated" for each in ids if each not in IDS or ids.count(each) > 1]
    faults += [f"{row.id} has the unknown area {row.area!r}" for row in rows if row.area not in AREAS]
    faults += [f"{row.id} has an empty cell" for row in rows if not (row.requirement.strip() and row.check.strip())]
    return faults


def mark_faults(node: str, ids: Sequence[object], known: Collection[str]) -> list[str]:
    """What is wrong with the ids of one requirement mark on one test."""
    if not ids:
        return [f"{node}: the requirement mark names no row"]
    return [f"{node}: there is no requirement {each!r}" for each in ids if each not in known]


def is_whole(arguments: Sequence[str], directory: Path, tests: Path = TESTS) -> bool:
    """Whether the arguments of a run, seen from its directory, take in the whole tree of tests."""
    places = [(directory / argument).resolve() for argument in arguments if "::" not in argument]
    return any(place == tests or place in tests.parents for place in places)
