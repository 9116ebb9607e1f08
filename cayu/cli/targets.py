"""What a command works on: an application built by a factory, or a store that is only looked at; and as whom."""

from __future__ import annotations

import getpass
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer

from cayu.cli.factories import build, load_factory
from cayu.cli.output import plain
from cayu.cli.place import here
from cayu.errors import StoreNotADatabase
from cayu.runtime.app import CayuApp
from cayu.sessions.requests import ResolutionActor
from cayu.storage.memory import InMemorySessionStore
from cayu.storage.sql.sqlite.sessions import SQLiteSessionStore


def _well_formed(target: str) -> str:
    module, _, name = target.partition(":")
    if not (module and name):
        raise typer.BadParameter(f"{target!r} is not MODULE:FACTORY; my_agents:build_app is")
    return target


_BUILDS = "Builds the application: a module, found from the current directory on, and a function in it."
Target = Annotated[str, typer.Argument(metavar="MODULE:FACTORY", callback=_well_formed, help=_BUILDS)]
TargetOption = Annotated[str, typer.Option("--target", metavar="MODULE:FACTORY", callback=_well_formed, help=_BUILDS)]
AppStore = Annotated[
    Path | None,
    typer.Option("--store", metavar="PATH", help="SQLite file of sessions; without it, the application's own store."),
]
ReadStore = Annotated[Path, typer.Option("--store", metavar="PATH", help="SQLite file of sessions; only looked at.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept in the log.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides; without it, your login name.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many to list at most.")]
Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="TEXT", help="Where the page before has ended: its next_cursor.")
]


@asynccontextmanager
async def opened(target: str, store: Path | None) -> AsyncIterator[CayuApp]:
    """Build the application over a store that exists, or over its own, and close it at the end.

    Raises `StoreNotADatabase` before anything is read or written when the file is not there, and `InvalidInput` for a
    factory that builds no application.
    """
    here().target, here().option = target, store
    factory = load_factory(target)
    given = None if store is None else SQLiteSessionStore(_existing(store))
    try:
        app = await build(factory, target, given)
    except BaseException:
        if given is not None:
            await given.aclose()
        raise
    async with app:
        _refuse_absence(app)
        _tell_store(app)
        yield app


@asynccontextmanager
async def looking(store: Path) -> AsyncIterator[CayuApp]:
    """Open a store for reading only: nothing is registered, created or written. Raises `StoreNotADatabase`."""
    here().option = store
    async with CayuApp(session_store=SQLiteSessionStore(_existing(store), mode="ro")) as app:
        _tell_store(app)
        yield app


def _existing(store: Path) -> Path:
    if store.is_dir():
        raise StoreNotADatabase(path=str(store), problem="it is a folder, and --store names a file")
    if not store.is_file():
        raise StoreNotADatabase(path=str(store), problem="there is no such file")
    return store


def _refuse_absence(app: CayuApp) -> None:
    """Raise when the application's own store is yet to be created: nothing is in it that a command could act on."""
    for path in app.session_store.durable_state_paths():
        if not path.exists():
            raise StoreNotADatabase(
                f"There is no store at {os.path.abspath(path)}; go to the folder where the application works, or pass "
                "--store PATH. Nothing was created.",
                path=str(path),
                problem="there is no such file",
            )


def _tell_store(app: CayuApp) -> None:
    """Keep which store was opened, and name it on stderr."""
    place, store = here(), app.session_store
    if paths := store.durable_state_paths():
        place.store = ", ".join(map(os.path.abspath, paths))
    else:
        place.store = "in memory" if isinstance(store, InMemorySessionStore) else type(store).__name__
    if not place.as_json:
        typer.echo(f"store {plain(place.store)}", err=True)


def actor(by: str | None) -> ResolutionActor:
    """Return who decides: the name given, or the login name."""
    return ResolutionActor(subject=by or _login(), source="cli")


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"
