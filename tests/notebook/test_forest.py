"""The forest plot of effects: what is drawn is what was estimated, in its room, and names stay text."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from experiments.support import made_run

from cayu.errors import InvalidInput
from cayu.experiments import Effect, estimate_effects
from cayu.notebook import effects, schema
from cayu.notebook.figures import Picture
from cayu.notebook.figures.drawing import PLOTLY_MIME, SVG_MIME
from cayu.notebook.figures.forest import NOTHING, signed, too_few_topics
from cayu.notebook.figures.palette import COLOURS, COSTS, HELPS, UNDECIDED
from cayu.notebook.figures.svg import WIDTH
from cayu.notebook.figures.words import text_width

pytestmark = pytest.mark.exhaustive

HOSTILE = "<img src=x onerror=alert(1)>&\"' $a^2$ %{x} \x00\u202e\ud800<b>"
MINUS = "\N{MINUS SIGN}"


def effect(name: str = "arm", difference: float | None = -0.2, reach: float | None = 0.1, **more: Any) -> Effect:
    """An effect of ten questions in eight topics; `reach` is half of its interval."""
    known: dict[str, Any] = {"intervention": name, "questions": 10, "topics": 8}
    if difference is not None:
        known |= {"baseline": 0.9, "score": 0.9 + difference, "difference": difference}
    if difference is not None and reach is not None:
        known |= {"low": difference - reach, "high": difference + reach, "standard_error": reach / 2}
        known |= {"p_value": 0.01, "p_holm": 0.02, "smallest_detectable": 0.3}
    return Effect(**(known | more))


def marks(picture: Picture) -> dict[str, tuple[str, float]]:
    """Each intervention's colour and the middle of its mark."""
    [panel] = picture.scene.panels
    names = dict(panel.y.ticks)
    return {
        next(name for at, name in names.items() if bar.y0 < at < bar.y1): (bar.phase, (bar.x0 + bar.x1) / 2)
        for bar in panel.bars
    }


def lines(picture: Picture) -> list[tuple[float, float]]:
    [panel] = picture.scene.panels
    return [(rule.x0, rule.x1) for rule in panel.rules if rule.y0 == rule.y1]


def texts(svg: str) -> list[ElementTree.Element]:
    return [each for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("text")]


def test_the_rows_are_those_of_effects_df() -> None:
    topics = {f"q{n}": f"t{n}" for n in range(8)}
    run = made_run(topics, {"base": {name: [1] for name in topics}, "off": {name: [0] for name in topics}})
    for source in (run, estimate_effects(run), list(estimate_effects(run)), iter(estimate_effects(run))):
        picture = effects(source)
        declared = schema("effects_df").set_index("column")["dtype"].drop("experiment")
        assert {name: str(dtype) for name, dtype in picture.df.dtypes.items()} == declared.to_dict()
        assert picture.df["difference"].tolist() == [-1]
        assert marks(picture)["off"] == (COSTS, pytest.approx(-1))
    assert set(picture._repr_mimebundle_()) == {"text/plain", PLOTLY_MIME, SVG_MIME}


def test_marks_and_lines_stand_where_the_numbers_say() -> None:
    found = [effect("costs", -0.4), effect("helps", 0.3), effect("nothing", 0.0, 0.0), effect("alone", 0.1, None)]
    picture = effects(found)
    assert marks(picture) == {
        "costs": (COSTS, pytest.approx(-0.4)),
        "helps": (HELPS, pytest.approx(0.3)),
        "nothing": (UNDECIDED, pytest.approx(0)),
        "alone": (UNDECIDED, pytest.approx(0.1)),
    }
    assert lines(picture) == [pytest.approx((-0.5, -0.3)), pytest.approx((0.2, 0.4)), (0, 0)]
    [panel] = picture.scene.panels
    assert [word.text for word in panel.words] == [
        f"{MINUS}0.40  [{MINUS}0.50, {MINUS}0.30]",
        "+0.30  [+0.20, +0.40]",
        "0.00  [0.00, 0.00]",
        "+0.10",
    ]
    assert [key.text for key in picture.scene.keys] == ["lowers the score", "raises the score", "undecided"]
    assert "too few questions for an interval" in panel.bars[3].hover[1]
    assert "p = 0.02, corrected by Holm" in panel.bars[0].hover
    assert len({COLOURS[COSTS], COLOURS[HELPS], COLOURS[UNDECIDED]}) == 3


@pytest.mark.parametrize("p_holm", [0.05, 0.2, None])
def test_what_the_test_does_not_decide_has_no_colour_of_its_own(p_holm: float | None) -> None:
    assert marks(effects([effect(p_holm=p_holm)]))["arm"][0] == UNDECIDED


def test_no_line_reaches_further_than_a_difference_can() -> None:
    picture = effects([effect("wide", -0.1, 1.27), effect("narrow", 0.1)])
    assert lines(picture)[0] == (-1, 1)
    assert f"[{MINUS}1.37, +1.17]" in picture.scene.panels[0].words[0].text
    assert f"cut at {MINUS}1 and +1" in picture.note
    assert "cut at" not in effects([effect()]).note


