"""What the tests of the command line share: a store with sessions in it, and commands run over it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from cli import workbench
from runtime.support import StoreProxy, has
from typer.testing import CliRunner

from cayu import CayuApp, Message, RunOutcome, RunRequest, SQLiteSessionStore, run_to_completion
from cayu.cli.main import app as command_line
from cayu.errors import StoreFull
from cayu.events import EventType as E
from cayu.runtime.outcome import session_view
from cayu.sessions import SessionStore, SessionView
from cayu.sessions.streams import Loaded, Take, Unit

T = TypeVar("T")
TARGET = "cli.workbench:build_app"


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The refusal that was told as JSON; nothing of it is told elsewhere."""
        assert self.code == 1
        assert "Traceback" not in self.err
        return cast("dict[str, Any]", self.json["error"])


def cayu(*arguments: object, width: int = 240) -> Ran:
    """Run one command in this process. What is not handled is raised."""
    done = CliRunner().invoke(
        command_line, [str(each) for each in arguments], env={"COLUMNS": str(width)}, catch_exceptions=False
    )
    return Ran(done.exit_code, done.stdout, done.stderr)


@dataclass(frozen=True)
class Bench:
    """A folder with one store."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "runs.db"

    @property
    def acts(self) -> list[str]:
        """What the tools have done."""
        path = self.folder / "acts.txt"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def run(self, text: str, session_id: str = "s", **fields: Any) -> RunOutcome:
        """Begin a session and let it go to where it stops."""
        request = RunRequest(
            agent_name="worker", session_id=session_id, messages=(Message.text("user", text),), **fields
        )
        return self._over(SQLiteSessionStore(self.store), lambda app: run_to_completion(app, request))

    def lose(self, text: str, session_id: str = "s", **fields: Any) -> None:
        """Begin a session whose process can write nothing more once a tool has acted."""

        async def die(unit: Unit) -> None:
            if has(unit, E.TOOL_STAGED):
                raise StoreFull(path="x")

        request = RunRequest(
            agent_name="worker", session_id=session_id, messages=(Message.text("user", text),), **fields
        )
        proxy = cast(SessionStore, StoreProxy(SQLiteSessionStore(self.store), before=die))
        with pytest.raises(StoreFull):
            self._over(proxy, lambda app: run_to_completion(app, request))

    def hold(self, text: str, session_id: str = "s") -> None:
        """Begin a session that is in the hand of somebody who may be at work."""

        async def claim(app: CayuApp) -> None:
            loaded = await app.session_store.load(session_id)
            assert loaded is not None
            state = loaded.head.state
            await app.session_store.append(Unit(session_id, state.version, Take("another", evicting=state.owner)))

        self.lose(text, session_id)
        self._over(SQLiteSessionStore(self.store), claim)

    def log(self, session_id: str = "s") -> Loaded:
        """Return a session's head and records."""
        loaded = self._over(SQLiteSessionStore(self.store), lambda app: app.session_store.load(session_id))
        assert loaded is not None
        return loaded

    def view(self, session_id: str = "s") -> SessionView:
        """Return what a session's log means."""
        return self._over(SQLiteSessionStore(self.store), lambda app: session_view(app, session_id))

    def actions(self, session_id: str = "s") -> list[str]:
        """Return the ids of what waits."""

        async def ids(app: CayuApp) -> list[str]:
            return [each.id for each in (await app.list_pending_actions()).actions if each.session == session_id]

        return self._over(SQLiteSessionStore(self.store), ids)

    def _over(self, store: SessionStore, work: Callable[[CayuApp], Awaitable[T]]) -> T:
        async def done() -> T:
            async with workbench.build_app(session_store=store) as app:
                return await work(app)

        return asyncio.run(done())
