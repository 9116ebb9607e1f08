"""Figures of timing: what is drawn is what was recorded, nothing is added that overlaps, and text stays text."""

from __future__ import annotations

import itertools
import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from cayu.errors import InvalidInput
from cayu.notebook.figures import Picture, compare, phase_ecdf, phase_stack, store_cost, timeline, worked_example
from cayu.notebook.figures.drawing import PLOTLY_MIME, SVG_MIME
from cayu.notebook.figures.folding import fold
from cayu.notebook.figures.palette import ALL_PHASES, COLOURS, CONSUMER, COSTS, HELPS, UNDECIDED, luminance
from cayu.notebook.figures.rounds import COST_COLUMNS, STACK_COLUMNS
from cayu.notebook.figures.scene import Style
from cayu.notebook.figures.sources import FULL
from cayu.notebook.figures.spread import COMPARE_COLUMNS, ECDF_COLUMNS
from cayu.notebook.figures.svg import SMALLEST
from cayu.notebook.figures.timeline import COLUMNS
from cayu.notebook.figures.words import byte_count, fitted, milliseconds, plain, plotly_text, text_width
from cayu.timing.phases import ACTIVE_PHASES, PREPARATION_PHASES, ROUND_PHASES, WAITS
from cayu.timing.records import ModelStepPreparationTiming, RuntimePhaseTiming, ToolCallTiming, ToolRoundTiming

BEGUN = datetime(2025, 1, 1, tzinfo=UTC)
HOSTILE = "<img src=x onerror=alert(1)>&\"' $a^2$ %{x} \x00\u202e\ud800<b>"
Spans = dict[str, tuple[float, ...]]


def moment(milliseconds: float) -> datetime:
    return BEGUN + timedelta(milliseconds=milliseconds)


def phases(spans: Spans, names: tuple[str, ...] = ROUND_PHASES) -> tuple[RuntimePhaseTiming, ...]:
    """Phases from start, end and, where it is less than the stretch, duration."""
    made = []
    for name in names:
        start, end, *length = spans.get(name, (0, 0))
        bounds = {"first_started_at": moment(start), "last_completed_at": moment(end)} if name in spans else {}
        made.append(RuntimePhaseTiming(name=name, duration_seconds=(length or [end - start])[0] / 1000, **bounds))
    return tuple(made)


def a_round(whole: float, spans: Spans, *calls: Spans, at: float = 0, names: str = "tool", **more: Any) -> Any:
    ids = {"session_id": "s", "tool_round_id": more.pop("round_id", "s.r1")}
    return ToolRoundTiming(
        **ids,
        model_step_id="s.m1",
        model_attempt_id="s.m1.a1",
        started_at=moment(at),
        completed_at=moment(at + whole),
        duration_seconds=whole / 1000,
        phases=phases(spans),
        calls=tuple(
            ToolCallTiming(**ids, tool_call_id=f"c{number}", tool_name=names, phases=phases(each))
            for number, each in enumerate(calls)
        ),
        **more,
    )


def bars_of(picture: Picture) -> list[tuple[str, float, float]]:
    """Every bar of the plotly figure: name, where it begins, how long it is."""
    return [
        (trace.name, base, length)
        for trace in picture.figure.data
        if trace.type == "bar"
        for base, length in zip(trace.base, trace.y if trace.orientation == "v" else trace.x, strict=True)
    ]


PARALLEL = a_round(
    1000,
    {"execution": (0, 900, 2700), "sibling_wait": (100, 900, 1500), "round_commit": (900, 1000)},
    *({"execution": (0, 900)} for _ in range(3)),
)


