"""A small application whose conversations a test scripts by their first message, and labs over it that get closed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cayu import AgentSpec, CayuApp, RuntimeConfig, ToolEffect
from cayu.notebook import Lab, headless
from cayu.providers import ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.providers.scripted import Batch
from cayu.sessions import SessionStore
from cayu.tools import AskUserTool, ByEffectToolPolicy, tool

PATIENCE = 10.0


@dataclass
class Workshop:
    """One folder with one store; `scripts` maps the first message of a session to what the model says in it."""

    folder: Path
    scripts: dict[str, list[Batch]] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    """What the protected tool did."""
    entered: threading.Event = field(default_factory=threading.Event)
    """The `hold` tool has begun."""
    freed: threading.Event = field(default_factory=threading.Event)
    """The `hold` tool may end."""
    on_look: Callable[[], object] | None = None
    """What the `look` tool does on the side, in its worker thread."""
    labs: list[Lab] = field(default_factory=list)
    built: int = 0

    @property
    def path(self) -> Path:
        return self.folder / "runs.db"

    def build_app(self, *, session_store: SessionStore | None = None, **_: Any) -> CayuApp:
        self.built += 1
        app = CayuApp(session_store=session_store, config=RuntimeConfig(cancel_grace_seconds=0.05))
        app.register_provider(ScriptedModelProvider([self._play], repeat_last=True))
        app.register_agent(
            AgentSpec(name="a", model="m"), tools=[*self._tools(), AskUserTool()], tool_policy=ByEffectToolPolicy()
        )
        return app

    def open(self, **options: Any) -> Lab:
        lab = Lab.open(self.path, **{"factory": self.build_app, **options})
        self.labs.append(lab)
        return lab

    def _play(self, request: ModelRequest) -> Any:
        first = next(message.plain_text for message in request.messages if message.role == "user")
        batches = self.scripts.get(first, ["done"])
        batch = batches[min(sum(message.role == "assistant" for message in request.messages), len(batches) - 1)]
        return batch(request) if callable(batch) else batch

    def _tools(self) -> list[Any]:
        @tool(version="1", effect=ToolEffect.EXTERNAL)
        def send(to: str) -> str:
            """Send a letter."""
            self.sent.append(to)
            return f"sent to {to}"

        @tool(version="1", effect=ToolEffect.NONE)
        def look(word: str) -> str:
            """Look a word up."""
            if self.on_look is not None:
                self.on_look()
            return f"about {word}"

        @tool(version="1", effect=ToolEffect.NONE)
        def boom() -> str:
            """Fail."""
            raise RuntimeError("it broke")

        @tool(version="1", effect=ToolEffect.NONE)
        async def hold() -> str:
            """Come back when the test says so."""
            self.entered.set()
            while not self.freed.is_set():
                await asyncio.sleep(0.005)
            return "held"

        return [send, look, boom, hold]


def ask(name: str, id: str = "p0", **arguments: Any) -> list[ModelStreamEvent]:
    """An answer of the model that asks for one tool."""
    return [ModelStreamEvent.tool_call(name, arguments, id)]


def until(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s in vain for {what}"
        time.sleep(0.005)


def lab_threads() -> list[threading.Thread]:
    """The loops of labs that are still there."""
    return [each for each in threading.enumerate() if each.name == "cayu-lab"]


def driver_threads() -> list[threading.Thread]:
    """The threads of database connections that are still there."""
    return [each for each in threading.enumerate() if "_connection_worker_thread" in each.name]


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    made = Workshop(tmp_path)
    yield made
    made.freed.set()
    for lab in made.labs:
        lab.close()


@pytest.fixture(autouse=True)
def _reader_present(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is headless and nothing is scripted, unless a test says so."""
    monkeypatch.delenv(headless.HEADLESS, raising=False)
    headless.script_decisions([])
    yield
    headless.script_decisions([])
