"""Public tools for testing agents: a restart harness, crash points in child processes, a clock, store conformance."""

from cayu.testing.clocks import FakeClock
from cayu.testing.crashes import Child, crash_points, run_child
from cayu.testing.harness import RestartHarness
from cayu.testing.notebooks import decide

__all__ = ["Child", "FakeClock", "RestartHarness", "crash_points", "decide", "run_child"]