@pytest.mark.requirement("A152")
def test_the_worked_example_adds_up() -> None:
    record = worked_example()
    first, second = record.calls
    costs = [
        (record.phase(name).store_transaction_count, round(record.phase(name).store_commit_seconds * 1000))
        for name in ("staging", "publication", "round_commit")
    ]
    assert costs == [(3, 300), (2, 200), (1, 100)]
    assert sum(phase.store_transaction_count for phase in record.phases) == 6
    assert first.phase("execution").duration_seconds == pytest.approx(0.05)
    assert first.phase("sibling_wait").duration_seconds == pytest.approx(2.0)
    assert second.phase("sibling_wait").duration_seconds == 0
    assert second.phase("execution").duration_seconds < first.phase("sibling_wait").duration_seconds
    active = sum(record.phase(name).duration_seconds for name in ACTIVE_PHASES)
    assert active == pytest.approx(record.duration_seconds)
    for call in record.calls:
        for phase in call.phases:
            if phase.first_started_at is not None and phase.last_completed_at is not None:
                assert record.started_at <= phase.first_started_at <= phase.last_completed_at <= record.completed_at
    assert ToolRoundTiming.model_validate_json(record.model_dump_json()) == record


@pytest.mark.requirement("A114")
def test_a_stack_holds_only_what_the_round_itself_did() -> None:
    picture = phase_stack(worked_example())
    assert WAITS.isdisjoint(picture.df["phase"])
    assert picture.df["duration_ms"].sum() == pytest.approx(worked_example().duration_seconds * 1000)
    drawn = bars_of(picture)
    assert sum(length for _, _, length in drawn) == pytest.approx(picture.df["duration_ms"].sum())
    assert picture.figure.layout.barmode == "overlay"
    serial = a_round(500, {"execution": (0, 300), "round_commit": (300, 400)}, {"execution": (0, 300)})
    pieces = phase_stack(serial).df.set_index("phase")["duration_ms"].to_dict()
    assert pieces == pytest.approx({"execution": 300, "round_commit": 100, CONSUMER: 100})


@pytest.mark.requirement("A114")
def test_parallel_work_is_told_apart_from_the_time_that_passed() -> None:
    picture = phase_stack(PARALLEL)
    assert list(picture.df["phase"]) == ["execution", "round_commit"]
    assert set(picture.df["wall_ms"]) == {1000.0}
    (line,) = [trace for trace in picture.figure.data if trace.type == "scatter"]
    assert set(line.y[:2]) == {1000.0}
    assert "calls worked in parallel" in picture.note


@pytest.mark.requirement("A114")
def test_a_timeline_adds_nothing_up() -> None:
    picture = timeline(PARALLEL)
    assert picture.scene.panels[0].x.high == 1000
    for _, base, length in bars_of(picture):
        assert 0 <= base <= base + length <= 1000
    rows = picture.df
    assert list(rows[rows["wait"]]["phase"]) == ["sibling_wait"]
    styles = {bar.phase: bar.style for bar in picture.scene.panels[0].bars}
    assert styles["sibling_wait"] is Style.HATCHED
    assert [each.marker.pattern.shape for each in picture.figure.data if each.name == "sibling_wait"] == ["/"]


def test_bars_lie_at_their_observed_bounds_and_never_on_each_other() -> None:
    picture = timeline(worked_example())
    call = picture.df[picture.df["tool_call_id"] == "call-1"].set_index("phase")
    assert call.loc["staging", ["start_ms", "end_ms"]].tolist() == pytest.approx([54.5, 358.5])
    assert call.loc["staging", "store_transactions"] == 3
    assert not call.loc["staging", "partial"]
    assert picture.df[picture.df["row"] == "round"].set_index("phase").loc["execution", "partial"]
    for one, other in itertools.combinations(picture.scene.panels[0].bars, 2):
        apart = one.x1 <= other.x0 or other.x1 <= one.x0 or one.y1 <= other.y0 or other.y1 <= one.y0
        assert apart, (one, other)


def test_a_short_phase_in_a_long_round_is_seen() -> None:
    picture = timeline(a_round(2000, {"execution": (0.2, 2000), "authorization": (0, 0.2)}))
    row = picture.df.set_index("phase").loc["authorization"]
    assert row["duration_ms"] == pytest.approx(0.2)
    rects = ElementTree.fromstring(picture.svg).iter("{http://www.w3.org/2000/svg}rect")
    (width, *_) = [float(each.get("width", 0)) for each in rects if each.get("fill") == COLOURS["authorization"]]
    assert width >= SMALLEST
    (trace,) = [each for each in picture.figure.data if each.name == "authorization"]
    assert trace.x[0] == pytest.approx(0.2)
    assert trace.marker.line.width >= 1
    assert "0.20 ms in this phase" in trace.hovertext[0]
    assert "0.20 ms in this phase" in picture.svg


