"""One colour per phase, the same in every figure and in both of its forms.

The colours of the active phases stay apart for readers with any of the three kinds of colour blindness, and each can be
seen on white and on near-black. The waits are hatched and never rest on their colour alone.
"""

from __future__ import annotations

from cayu.timing.phases import PREPARATION_PHASES, ROUND_PHASES

CONSUMER = "consumer"
"""What is left of a round's duration beside its phases: the time of whoever iterates over the events."""
COSTS, HELPS, UNDECIDED = "costs", "helps", "undecided"
"""What an intervention's effect is, as far as it can be told."""

COLOURS: dict[str, str] = {
    "authorization": "#e8907f",
    "admission": "#7aa0f5",
    "started_persistence": "#9a2fe0",
    "effect_state": "#2b6aa6",
    "execution": "#3ba34e",
    "result_processing": "#a99c17",
    "staging": "#98580f",
    "sibling_wait": "#8a7a5c",
    "publication_queue_wait": "#4d8f92",
    "publication": "#c2185b",
    "round_commit": "#ee4fcb",
    "unattributed": "#7f868d",
    CONSUMER: "#c3c8cd",
    "handoff": "#a08a5a",
    "context_policy": "#5aa9a0",
    "recall": "#b06ab3",
    "counting": "#d0812f",
    "preparation": "#667c33",
    COSTS: "#d64545",
    HELPS: "#2f8f83",
    UNDECIDED: "#8d949b",
}

ALL_PHASES = (*ROUND_PHASES, *PREPARATION_PHASES)

INK = "#7a828b"
"""Text and lines, readable on light and on dark where the theme cannot be asked."""

_DARK_TEXT, _LIGHT_TEXT = "#15181b", "#ffffff"
_BRIGHT = 0.18


def text_on(phase: str) -> str:
    """Return the colour of text that stands on a phase's colour."""
    return _DARK_TEXT if luminance(COLOURS[phase]) > _BRIGHT else _LIGHT_TEXT


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour such as "#3ba34e", from 0 to 1 (WCAG 2)."""
    red, green, blue = (_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else float(((channel + 0.055) / 1.055) ** 2.4)
