"""The application: what is registered, and the calls through which sessions are run, resumed, decided and recovered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cayu.agents import AgentSpec
from cayu.budgets.ledger import BudgetLedger, DocumentBudgetLedger
from cayu.canonical import loads
from cayu.clock import SystemClock
from cayu.environments import Environment
from cayu.errors import InvalidInput
from cayu.events import Event
from cayu.knowledge.store import KnowledgeStore
from cayu.observability.sinks import EventSink, TimingSink
from cayu.providers.base import ModelProvider
from cayu.recall.policy import AutomaticRecallPolicy
from cayu.runtime.admission import Enter
from cayu.runtime.cascade import interrupt_tree
from cayu.runtime.children import ChildRunner
from cayu.runtime.config import RuntimeConfig
from cayu.runtime.decisions import enter_answer, enter_approval
from cayu.runtime.drive import Drive, Services
from cayu.runtime.entries import enter_recovery, enter_resume, enter_run
from cayu.runtime.lineage import head_of
from cayu.runtime.plans import make_plan
from cayu.runtime.profiles import ExecutionProfilePolicy
from cayu.runtime.registry import Assembly, Registry
from cayu.runtime.restart import execute_plan
from cayu.runtime.startup import Startup
from cayu.runtime.timing import RuntimeTiming
from cayu.sessions.context import ContextPolicy
from cayu.sessions.plans import (
    RecoveryExecution,
    RecoveryExecutionRequest,
    RecoveryPlan,
    RecoveryPlanRequest,
    StartupRecoveryResult,
)
from cayu.sessions.records import (
    PENDING,
    PENDING_KINDS,
    PendingAction,
    PendingActionPage,
    PendingActionQuery,
    Session,
    session_record,
)
from cayu.sessions.requests import (
    InterruptSessionRequest,
    ResumeRequest,
    RunRequest,
    ToolApprovalRequest,
    UserInputResponse,
)
from cayu.sessions.streams import ItemQuery, SessionStore
from cayu.shielding import finish
from cayu.storage.memory import InMemorySessionStore
from cayu.timing.records import (
    ModelStepPreparationTiming,
    RuntimeTimingConfig,
    RuntimeTimingStatus,
    ToolRoundTiming,
)
from cayu.tools.policy import ToolPolicy
from cayu.tools.reconcilers import ToolEffectReconciler
from cayu.tools.spec import Tool


class CayuApp:
    """One application over one session store.

    Without stores it keeps sessions in this process. Every call that works on a session is an asynchronous generator of
    events; closing it, or cancelling whoever iterates it, interrupts the session cleanly.
    """

    def __init__(
        self,
        *,
        session_store: SessionStore | None = None,
        knowledge_store: KnowledgeStore | None = None,
        budget_ledger: BudgetLedger | None = None,
        runtime_timing: RuntimeTimingConfig | None = None,
        timing_sinks: Sequence[TimingSink] = (),
        event_sinks: Sequence[EventSink] = (),
        execution_profile_policy: ExecutionProfilePolicy | None = None,
        config: RuntimeConfig | None = None,
    ) -> None:
        """Bind the application to its stores.

        `knowledge_store` is the application's own; tools receive the store of the selected environment. Without a
        `budget_ledger`, budgets stand beside the sessions.
        """
        if isinstance(session_store, str | Path):
            raise InvalidInput("The session store is a path; pass SQLiteSessionStore(path), or leave it out.")
        _check_sinks(runtime_timing, timing_sinks, event_sinks)
        self.session_store = session_store or InMemorySessionStore()
        self.knowledge_store = knowledge_store
        self._profile_policy = execution_profile_policy
        self._registry = Registry()
        self.services = Services(
            store=self.session_store,
            registry=self._registry,
            config=config or RuntimeConfig(),
            clock=SystemClock(),
            ledger=budget_ledger or DocumentBudgetLedger(self.session_store),
            sinks=tuple(event_sinks),
            timing=RuntimeTiming(runtime_timing or RuntimeTimingConfig(), event_sinks, timing_sinks),
            children=ChildRunner,
        )
        self._startup = Startup(self.services)

    def register_provider(self, provider: ModelProvider, default: bool = False) -> None:
        """Register a model provider under its name; the first one is the default."""
        self._registry.add_provider(provider, default)

    def register_environment(self, environment: Environment, default: bool = False) -> None:
        """Register an environment under its name; a default one serves runs that name none."""
        self._registry.add_environment(environment, default)

    def register_agent(
        self,
        spec: AgentSpec,
        tools: Sequence[Tool] = (),
        tool_policy: ToolPolicy | None = None,
        context_policy: ContextPolicy | None = None,
        recall: AutomaticRecallPolicy | None = None,
        tool_effect_reconcilers: Mapping[str, ToolEffectReconciler] | None = None,
    ) -> None:
        """Register an agent with its tools and the policy that decides about their calls (None allows all).

        `context_policy` says what a conversation is cut down to when a resume asks for it; `recall` looks up, for each
        message of the user, what the environment's knowledge holds. `tool_effect_reconcilers`, by tool name, find out
        what calls have done that were cut off.
        """
        self._registry.add_agent(spec, tools, tool_policy, tool_effect_reconcilers or {}, context_policy, recall)

    @property
    def budget_ledger(self) -> BudgetLedger:
        """Where budgets stand."""
        return self.services.ledger

    def assembly(self, agent_name: str, environment_name: str | None = None) -> Assembly:
        """Return what a new session of an agent would run under, with its execution profile.

        Without a name the default environment is meant. Raises `NotRegistered` and `MissingBinding`.
        """
        return self._registry.assemble(agent_name, environment_name, choose_default=True)

    def serve(self, reserved_for: str) -> None:
        """Let this application go on with sessions that are reserved for one piece of work, as trials' sessions are."""
        self.services.serves = reserved_for

    @property
    def is_hermetic(self) -> bool:
        """True when no registered provider works outside this process, whichever agent asks it."""
        return self._registry.is_hermetic

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The registered agents, in the order of registration."""
        return self._registry.agent_names

    def run(self, request: RunRequest) -> AsyncGenerator[Event, None]:
        """Begin a new session. Raises `SessionAlreadyExists`, `NotRegistered` and `MissingBinding`."""
        return self._drive(enter_run(request))

    def resume(self, request: ResumeRequest) -> AsyncGenerator[Event, None]:
        """Begin the next turn of a session that has ended, failed or was interrupted.

        Raises `SessionRunning`, `SessionAwaitingHuman`, `SessionNeedsRecovery` and the `ExecutionProfileError`s.
        """
        return self._drive(enter_resume(request, self._profile_policy))

    def resolve_tool_approval(self, request: ToolApprovalRequest) -> AsyncGenerator[Event, None]:
        """Approve or deny one call; the last decision of a round lets the run go on.

        An exact repeat yields what was recorded and does nothing. Raises `AlreadyDecided`, `PendingActionNotFound`,
        `InvalidInput` for edited arguments outside the schema, and `ExecutionProfileMismatchError`.
        """
        return self._drive(enter_approval(request))

    def resolve_user_input(self, response: UserInputResponse) -> AsyncGenerator[Event, None]:
        """Answer one question, by the same rules as an approval."""
        return self._drive(enter_answer(response))

    def recover_incomplete_session(self, session_id: str) -> AsyncGenerator[Event, None]:
        """Go on with a session whose process was lost: what is staged is kept, what may be replayed is replayed once.

        Raises `SessionRunning` while an owner may be alive and `SessionNotRunning` when nothing is to be recovered.
        """
        return self._drive(enter_recovery(session_id))

    async def interrupt_session(self, request: InterruptSessionRequest) -> AsyncGenerator[Event, None]:
        """Ask a running session and everything below it to stop, wherever it runs; what is lost is closed here and now.

        Raises `SessionNotRunning` and writes nothing when there is nothing to stop.
        """
        async for event in interrupt_tree(self.services, request):
            yield event

    async def plan_recovery(self, request: RecoveryPlanRequest) -> RecoveryPlan:
        """Say what recovery would do with sessions, and what stands in the way; writes nothing.

        Raises `SessionNotFound` for a session that is named and is not there.
        """
        return await make_plan(self.services, request)

    async def execute_recovery(self, request: RecoveryExecutionRequest) -> RecoveryExecution:
        """Do what a reviewed plan says, under an id that the sessions' logs keep; an exact repeat does nothing.

        Raises `StaleRecoveryPlanError`, `RecoveryExecutionConflict` and `ContradictoryEvidence` before any write. It
        never adopts a changed profile, and never begins an unknown external call again.
        """
        return await execute_plan(self.services, request)

    async def resume_pending_interruption_cascades(self) -> int:
        """Bring interruptions that a crash has cut off to their end; return how many were taken up.

        For startup: a session that has to stay as it is does not keep the others back, and is reported by
        `get_startup_recovery_status`. Failures of the store are raised.
        """
        return await self._startup.sweep()

    async def get_startup_recovery_status(self) -> StartupRecoveryResult:
        """Return the latest sweep of this application; `not_run` before the first."""
        return self._startup.result

    async def list_pending_actions(self, query: PendingActionQuery | None = None) -> PendingActionPage:
        """Return what waits for a human, from the oldest session on."""
        wanted = query or PendingActionQuery()
        page = await self.session_store.items(
            ItemQuery(
                session_id=wanted.session_id,
                kinds=(wanted.kind,) if wanted.kind else PENDING_KINDS,
                state=PENDING,
                after=wanted.cursor,
                limit=wanted.limit,
            )
        )
        return PendingActionPage(
            actions=tuple(PendingAction.from_body(row.session_id, loads(row.item.body)) for row in page.rows),
            next_cursor=page.next,
            total=page.total,
        )

    async def get_session(self, session_id: str) -> Session:
        """Return one session's record. Raises `SessionNotFound`."""
        return session_record(await head_of(self.session_store, session_id))

    async def inspect_recent_tool_round_timing(
        self, session_id: str | None = None, limit: int = 20
    ) -> tuple[ToolRoundTiming, ...]:
        """Return attempts at tool rounds that this process has seen lately, newest first; touches no store.

        `session_id` is a session's id or its public reference, `Session.instance_id`; None means all sessions.
        """
        return self.services.timing.recent.rounds(session_id, limit)

    async def inspect_recent_model_step_preparation_timing(
        self, session_id: str | None = None, limit: int = 20
    ) -> tuple[ModelStepPreparationTiming, ...]:
        """Return preparations of model steps in the same way."""
        return self.services.timing.recent.preparations(session_id, limit)

    def runtime_timing_status(self) -> RuntimeTimingStatus:
        """Return how many timing records are kept, queued, dropped and failed."""
        return self.services.timing.status()

    def add_timing_sink(self, sink: TimingSink) -> None:
        """Deliver timing records to one more sink from now on."""
        self.services.timing.delivery.add_sink(sink)

    async def flush_runtime_timing(self) -> None:
        """Wait until the timing records that are queued now were delivered or dropped."""
        await self.services.timing.delivery.flush()

    async def close_runtime_timing(self) -> None:
        """Flush for at most the sinks' timeout, then stop delivering timing; what is left counts as dropped."""
        await self.services.timing.delivery.close()

    async def aclose(self) -> None:
        """Interrupt what still runs in this application, then close timing and the stores; safe to call twice."""
        self.services.closed = True
        try:
            await asyncio.gather(*(drive.shut() for drive in list(self.services.begun)))
            await self.close_runtime_timing()
        finally:
            await finish(self._close_stores())

    async def _close_stores(self) -> None:
        await self.services.ledger.aclose()
        await self.session_store.aclose()
        if self.knowledge_store is not None:
            await self.knowledge_store.aclose()

    async def __aenter__(self) -> Self:
        """Return the application."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the application."""
        await self.aclose()

    async def _drive(self, enter: Enter) -> AsyncGenerator[Event, None]:
        async with aclosing(Drive(self.services, enter).events()) as events:
            async for event in events:
                yield event


def _check_sinks(timing: Any, timing_sinks: Any, event_sinks: Any) -> None:
    """Refuse what would only fail once a session runs."""
    if not isinstance(timing, RuntimeTimingConfig | None):
        wanted = "a RuntimeTimingConfig, such as RuntimeTimingConfig(enabled=False)"
        raise InvalidInput(f"runtime_timing is {wanted}, not a {type(timing).__name__}.")
    for name, sinks in (("timing_sinks", timing_sinks), ("event_sinks", event_sinks)):
        if not isinstance(sinks, Sequence):
            raise InvalidInput(f"{name} is a list of sinks, not a {type(sinks).__name__}.")
    for sink in event_sinks:
        if isinstance(sink, type) or not callable(getattr(sink, "emit", None)):
            raise InvalidInput(f"An event sink is an object with an async emit(event); {sink!r} is none.")
