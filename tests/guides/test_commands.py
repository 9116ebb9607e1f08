"""The commands that the guides show: the real command line reads each, and a whole recovery is done with them."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import require_tool
from guides.reading import TOPICS, guide
from typer.testing import CliRunner

from cayu import CayuApp, Message, RunRequest, run_to_completion
from cayu.cli.main import app as command_line

OPERATIONS = guide("durable-operations")
SHOWN = list(dict.fromkeys(command for topic in TOPICS for command in guide(topic).commands))
OURS = [command for command in SHOWN if command.startswith("cayu ")]
PLACEHOLDERS = {"MODULE:FACTORY": "module:factory"}
TOKEN = "an-operators-token"
USAGE_ERROR = typer.BadParameter.__mro__[1]
"""What a command line raises for any wrong usage; the class itself has no public name."""


def shown(*words: str) -> str:
    """The one command of the operator's guide that holds these words for the example desk."""
    [found] = [each for each in OPERATIONS.commands if all(word in each for word in (*words, "desk"))]
    return found


def run(command: str) -> Any:
    """Run one command of `cayu` in the current folder and return what it printed as JSON."""
    return json.loads(CliRunner().invoke(command_line, [*shlex.split(command)[1:], "--json"]).stdout)


def parse(command: str) -> None:
    """Let the real command line read a command, without running it."""
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(command)]
    name = words.pop(0)
    kind: Any = typer.main.get_command(command_line)
    context = None
    while hasattr(kind, "commands"):
        context = typer.Context(kind, parent=context, info_name=name)
        name = words.pop(0)
        assert name in kind.commands, f"there is no command {name!r} in {command!r}"
        kind = kind.commands[name]
    kind.make_context(name, words, parent=context)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the operator's guide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in OPERATIONS.blocks:
        if block.file_name:
            tmp_path.joinpath(block.file_name).write_text(block.text, encoding="utf-8")
            monkeypatch.setitem(sys.modules, Path(block.file_name).stem, None)
            del sys.modules[Path(block.file_name).stem]
    return tmp_path


@pytest.mark.parametrize("command", OURS)
def test_each_command_is_understood(command: str) -> None:
    parse(command)


@pytest.mark.parametrize("command", ["cayu recovery plans m:f", "cayu recovery plan m:f --no-such 1", "cayu pending x"])
def test_a_wrong_command_is_noticed(command: str) -> None:
    with pytest.raises((AssertionError, USAGE_ERROR)):
        parse(command)


def test_the_other_commands_are_those_that_we_know() -> None:
    others = [shlex.split(command) for command in SHOWN if command not in OURS]
    assert {words[0] for words in others} == {"python", "uvicorn", "curl", "export"}
    modules = {"cayu.benchmarks.memory_trials", "cayu.benchmarks.phase_timing", "cayu.examples.durable_service_tools"}
    assert {words[2] for words in others if words[0] == "python"} == modules


def test_a_pointer_prints_its_section() -> None:
    for topic, section in {pointer for each in TOPICS for pointer in guide(each).pointers}:
        told = run(f"cayu guide {topic}#{section or ''}")
        assert told["topic"] == topic
        assert told["markdown"].startswith("#")


def test_a_stuck_session_is_settled_with_the_commands_shown(desk: Path) -> None:
    module = importlib.import_module("desk")

    async def begin() -> None:
        async with module.build_app() as app:
            message = Message.text("user", "Send it to Ulm.")
            await run_to_completion(app, RunRequest(agent_name="desk", session_id="ulm", messages=(message,)))

    asyncio.run(begin())
    [action] = run(shown("cayu pending"))["actions"]
    run(shown("cayu approve").replace("ACTION_ID", action["id"]))
    planned = run(shown("recovery plan"))["plan"]
    assert planned == json.loads(desk.joinpath("plan.json").read_text(encoding="utf-8"))
    [needed] = planned["items"][0]["needed_decisions"]
    [example] = [json.loads(block.text) for block in OPERATIONS.blocks if block.language == "json"]
    example[0]["tool_call_id"] = needed["tool_call_id"]
    desk.joinpath("decisions.json").write_text(json.dumps(example), encoding="utf-8")
    first, again = run(shown("recovery execute")), run(shown("recovery execute"))
    assert (first["items"][0]["status"], first["items"][0]["session_status"]) == ("executed", "completed")
    assert again["items"][0]["status"] == "repeated"
    assert run(shown("recovery startup"))["status"] == "completed"
    assert module.SENT == ["Ulm"]
    turn = run(shown("sessions resume").replace("watch", "ulm"))
    assert (turn["status"], turn["pending"], turn["store"]) == ("completed", [], str(desk / "desk.db"))


async def test_the_server_shown_answers_operators(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    httpx, fastapi = (importlib.util.find_spec(name) for name in ("httpx", "fastapi"))
    require_tool("the extra server, with httpx", httpx and fastapi)
    client_of = importlib.import_module("httpx")
    monkeypatch.setenv("CAYU_OPERATOR_TOKEN", TOKEN)
    server = importlib.import_module("serve").server
    async with server.router.lifespan_context(server):
        transport = client_of.ASGITransport(app=server)
        async with client_of.AsyncClient(transport=transport, base_url="http://cayu") as client:
            nobody = await client.get("/api/recovery/startup")
            known = await client.get("/api/recovery/startup", headers={"Authorization": f"Bearer {TOKEN}"})
    assert nobody.status_code == 401
    assert (known.status_code, known.json()["status"]) == (200, "completed")


def test_the_paths_listed_are_those_served() -> None:
    require_tool("the extra server", importlib.util.find_spec("fastapi"))
    served = importlib.import_module("cayu.server")
    tokens = served.BearerTokens({TOKEN: served.Principal("a")})
    paths = served.create_server(CayuApp(), authenticate=tokens).openapi()["paths"]
    rows = re.findall(r"^\| `(GET|POST) ([^|]*)\|", guide("references").text, re.MULTILINE)
    listed = {(method, path) for method, cell in rows for path in re.findall(r"/api/[\w/]*\w", cell)}
    named = {(method, re.sub(r"/ID\b", "/{session_id}", path)) for method, path in listed}
    assert named == {(method.upper(), path) for path, methods in paths.items() for method in methods}
