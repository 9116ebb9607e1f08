"""The example's phases, each in an OS process of its own, with the checks that must fail."""

from __future__ import annotations

import ast
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cayu.examples import durable_service_tools as example
from cayu.examples.durable_service_tools import CHANGES, OPAQUE, REFUSED

pytestmark = pytest.mark.slow

MODULE = "cayu.examples.durable_service_tools"


def phase(folder: Path, *words: str, expected: int = 0) -> dict[str, Any]:
    """Run one phase without any credential in its environment, and return what it printed."""
    command = [sys.executable, "-m", MODULE, *words, "--dir", str(folder)]
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == expected, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.requirement("A035", "A036", "A037", "A038", "A039", "A010", "A046", "A030", "A031")
@pytest.mark.parametrize("wiring", ["constructor", "environment"])
def test_the_conversation_is_rebuilt(wiring: str, tmp_path: Path) -> None:
    started = phase(tmp_path, "start", "--wiring", wiring)
    assert (started["status"], started["searches"], started["provider_requests"]) == ("completed", 1, 2)
    resumed = phase(tmp_path, "resume", "--wiring", wiring)
    assert (resumed["status"], resumed["searches"], resumed["answer"]) == ("completed", 1, "So it stands now.")


@pytest.mark.requirement("A036", "A037", "A038")
@pytest.mark.parametrize(
    ("lost", "told"),
    [
        (example.LATER_TEXT, "evidence did not reach"),
        ("When are samples shipped?", "conversation did not survive"),
    ],
)
def test_the_proofs_bite(lost: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phase(tmp_path, "start")
    whole = example.Build.told
    monkeypatch.setattr(example.Build, "told", lambda build: whole(build).replace(lost, ""))
    with pytest.raises(AssertionError, match=told):
        example.main(["resume", "--dir", str(tmp_path)])


@pytest.mark.requirement("A040", "A041")
def test_an_approved_order_is_placed_once(tmp_path: Path) -> None:
    paused = phase(tmp_path, "pause")
    assert (paused["status"], paused["receipts"], len(paused["pending"])) == ("interrupted", [], 1)
    approved = phase(tmp_path, "approve")
    assert (approved["status"], approved["receipts_asked"]) == ("completed", 1)
    assert approved["receipts"] == [[1, "2 x cooled boxes"]]
    again = phase(tmp_path, "repeat")
    assert (again["receipts"], again["provider_requests"]) == ([[1, "2 x cooled boxes"]], 0)


@pytest.mark.requirement("A040", "A042")
def test_a_denied_order_leaves_nothing(tmp_path: Path) -> None:
    phase(tmp_path, "pause")
    denied = phase(tmp_path, "deny")
    assert (denied["status"], denied["receipts"], denied["receipts_asked"]) == ("completed", [], 0)
    assert phase(tmp_path, "repeat")["receipts"] == []


@pytest.mark.requirement("A043", "A007", "A008", "A013")
def test_every_changed_declaration_is_refused(tmp_path: Path) -> None:
    phase(tmp_path, "start", "--wiring", "environment")
    phase(tmp_path, "pause")
    classes = {"tool": "tools", "policy": "tool_policy", "environment": "environment"}
    for change, (words, boundary) in itertools.product(
        (*CHANGES, OPAQUE), [(("resume", "--wiring", "environment"), "resume"), (("approve",), "approval")]
    ):
        refused = phase(tmp_path, *words, "--change", change, expected=REFUSED)
        category = "opaque_identity" if change == OPAQUE else "other_or_unknown"
        assert refused["refused"] == "ExecutionProfileMismatchError"
        assert refused["differences"] == [[classes[change.partition(".")[0]], category]]
        assert refused["boundary"] == boundary
        assert (refused["provider_requests"], refused["searches"], refused["receipts_asked"]) == (0, 0, 0)
        assert refused["receipts"] == []
    assert phase(tmp_path, "approve")["receipts"] == [[1, "2 x cooled boxes"]]


@pytest.mark.requirement("A034")
def test_the_example_uses_public_names_only() -> None:
    tree = ast.parse(Path(str(example.__file__)).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {name for name in imported if name and name.startswith("cayu")}
    public = {"cayu", "cayu.approvals", "cayu.providers", "cayu.tools"}
    assert ours <= public | {"cayu.examples.receipts"}
