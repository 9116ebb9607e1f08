"""SQL lives in `.sql` files beside each engine: named queries, and numbered migrations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

_NAMED = re.compile(r"^-- name: (\w+)$\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)


def load_queries(package: str) -> dict[str, str]:
    """Return the queries of a package's `queries.sql`, name -> text."""
    text = files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    return {name: body.strip().rstrip(";") for name, body in _NAMED.findall(text)}


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of a schema."""

    number: int
    statements: tuple[str, ...]


def load_migrations(package: str) -> tuple[Migration, ...]:
    """Return the migrations of a package in order; a statement ends with a semicolon at the end of a line."""
    found = [path for path in files(package).joinpath("migrations").iterdir() if path.name.endswith(".sql")]
    return tuple(_migration(path) for path in sorted(found, key=lambda path: path.name))


def _migration(path: Traversable) -> Migration:
    parts = re.split(r";\s*$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return Migration(int(path.name[:4]), tuple(part.strip() for part in parts if part.strip()))
