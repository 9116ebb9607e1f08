"""The guides as data: their headings, blocks, spans of code, commands and pointers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

TOPICS = (
    *("anatomy", "durable-operations", "durable-service-tools", "memory-experiments", "phase-timing"),
    *("references", "tool-effects"),
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
FILE_NAME = re.compile(r"# (\w+\.py)\n")
POINTER = re.compile(r"cayu guide ([a-z][a-z-]*)(?:#([\w-]+))?")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the line of the guide on which the text begins."""

    language: str
    text: str
    line: int

    @property
    def file_name(self) -> str | None:
        """The file as which the text wants to be saved, named by a comment on its first line."""
        found = FILE_NAME.match(self.text)
        return found[1] if found and self.language == "python" else None


@dataclass(frozen=True)
class Guide:
    """One guide."""

    topic: str
    text: str

    @property
    def blocks(self) -> list[Block]:
        """Every fenced block, in order."""
        return [Block(m[1], m[2], self.text.count("\n", 0, m.start(2)) + 1) for m in FENCE.finditer(self.text)]

    @property
    def prose(self) -> str:
        """The text without its blocks."""
        return FENCE.sub("", self.text)

    @property
    def headings(self) -> list[tuple[int, str]]:
        """(level, text) of each heading."""
        return [(len(m[1]), m[2]) for m in HEADING.finditer(self.prose)]

    @property
    def slugs(self) -> list[str]:
        """How each heading is addressed."""
        return [slug(text) for _, text in self.headings]

    @property
    def spans(self) -> list[str]:
        """What stands in backticks."""
        return re.findall(r"`([^`]+)`", self.prose)

    @property
    def commands(self) -> list[str]:
        """The commands of console blocks, continued lines joined."""
        shown = "\n".join(block.text for block in self.blocks if block.language == "console").replace("\\\n", " ")
        return [line.removeprefix("$ ") for line in shown.splitlines() if line.startswith("$ ")]

    @property
    def pointers(self) -> list[tuple[str, str | None]]:
        """(topic, section) of each pointer at a guide."""
        return [(m[1], m[2]) for m in POINTER.finditer(self.text)]


def slug(heading: str) -> str:
    """Return the address of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def guide(topic: str) -> Guide:
    """Read one guide from the package."""
    return Guide(topic, files("cayu").joinpath("guides", f"{topic}.md").read_text(encoding="utf-8"))