def test_an_idle_stretch_is_cut_and_says_how_long() -> None:
    idle = a_round(
        9000,
        {"execution": (0, 4100, 80), "unattributed": (1, 4100, 2)},
        {"execution": (0, 40), "sibling_wait": (40, 4100)},
        {"execution": (4060, 4100)},
    )
    picture = timeline(idle)
    panel = picture.scene.panels[0]
    assert len(panel.cuts) == 2
    assert panel.x.high < 400
    assert all("s idle" in cut.text and cut.text in picture.svg for cut in panel.cuts)
    assert picture.df["end_ms"].max() == 4100
    assert [value for value, _ in panel.x.ticks] == sorted(value for value, _ in panel.x.ticks)


def test_only_what_is_surely_idle_is_cut() -> None:
    assert fold(1000, [(0, 10), (990, 1000)]).cuts
    assert not fold(1000, [(0, 500), (500, 1000)]).cuts
    assert not fold(1000, [(0, 10), (990, 1000)], [((5, 995), 600)]).cuts
    halves = fold(1000, [(0, 10), (990, 1000)], [((500, 995), 1)])
    assert len(halves.cuts) == 2
    folded = fold(1000, [(0, 10), (990, 1000)])
    places = [folded.at(each) for each in range(0, 1001, 10)]
    assert places == sorted(places)
    assert folded.at(10) - folded.at(0) == pytest.approx(10)
    assert folded.length < 100


def test_costs_of_each_round_by_phase() -> None:
    picture = store_cost([worked_example()] * 2)
    rows = picture.df[picture.df["round"] == 2].set_index("phase")
    assert rows.loc["staging", ["store_transactions", "store_commit_ms"]].tolist() == pytest.approx([3, 300])
    assert picture.df["store_transactions"].sum() == 12
    assert [panel.title for panel in picture.scene.panels] == ["Transactions", "Time in commits, ms", "Bytes written"]
    empty = store_cost(a_round(10, {"execution": (0, 10)}))
    assert empty.df.empty
    assert "stores in memory report none" in empty.note


def test_attempts_stand_in_order_with_what_they_are() -> None:
    records = [a_round(10, {"execution": (0, 10)}, at=at, round_id=f"r{at}") for at in (20, 0, 10)]
    records.append(records[0].model_copy(update={"started_at": moment(30), "incomplete": True}))
    records.append(records[0].model_copy(update={"started_at": moment(40), "recovered": True}))
    picture = phase_stack(records)
    assert picture.df["tool_round_id"].tolist() == ["r0", "r10", "r20", "r20", "r20"]
    assert [text for _, text in picture.scene.panels[0].x.ticks] == ["1", "2", "3", "4*", "5°"]


def test_a_distribution_counts_rounds_that_did_not_enter_the_phase() -> None:
    records = [a_round(10, {"execution": (0, length)}, at=at) for at, length in enumerate((1, 10, 10, 100))]
    records.append(a_round(10, {}))
    picture = phase_ecdf("execution", records)
    assert picture.df["duration_ms"].tolist() == [0, 1, 10, 100]
    assert picture.df["share"].tolist() == pytest.approx([0.2, 0.4, 0.8, 1.0])
    assert picture.df["records"].tolist() == [1, 1, 2, 1]
    assert "1 record of 5 did not enter the phase" in picture.note
    assert picture.figure.layout.xaxis.type == "log"
    several = phase_ecdf("execution", {"slow": records, "quick": records[:1]})
    assert several.df["source"].unique().tolist() == ["slow", "quick"]
    assert len({trace.line.dash for trace in several.figure.data}) == 2
    assert phase_ecdf("execution", records[-1]).df["share"].tolist() == [1.0]


