"""Public tools for testing agents: a restart harness, crash points in child processes, a clock, conformance checks."""

from cayu.testing.clocks import FakeClock
from cayu.testing.crashes import Child, crash_points, run_child
from cayu.testing.disks import SlowSQLiteSessionStore
from cayu.testing.harness import RestartHarness
from cayu.testing.notebooks import decide
from cayu.testing.reconcilers import check_reconciler

__all__ = [
    "Child",
    "FakeClock",
    "RestartHarness",
    "SlowSQLiteSessionStore",
    "check_reconciler",
    "crash_points",
    "decide",
    "run_child",
]
