"""What the children of the crash tests run: sessions whose tools leave a trace outside the runtime, by effect class.

`effect` is none, idempotent, external or mixed; `shape` is serial, parallel, approved, or child: then a boss has no
tool but a worker, and the worker's session makes the calls.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cayu import (
    AgentSpec,
    CayuApp,
    ExecutionProfileBehaviorIdentity,
    Message,
    RunRequest,
    RuntimeConfig,
    SQLiteSessionStore,
    Tool,
    ToolContext,
    ToolEffect,
    ToolResult,
    ToolSpec,
    run_to_completion,
)
from cayu.approvals import ToolApprovalDecision, ToolApprovalRequest
from cayu.effects import ToolEffectReceipt
from cayu.errors import StoreError
from cayu.examples.receipts import ReceiptBook
from cayu.providers import ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.runtime.outcome import lost_sessions, outcome_of
from cayu.sessions import RecoveryAction, RecoveryDecision, RecoveryExecutionRequest, RecoveryPlanRequest
from cayu.sessions.plans import NeededDecision
from cayu.sessions.streams import HeadQuery, SessionStore
from cayu.tools import AllowAllToolPolicy, AlwaysRequireApprovalToolPolicy, SubagentTool

SESSION = "crashed"
WORKER = "worker"
ASK = f"ask_{WORKER}"
ANSWER = "all done"
SCRIPTS: dict[str, Sequence[str]] = {
    **{effect: (effect,) * 2 for effect in ("none", "idempotent", "external")},
    "mixed": ("idempotent", "external", "none"),
}
"""The effects of the calls of the one round, in model order."""
CONFIG = RuntimeConfig(cancel_grace_seconds=0.05)


class TracedTool(Tool):
    """Notes every time it acts, in a file of its own; beside that one receipt per key is issued."""

    def __init__(self, folder: Path, effect: ToolEffect, parallel: bool) -> None:
        self._folder = folder
        self.spec = ToolSpec(
            name=f"act_{effect}",
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
        ReceiptBook(self._folder / "receipts.db").issue(ctx.idempotency_key, str(args["n"]))
        return ToolResult(content=returned(args["n"]))


def returned(n: int) -> str:
    """What a call returns when it has acted."""
    return f"did {n}"


def acts(folder: Path) -> list[str]:
    """Every act, as the world outside has seen it: the call's key and number."""
    path = folder / "acts.txt"
    return path.read_text(encoding="ascii").splitlines() if path.exists() else []


def build(
    folder: Path, effect: str, shape: str, store: SessionStore | None = None, config: RuntimeConfig = CONFIG
) -> CayuApp:
    """Return the application, by default over a file in the folder."""
    script = SCRIPTS[effect]
    acting = [ModelStreamEvent.tool_call(f"act_{kind}", {"n": n}, id=f"c{n}") for n, kind in enumerate(script)]
    asking = [ModelStreamEvent.tool_call(ASK, {"task": "act"}, id="b0")]

    def first(request: ModelRequest) -> Sequence[ModelStreamEvent]:
        return asking if request.model == "boss" else acting

    app = CayuApp(session_store=store or SQLiteSessionStore(folder / "sessions.db"), config=config)
    app.register_provider(ScriptedModelProvider([first, ANSWER]))
    policy = AlwaysRequireApprovalToolPolicy() if shape == "approved" else AllowAllToolPolicy()
    tools = [TracedTool(folder, ToolEffect(kind), parallel=shape != "serial") for kind in dict.fromkeys(script)]
    if shape == "child":
        app.register_agent(AgentSpec(name="actor", model="boss"), tools=[SubagentTool(WORKER)])
        app.register_agent(AgentSpec(name=WORKER, model="worker"), tools=tools)
    else:
        app.register_agent(AgentSpec(name="actor", model="m"), tools=tools, tool_policy=policy)
    return app


async def run(folder: str, effect: str, shape: str) -> str:
    """Run the session to where it ends or pauses."""
    async with build(Path(folder), effect, shape) as app:
        return await begin(app)


async def begin(app: CayuApp) -> str:
    """Run the session in an application that is there."""
    request = RunRequest(agent_name="actor", session_id=SESSION, messages=(Message.text("user", "act"),))
    return str((await run_to_completion(app, request)).status)