@pytest.mark.parametrize("spread", [0.001, 0.2, 1.0])
def test_the_numbers_stand_free_of_marks_lines_and_ticks(spread: float) -> None:
    longest = effect("the longest of all names that somebody gave to an intervention", -spread, spread)
    picture = effects([longest, effect("b", spread, spread), effect("c", 0.0)])
    [panel] = picture.scene.panels
    [start] = {word.x for word in panel.words}
    assert all(bar.x1 < start for bar in panel.bars)
    assert all(rule.x1 < start for rule in panel.rules)
    assert all(panel.x.low <= at <= start for at, _ in panel.x.ticks)
    assert len(panel.x.ticks) > 1
    assert panel.x.fixed  # so that plotly adds no ticks of its own
    for shown in texts(picture.svg):
        place, anchor = float(shown.attrib["x"]), shown.attrib.get("text-anchor", "start")
        wide = text_width(shown.text or "", 11)
        left = {"start": place, "middle": place - wide / 2, "end": place - wide}[anchor]
        assert left >= 0, shown.text
        assert left + wide <= WIDTH, shown.text


def test_the_figure_of_plotly_has_the_same_marks() -> None:
    found = [effect("a", -0.4), effect("b", 0.3)]
    plotted = effects(found).figure
    [*traces] = [trace for trace in plotted.data if trace.type == "bar"]
    middles = [start + length / 2 for trace in traces for start, length in zip(trace.base, trace.x, strict=True)]
    assert middles == pytest.approx([-0.4, 0.3])
    assert [trace.name for trace in traces] == ["lowers the score", "raises the score"]
    assert list(plotted.layout.yaxis.ticktext) == ["a", "b"]
    assert plotted.layout.yaxis.range[0] > plotted.layout.yaxis.range[1]  # the first is on top
    assert plotted.layout.xaxis.tickmode == "array"


def test_names_are_text() -> None:
    picture = effects([effect(HOSTILE, reasons=(HOSTILE,), incomparable=1), effect("b")])
    assert not [each for each in ElementTree.fromstring(picture.svg).iter() if each.tag.endswith(("img", "b"))]
    assert "<img" not in picture.svg
    assert "&lt;img" in picture.svg
    plotted = json.dumps(picture._repr_mimebundle_()[PLOTLY_MIME])
    assert "<img" not in plotted
    assert "<b>" not in plotted
    assert "$a^2$" not in plotted


def test_what_was_left_out_is_told() -> None:
    found = [effect("a", incomparable=3, reasons=("model",)), effect("b", None, questions=0, unscored=2), effect("c")]
    picture = effects(found)
    assert "Not comparable, and left out: a (3)." in picture.note
    assert "Without a score, and left out: b (2)." in picture.note
    assert set(marks(picture)) == {"a", "c"}
    assert picture.df["intervention"].tolist() == ["a", "b", "c"]
    plain = effects([effect()]).note
    assert "left out" not in plain
    assert "corrected over all interventions" in plain


@pytest.mark.parametrize("found", [[], [effect("a", None, questions=0)]])
def test_where_nothing_is_known_it_says_so(found: list[Effect]) -> None:
    picture = effects(found)
    assert picture.scene is NOTHING
    assert "No effect can be told yet" in picture.svg
    assert len(picture.df) == len(found)
    assert list(picture.df.columns) == schema("effects_df")["column"].tolist()[1:]
    assert picture.figure.data == ()


@pytest.mark.parametrize("source", [None, "effects", b"x", 3, ["no effect"], {"a": 1}, object()])
def test_anything_else_is_refused(source: Any) -> None:
    with pytest.raises(InvalidInput, match=r"lab\.experiment"):
        effects(source)


def test_too_few_topics_are_told() -> None:
    # Flipping the signs of n topics gives 2 ** n sums, of which two are the largest.
    assert "p cannot fall below 0.50" in too_few_topics([effect(topics=2)])
    assert too_few_topics([effect(topics=6)]) == ""
    assert "6 topics and 2 interventions" in too_few_topics([effect(topics=6), effect(topics=5)])
    assert too_few_topics([effect(topics=1, questions=9)]) == ""  # each question is then a topic
    assert too_few_topics([effect(reach=None)]) == ""
    assert too_few_topics([]) == ""
    assert "too few to decide anything" in effects([effect(topics=2)]).note


def test_the_bound_on_p_is_that_of_the_test_itself() -> None:
    topics = {f"q{n}": f"t{n}" for n in range(5)}
    arms = {"base": {name: [1] for name in topics}} | {each: {name: [0] for name in topics} for each in ("a", "b")}
    found = estimate_effects(made_run(topics, arms))
    least = min(each.p_holm for each in found if each.p_holm is not None)
    assert f"p cannot fall below {least:.2f}" in too_few_topics(found)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.00"), (-0.001, "0.00"), (0.004, "0.00"), (-0.25, f"{MINUS}0.25"), (1.0, "+1.00")],
)
def test_a_difference_has_a_sign_and_zero_has_none(value: float, shown: str) -> None:
    assert signed(value) == shown