def test_a_comparison_of_medians_with_their_spread() -> None:
    one = [a_round(10, {"execution": (0, length)}) for length in (1, 2, 3, 4, 5)]
    other = [a_round(10, {"execution": (0, 40), "staging": (1, 2)})]
    picture = compare(one, other, names=("memory", HOSTILE))
    rows = picture.df.set_index(["phase", "source"])
    assert rows.loc[("execution", "memory"), ["median_ms", "q1_ms", "q3_ms"]].tolist() == [3, 2, 4]
    assert rows.loc[("execution", "memory"), "records"] == 5
    assert rows.loc[("staging", "memory"), "records"] == 0
    assert pd.isna(rows.loc[("staging", "memory"), "median_ms"])
    with pytest.raises(InvalidInput, match="names are two"):
        compare(one, other, names=("a",))  # type: ignore[arg-type]
    assert "<img" not in picture.svg
    with pytest.raises(InvalidInput, match="both named 'a'"):
        compare(one, other, names=("a", "a"))


def test_preparations_have_phases_too() -> None:
    step = ModelStepPreparationTiming(
        session_id="s",
        model_step_id="s.m2",
        started_at=BEGUN,
        completed_at=moment(9),
        duration_seconds=0.009,
        phases=phases({"handoff": (0, 5), "preparation": (5, 9)}, PREPARATION_PHASES),
    )
    assert phase_ecdf("handoff", [step, worked_example()]).df["duration_ms"].tolist() == pytest.approx([5])
    assert compare([step], [step]).df["phase"].unique().tolist() == ["handoff", "preparation"]
    assert phase_stack([step]).df.empty


@pytest.mark.parametrize(
    "picture, columns",
    [
        (timeline([]), COLUMNS),
        (phase_stack([]), STACK_COLUMNS),
        (store_cost([]), COST_COLUMNS),
        (phase_ecdf("execution", []), ECDF_COLUMNS),
        (compare([], []), COMPARE_COLUMNS),
    ],
)
def test_nothing_timed_is_said(picture: Picture, columns: dict[str, str]) -> None:
    assert picture.df.empty
    assert {name: str(dtype) for name, dtype in picture.df.dtypes.items()} == columns
    assert "Nothing has been timed yet" in picture.svg
    assert "Nothing has been timed yet" in picture.figure.layout.title.text


def test_dtypes_do_not_depend_on_the_rows() -> None:
    for picture, columns in ((timeline(worked_example()), COLUMNS), (phase_stack(PARALLEL), STACK_COLUMNS)):
        assert {name: str(dtype) for name, dtype in picture.df.dtypes.items()} == columns


class Session:
    """Something with records."""

    def timings(self) -> tuple[ToolRoundTiming, ...]:
        return (worked_example(), a_round(10, {}, at=1e11, round_id="newest"))


def test_sources() -> None:
    assert "newest" in repr(timeline(Session()))
    assert phase_stack(Session()).df["round"].max() == 2
    for wrong in (5, "records", [5], {"a": 1}):
        with pytest.raises(InvalidInput, match=r"holds no timing records\. Pass records"):
            phase_stack(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="There is no phase 'eating'"):
        phase_ecdf("eating", [])
    with pytest.raises(InvalidInput, match="At most 4 sources"):
        phase_ecdf("staging", {str(number): [] for number in range(5)})


def test_what_a_notebook_stores() -> None:
    picture = timeline(worked_example())
    bundle = picture._repr_mimebundle_()
    assert list(bundle) == ["text/plain", PLOTLY_MIME, SVG_MIME]
    plot = bundle[PLOTLY_MIME]
    assert json.loads(json.dumps(plot)) == plot
    assert set(plot) == {"data", "layout", "config"}
    # With it, a change of JupyterLab's theme leaves the figure no height.
    assert "responsive" not in plot["config"]
    assert plot["layout"]["paper_bgcolor"] == plot["layout"]["plot_bgcolor"] == "rgba(0,0,0,0)"
    root = ElementTree.fromstring(bundle[SVG_MIME])
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not [each for each in root.iter() if each.get("id") or "href" in " ".join(each.attrib)]
    assert "prefers-color-scheme:dark" in bundle[SVG_MIME]
    assert len(bundle[SVG_MIME]) < 20_000
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"publication_queue_wait", "started_persistence"} <= set(texts)


