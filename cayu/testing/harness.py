"""A harness for testing that an agent survives: run it, drop the application, build it anew, go on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cayu.agents import AgentSpec
from cayu.messages import Message
from cayu.providers.scripted import Batch, ScriptedModelProvider
from cayu.runtime.app import CayuApp
from cayu.runtime.outcome import RunOutcome, outcome_of, run_to_completion
from cayu.sessions.plans import (
    RecoveryAction,
    RecoveryDecision,
    RecoveryExecutionRequest,
    RecoveryPlan,
    RecoveryPlanRequest,
)
from cayu.sessions.records import PendingAction, PendingActionQuery
from cayu.sessions.requests import (
    ResolutionActor,
    ResumeRequest,
    RunRequest,
    ToolApprovalDecision,
    ToolApprovalRequest,
    UserInputResponse,
)
from cayu.storage.sql.sqlite.sessions import SQLiteSessionStore

ACTOR = ResolutionActor(subject="test", source="harness")


class RestartHarness:
    """Runs sessions of an application over one SQLite file, and rebuilds the application at will.

    `build_app(session_store=..., provider=...)` is called for every life of the application. `model_script` is what the
    model says, batch by batch; without one the application brings its own provider.
    """

    def __init__(
        self, build_app: Callable[..., Any], *, store_dir: str | Path, model_script: Sequence[Batch] | None = None
    ) -> None:
        self._build_app = build_app
        self._path = Path(store_dir) / "sessions.db"
        self._script = model_script
        self._app: CayuApp | None = None
        self.provider: ScriptedModelProvider | None = None
        """The scripted model of the present life, with the requests that it received."""
        self.last: RunOutcome | None = None
        """What the last call gave."""

    async def app(self) -> CayuApp:
        """Return the application of the present life."""
        if self._app is None:
            given: dict[str, Any] = {"session_store": SQLiteSessionStore(self._path)}
            if self._script is not None:
                self.provider = given["provider"] = ScriptedModelProvider(self._script)
            made = self._build_app(**given)
            self._app = await made if inspect.isawaitable(made) else made
        return self._app

    async def run(self, agent: str | AgentSpec, text: str, **request: Any) -> RunOutcome:
        """Begin a session with a message and return where it stops."""
        name = agent if isinstance(agent, str) else agent.name
        return await self._do(RunRequest(agent_name=name, messages=(Message.text("user", text),), **request))

    async def resume(self, text: str, session_id: str | None = None, **request: Any) -> RunOutcome:
        """Go on with the session, by default the last one."""
        found = session_id or self._session
        return await self._do(ResumeRequest(session_id=found, messages=(Message.text("user", text),), **request))

    async def restart(self) -> None:
        """End this life of the application; the next call builds it anew on the same file."""
        if self._app is not None:
            await self._app.aclose()
        self._app = None

    async def recover(self, session_id: str | None = None) -> RunOutcome:
        """Recover a session whose process was lost, by default the last one, and return where it stops."""
        app, found = await self.app(), session_id or self._session
        events = [event async for event in app.recover_incomplete_session(found)]
        self.last = await outcome_of(app, found, tuple(events))
        return self.last

    async def plan_recovery(self, session_id: str | None = None) -> RecoveryPlan:
        """Plan the recovery of a session, by default the last one."""
        request = RecoveryPlanRequest(session_ids=(session_id or self._session,))
        return await (await self.app()).plan_recovery(request)

    async def settle(
        self, action: RecoveryAction, *, execution_id: str = "harness", session_id: str | None = None, **found: Any
    ) -> RunOutcome:
        """Plan, decide everything that is asked for in the same way, execute, and return where the session stops.

        `found` takes further fields of `RecoveryDecision`.
        """
        app, plan = await self.app(), await self.plan_recovery(session_id)
        [item] = plan.items
        decisions = tuple(
            RecoveryDecision(session_id=item.session_id, tool_call_id=need.tool_call_id, action=action, **found)
            for need in item.needed_decisions
        )
        await app.execute_recovery(
            RecoveryExecutionRequest(plan=plan, execution_id=execution_id, decisions=decisions, requested_by=ACTOR)
        )
        self.last = await outcome_of(app, item.session_id)
        return self.last

    async def pending_actions(self) -> tuple[PendingAction, ...]:
        """Return what waits for a human in every session of the store."""
        page = await (await self.app()).list_pending_actions(PendingActionQuery(limit=1000))
        return page.actions

    async def approve(self, action: PendingAction | None = None, arguments: dict[str, Any] | None = None) -> RunOutcome:
        """Approve an action, by default the first that waits."""
        return await self._decide(action, ToolApprovalDecision.APPROVE, arguments)

    async def deny(self, action: PendingAction | None = None) -> RunOutcome:
        """Deny an action, by default the first that waits."""
        return await self._decide(action, ToolApprovalDecision.DENY, None)

    async def answer_user_input(self, answer: str, action: PendingAction | None = None) -> RunOutcome:
        """Answer a question, by default the first that waits."""
        found = action or await self._first("user_input")
        return await self._do(
            UserInputResponse(session_id=found.session, input_id=found.id, answer=answer, resolved_by=ACTOR)
        )

    async def assert_tool_ran_once(self, tool_name: str, session_id: str | None = None) -> None:
        """Fail unless the tool had exactly one effect in the session, by default the last one.

        One effect is one call that ended by returning; attempts of a call that was replayed under its key are one.
        """
        outcome = await outcome_of(await self.app(), session_id or self._session)
        states = [call.state for call in outcome.tool_calls if call.tool_name == tool_name]
        ran = [state for state in states if state == "completed"]
        if len(ran) != 1:
            raise AssertionError(f"{tool_name} had {len(ran)} effects, not 1; its calls: {states or 'none'}")

    async def __aenter__(self) -> Self:
        """Return the harness."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the application's life."""
        await self.restart()

    @property
    def _session(self) -> str:
        if self.last is None:
            raise AssertionError("No session has run in this harness; pass a session_id.")
        return self.last.session_id

    async def _first(self, kind: str) -> PendingAction:
        found = [action for action in await self.pending_actions() if action.kind == kind]
        if not found:
            raise AssertionError(f"No {kind} waits.")
        return found[0]

    async def _decide(
        self, action: PendingAction | None, decision: ToolApprovalDecision, arguments: dict[str, Any] | None
    ) -> RunOutcome:
        found = action or await self._first("tool_approval")
        return await self._do(
            ToolApprovalRequest(
                session_id=found.session,
                approval_id=found.id,
                decision=decision,
                arguments=arguments,
                resolved_by=ACTOR,
            )
        )

    async def _do(self, request: RunRequest | ResumeRequest | ToolApprovalRequest | UserInputResponse) -> RunOutcome:
        self.last = await run_to_completion(await self.app(), request)
        return self.last
