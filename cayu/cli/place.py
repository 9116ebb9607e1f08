"""Where one call of a command works: the store that it looked at, and the factory that it was given."""

from __future__ import annotations

import os
import shlex
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

FACTORY = "MODULE:FACTORY"
"""Stands for a factory that the command was not given."""


@dataclass(slots=True)
class Place:
    """What one call of a command works on; filled in as it becomes known."""

    as_json: bool = False
    target: str | None = None
    """The factory, as it was given."""
    option: Path | None = None
    """`--store`, as it was given."""
    store: str | None = None
    """The store's file, as an absolute path, or what it is instead of a file; None before one was opened."""

    @property
    def factory(self) -> str:
        """The factory as a word of a command."""
        return shlex.quote(self.target or FACTORY)

    @property
    def is_file(self) -> bool:
        """True when the store is one file that `--store` can name."""
        return self.option is not None or (self.store is not None and os.path.isfile(self.store))

    @property
    def over(self) -> str:
        """The words of a command that lead to the same store, with a space before them; empty without `--store`."""
        return "" if self.option is None else f" --store {shlex.quote(str(self.option))}"


_PLACE: ContextVar[Place] = ContextVar("place")


def enter(place: Place) -> None:
    """Make this the place of what runs in this context."""
    _PLACE.set(place)


def here() -> Place:
    """Return the place of the command that runs; an empty one outside of a command."""
    return _PLACE.get(Place())