def test_text_stays_text() -> None:
    record = a_round(10, {"execution": (0, 10)}, {"execution": (0, 10)}, names=HOSTILE, round_id=HOSTILE)
    for picture in (timeline(record), phase_stack(record), phase_ecdf("execution", {HOSTILE: record})):
        root = ElementTree.fromstring(picture.svg.encode())
        assert {each.tag.rpartition("}")[2] for each in root.iter()} <= {
            "svg",
            "style",
            "title",
            "text",
            "path",
            "rect",
            "g",
        }
        stored = json.dumps(picture._repr_mimebundle_()[PLOTLY_MIME])
        for taboo in ("<img", "<b>'", "$", "hovertemplate", "\\u0000", "\\u202e", "\\ud800"):
            assert taboo not in stored
    assert plain("a\n b\x1b") == "a b\ufffd"
    assert plotly_text("<b>$x$ & y") == "&lt;b&gt;&#36;x&#36; &amp; y"


def test_more_than_the_budget_is_put_together_and_said() -> None:
    spans: Spans = {name: (number, number + 1) for number, name in enumerate(ROUND_PHASES)}
    call = a_round(20, spans, spans).calls[0]
    record = a_round(20, spans).model_copy(update={"calls": (call,) * 1_700, "calls_truncated": 3})
    picture = timeline(record)
    assert picture.scene.bars <= FULL.bars
    assert picture.df["calls"].max() == 2
    assert "2 calls to a row" in picture.note
    assert "3 calls more in the round's own numbers only" in picture.note
    assert len(picture.svg) < 120_000
    pair = picture.df[(picture.df["calls"] == 2) & (picture.df["phase"] == "execution")]["duration_ms"]
    assert pair.iloc[0] == pytest.approx(2)
    many = phase_stack([a_round(10, {"execution": (0, 10)})] * 3_000)
    assert many.scene.bars <= FULL.bars
    assert many.df["rounds"].max() > 1
    assert "a bar is the mean of" in many.note
    assert many.df["duration_ms"].max() == pytest.approx(10)
    assert len(many.svg) < 120_000


def test_every_phase_has_a_colour_of_its_own_that_can_be_seen() -> None:
    assert {*ALL_PHASES, CONSUMER, COSTS, HELPS, UNDECIDED} == set(COLOURS)
    assert len(set(COLOURS.values())) == len(COLOURS)
    for phase in ALL_PHASES:
        light = luminance(COLOURS[phase])
        assert 1.05 / (light + 0.05) > 2.3, phase
        assert (light + 0.05) / (luminance("#111111") + 0.05) > 3, phase


# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as readers without one kind of cone see it.
BLINDNESS = {
    "deutan": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "protan": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "tritan": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


@pytest.mark.parametrize("kind", BLINDNESS)
def test_active_phases_stay_apart_for_the_colour_blind(kind: str) -> None:
    def seen(colour: str) -> tuple[float, float, float]:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        red, green, blue = (
            min(1.0, max(0.0, sum(map(math.prod, zip(row, linear, strict=True))))) for row in BLINDNESS[kind]
        )
        x = math.cbrt((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505)
        y = math.cbrt(0.2126 * red + 0.7152 * green + 0.0722 * blue)
        z = math.cbrt((0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.0888)
        return 116 * y, 500 * (x - y), 200 * (y - z)

    for one, other in itertools.combinations(ACTIVE_PHASES, 2):
        assert math.dist(seen(COLOURS[one]), seen(COLOURS[other])) > 10, (one, other)


def test_words() -> None:
    assert [milliseconds(each) for each in (0, 0.04, 0.21, 3.14, 41, 300, 2310, 2e6)] == (
        ["0 ms", "0.040 ms", "0.21 ms", "3.1 ms", "41.0 ms", "300 ms", "2.31 s", "2\u202f000 s"]
    )
    assert [byte_count(each) for each in (0, 512, 4200, 1.3e6)] == ["0 B", "512 B", "4.2 kB", "1.3 MB"]
    short = fitted("a" * 500, 100, 12)
    assert short.endswith("…")
    assert text_width(short, 12) <= 100


def test_a_pale_stretch_is_full_to_the_height_of_its_share() -> None:
    picture = timeline(a_round(100, {"authorization": (0, 80, 20), "staging": (0, 80, 0.1), "execution": (0, 60, 48)}))
    bars = {bar.phase: bar for bar in picture.scene.panels[0].bars}
    assert {phase: bar.filled for phase, bar in bars.items()} == pytest.approx(
        {"authorization": 0.25, "staging": 0.1 / 80, "execution": 0.8}
    )
    for phase, share in (("authorization", 0.25), ("execution", 0.8)):
        bar = bars[phase]
        assert (bar.y1 - bar.strip) / (bar.y1 - bar.y0) == pytest.approx(share)
        strip, pale = sorted((trace for trace in picture.figure.data if trace.name == phase), key=lambda t: t.width[0])
        assert strip.width[0] / pale.width[0] == pytest.approx(share)
        assert strip.y[0] > pale.y[0]  # the axis goes down, so the strip lies at the bottom
        assert strip.showlegend
    assert (bars["staging"].y1 - bars["staging"].strip) / (bars["staging"].y1 - bars["staging"].y0) > 0.1
    assert "as high as the phase's share" in picture.note
    whole = timeline(worked_example())
    assert all(bar.filled == 1 for bar in whole.scene.panels[0].bars if bar.style is not Style.PALE)


def test_bars_say_what_they_are_and_how_long_they_took() -> None:
    picture = timeline(worked_example())
    shown = picture.svg
    texts = [text for trace in picture.figure.data if trace.type == "bar" for text in trace.text]
    on_hatching = [note.text for note in picture.figure.layout.annotations if note.bgcolor]
    assert on_hatching == ["sibling_wait 2.00 s"] * 2
    assert "staging 304 ms" in texts
    assert "execution 1.99 s" in texts
    for words in ("sibling_wait 2.00 s", "staging 304 ms", "execution 1.99 s"):
        assert f">{words}</text>" in shown
    placed = {
        text: place
        for trace in picture.figure.data
        if trace.type == "bar"
        for text, place in zip(trace.text, trace.textposition, strict=True)
    }
    assert placed["execution 1.99 s"] == "inside"
    assert placed["staging 304 ms"] == "outside"
    assert "execution 50.0 ms" not in texts  # it has no room in its bar, nor beside it


def test_the_pieces_of_a_few_bars_carry_their_numbers() -> None:
    numbers = [text for trace in store_cost(worked_example()).figure.data for text in trace.text]
    for number in ("3", "2", "1", "300", "200", "100"):
        assert number in numbers
    assert ">300</text>" in store_cost(worked_example()).svg
    many = [worked_example()] * 13
    assert {text for trace in store_cost(many).figure.data for text in trace.text} == {""}


def test_a_comparison_hatches_the_waits_of_both() -> None:
    picture = compare(worked_example(), PARALLEL, names=("one", "other"))
    waits = {bar.hover[1]: bar.style for bar in picture.scene.panels[0].bars if bar.phase == "sibling_wait"}
    assert waits == {"one": Style.HATCHED, "other": Style.HATCHED}
    assert "one (1 round) and other (1 round)" in picture.scene.title


def test_the_last_tick_of_a_curve_is_not_cut_off() -> None:
    picture = phase_ecdf("round_commit", worked_example())
    ticks = picture.scene.panels[0].x.ticks
    assert [text for _, text in ticks] == ["100 ms", "1\u202f000 ms"]
    texts = [each for each in ElementTree.fromstring(picture.svg).iter() if each.tag.endswith("}text")]
    placed = {each.text: float(each.attrib["x"]) for each in texts}
    assert placed[plain(ticks[-1][1])] + text_width(ticks[-1][1], 11) / 2 <= 860
