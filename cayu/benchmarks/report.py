"""From what the workers measured to what is reported: medians with quartiles, paired differences, and the verdict."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cayu.benchmarks.workload import BASELINE, DISABLED, ENABLED, FLOOR_COMMITS_PER_ROUND, Sample

MAX_COST_US = 40.0
MAX_COST_PERCENT = 5.0
"""Timing may cost this much of a round, or `MAX_COST_US`, whichever is more."""
ENOUGH_ITERATIONS = 5
"""With fewer the difference has no spread worth the name."""
COMPARISONS = ((ENABLED, DISABLED), (ENABLED, BASELINE), (DISABLED, BASELINE))
TOLD_PLAIN = ("transactions_per_round", "events_per_round", "timing_records")
"""What is counted and not measured."""


def make_report(shape: Mapping[str, Any], samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the report of a benchmark whose command asked for `shape`, ready for JSON.

    `configurations` holds medians, `comparisons` differences paired by iteration, `verdict` whether timing stays within
    its bound, `equal_work` whether timing on and off wrote the same, and `samples` everything that was measured.
    """
    found = {name: [sample for sample in samples if sample.configuration == name] for name in _names(samples)}
    comparisons = {
        f"{one}_against_{other}": compare(found[one], found[other])
        for one, other in COMPARISONS
        if one in found and other in found
    }
    return {
        **shape,
        "configurations": {name: summarise(listed) for name, listed in found.items()},
        "comparisons": comparisons,
        "verdict": judge(comparisons[f"{ENABLED}_against_{DISABLED}"], found[DISABLED]),
        "equal_work": _equal_work(found[ENABLED], found[DISABLED]),
        "samples": [asdict(sample) for sample in samples],
    }


def _names(samples: Sequence[Sample]) -> list[str]:
    """Return the configurations in a fixed order, whichever ran first."""
    present = {sample.configuration for sample in samples}
    return [name for name in (ENABLED, DISABLED, BASELINE) if name in present]


def quartiles(values: Sequence[float]) -> list[float]:
    """Return the lower and the upper quartile."""
    if len(values) == 1:
        return [values[0], values[0]]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return [low, high]


