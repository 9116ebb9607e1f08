"""`cayu guide`: the guides that come with the package, whole or by section, read from its own files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

import typer

from cayu.cli.output import Exact, Report, command, facts
from cayu.errors import InvalidInput

_HEADING = re.compile(r"(#{1,6})[ \t]+(.+?)[ \t]*#*[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ANCHOR = re.compile(r"""<a\s+(?:id|name)=["']([^"']+)["']\s*/?>(?:\s*</a>)?""")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SENTENCE = re.compile(r".+?[.!?](?=\s|$)|.+")


@dataclass(frozen=True, slots=True)
class Section:
    """One heading, or one anchor within a text, with the lines below it."""

    anchors: tuple[str, ...]
    """The names under which it is found."""
    title: str
    start: int
    stop: int
    """Lines of the guide, the last one excluded."""


@dataclass(slots=True)
class _Mark:
    """A line where a section begins; `level` counts from 1, and an anchor within a text is deeper than any heading."""

    line: int
    level: int
    title: str
    anchors: list[str]


WITHIN_TEXT = 7


def slug(heading: str) -> str:
    """Return the anchor that Markdown readers give a heading."""
    text = _ANCHOR.sub("", _LINK.sub(r"\1", heading)).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def sections(text: str) -> list[Section]:
    """Return the sections of a guide, in order; one reaches to the next heading of its level or a higher one."""
    lines = text.splitlines()
    marks = _marks(lines)
    found = []
    for index, mark in enumerate(marks):
        ends = (after.line for after in marks[index + 1 :] if after.level <= mark.level)
        found.append(Section(tuple(mark.anchors), mark.title, mark.line, next(ends, len(lines))))
    return found


def _marks(lines: Sequence[str]) -> list[_Mark]:
    marks: list[_Mark] = []
    seen: dict[str, int] = {}
    waiting: list[str] = []
    began = 0
    for number, line in _prose(lines):
        heading, anchors = _HEADING.match(line), _ANCHOR.findall(line)
        if heading is not None:
            name = slug(heading[2])
            count = seen[name] = seen.get(name, -1) + 1
            own = f"{name}-{count}" if count else name
            title = _ANCHOR.sub("", _LINK.sub(r"\1", heading[2])).strip()
            start = began if waiting else number
            marks.append(_Mark(start, len(heading[1]), title, [own, *waiting, *anchors]))
            waiting = []
        elif anchors and not _ANCHOR.sub("", line).strip():
            began = began if waiting else number
            waiting += anchors
        elif line.strip():
            waiting, before = [], waiting
            if before or anchors:
                marks.append(_Mark(began if before else number, WITHIN_TEXT, "", [*before, *anchors]))
    return marks


def _prose(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines outside fenced code."""
    fence: str | None = None
    for number, line in enumerate(lines):
        found = _FENCE.match(line)
        if fence is None and found is None:
            yield number, line
        elif fence is None and found is not None:
            fence = found[1]
        elif fence is not None and found is not None and found[1].startswith(fence) and line.strip() == found[1]:
            fence = None


def summary(text: str) -> str:
    """Return what a guide is about: the first sentence below its title."""
    lines = [line.strip() for _, line in _prose(text.splitlines())]
    paragraph: list[str] = []
    for line in lines:
        if line and not _HEADING.match(line) and not _ANCHOR.match(line):
            paragraph.append(_LINK.sub(r"\1", line))
        elif paragraph:
            break
    found = _SENTENCE.match(" ".join(paragraph))
    titles = [section.title for section in sections(text)]
    return found[0] if found else next(iter(titles), "")


def home() -> Traversable:
    """Return the folder of the guides."""
    return files("cayu").joinpath("guides")


def topics() -> dict[str, Traversable]:
    """Return the guides that are installed, by topic."""
    folder = home()
    found = folder.iterdir() if folder.is_dir() else ()
    return {
        each.name.removesuffix(".md"): each for each in sorted(found, key=lambda e: e.name) if each.name.endswith(".md")
    }


def excerpt(topic: str, section: str) -> str:
    """Return a guide, or one section of it, as Markdown. Raises `InvalidInput`, which lists what there is."""
    guides = topics()
    if topic not in guides:
        raise InvalidInput(f"There is no guide {topic!r}; there are: {', '.join(guides) or 'none'}.")
    text = guides[topic].read_text(encoding="utf-8")
    if not section:
        return text
    there = sections(text)
    for each in there:
        if section in each.anchors:
            return "\n".join(text.splitlines()[each.start : each.stop]).rstrip() + "\n"
    known = ", ".join(f"#{each.anchors[-1]}" for each in there)
    raise InvalidInput(f"Guide {topic!r} has no section {section!r}; it has: {known}.")


@command
async def guide(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC[#SECTION]", help="A guide, or one section of it.")
    ] = None,
) -> Report:
    """Read the guides, offline.

    They come with the package; without a topic they are listed. A guide is printed as the Markdown that it is.

    \b
    Exit codes:
      0  printed
      1  there is no such guide or section
      2  wrong usage

    \b
    Examples:
      cayu guide
      cayu guide durable-service-tools
      cayu guide references#sessions
    """
    if topic is None:
        listed = [(name, summary(each.read_text(encoding="utf-8"))) for name, each in topics().items()]
        document = {"guides": [{"topic": name, "summary": told} for name, told in listed]}
        return Report(document, (facts(dict(listed)),))
    name, _, section = topic.partition("#")
    text = excerpt(name, section)
    return Report({"topic": name, "section": section or None, "markdown": text}, (Exact(text.rstrip("\n")),))
