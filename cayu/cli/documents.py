"""Files that operators hand in and get: read with errors that say where, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from cayu.errors import InvalidInput

T = TypeVar("T")
MOST_FAULTS = 5
"""Faults of one document that are told."""


def faults(error: ValidationError) -> str:
    """Return where a document is wrong and how, without the values that stand there."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    told = [": ".join([*filter(None, [".".join(map(str, each["loc"]))]), each["msg"]]) for each in found[:MOST_FAULTS]]
    more = len(found) - len(told)
    return "; ".join([*told, *([f"and {more} more"] if more else [])])


def parse(kind: TypeAdapter[T], data: bytes, where: str) -> T:
    """Return the value that JSON text describes. Raises `InvalidInput`, which names `where` and the field."""
    try:
        return kind.validate_json(data)
    except ValidationError as error:
        raise InvalidInput(f"{where}: {faults(error)}. Nothing was written.") from None


def read(kind: TypeAdapter[T], path: Path) -> T:
    """Return the value that a JSON file describes. Raises `InvalidInput`."""
    return parse(kind, read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    """Return a file's content. Raises `InvalidInput`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({_cause(error)}); check the path.") from None


def arguments_of(text: str | None) -> dict[str, Any] | None:
    """Return the object that `--arguments` gives, as JSON or as `@FILE`. Raises `InvalidInput`."""
    if text is None:
        return None
    kind: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
    return read(kind, Path(text[1:])) if text.startswith("@") else parse(kind, text.encode(), "--arguments")


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step by one that only its owner may read. Raises `InvalidInput`."""
    made: str | None = None
    try:
        handle, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except OSError as error:
        if made is not None:
            Path(made).unlink(missing_ok=True)
        raise InvalidInput(f"{path} cannot be written ({_cause(error)}); give another path.") from None


def _cause(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
