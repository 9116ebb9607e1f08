"""Text of others on a terminal: nothing of it acts, and nothing of it hides."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from cli.workbench import NASTY
from pydantic import TypeAdapter
from rich.console import RenderableType
from typer.testing import CliRunner

from cayu.cli.output import Exact, Report, Whole, cell, command, facts, json_block, plain, visible_json
from cayu.errors import AlreadyDecided


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("simple", "simple"),
        (NASTY, "[bold]bold[/bold] red reversed"),
        ("a\nb\tc\rd", "a b c d"),
        ("\x1b]0;a title\x07rest", "rest"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred\x9dsecret\x9c.", "red."),
        ("\x1b(Bset", "set"),
        ("cut \x1b", "cut "),
        ("\x1b[", ""),
        ("\x00\x07\x08\x7f\x85end", " end"),
        ("\u200bzero\u2066width\ufeff", "zerowidth"),
        ("Grüße 試料", "Grüße 試料"),
        (None, "None"),
    ],
)
def test_plain_text_has_nothing_that_acts(text: object, seen: str) -> None:
    assert plain(text) == seen


def test_json_for_people_hides_nothing() -> None:
    value = {"a\x1b": ["\u202e\x9b", "line\nbreak", "ü", "\U000e0001"]}
    text = visible_json(value)
    assert json.loads(text) == value
    assert all(each.isprintable() or each == "\n" for each in text)
    assert "ü" in text


def test_no_line_of_a_value_passes_for_one_of_ours() -> None:
    lines = report((json_block({"a": "x" + " " * 200 + "tool  harmless\ntool  harmless"}),)).stdout.splitlines()
    assert lines[0] == "noise"
    assert all(line.startswith("    ") for line in lines[1:] if line.strip())


def test_markup_in_a_cell_stays_text() -> None:
    made = report((cell("[red]x[/red]"), facts({"name": "[link=y]z[/link]", "none": None})))
    assert "[red]x[/red]" in made.stdout
    assert "[link=y]z[/link]" in made.stdout
    assert "none" not in made.stdout
    assert cell(None).plain == ""


def test_nothing_is_cut_off_where_the_line_ends() -> None:
    long = "x" * 300
    spaced = Whole(" ".join(["y"] * 150))

    def shown() -> Iterator[RenderableType]:
        yield cell(long)
        yield facts({"name": Whole(long), "word": long, "spaced": spaced, "words": "z " * 130})

    made = report(shown(), columns="80")
    lines = made.stdout.splitlines()
    assert long in lines
    assert f"name    {long}" in lines
    assert f"spaced  {spaced}" in lines
    assert made.stdout.count("x") == 900
    assert "word    " + "x" * 72 in lines
    assert "        " + "x" * 72 in lines
    words = [line for line in lines if "z" in line]
    assert len(words) > 2
    assert all(len(line) <= 80 for line in words)
    assert all(line.startswith(" " * 8) for line in words[1:]), "no line of a value passes for a name"


def report(shown: Any, *, done: bool = True, columns: str = "120", arguments: tuple[str, ...] = ()) -> Any:
    """Run a command that reports this."""

    @command
    async def work(word: str = "none") -> Report:
        """Work."""
        print("noise")
        if word == "refuse":
            raise AlreadyDecided(
                session_id="s", action_id="a\x1b[31m", decision="approve", decided_by="x", decided_at="y"
            )
        if word == "stop":
            raise KeyboardInterrupt
        if word == "invalid":
            TypeAdapter(int).validate_python("s3cret-value")
        return Report({"word": word, "text": "\u202e"}, shown, done)

    app = typer.Typer()
    app.command()(work)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": columns}, catch_exceptions=False)


def test_a_report_is_text_or_one_document() -> None:
    shown = report((Exact("exactly [this]"),))
    assert (shown.exit_code, shown.stdout) == (0, "noise\nexactly [this]\n")
    told = report((), arguments=("--json", "--word", "w"))
    assert json.loads(told.stdout) == {"word": "w", "text": "\u202e"}
    assert told.stdout.isascii()
    assert told.stderr == "noise\n"
    assert report((), done=False).exit_code == 1
    assert report((), done=False, arguments=("--json",)).exit_code == 1
    assert report((), arguments=("--no-such",)).exit_code == 2


def test_a_refusal_is_a_sentence_or_one_document() -> None:
    shown = report((), arguments=("--word", "refuse"))
    assert (shown.exit_code, shown.stdout) == (1, "noise\n")
    assert shown.stderr.startswith("Error: 'a")
    assert "\x1b" not in shown.stderr
    told = report((), arguments=("--word", "refuse", "--json"))
    assert told.exit_code == 1
    error = json.loads(told.stdout)["error"]
    assert (error["type"], error["session_id"], error["decided_by"]) == ("AlreadyDecided", "s", "x")
    assert error["message"].endswith("was decided already: approve by x at y.")
    invalid = report((), arguments=("--word", "invalid", "--json"))
    assert json.loads(invalid.stdout)["error"]["type"] == "ValidationError"
    assert "s3cret-value" not in invalid.stdout + invalid.stderr


def test_an_interruption_is_told_on_stderr() -> None:
    stopped = report((), arguments=("--word", "stop", "--json"))
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert "Interrupted; " in stopped.stderr


def test_a_line_is_wide_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from cayu.cli.output import UNSEEN_WIDTH, console

    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert console().width == UNSEEN_WIDTH
    monkeypatch.setenv("COLUMNS", "70")
    assert console().width == 70
