"""What a command works on: an application built by a factory, or a store that is only looked at; and as whom."""

from __future__ import annotations

import getpass
import importlib
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cayu.errors import InvalidInput, StoreNotADatabase
from cayu.runtime.app import CayuApp
from cayu.sessions.requests import ResolutionActor
from cayu.storage.sql.sqlite.sessions import SQLiteSessionStore

SHAPE = "build_app(*, session_store=None)"
"""The least that a factory looks like."""


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
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides; without it, your login name.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many to list at most.")]
Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="TEXT", help="Where the page before has ended: its next_cursor.")
]


def load_factory(target: str) -> Callable[..., Any]:
    """Return the function that `module:name` names. Raises `InvalidInput`; what the module itself raises comes through.

    The current directory is looked at first.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise InvalidInput(
            f"There is no module {error.name!r}, looked for from {here!r} on; go to its directory, or install it."
        ) from None
    factory = getattr(module, attribute, None)
    if factory is None:
        raise InvalidInput(f"Module {name!r} has no {attribute!r}; name the function that builds the application.")
    if not callable(factory):
        raise InvalidInput(f"{target!r} is no function; name one like {SHAPE}.")
    made: Callable[..., Any] = factory
    return made


@asynccontextmanager
async def opened(target: str, store: Path | None) -> AsyncIterator[CayuApp]:
    """Build the application over a store that exists, or over its own, and close it at the end."""
    factory = load_factory(target)
    given = None if store is None else _existing(store)
    try:
        app = await _built(factory, target, given)
    except BaseException:
        if given is not None:
            await given.aclose()
        raise
    async with app:
        yield app


def _existing(store: Path) -> SQLiteSessionStore:
    if not store.is_file():
        raise StoreNotADatabase(path=str(store), problem="there is no such file")
    return SQLiteSessionStore(store)


async def _built(factory: Callable[..., Any], target: str, store: SQLiteSessionStore | None) -> CayuApp:
    options = {} if store is None else {"session_store": store}
    try:
        inspect.signature(factory).bind(**options)
    except TypeError:
        raise InvalidInput(
            f"{target!r} cannot be called with {', '.join(options) or 'nothing'}; write {SHAPE}."
        ) from None
    made = factory(**options)
    app = await made if inspect.isawaitable(made) else made
    if not isinstance(app, CayuApp):
        raise InvalidInput(f"The factory returned {type(app).__name__}; it returns a CayuApp.")
    if store is not None and app.session_store is not store:
        await app.aclose()
        raise InvalidInput("The factory's application is not on the session_store that it was given; pass it on.")
    return app


@asynccontextmanager
async def looking(store: Path) -> AsyncIterator[CayuApp]:
    """Open a store for reading only: nothing is registered, created or written."""
    async with CayuApp(session_store=SQLiteSessionStore(store, mode="ro")) as app:
        yield app


def actor(by: str | None) -> ResolutionActor:
    """Return who decides: the name given, or the login name."""
    return ResolutionActor(subject=by or _login(), source="cli")


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"
