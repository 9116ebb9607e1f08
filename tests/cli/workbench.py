"""The application that the tests of the command line recover and decide for; also run in child processes of its own.

What its tools do is kept beside the store, in acts.txt: one line each time one of them acts.
"""

from __future__ import annotations

import asyncio
import json
import os
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
from cayu.errors import ProviderError
from cayu.providers import ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.sessions import SessionStore
from cayu.tools import (
    AskUserTool,
    ByNameToolPolicy,
    EffectOutcome,
    Reconciliation,
    ReconciliationRequest,
    ToolEffectReconciler,
    ToolOutcomeUnknown,
    ToolPolicyDecision,
)

SECRET = "s3cret-value"
NASTY = "[bold]bold[/bold] \x1b[31mred\x1b[0m \u202ereversed"
"""Text with which a terminal or a markup language would do something."""
HOLD = "until it is stopped"
"""An item that takes a tool longer than anybody waits."""
UNSURE = "unsure"
"""An item of which a tool cannot say whether it has acted on it."""
OWN_STORE = "WORKBENCH_STORE"
"""The environment variable that names the application's own store."""


class TracedTool(Tool):
    """Leaves a line in a file each time it acts."""

    def __init__(self, folder: Path, name: str, effect: ToolEffect, version: str) -> None:
        self._acts = folder / "acts.txt"
        self.spec = ToolSpec(
            name=name,
            description=name,
            input_schema={"type": "object", "properties": {"item": {"type": "string"}}},
            effect=effect,
            execution_profile_identity=ExecutionProfileBehaviorIdentity(
                name=name, behavior_version="1", implementation_version=version
            ),
        )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Act, and leave the trace before anything else can happen."""
        with open(self._acts, "a", encoding="utf-8") as acts:
            acts.write(f"{self.spec.name} {args.get('item')}\n")
            acts.flush()
            os.fsync(acts.fileno())
        print("the tool says something on stdout", flush=True)
        if args.get("item") == UNSURE:
            raise ToolOutcomeUnknown
        if args.get("item") == HOLD:
            await asyncio.sleep(60)
        return ToolResult(content=f"did it with {args.get('item')}")


def play(request: ModelRequest) -> Any:
    """Answer a message by its first word, and a tool's result with a sentence."""
    if request.messages[-1].role == "tool":
        return f"all done, {SECRET}"
    wanted, _, item = request.messages[-1].plain_text.partition(" ")
    if wanted == "fail":
        raise ProviderError(SECRET, code="overloaded")
    scripts: dict[str, list[ModelStreamEvent]] = {
        "send": [ModelStreamEvent.tool_call("send", {"item": item}, id="p1")],
        "order": [ModelStreamEvent.tool_call("order", {"item": item}, id="p1")],
        "both": [ModelStreamEvent.tool_call("order", {"item": f"{item}{n}"}, id=f"p{n}") for n in (1, 2)],
        "again": [
            *(ModelStreamEvent.tool_call("send", {"item": f"{item}{n}"}, id=f"p{n}") for n in (1, 2)),
            ModelStreamEvent.completed("tool_calls", {"input_tokens": 1, "output_tokens": 1}),
        ],
        "ask": [ModelStreamEvent.tool_call("ask_user", {"question": item, "options": ["yes", "no"]}, id="p1")],
    }
    return scripts.get(wanted, "hello")


def build_app(
    *, session_store: SessionStore | None = None, version: str = "1", reconciler: ToolEffectReconciler | None = None
) -> CayuApp:
    """Return the application; `send` acts on the outside at once, `order` waits for an approval."""
    store = session_store or SQLiteSessionStore(os.environ[OWN_STORE])
    folder = store.durable_state_paths()[0].parent
    app = CayuApp(session_store=store)
    app.register_provider(ScriptedModelProvider([play], repeat_last=True))
    app.register_agent(
        AgentSpec(name="worker", model="m"),
        tools=[
            TracedTool(folder, "send", ToolEffect.EXTERNAL, version),
            TracedTool(folder, "order", ToolEffect.IDEMPOTENT, version),
            AskUserTool(),
        ],
        tool_policy=ByNameToolPolicy({"order": ToolPolicyDecision.REQUIRE_APPROVAL}),
        tool_effect_reconcilers={"send": reconciler} if reconciler else None,
    )
    return app


async def build_later(*, session_store: SessionStore | None = None) -> CayuApp:
    """Return the application from a coroutine, after some noise."""
    print("building")
    return build_app(session_store=session_store)


def build_changed(*, session_store: SessionStore | None = None) -> CayuApp:
    """Return the application with its tools implemented anew."""
    return build_app(session_store=session_store, version="2")


def build_reconciled(*, session_store: SessionStore | None = None) -> CayuApp:
    """Return the application with somebody who can find out what `send` has done."""
    return build_app(session_store=session_store, reconciler=Asks())


class Asks(ToolEffectReconciler):
    """Finds out that every call has acted."""

    async def reconcile(self, request: ReconciliationRequest) -> Reconciliation:
        """Say that it has acted."""
        return Reconciliation(outcome=EffectOutcome.COMPLETED, reference="the book")


def build_other(*, session_store: SessionStore | None = None) -> CayuApp:
    """Return an application that knows no worker."""
    return CayuApp(session_store=session_store)


def build_apart(*, session_store: SessionStore | None = None) -> CayuApp:
    """Return an application that forgets the store it was given."""
    return CayuApp()


def build_nothing(*, session_store: SessionStore | None = None) -> str:
    """Return no application."""
    return "nothing"


def build_fixed() -> CayuApp:
    """Return an application that takes no store."""
    return CayuApp()


def build_badly(*, session_store: SessionStore | None = None) -> CayuApp:
    """Fail, as a fault in somebody's code does."""
    raise LookupError(SECRET)


def build_from_elsewhere(*, session_store: SessionStore | None = None) -> CayuApp:
    """Fail within the code of a library."""
    return CayuApp(session_store=json.loads(f"{{{SECRET}"))


def build_configured(config: str, *, session_store: SessionStore | None = None) -> CayuApp:
    """Return the application, for those who have a configuration."""
    return build_app(session_store=session_store, version=config)


no_function = 3


async def run(path: str, session_id: str, text: str) -> str:
    """Begin a session and return where it stops; the target of child processes."""
    async with build_app(session_store=SQLiteSessionStore(path)) as app:
        request = RunRequest(agent_name="worker", session_id=session_id, messages=(Message.text("user", text),))
        return str((await run_to_completion(app, request)).status)
