"""What commands print: a report, as text for people or as one JSON document for programs; and how errors are told.

Ids, titles, tool names and arguments come from models, tools and data. They are printed as text, never as markup, and
without what a terminal would act on.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from cayu.cli.advice import hint_of
from cayu.cli.documents import faults
from cayu.cli.place import Place, enter, here
from cayu.errors import CayuError

UNSEEN_WIDTH = 160
"""Characters of a line when the output is no terminal."""
LEAST_WIDTH = 20
"""Characters that a value's line has, however narrow the output is."""
GAP = 2
"""Spaces between a name and its value."""
INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells know it."""
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]

_ESCAPES = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # an operating system command, with its text
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # a control sequence
    r"|\x1b[ -/]*[0-~]?"  # any other escape
)


@dataclass(frozen=True, slots=True)
class Exact:
    """Text that is written as it is: documents of our own, never text of others."""

    text: str


class Whole(str):
    """A value that people copy: it stands on one line, however long."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a command has to tell."""

    document: dict[str, Any]
    """The JSON of `--json`."""
    shown: Iterable[RenderableType | Exact] = field(default=())
    """What people read."""
    done: bool = True
    """False when something was refused or stays open: the command exits with 1."""


def plain(text: object) -> str:
    """Return text on one line, without terminal escapes and without characters that cannot be seen."""
    bare = _ESCAPES.sub("", str(text))
    return "".join(each if each.isprintable() else " " if each.isspace() else "" for each in bare)


def whole(value: str | None) -> Whole | None:
    """Return an id or a code as what is never broken; None stays None."""
    return None if value is None else Whole(value)


def cell(value: object, style: str = "") -> Text:
    """Return a value as text that means nothing to a terminal; nothing for None."""
    return Text("" if value is None else plain(value), style=style)


def visible_json(value: Any) -> str:
    """Return a value as indented JSON in which every character can be seen; what cannot is escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def json_block(value: Any) -> RenderableType:
    """Return a value as JSON set apart from what stands around it, so that no line of it passes for one of ours."""
    return Padding(Text(visible_json(value)), (0, 0, 0, 4), expand=False)


def facts(told: Mapping[str, object]) -> Text:
    """Return names with their values, a line each; those that are None are left out.

    Long values go on below themselves, so that no line of one passes for a name; what is `Whole` is never broken.
    """
    given = {name: value for name, value in told.items() if value is not None}
    edge = max(map(len, given), default=0) + GAP
    width = max(console().width - edge, LEAST_WIDTH)
    made = Text()
    for name, value in given.items():
        rows = _rows(value, width)
        made.append("\n" if made else "").append(name.ljust(edge), style="bold").append(rows[0])
        for row in rows[1:]:
            made.append("\n" + " " * edge + row)
    return made


def _rows(value: object, width: int) -> list[str]:
    text = plain(value)
    if isinstance(value, Whole):
        return [text]
    return [line.plain.rstrip() for line in Text(text).wrap(console(), width, overflow="fold")]


def console() -> Console:
    """Return a console on stdout as it is now."""
    made = Console(markup=False, highlight=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = UNSEEN_WIDTH
    return made


def command(function: Callable[..., Coroutine[Any, Any, Report]]) -> Callable[..., None]:
    """Return a command that takes `--json` as well, runs the function on a loop of its own and prints its report.

    It exits with 1 when the report is not done or the function raises an error of ours. While it works with `--json`,
    whatever is printed goes to stderr. The document, also that of an error, names the store that was opened.
    """

    @functools.wraps(function)
    def perform(*args: Any, as_json: bool = False, **options: Any) -> None:
        enter(Place(as_json))
        try:
            with redirect_stdout(sys.stderr) if as_json else nullcontext():
                report = asyncio.run(function(*args, **options))
        except (CayuError, ValidationError) as error:
            _tell(error, as_json)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("Interrupted; `cayu sessions show` and `cayu pending` say where things stand.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        _print(report, as_json)
        if not report.done:
            raise typer.Exit(1)

    signature = inspect.signature(function, eval_str=True)
    flag = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    both = [*signature.parameters.values(), flag]
    perform.__signature__ = signature.replace(parameters=both, return_annotation=None)  # type: ignore[attr-defined]
    perform.__annotations__ = {each.name: each.annotation for each in both}
    return perform


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        store = here().store
        beside = {} if store is None else {"store": store}
        typer.echo(json.dumps({**report.document, **beside}, indent=2))
        return
    for each in report.shown:
        if isinstance(each, Exact):
            typer.echo(each.text)
        else:
            console().print(each, soft_wrap=isinstance(each, Text))


def _tell(error: CayuError | ValidationError, as_json: bool) -> None:
    ids = error.attributes if isinstance(error, CayuError) else {}
    message = str(error) if isinstance(error, CayuError) else f"The request is not valid: {faults(error)}."
    hint = hint_of(error)
    if as_json:
        beside = {"hint": hint, "store": here().store}
        told = {**ids, "type": type(error).__name__, "message": message}
        told |= {name: value for name, value in beside.items() if value is not None}
        typer.echo(json.dumps({"error": told}, indent=2, default=str))
        return
    typer.echo(f"Error: {plain(message)}", err=True)
    if hint is not None:
        first, *more = hint.splitlines()
        typer.echo(f"hint: {plain(first)}", err=True)
        for line in more:
            typer.echo(plain(line), err=True)
