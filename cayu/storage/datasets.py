"""The data files that come with the package, checked by their digests, and CPython's own topics as a second source."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from cayu.canonical import file_digest, loads
from cayu.errors import DatasetError
from cayu.knowledge.records import KnowledgeEntry
from cayu.messages import Frozen

_PACKAGE = Path(__file__).resolve().parent.parent
_PLACES = (_PACKAGE / "datasets", _PACKAGE.parent / "datasets")
"""In a wheel the files are inside the package, in a checkout beside it."""


class Question(Frozen):
    """A question with what answers it."""

    id: str
    question: str
    topic: str
    """Questions of one topic are not independent of each other."""
    namespace: str
    expected_entries: tuple[str, ...]
    """Ids of the entries that hold the answer."""
    answer: str
    """Words that occur in an expected entry."""


class Control(Frozen):
    """An entry that misleads about one question, or does not matter to it."""

    id: str
    question_id: str
    kind: Literal["irrelevant", "stale", "conflicting", "adversarial"]
    """A stale one takes the place of the first expected entry; a conflicting or adversarial one stands beside it."""
    title: str
    text: str
    """Never holds the question's answer."""
    namespace: str
    """That of the question."""
    labels: dict[str, str] = {}


@cache
def folder() -> Path:
    """Return where the data files are."""
    for place in _PLACES:
        if (place / "manifest.json").is_file():
            return place
    raise DatasetError(name="manifest.json")


def manifest() -> dict[str, dict[str, Any]]:
    """Return the datasheet of every file, name -> sha256, rows, licence, provenance. Raises `DatasetError`."""
    try:
        return {item["name"]: item for item in loads((folder() / "manifest.json").read_bytes())["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise DatasetError(name="manifest.json") from None


def _lines(name: str) -> Iterator[dict[str, Any]]:
    try:
        data = (folder() / name).read_bytes()
    except OSError:
        raise DatasetError(name=name) from None
    if file_digest(data) != manifest().get(name, {}).get("sha256"):
        raise DatasetError(name=name)
    return (loads(line) for line in data.splitlines() if line)


def handbook_entries() -> tuple[KnowledgeEntry, ...]:
    """Return the laboratory handbook, about 120 entries in several namespaces. Raises `DatasetError`."""
    return tuple(KnowledgeEntry.model_validate(line) for line in _lines("handbook.jsonl"))


def handbook_questions() -> tuple[Question, ...]:
    """Return 60 questions about the handbook with their expected entries and answers. Raises `DatasetError`."""
    return tuple(Question.model_validate(line) for line in _lines("questions.jsonl"))


def handbook_controls() -> tuple[Control, ...]:
    """Return 240 controls for memory experiments, one of each kind for each question. Raises `DatasetError`."""
    return tuple(Control.model_validate(line) for line in _lines("controls.jsonl"))


def python_topics() -> tuple[KnowledgeEntry, ...]:
    """Return the language reference's topics from this interpreter's own `pydoc_data`, as entries of `python`."""
    from pydoc_data.topics import topics

    return tuple(
        KnowledgeEntry(
            id=f"python-{name}", namespace="python", title=name, text=text, source_type="pydoc", source_id=name
        )
        for name, text in sorted(topics.items())
    )
