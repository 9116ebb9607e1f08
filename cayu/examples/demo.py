"""The whole line in a terminal: ask, pause, kill, restart, act once, look. `make demo` runs it."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table

from cayu.examples.durable_service_tools import REFUSED
from cayu.examples.handbook import application
from cayu.examples.receipts import ReceiptBook
from cayu.notebook import Lab
from cayu.notebook.html import status_text
from cayu.sessions import PendingAction
from cayu.testing import run_child

QUESTION = "How long may a sample stay in the cold room?"
CRASH_AT = "tool.returned"
PHASES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("start",), "the supplied store was searched; forbidden records stayed out"),
    (("resume",), "a new process goes on, with the handbook's present text"),
    (("pause",), "an order waits for approval"),
    (("approve", "--change", "tool.implementation_version"), "a changed tool is refused before any effect"),
    (("approve",), "the order is placed, once"),
    (("repeat",), "the same decision again does nothing"),
)


class Demo:
    """One run of the demonstration in a folder of its own."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder = folder
        self.console = console
        self.receipts = ReceiptBook(folder / "receipts.db")

    def open_lab(self) -> Lab:
        """Open the lab over the folder's store."""
        return Lab.open(self.folder / "runs.db", factory=application(self.folder))

    def say(self, title: str) -> None:
        """Begin a chapter."""
        self.console.print(Rule(f"[bold]{title}", align="left"))

    def ask(self, lab: Lab) -> None:
        """Ask the handbook reader."""
        self.say("1  An agent answers from the handbook")
        session = lab.run("reader", QUESTION)
        self.console.print(f"[cyan]You[/]     {QUESTION}")
        self.console.print(f"[green]Reader[/]  {escape(session.text)}\n")

    def pause(self, lab: Lab) -> PendingAction:
        """Let the clerk run into its approval; return what waits."""
        self.say("2  Another one pauses before a protected action")
        session = lab.run("clerk", "Please order nitrile gloves, two boxes.")
        action = session.pending[0].action
        self.console.print(f"Session [bold]{session.id}[/] is {status_text(session.view)}:")
        lines = f"{action.title}\n{escape(json.dumps(action.arguments))}\neffect: {action.tool_effect}"
        self.console.print(Panel(lines, title="waits for you", expand=False))
        self.console.print("The pause is on disk. No process needs to wait for your decision.\n")
        return action

    def kill(self, action: PendingAction) -> None:
        """Approve in a child process that dies between the act and the record of it."""
        self.say("3  You approve, and the process is killed right after the tool has acted")
        child = run_child("cayu.examples.handbook:approve_in", [str(self.folder), action.id], crash_at=CRASH_AT)
        if not child.killed:
            raise SystemExit(f"The child was to die at {CRASH_AT} and ended with {child.returncode}:\n{child.stderr}")
        self.console.print(f"A child process approved, ordered, and died by SIGKILL at [bold]{CRASH_AT}[/].")
        self.console.print(f"Receipts issued: [bold]{len(self.receipts.all())}[/]; the log does not know of it yet.\n")

    def restart(self, lab: Lab, session_id: str) -> None:
        """Recover in this process, and count receipts."""
        self.say("4  A new process takes over")
        session = lab.recover(session_id)
        call = session.calls_df(where={"tool_name": "order_supplies"}).iloc[0]
        self.console.print(f"Attempt {call.attempt} ran under the same key. The clerk says: {escape(session.text)}")
        self.console.print(f"Receipts issued: [bold]{len(self.receipts.all())}[/]. It acted once.\n")
        if len(self.receipts.all()) != 1:
            raise SystemExit("There is not exactly one receipt; this is a fault.")

    def look(self, lab: Lab, session_id: str) -> None:
        """Show frames."""
        self.say("5  Everything is a DataFrame")
        sessions = lab.sessions_df(
            columns=["session_id", "agent_name", "status", "model_steps", "tool_calls", "events"]
        )
        self.console.print(table("lab.sessions_df()", sessions))
        calls = lab.calls_df(columns=["tool_name", "effect", "state", "attempt", "replayed", "duration_ms"])
        self.console.print(table("lab.calls_df()", calls))
        events = lab.events_df({"session_id": session_id}, columns=["sequence", "type", "tool_name"])
        self.console.print(table(f"lab.events_df(), the last 9 of {len(events)}", events.tail(9)))

    def phases(self) -> None:
        """Run the phases of the service-tool example, each in its own process."""
        self.say("6  The same with your own service, a process per phase")
        shown = Table("phase", "exit", "what it showed", "requests", "receipts")
        for words, meaning in PHASES:
            command = [sys.executable, "-m", "cayu.examples.durable_service_tools", *words]
            done = subprocess.run(
                [*command, "--dir", str(self.folder / "service")], capture_output=True, text=True, check=False
            )
            expected = REFUSED if "--change" in words else 0
            if done.returncode != expected:
                raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
            facts = json.loads(done.stdout)
            row = (" ".join(words), str(done.returncode), meaning)
            shown.add_row(*row, str(facts["provider_requests"]), str(len(facts["receipts"])))
        self.console.print(shown)


def table(title: str, frame: pd.DataFrame) -> Table:
    """Return a frame as a table of the terminal."""
    shown = Table(*map(str, frame.columns), title=title, title_justify="left")
    for row in frame.itertuples(index=False):
        shown.add_row(*(escape(f"{value:.1f}" if isinstance(value, float) else str(value)) for value in row))
    return shown


def main(arguments: list[str] | None = None) -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", type=Path, default=Path("lab-work/demo"), help="made anew each time")
    options: Any = parser.parse_args(arguments)
    begun = time.monotonic()
    shutil.rmtree(options.dir, ignore_errors=True)
    options.dir.mkdir(parents=True)
    console = Console(highlight=False)
    demo = Demo(options.dir, console)
    with demo.open_lab() as lab:
        demo.ask(lab)
        action = demo.pause(lab)
    demo.kill(action)
    with demo.open_lab() as lab:
        demo.restart(lab, action.session)
        demo.look(lab, action.session)
    demo.phases()
    demo.say(f"Done in {time.monotonic() - begun:.0f} s. Where to go next")
    console.print("make lab                    the notebooks: a first session, approvals, restart, phase timing")
    console.print("cayu/examples/handbook.py   the application you have just seen, about a hundred lines")
    console.print(f"{options.dir}/runs.db       its sessions: Lab.open(path, factory=application(folder))")


if __name__ == "__main__":
    main()
