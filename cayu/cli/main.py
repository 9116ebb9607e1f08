"""The entry of `cayu`: its commands, and what its exit codes mean."""

from __future__ import annotations

import io
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from cayu.cli import decisions, guide, recovery, sessions, turns

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.add_typer(recovery.commands, name="recovery")
sessions.commands.command("interrupt")(turns.interrupt)
sessions.commands.command("resume")(turns.resume)
app.add_typer(sessions.commands, name="sessions")
app.command("pending")(decisions.pending)
app.command("approve")(decisions.approve)
app.command("deny")(decisions.deny)
app.command("answer")(decisions.answer)
app.command("guide")(guide.guide)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"cayu-lab {version('cayu-lab')}")
        raise typer.Exit


@app.callback()
def cayu(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Look after durable agents: see what waits, decide it, and recover sessions whose process was lost.

    Commands that act take MODULE:FACTORY, the function that builds your application. Commands that only look take
    --store and need no application. Every command takes --json, and says which store it looked at.

    \b
    Exit codes:
      0  done
      1  refused, or something stays open; the error says what and what to do
      2  wrong usage
      130  interrupted with Ctrl-C; what was at work is interrupted cleanly. A second Ctrl-C does not wait for that,
           and leaves the session to recovery

    \b
    Examples:
      cayu pending --store runs.db
      cayu approve ACTION_ID --target my_agents:build_app --store runs.db
      cayu sessions interrupt SESSION_ID --target my_agents:build_app
      cayu recovery plan my_agents:build_app --session SESSION_ID --output plan.json
      cayu guide durable-service-tools
    """


def main() -> None:
    """Run the command line; what the output's encoding cannot say is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="cayu")


if __name__ == "__main__":
    main()
