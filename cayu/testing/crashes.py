"""Children that really die: a function runs in a process of its own, which kills itself at a named crash point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cayu.crashpoints import ARMED_BY, CRASH_POINTS

TIMEOUT_SECONDS = 60.0
_RUN = """
import asyncio, importlib, inspect, json, sys
module, _, name = sys.argv[1].partition(":")
if module.endswith(".py"):
    from importlib.util import module_from_spec, spec_from_file_location
    spec = spec_from_file_location("child_target", module)
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
else:
    loaded = importlib.import_module(module)
result = getattr(loaded, name)(*json.loads(sys.argv[2]))
result = asyncio.run(result) if inspect.isawaitable(result) else result
print("\\n" + json.dumps(result))
"""


@dataclass(frozen=True, slots=True)
class Child:
    """How a child process ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def killed(self) -> bool:
        """True when it died by SIGKILL."""
        return self.returncode == -signal.SIGKILL

    @property
    def result(self) -> Any:
        """What the function returned. Raises `ChildProcessError`, with the child's words, when it did not return."""
        if self.returncode != 0:
            raise ChildProcessError(f"The child ended with {self.returncode}:\n{self.stderr}")
        return json.loads(self.stdout.rstrip("\n").rpartition("\n")[2])


def crash_points() -> tuple[str, ...]:
    """Return the names of the places where a process can be made to die."""
    return tuple(CRASH_POINTS)


def run_child(
    target: str, arguments: Sequence[Any] = (), *, crash_at: str | None = None, timeout: float = TIMEOUT_SECONDS
) -> Child:
    """Run `target` ("module:function" or "file.py:function") with JSON arguments in a new process.

    `crash_at` names a crash point, or "point:N" for the N-th time it is reached. An asynchronous function is awaited.
    """
    environment = {name: value for name, value in os.environ.items() if name != ARMED_BY}
    if crash_at is not None:
        if crash_at.partition(":")[0] not in CRASH_POINTS:
            raise ValueError(f"{crash_at!r} is no crash point; known: {', '.join(CRASH_POINTS)}")
        environment[ARMED_BY] = crash_at
    command = [sys.executable, "-c", _RUN, target, json.dumps(list(arguments))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    return Child(done.returncode, done.stdout, done.stderr)
