"""What the children of the crash tests run: sessions whose tool leaves a trace outside the runtime, by effect class."""

from __future__ import annotations

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
from cayu.approvals import ToolApprovalDecision, ToolApprovalRequest
from cayu.examples.receipts import ReceiptBook
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.tools import AllowAllToolPolicy, AlwaysRequireApprovalToolPolicy

SESSION = "crashed"
CALLS = 2
"""Calls of the one round."""


class TracedTool(Tool):
    """Notes every time it acts, in a file of its own; an idempotent one issues one receipt per key as well."""

    def __init__(self, folder: Path, effect: ToolEffect, parallel: bool) -> None:
        self._folder = folder
        self._book = ReceiptBook(folder / "receipts.db")
        self.spec = ToolSpec(
            name="act",
            description="Act.",
            input_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
            effect=effect,
            parallel_safe=parallel,
            execution_profile_identity=ExecutionProfileBehaviorIdentity(
                name="act", behavior_version="1", implementation_version="1"
            ),
        )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Act, and leave the trace before anything else can happen."""
        with open(self._folder / "acts.txt", "a", encoding="ascii") as acts:
            acts.write(f"{ctx.idempotency_key} {args['n']}\n")
            acts.flush()
            os.fsync(acts.fileno())
        number = self._book.issue(ctx.idempotency_key, str(args["n"]))
        return ToolResult(content=f"receipt {number} for {args['n']}")


def build(folder: Path, effect: str, shape: str) -> CayuApp:
    """Return the application; `shape` is serial, parallel or approved."""
    calls = [ModelStreamEvent.tool_call("act", {"n": n}, id=f"c{n}") for n in range(CALLS)]
    app = CayuApp(session_store=SQLiteSessionStore(folder / "sessions.db"))
    app.register_provider(ScriptedModelProvider([calls, "all done"]))
    policy = AlwaysRequireApprovalToolPolicy() if shape == "approved" else AllowAllToolPolicy()
    tool = TracedTool(folder, ToolEffect(effect), parallel=shape != "serial")
    app.register_agent(AgentSpec(name="actor", model="m"), tools=[tool], tool_policy=policy)
    return app


async def run(folder: str, effect: str, shape: str) -> str:
    """Run the session to where it ends or pauses."""
    async with build(Path(folder), effect, shape) as app:
        request = RunRequest(agent_name="actor", session_id=SESSION, messages=(Message.text("user", "act"),))
        return str((await run_to_completion(app, request)).status)


async def approve_all(folder: str, effect: str, shape: str) -> str:
    """Approve what waits, one after the other."""
    async with build(Path(folder), effect, shape) as app:
        status = ""
        for action in (await app.list_pending_actions()).actions:
            request = ToolApprovalRequest(
                session_id=SESSION, approval_id=action.id, decision=ToolApprovalDecision.APPROVE
            )
            status = str((await run_to_completion(app, request)).status)
        return status
