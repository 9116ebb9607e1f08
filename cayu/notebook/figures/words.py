"""Words and numbers in figures: what a model or a tool named is shown as text and never as markup."""

from __future__ import annotations

import math
import re
import unicodedata
from html import escape

NARROW_SPACE = "\u202f"
REPLACEMENT = "\ufffd"
_UNFIT = re.compile(
    "[^\t\n\r\u0020-\u007e\u00a0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
"""Control characters, marks that turn the direction of text, lone surrogates: no XML, or not what it seems."""
_WIDE, _AVERAGE = 1.0, 0.56
"""Widths of characters, in units of the font size."""


def plain(text: object) -> str:
    """Return text in one line, without characters that XML forbids or that turn other text around."""
    return _UNFIT.sub(REPLACEMENT, " ".join(str(text).split()))


def markup(text: object) -> str:
    """Return text that is safe inside SVG and HTML, attributes included."""
    return escape(plain(text), quote=True)


def plotly_text(text: object) -> str:
    """Return text that plotly shows as it is: no HTML, and no dollar signs that would make it a formula."""
    return escape(plain(text), quote=False).replace("$", "&#36;")


def text_width(text: str, size: float) -> float:
    """Estimate the width of text in pixels."""
    return size * sum(_WIDE if unicodedata.east_asian_width(each) in "WF" else _AVERAGE for each in text)


def fitted(text: str, room: float, size: float) -> str:
    """Return text cut to a width in pixels, with an ellipsis where it was cut."""
    if text_width(text, size) <= room:
        return text
    while text and text_width(text + "…", size) > room:
        text = text[:-1]
    return text + "…"


def grouped(number: float) -> str:
    """Return a number with its digits in groups of three: 4 213."""
    return f"{number:,.0f}".replace(",", NARROW_SPACE)


def milliseconds(value: float) -> str:
    """Return a duration given in milliseconds as people read it: "0.21 ms", "41 ms", "2.31 s"."""
    if value >= 1000:
        return f"{value / 1000:.2f} s" if value < 100_000 else f"{grouped(value / 1000)} s"
    if value >= 100 or value == 0:
        return f"{value:.0f} ms"
    digits = max(1, 1 - math.floor(math.log10(value)))
    return f"{value:.{min(digits, 4)}f} ms"


def byte_count(value: float) -> str:
    """Return a size as people read it: "512 B", "4.2 kB", "1.3 MB"."""
    for unit, scale in (("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:.0f} B"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: "1 call", "4 213 calls"."""
    return f"{grouped(number)} {noun}{'' if number == 1 else 's'}"