async def run_within(folder: str, effect: str, shape: str, room: int) -> str:
    """Run the session while no file may grow beyond the log as it is and `room` bytes; return how that ended."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    home, hard = Path(folder), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    async with build(home, effect, shape, config=replace(CONFIG, lease_seconds=0.6, renew_after_seconds=0.2)) as app:
        await app.session_store.heads(HeadQuery())
        size = (home / "sessions.db-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, hard))
        try:
            return await begin(app)
        except StoreError as error:
            return type(error).__name__
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


async def approve_all(folder: str, effect: str, shape: str) -> None:
    """Approve what waits, one after the other."""
    async with build(Path(folder), effect, shape) as app:
        await approve(app)


async def approve(app: CayuApp) -> None:
    """Approve what waits for it in an application that is there."""
    for action in (await app.list_pending_actions()).actions:
        if action.kind == "tool_approval":
            decision = ToolApprovalDecision.APPROVE
            request = ToolApprovalRequest(session_id=SESSION, approval_id=action.id, decision=decision)
            await run_to_completion(app, request)


async def recover_all(folder: str, effect: str, shape: str) -> None:
    """Recover what was lost."""
    async with build(Path(folder), effect, shape) as app:
        await recover(app)


async def recover(app: CayuApp) -> None:
    """Recover what was lost, the boss before its worker; nothing stays at work."""
    while lost := await lost_sessions(app):
        async for _ in app.recover_incomplete_session(SESSION if SESSION in lost else lost[0]):
            pass


async def execute_all(folder: str, effect: str, shape: str) -> None:
    """Settle what is not known, by a request that is written down first."""
    async with build(Path(folder), effect, shape) as app:
        await settle(app, Path(folder))


async def settle(app: CayuApp, folder: Path) -> None:
    """Settle every call of which it is not known whether it acted, as the world outside has seen it.

    The worker's calls come before the boss's, whose outcome is what became of the worker. Each request is written down
    before it is executed; one that is there is executed again, exactly.
    """
    for step, tool in enumerate(("act_", ASK)):
        written = folder / f"execution-{step}.json"
        if not written.exists():
            plan = await app.plan_recovery(RecoveryPlanRequest())
            decisions = [
                await _decision(app, folder, item.session_id, need)
                for item in plan.items
                for need in item.needed_decisions
                if (need.tool_name or "").startswith(tool)
            ]
            if not decisions:
                continue
            request = RecoveryExecutionRequest(plan=plan, execution_id=written.stem, decisions=tuple(decisions))
            written.write_text(request.model_dump_json(), encoding="utf-8")
        await app.execute_recovery(RecoveryExecutionRequest.model_validate_json(written.read_text(encoding="utf-8")))


async def _decision(app: CayuApp, folder: Path, session_id: str, need: NeededDecision) -> RecoveryDecision:
    subject = {"session_id": session_id, "tool_call_id": need.tool_call_id}
    assert need.idempotency_key is not None
    assert need.arguments_digest is not None
    if need.tool_name == ASK:
        if await acting_session(app, "child") is None:
            return RecoveryDecision(**subject, action=RecoveryAction.TOOL_MARK_FAILED)
        text = (await outcome_of(app, f"{need.tool_call_id}.child")).final_text
        return RecoveryDecision(**subject, action=RecoveryAction.TOOL_MARK_COMPLETED, content=text)
    found = [line.split()[1] for line in acts(folder) if line.split()[0] == need.idempotency_key]
    if not found:
        return RecoveryDecision(**subject, action=RecoveryAction.TOOL_MARK_FAILED)
    receipt = ToolEffectReceipt(
        idempotency_key=need.idempotency_key, arguments_digest=need.arguments_digest, reference=f"act {found[0]}"
    )
    content = returned(int(found[0]))
    return RecoveryDecision(
        **subject, action=RecoveryAction.TOOL_MARK_COMPLETED, content=content, receipt=receipt, reason="seen outside"
    )


async def acting_session(app: CayuApp, shape: str) -> str | None:
    """Return the session that makes the calls; None while there is none."""
    if shape != "child":
        page = await app.session_store.heads(HeadQuery(session_id=SESSION))
    else:
        page = await app.session_store.heads(HeadQuery(parent_session_id=SESSION))
    return page.rows[0].row.id if page.rows else None