def summarise(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the medians of one configuration; what only a disk has is None without one."""
    times = [sample.round_ms for sample in samples]
    floors = [sample.floor_ms for sample in samples if sample.floor_ms is not None]
    ratios = [sample.round_ms / sample.floor_ms for sample in samples if sample.floor_ms is not None]
    sizes = [sample.bytes_per_round for sample in samples if sample.bytes_per_round is not None]
    shares = [
        sample.commits_per_second * sample.floor_ms / (1000 * FLOOR_COMMITS_PER_ROUND)
        for sample in samples
        if sample.floor_ms is not None
    ]
    return {
        "round_ms": round(statistics.median(times), 4),
        "round_ms_quartiles": [round(value, 4) for value in quartiles(times)],
        "floor_ms": round(statistics.median(floors), 4) if floors else None,
        "ratio_to_floor": round(statistics.median(ratios), 2) if ratios else None,
        "transactions_per_round": statistics.median(sample.transactions_per_round for sample in samples),
        "events_per_round": statistics.median(sample.events_per_round for sample in samples),
        "bytes_per_round": round(statistics.median(sizes)) if sizes else None,
        "commits_per_second": round(statistics.median(sample.commits_per_second for sample in samples)),
        "share_of_one_writer": round(statistics.median(shares), 2) if shares else None,
        "peak_memory_mb": round(statistics.median(sample.peak_memory_mb for sample in samples), 1),
        "timing_records": statistics.median(sample.timing_records for sample in samples),
    }


def compare(samples: Sequence[Sample], others: Sequence[Sample]) -> dict[str, Any]:
    """Return how much longer a round takes in `samples` than in `others`, each beside the other of its iteration."""
    beside = {other.iteration: other.round_ms for other in others}
    pairs = [(sample.round_ms, beside[sample.iteration]) for sample in samples if sample.iteration in beside]
    us = [1000 * (own - other) for own, other in pairs]
    percent = [100 * (own - other) / other for own, other in pairs]
    return {
        "pairs": len(pairs),
        "difference_us": round(statistics.median(us), 1),
        "difference_us_quartiles": [round(value, 1) for value in quartiles(us)],
        "percent_of_round": round(statistics.median(percent), 2),
        "percent_of_round_quartiles": [round(value, 2) for value in quartiles(percent)],
    }


WORDS = {
    "within": "within its bound",
    "over": "over its bound",
    "unclear": f"not to be told, as the bound lies within the spread, or below {ENOUGH_ITERATIONS} iterations",
}
"""What a verdict means."""


def judge(difference: Mapping[str, Any], disabled: Sequence[Sample]) -> dict[str, Any]:
    """Return the bound on the cost of timing and whether it is `within`, `over`, or `unclear`.

    It is unclear when the bound lies between the quartiles, or when there are too few iterations.
    """
    untimed_us = 1000 * statistics.median(sample.round_ms for sample in disabled)
    allowed = max(MAX_COST_US, MAX_COST_PERCENT / 100 * untimed_us)
    low, high = difference["difference_us_quartiles"]
    if difference["pairs"] < ENOUGH_ITERATIONS or low <= allowed < high:
        cost = "unclear"
    else:
        cost = "within" if high <= allowed else "over"
    return {"allowed_us": round(allowed, 1), "cost": cost}


def _equal_work(enabled: Sequence[Sample], disabled: Sequence[Sample]) -> bool:
    """True when every worker wrote as much with timing on as off; pages that a file grows by are not counted."""
    written = {(sample.transactions_per_round, sample.events_per_round) for sample in (*enabled, *disabled)}
    return len(written) == 1


def as_text(report: Mapping[str, Any]) -> str:
    """Return a report for reading: a column for each configuration, a line for each comparison, and the verdict."""
    names = list(report["configurations"])
    columns = [_column(report["configurations"][name]) for name in names]
    asked = ("rounds", "calls", "sessions", "iterations", "runs")
    lines = [", ".join((report["backend"], *(f"{name} {report[name]}" for name in asked))), ""]
    lines.append(" " * 24 + "".join(f"{name:>26}" for name in names))
    for row in columns[0]:
        told = [column[row] for column in columns]
        if any(told):
            lines.append(f"{row:>24}" + "".join(f"{cell:>26}" for cell in told))
    lines.append("")
    lines += [f"{name.replace('_', ' '):>26}  {_told(found)}" for name, found in report["comparisons"].items()]
    verdict, work = report["verdict"], "equal" if report["equal_work"] else "NOT equal"
    allowed = f"{MAX_COST_PERCENT} % of a round or {MAX_COST_US} us, whichever is more; {verdict['allowed_us']} us here"
    lines += ["", f"Cost of timing: {WORDS[verdict['cost']]}. The bound is {allowed}."]
    return "\n".join([*lines, f"Transactions and events with timing on and off: {work}."])


def _column(summary: Mapping[str, Any]) -> dict[str, str]:
    cells = {}
    for name, value in summary.items():
        if name.endswith("_quartiles"):
            continue
        around = summary.get(f"{name}_quartiles")
        spread = f" ({around[0]:.3f} to {around[1]:.3f})" if around else ""
        plain = f"{value:g}" if name in TOLD_PLAIN else f"{value}"
        cells[name] = "" if value is None else f"{value:.3f}{spread}" if around else plain
    return cells


def _told(found: Mapping[str, Any]) -> str:
    low, high = found["difference_us_quartiles"]
    few, many = found["percent_of_round_quartiles"]
    return (
        f"{found['difference_us']:+.1f} us a round ({low:+.1f} to {high:+.1f}), "
        f"{found['percent_of_round']:+.2f} % ({few:+.2f} to {many:+.2f})"
    )
