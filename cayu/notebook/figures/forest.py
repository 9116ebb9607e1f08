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
_HALF = 0.13


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
    ends = [end for each in known for end in (each.low, each.high, each.difference) if end is not None]
    span = max(0.1, max(0.0, *ends) - min(0.0, *ends))
    right = max(0.0, *ends) + 0.04 * span
    low, high = min(0.0, *ends) - 0.06 * span, right + 0.42 * span
    bars, rules, words = [], [Rule(0.0, 0.0, 0.0, float(len(known)), "no difference")], []
    for place, effect in enumerate(known):
        assert effect.difference is not None
        middle, told = place + 0.5, _told(effect)
        if effect.low is not None and effect.high is not None:
            rules.append(Rule(effect.low, middle, effect.high, middle, told[1]))
        half = 0.006 * span
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
    axis = Axis(low, high, tuple((at, tick_text(at)) for at in ticks(low, high)), "Difference in score to the baseline")
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
    return Scene(f"What the memory was worth, over {counted(questions, 'question')}", (panel,), keys, _note(every))


def _numbers(effect: Effect) -> str:
    between = "" if effect.low is None or effect.high is None else f"  [{effect.low:+.2f}, {effect.high:+.2f}]"
    return f"{effect.difference:+.2f}{between}".replace("-", "\N{MINUS SIGN}")


_KEYS = {COSTS: "lowers the score", HELPS: "raises the score", UNDECIDED: "no difference could be told"}


def _verdict(effect: Effect) -> str:
    if effect.p_holm is None or effect.p_holm >= SIGNIFICANT or not effect.difference:
        return UNDECIDED
    return COSTS if effect.difference < 0 else HELPS


def _told(effect: Effect) -> tuple[str, ...]:
    lines = [effect.intervention]
    if effect.low is not None and effect.high is not None:
        lines.append(f"{effect.difference:+.3f}, 95 % interval {effect.low:+.3f} to {effect.high:+.3f}")
    else:
        lines.append(f"{effect.difference:+.3f}, too few questions for an interval")
    lines.append(f"score {effect.score:.2f}, baseline {effect.baseline:.2f}")
    lines += [f"p = {effect.p_holm:.3g}, corrected by Holm"] if effect.p_holm is not None else []
    lines += [f"smallest detectable {effect.smallest_detectable:.2f}"] if effect.smallest_detectable else []
    return tuple(lines)


def _note(every: Sequence[Effect]) -> str:
    notes = ["Lines are 95 % intervals, clustered by topic."]
    left = [f"{each.intervention} ({each.incomparable})" for each in every if each.incomparable]
    notes += [f"Not comparable, and left out: {', '.join(left)}."] if left else []
    unscored = [f"{each.intervention} ({each.unscored})" for each in every if each.unscored]
    notes += [f"Without a score, and left out: {', '.join(unscored)}."] if unscored else []
    return " ".join(notes)
