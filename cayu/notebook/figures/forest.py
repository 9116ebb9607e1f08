"""What each intervention did to the score: its difference from the baseline with an interval, one line each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import pandas as pd

from cayu.errors import InvalidInput
from cayu.experiments.effects import Effect, estimate_effects
from cayu.experiments.sweep import ExperimentRun
from cayu.notebook.figures.drawing import Picture
from cayu.notebook.figures.palette import COSTS, HELPS, UNDECIDED
from cayu.notebook.figures.scene import Axis, Bar, Key, Panel, Rule, Scene, Word, tick_text, ticks
from cayu.notebook.figures.sources import Budget, frame
from cayu.notebook.figures.words import counted
from cayu.notebook.schemas import SCHEMAS

SIGNIFICANT = 0.05
COLUMNS = {column.name: column.dtype for column in SCHEMAS["effects_df"] if column.name != "experiment"}
"""One row for each intervention, as in `effects_df`."""
NOTHING = Scene("No effect can be told yet", note="Run an experiment with a baseline and at least one intervention.")
_ROW = 34
"""Pixels of one intervention."""
_HALF = 0.15
_MARK = 0.008
"""Half the width of the mark of a difference, as a share of what is drawn."""
_NUMBERS = 0.42
"""The room for the numbers right of the lines, as a share of what is drawn."""


@runtime_checkable
class Experimented(Protocol):
    """A handle on an experiment."""

    @property
    def effects(self) -> Sequence[Effect]:
        """The effect of each intervention."""
        ...


def effects(source: Experimented | ExperimentRun | Iterable[Effect]) -> Picture:
    """Draw each intervention's effect as a forest plot: the mean difference of the questions, and its 95 % interval.

    Raises `InvalidInput` for what is neither an experiment nor effects.
    """
    found = _effects(source)
    rows = [effect.model_dump() | {"reasons": ", ".join(effect.reasons)} for effect in found]

    def draw(budget: Budget) -> tuple[pd.DataFrame, Scene]:
        return frame(COLUMNS, rows), _forest([effect for effect in found if effect.difference is not None], found)

    return Picture(draw)


def _effects(source: Any) -> tuple[Effect, ...]:
    if isinstance(source, ExperimentRun):
        return estimate_effects(source)
    listed = source.effects if isinstance(source, Experimented) else source
    if isinstance(listed, str | bytes) or not isinstance(listed, Iterable):
        raise InvalidInput(f"A {type(source).__name__} is no experiment; pass what lab.experiment(...) returned.")
    found = tuple(listed)
    if not all(isinstance(effect, Effect) for effect in found):
        raise InvalidInput("Pass what lab.experiment(...) returned, or effects of cayu.experiments.")
    return found


def _forest(known: Sequence[Effect], every: Sequence[Effect]) -> Scene:
    if not known:
        return NOTHING
    ends = [_within(end) for each in known for end in (each.low, each.high, each.difference) if end is not None]
    span = max(0.1, max(0.0, *ends) - min(0.0, *ends))
    right = max(0.0, *ends) + 0.04 * span
    low, high = min(0.0, *ends) - 0.06 * span, right + _NUMBERS * span
    bars, rules, words = [], [Rule(0.0, 0.0, 0.0, float(len(known)), "no difference")], []
    for place, effect in enumerate(known):
        assert effect.difference is not None
        middle, told = place + 0.5, _told(effect)
        if effect.low is not None and effect.high is not None:
            rules.append(Rule(_within(effect.low), middle, _within(effect.high), middle, told[1]))
        half = _MARK * span
        bars.append(
            Bar(
                x0=effect.difference - half,
                x1=effect.difference + half,
                y0=middle - _HALF,
                y1=middle + _HALF,
                phase=_verdict(effect),
                hover=told,
            )
        )
        words.append(Word(right, middle, _numbers(effect)))
    # Right of the last tick stand the numbers, through which no line goes.
    placed = tuple((at, _minus(tick_text(at))) for at in ticks(low, right, about=5))
    axis = Axis(low, high, placed, "Difference in score to the baseline", fixed=True)
    panel = Panel(
        x=axis,
        y=Axis(
            float(len(known)), 0.0, tuple((at + 0.5, each.intervention) for at, each in enumerate(known)), fixed=True
        ),
        height=_ROW * len(known),
        bars=tuple(bars),
        rules=tuple(rules),
        words=tuple(words),
    )
    shown = {bar.phase for bar in bars}
    keys = tuple(Key(name, text) for name, text in _KEYS.items() if name in shown)
    questions = max(effect.questions for effect in known)
    return Scene(
        f"What the memory was worth, over {counted(questions, 'question')}", (panel,), keys, _note(known, every)
    )


def _numbers(effect: Effect) -> str:
    assert effect.difference is not None
    between = "" if effect.low is None or effect.high is None else f"  [{signed(effect.low)}, {signed(effect.high)}]"
    return f"{signed(effect.difference)}{between}"


def signed(value: float, digits: int = 2) -> str:
    """Return a difference with its sign, and zero without one."""
    text = f"{value:+.{digits}f}"
    return _minus(text) if float(text) else text[1:]


def _minus(number: str) -> str:
    return number.replace("-", "\N{MINUS SIGN}")


def _within(difference: float) -> float:
    """Return where a difference of scores is drawn; an interval may reach further than any difference can."""
    return min(max(difference, -1.0), 1.0)


_KEYS = {COSTS: "lowers the score", HELPS: "raises the score", UNDECIDED: "undecided"}


def _verdict(effect: Effect) -> str:
    if effect.p_holm is None or effect.p_holm >= SIGNIFICANT or not effect.difference:
        return UNDECIDED
    return COSTS if effect.difference < 0 else HELPS


def _told(effect: Effect) -> tuple[str, ...]:
    lines, difference = [effect.intervention], effect.difference or 0.0
    if effect.low is not None and effect.high is not None:
        lines.append(f"{signed(difference, 3)}, 95 % interval {signed(effect.low, 3)} to {signed(effect.high, 3)}")
    else:
        lines.append(f"{signed(difference, 3)}, too few questions for an interval")
    lines.append(f"score {effect.score:.2f}, baseline {effect.baseline:.2f}")
    lines += [f"p = {effect.p_holm:.3g}, corrected by Holm"] if effect.p_holm is not None else []
    lines += [f"smallest detectable {effect.smallest_detectable:.2f}"] if effect.smallest_detectable else []
    return tuple(lines)


def _note(known: Sequence[Effect], every: Sequence[Effect]) -> str:
    notes = ["Lines are 95 % intervals of each intervention alone, clustered by topic."]
    if any(not -1 <= end <= 1 for each in known for end in (each.low, each.high) if end is not None):
        notes.append(f"They are cut at {signed(-1, 0)} and {signed(1, 0)}, since no difference is larger.")
    if any(each.p_holm is not None for each in known):
        notes.append("Colours are by the permutation test at the 5 % level, corrected over all interventions (Holm).")
    notes += [too_few_topics(known)]
    left = [f"{each.intervention} ({each.incomparable})" for each in every if each.incomparable]
    notes += [f"Not comparable, and left out: {', '.join(left)}."] if left else []
    unscored = [f"{each.intervention} ({each.unscored})" for each in every if each.unscored]
    notes += [f"Without a score, and left out: {', '.join(unscored)}."] if unscored else []
    return " ".join(note for note in notes if note)


def too_few_topics(effects: Sequence[Effect]) -> str:
    """Return that the test cannot decide anything, and why; "" when it can.

    It flips the signs of whole topics, so the smallest p-value of n topics is 2 in 2 to the power of n, before the
    correction; where all questions have one topic, each counts as a topic.
    """
    tested = [effect for effect in effects if effect.p_value is not None]
    groups = max((effect.topics if effect.topics > 1 else effect.questions for effect in tested), default=0)
    least = min(1.0, len(tested) * 2 / 2**groups)
    if not tested or least < SIGNIFICANT:
        return ""
    words = f"{counted(groups, 'topic')} and {counted(len(tested), 'intervention')} are too few to decide anything"
    return f"{words}: p cannot fall below {least:.2f}."
