"""A real server in a process of its own: asked over the loopback, and ended by SIGTERM in the middle of a run."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from conftest import require_tool
from runtime.support import SESSION, FakeTool, assert_consistent, calls, logged, make_app, next_turn, play, status_of
from server.support import OPERATOR_HEADERS, USER, problem

from cayu import EventType, SQLiteSessionStore
from cayu.tools import AlwaysRequireApprovalToolPolicy

PROGRAM = Path(__file__).with_name("server_program.py")
PATIENCE_SECONDS = 30.0
STOPPING_SECONDS = 8.0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    require_tool("uvicorn", importlib.util.find_spec("uvicorn"))
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])}
    command = [sys.executable, "-W", "error", str(PROGRAM), str(tmp_path)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def until(child: subprocess.Popen[str], ready: Callable[[], bool]) -> None:
    """Wait until something has happened in the child; show its words when it has ended before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ready():
        if child.poll() is not None or time.monotonic() > deadline:
            child.kill()
            pytest.fail(f"the server has not come so far:\n{child.communicate()[1]}")
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.requirement("A065", "A066", "A067", "A143")
def test_a_server_from_outside(process: subprocess.Popen[str], tmp_path: Path) -> None:
    until(process, (tmp_path / "port").exists)
    base = f"http://127.0.0.1:{(tmp_path / 'port').read_text()}"
    with httpx.Client(base_url=base, timeout=10) as client:
        startup = "/api/recovery/startup"
        response = client.get(startup)
        problem(response, 401, "unauthenticated")
        assert response.headers["www-authenticate"] == "Bearer"
        wrong = {"Authorization": "Bearer wrong-token-0123456789"}
        problem(client.get(startup, headers=wrong), 401, "unauthenticated")
        problem(client.get(startup, headers=USER), 403, "forbidden")
        response = client.get(startup, headers=OPERATOR_HEADERS)
        assert (response.status_code, response.json()["status"]) == (200, "completed")
        problem(client.get("/api/sessions/%00", headers=USER), 422, "invalid_request")
        problem(client.get(f"/api/sessions/{'%2f' * 3}", headers=USER), 404, "SessionNotFound")
        huge = {"content": b"x" * (2 << 20), "headers": {**USER, "content-type": "application/json"}}
        problem(client.post("/api/pending/approve", **huge), 413, "body_too_large")

        (action,) = client.get("/api/pending", headers=USER).json()["actions"]
        body = {"session_id": action["session"], "approval_id": action["approval_id"]}
        response = client.post("/api/pending/approve", json=body, headers=USER)
        assert (response.status_code, response.json()["decision"]) == (200, "approved")
        until(process, (tmp_path / "at-work").exists)
        assert client.get(f"/api/sessions/{SESSION}", headers=USER).json()["status"] == "running"

        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, words = process.communicate(timeout=PATIENCE_SECONDS)
        took = time.monotonic() - begun
    assert process.returncode in (0, -signal.SIGTERM), words
    assert took < STOPPING_SECONDS
    assert "Traceback" not in words
    asyncio.run(_nothing_is_lost(tmp_path))


async def _nothing_is_lost(folder: Path) -> None:
    store = SQLiteSessionStore(folder / "sessions.db")
    answers = (calls("act"), "done")
    async with make_app(store, answers, [FakeTool("act")], AlwaysRequireApprovalToolPolicy()) as app:
        view = await assert_consistent(app)
        assert (view.status, view.open_round) == ("interrupted", None)
        (approved,) = await logged(app, EventType.TOOL_APPROVED)
        assert approved["resolved_by"]["subject"] == "ada"
        await play(app.resume(next_turn()))
        assert await status_of(app) == "completed"
