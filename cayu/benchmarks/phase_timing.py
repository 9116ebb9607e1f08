"""What timing costs in a durable tool round, beside the floor that the disk sets.

    python -m cayu.benchmarks.phase_timing --backend sqlite --rounds 50 --iterations 10 --baseline-src OTHER/CHECKOUT

Each iteration starts one fresh worker for each configuration - timing enabled, disabled, and the baseline as it comes -
in an order that rotates, so that a drift of the machine meets all alike. A worker runs an agent of R rounds of a no-op
tool and a scripted model, without sinks, several times, and reports the median; see `workload`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cayu.benchmarks import workload
from cayu.benchmarks.report import as_text, make_report
from cayu.benchmarks.workload import BASELINE, DISABLED, ENABLED, Sample, Shape

OWN_CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Configuration:
    """One thing to measure: its name, and the folder that holds its `cayu`."""

    name: str
    checkout: Path


def at_least_one(text: str) -> int:
    """Return a count. Raises `argparse.ArgumentTypeError` for what is none."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count; give a whole number from 1")
    return int(text)


def checkout_of(text: str) -> Path:
    """Return the folder that holds the `cayu` package: `text`, or `src` in it.

    Raises `argparse.ArgumentTypeError` when there is none.
    """
    given = Path(text).expanduser().resolve()
    for folder in (given, given / "src"):
        if (folder / "cayu" / "__init__.py").is_file():
            return folder
    told = "holds no cayu package" if given.is_dir() else "is no folder"
    raise argparse.ArgumentTypeError(f"{text!r} {told}; give the root of a checkout, where its folder cayu lies")


def make_parser() -> argparse.ArgumentParser:
    """Return what understands the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m cayu.benchmarks.phase_timing",
        description="What timing costs in a durable tool round, beside the floor that the disk sets.",
    )
    parser.add_argument("--backend", choices=("sqlite", "memory"), default="sqlite")
    parser.add_argument("--rounds", type=at_least_one, default=50, help="tool rounds of one run (50)")
    parser.add_argument("--calls", type=at_least_one, default=1, help="calls of one round (1)")
    parser.add_argument("--sessions", type=at_least_one, default=1, help="sessions at once (1)")
    parser.add_argument("--iterations", type=at_least_one, default=5, help="fresh workers for each configuration (5)")
    parser.add_argument(
        "--runs", type=at_least_one, default=10, help="runs of one worker, of which it takes the median"
    )
    parser.add_argument("--baseline-src", type=checkout_of, metavar="PATH", help="another checkout to compare with")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def in_turn(configurations: list[Configuration], iterations: int) -> Iterator[tuple[int, Configuration]]:
    """Yield every configuration once in each iteration, each time beginning with the next one."""
    for iteration in range(iterations):
        first = iteration % len(configurations)
        for configuration in (*configurations[first:], *configurations[:first]):
            yield iteration, configuration


def run_worker(configuration: Configuration, shape: Shape) -> Sample:
    """Run one worker to its end and return what it measured. Exits with its last words when it fails."""
    found = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(configuration.checkout), *([found] if found else [])])
    # One iteration's workers hash alike, so that the layout of their tables is no difference between them.
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(shape.iteration)}
    arguments = [workload.__file__, json.dumps(asdict(shape)), str(configuration.checkout)]
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        where = f"{configuration.name} ({configuration.checkout})"
        sys.stderr.write(done.stderr)
        raise SystemExit(f"The worker for {where} failed: {words[-1]}\nAbove stands all that it said.")
    return Sample(**json.loads(done.stdout))


def measure_all(options: argparse.Namespace, tell: Callable[[str], None]) -> list[Sample]:
    """Run every worker, one after the other, and return what they measured, in the order in which they ran."""
    configurations = [Configuration(ENABLED, OWN_CHECKOUT), Configuration(DISABLED, OWN_CHECKOUT)]
    if options.baseline_src is not None:
        configurations.append(Configuration(BASELINE, options.baseline_src))
    samples = []
    for iteration, configuration in in_turn(configurations, options.iterations):
        tell(f"iteration {iteration + 1} of {options.iterations}: {configuration.name}")
        shape = Shape(
            configuration=configuration.name,
            iteration=iteration,
            backend=options.backend,
            rounds=options.rounds,
            calls=options.calls,
            sessions=options.sessions,
            runs=options.runs,
        )
        samples.append(run_worker(configuration, shape))
    tell("")
    return samples


def show_progress(line: str) -> None:
    """Show one line on standard error in place of the last one, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark and print its report. Exits with 2 for arguments that make no sense, before any worker runs."""
    options = make_parser().parse_args(arguments)
    asked = {name: getattr(options, name) for name in ("backend", "rounds", "calls", "sessions", "iterations", "runs")}
    baseline = str(options.baseline_src) if options.baseline_src is not None else None
    shape = {**asked, "baseline_src": baseline, "pid": os.getpid()}
    report = make_report(shape, measure_all(options, show_progress))
    print(json.dumps(report) if options.json else as_text(report))


if __name__ == "__main__":
    main()
