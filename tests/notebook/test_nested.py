"""Nested loops are refused where they lose cells, work in scripts, and no cell of a real kernel is lost to a lab."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cayu.testing import run_child

CHILDREN = str(Path(__file__).with_name("children.py"))


@pytest.mark.slow
@pytest.mark.parametrize("imports", ["", "cayu_widgets"])
def test_a_plain_script_may_nest(imports: str) -> None:
    assert run_child(f"{CHILDREN}:nested", [imports]).result == {"inner": 42}


@pytest.mark.slow
@pytest.mark.parametrize("version", ["7.0.0", "7.4.0", "8.1.0a1", "10.0"])
def test_newer_kernels_refuse_and_say_why(version: str) -> None:
    told = run_child(f"{CHILDREN}:nested_in_kernel", [version]).result
    assert told["untouched"]
    assert "await main()" in told["refused"]
    assert "lab.call(main())" in told["refused"]
    assert "lose" in told["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["6.29.5", "6.31.0"])
def test_older_kernels_may_nest(version: str) -> None:
    assert run_child(f"{CHILDREN}:nested_in_kernel", [version]).result == {"inner": 42}


# A real kernel, with several cells queued at once as Run All does.

CELLS = [
    """
import asyncio, threading
before = (asyncio.run, asyncio.Task, asyncio.BaseEventLoop.run_until_complete, asyncio.BaseEventLoop._run_once)
from pathlib import Path
import sys
sys.path.insert(0, FOLDER)
from children import _build
from cayu.notebook import Lab
lab = Lab.open(Path(STORE), factory=_build)
print(lab.run("a", "go", session_id="first").text)
""",
    "print(lab.run('a', 'go').status)",
    "print((await lab.arun('a', 'go')).status)",
    "lab.session('first')",
    "print(len(lab.sessions_df()))",
    """
from cayu.notebook import allow_nested_loops
from cayu.errors import NestedLoopsRefused
try:
    allow_nested_loops()
    print("allowed")
except NestedLoopsRefused:
    print("refused")
""",
    """
now = (asyncio.run, asyncio.Task, asyncio.BaseEventLoop.run_until_complete, asyncio.BaseEventLoop._run_once)
print(now == before, type(asyncio.get_running_loop()).__module__)
""",
    "lab.check_quiet(); lab.close(); print('closed')",
    "print('the last cell')",
]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a kernel of its own, which starts nothing of the user's."""
    client = pytest.importorskip("jupyter_client")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    manager = client.KernelManager(connection_file=str(tmp_path / "kernel.json"))
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=str(tmp_path))
    talking = manager.client()
    talking.start_channels()
    try:
        talking.wait_for_ready(timeout=60)
        yield talking
    finally:
        talking.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.mark.slow
def test_queued_cells_all_run_and_reply(kernel: Any, tmp_path: Path) -> None:
    first = f"FOLDER = {str(Path(__file__).parent)!r}; STORE = {str(tmp_path / 'runs.db')!r}"
    asked = [kernel.execute(cell) for cell in (first, *CELLS)]
    replies = {}
    while len(replies) < len(asked):
        reply = kernel.get_shell_msg(timeout=60)
        replies[reply["parent_header"]["msg_id"]] = reply["content"]
    assert [replies[each]["status"] for each in asked] == ["ok"] * len(asked), replies
    assert [replies[each]["execution_count"] for each in asked] == list(range(1, len(asked) + 1))
    shown: dict[str, Any] = dict.fromkeys(asked, "")
    idle = set()
    while len(idle) < len(asked):
        message = kernel.get_iopub_msg(timeout=20)
        parent, content = message["parent_header"].get("msg_id"), message["content"]
        if message["msg_type"] == "status" and content["execution_state"] == "idle" and parent in shown:
            idle.add(parent)
        elif message["msg_type"] == "stream":
            shown[parent] += content["text"]
        elif message["msg_type"] == "execute_result":
            shown[parent] = content["data"]
    printed = [shown[each] for each in asked]
    assert printed[1] == "done\n"
    assert printed[2] == printed[3] == "completed\n"
    assert set(printed[4]) == {"text/plain", "text/html"}
    assert printed[5] == "3\n"
    assert printed[6] == "refused\n"
    assert printed[7].startswith("True ")
    assert printed[8:] == ["closed\n", "the last cell\n"]
