"""A courier that cannot be asked to do a thing only once, an agent that sends parcels by it, and a bad night.

    python -m cayu.examples.courier           runs the agent in the current folder; its process dies in a call
    python -m cayu.examples.courier --book    shows the courier's book: number, recipient and note of each parcel

What is left behind is for an operator: `cayu pending`, `cayu recovery plan`, `cayu recovery execute`. `build_app` is
the application that began, `build_new_app` is its next release, under which the session cannot go on.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

from cayu import (
    AgentSpec,
    CayuApp,
    ExecutionProfileBehaviorIdentity,
    Message,
    RunRequest,
    SQLiteSessionStore,
    Tool,
    ToolContext,
    ToolEffect,
    ToolResult,
    ToolSpec,
    run_to_completion,
)
from cayu.providers import ModelProvider, ModelStreamEvent, ScriptedModelProvider
from cayu.sessions import SessionStore
from cayu.testing import run_child
from cayu.tools import EffectOutcome, Reconciliation, ReconciliationRequest, ToolEffectReconciler

AGENT = "dispatcher"
RELEASE = "1"
NEXT_RELEASE = "2"


def _sql(name: str) -> str:
    return files("cayu.examples").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


class Courier:
    """The service: it takes every parcel that it is given, also the same one twice, and keeps a book of them."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with closing(self._connect()) as raw, raw:
            raw.execute(_sql("courier_create"))

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=5)

    def send(self, reference: str, recipient: str) -> int:
        """Take a parcel and return its number; `reference` is a note on it, and keeps nothing from being sent twice."""
        with closing(self._connect()) as raw, raw:
            return int(raw.execute(_sql("courier_send"), (reference, recipient)).lastrowid or 0)

    def find(self, reference: str) -> list[int]:
        """Return the numbers of the parcels that carry a note."""
        with closing(self._connect()) as raw:
            return [int(number) for (number,) in raw.execute(_sql("courier_find"), (reference,))]

    def all(self) -> list[tuple[int, str]]:
        """Return every parcel, (number, recipient), in order."""
        return [(number, recipient) for number, recipient, _ in self.book()]

    def book(self) -> list[tuple[int, str, str]]:
        """Return every parcel, (number, recipient, note), in order."""
        with closing(self._connect()) as raw:
            return [(int(number), str(to), str(note)) for number, to, note in raw.execute(_sql("courier_all"))]


class SendParcelTool(Tool):
    """Sends a parcel; whoever repeats the call sends a second one."""

    def __init__(self, courier: Courier, *, implementation_version: str = RELEASE) -> None:
        self.courier = courier
        self.spec = ToolSpec(
            name="send_parcel",
            description="Send a parcel to somebody.",
            input_schema={
                "type": "object",
                "properties": {"recipient": {"type": "string", "minLength": 1}},
                "required": ["recipient"],
                "additionalProperties": False,
            },
            effect=ToolEffect.EXTERNAL,
            execution_profile_identity=ExecutionProfileBehaviorIdentity(
                name="send-parcel", behavior_version="1", implementation_version=implementation_version
            ),
        )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Hand the parcel over, with the call's key as a note on it."""
        number = await asyncio.to_thread(self.courier.send, ctx.idempotency_key, args["recipient"])
        return parcel_result(number)


def parcel_result(number: int) -> ToolResult:
    """Return what the tool says of a parcel that is on its way."""
    return ToolResult(content=f"Parcel {number} is on its way.", structured={"parcel": number})


class CourierReconciler(ToolEffectReconciler):
    """Looks into the courier's book for the note of a call that was cut off."""

    def __init__(self, courier: Courier) -> None:
        self.courier = courier

    async def reconcile(self, request: ReconciliationRequest) -> Reconciliation:
        """Find the parcel; the book is complete, so one that is not in it was not sent."""
        found = await asyncio.to_thread(self.courier.find, request.idempotency_key)
        if not found:
            return Reconciliation(outcome=EffectOutcome.FAILED)
        return Reconciliation(
            outcome=EffectOutcome.COMPLETED, result=parcel_result(found[0]), reference=f"parcel {found[0]}"
        )


def build_app(
    *,
    session_store: SessionStore | None = None,
    provider: ModelProvider | None = None,
    folder: str | Path = ".",
    release: str = RELEASE,
    reconciled: bool = False,
) -> CayuApp:
    """Build the application over `folder`; with `reconciled` it can look into the courier's book by itself."""
    courier = Courier(Path(folder) / "courier.db")
    app = CayuApp(session_store=session_store or SQLiteSessionStore(Path(folder) / "runs.db"))
    parcel = [ModelStreamEvent.tool_call("send_parcel", {"recipient": "the cold room"}, id="parcel")]
    app.register_provider(provider or ScriptedModelProvider([parcel, "The parcel is on its way."]))
    app.register_agent(
        AgentSpec(name=AGENT, model="scripted", system_prompt="Send what is asked for."),
        tools=[SendParcelTool(courier, implementation_version=release)],
        tool_effect_reconcilers={"send_parcel": CourierReconciler(courier)} if reconciled else None,
    )
    return app


def build_new_app(*, session_store: SessionStore | None = None) -> CayuApp:
    """Build the next release, whose tool was implemented anew."""
    return build_app(session_store=session_store, release=NEXT_RELEASE)


async def run_in(folder: str, session_id: str) -> str:
    """Run the agent over a folder and return where it stops; for child processes."""
    async with build_app(folder=folder) as app:
        request = RunRequest(
            agent_name=AGENT, session_id=session_id, messages=(Message.text("user", "Send the samples."),)
        )
        return str((await run_to_completion(app, request)).status)


def main(arguments: Sequence[str] = ()) -> int:
    """Let the night go wrong in the current folder, or show the book that it has left."""
    if "--book" in arguments:
        for number, recipient, note in Courier("courier.db").book():
            print(f"parcel {number} for {recipient}, note {note}")
        return 0
    child = run_child("cayu.examples.courier:run_in", [".", "night-run"], crash_at="tool.returned")
    if not child.killed:
        print("The run was not killed; begin in an empty folder.", file=sys.stderr)
        return 1
    print("The process of session 'night-run' died in the middle of send_parcel. Now look at it:")
    print("    cayu pending --store runs.db")
    print("    cayu recovery plan cayu.examples.courier:build_app --session night-run --output plan.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
