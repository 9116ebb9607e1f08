"""What the tests of trials share: a small agent over a small memory, and components that count, fail or lie."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cayu import (
    AgentSpec,
    CayuApp,
    Environment,
    EnvironmentSpec,
    ExecutionProfileBehaviorIdentity,
    KnowledgeStore,
    Message,
    RunRequest,
)
from cayu.budgets.ledger import BudgetLedger, DocumentBudgetLedger
from cayu.evals import EvalCase, EvalCaseContractV1, EvalTrialResult
from cayu.experiments import Intervention, MemoryStudy, StudyStores, Subject, baseline
from cayu.knowledge import KnowledgeAccessScope, KnowledgeEntry
from cayu.memory import (
    CayuMemoryInterventionRuntimeRunner,
    KnowledgeOverlayProvider,
    MemoryInterventionChange,
    MemoryInterventionEvaluator,
    MemoryInterventionExecutionRecord,
    MemoryInterventionExecutionStore,
    MemoryInterventionExecutor,
    MemoryInterventionFixture,
    MemoryInterventionKind,
    MemoryInterventionOperation,
    MemoryInterventionRequestFingerprintKey,
    MemoryInterventionRuntimeOwnershipResult,
    MemoryInterventionRuntimeResult,
    MemoryInterventionRuntimeView,
    MemoryInterventionTrialOutcome,
    MemoryInterventionTrialRequest,
    MemoryNegativeControlKind,
)
from cayu.memory.applications import TrialApplicationFactory, built
from cayu.providers import ExtractiveModelProvider, ModelProvider
from cayu.providers.base import ModelRequest
from cayu.recall import AutomaticRecallPolicy
from cayu.runtime.registry import Assembly
from cayu.sessions.context import ContextPolicy
from cayu.snapshots import AgentSnapshotMaterializationRequest, AgentSnapshotTrialStateMode
from cayu.storage import InMemoryKnowledgeStore
from cayu.tools import Tool, ToolPolicy

SECRET = b"a secret that nobody may ever see"
KEY = MemoryInterventionRequestFingerprintKey("k1", SECRET)
SCOPE = KnowledgeAccessScope(allowed_namespaces=("default",))
CODE = "K4711"  # with a letter that no hexadecimal digest can hold by chance
SAYS = f"The door code of the cold room is {CODE}."
QUESTION = "What is the door code of the cold room?"
CASE = EvalCase(case_id="door", question=QUESTION, expected_answer=CODE, expected_entries=("cold-room",))
OTHER = EvalCase(case_id="lamp", question="Which lamp is broken?", expected_answer="left", expected_entries=("lamp",))
ENTRIES = (
    KnowledgeEntry(id="cold-room", title="Cold room", text=SAYS),
    KnowledgeEntry(id="lamp", title="Lamps", text="The left lamp of the microscope is broken."),
    KnowledgeEntry(
        id="secret", title="Cold room", text="The door code of the cold room is K9999.", visibility="private"
    ),
)
ROOM = EnvironmentSpec(
    name="laboratory",
    execution_profile_identity=ExecutionProfileBehaviorIdentity(
        name="laboratory", behavior_version="1", implementation_version="1"
    ),
)


@dataclass
class Bench:
    """One captured agent `reader` with everything that its trials need; a test may replace any part of it."""

    provider: ModelProvider = field(default_factory=ExtractiveModelProvider)
    tools: Sequence[Tool] = ()
    policy: ToolPolicy | None = None
    context_policy: ContextPolicy | None = None
    recall: AutomaticRecallPolicy = field(default_factory=AutomaticRecallPolicy)
    options: dict[str, Any] = field(default_factory=dict)
    knowledge: KnowledgeStore = field(default_factory=InMemoryKnowledgeStore)
    stores: StudyStores = field(default_factory=StudyStores.in_memory)
    more: Callable[[CayuApp], None] | None = None
    """Registers what else an application has."""
    apps: list[CayuApp] = field(default_factory=list)
    """Every application that was built, in order."""
    study: MemoryStudy = field(init=False)
    assembly: Assembly = field(init=False)
    ledger: BudgetLedger = field(init=False)

    async def open(self) -> Bench:
        """Fill the memory, unless it is filled, and capture the agent."""
        if await self.knowledge.frontier() == 0:
            for entry in ENTRIES:
                await self.knowledge.create_entry(entry)
        bound = self.knowledge.bind(SCOPE)
        subject = Subject(self.build_app, "reader", bound, self.recall)
        self.study = await MemoryStudy.open(subject, [CASE, OTHER], self.stores, KEY)
        self.ledger = DocumentBudgetLedger(self.stores.sessions)
        app = await built(self.build_app, self.stores.sessions, self.ledger, bound, self.recall)
        self.assembly = app.assembly("reader")
        return self

    def build_app(
        self,
        *,
        session_store: Any = None,
        knowledge_store: Any = None,
        budget_ledger: Any = None,
        recall: AutomaticRecallPolicy | None = None,
    ) -> CayuApp:
        """Build one application over these stores."""
        app = CayuApp(session_store=session_store, budget_ledger=budget_ledger)
        app.register_provider(self.provider)
        app.register_environment(Environment(ROOM, knowledge_store=knowledge_store), default=True)
        spec = AgentSpec(name="reader", model="m", provider_options=self.options)
        app.register_agent(
            spec, tools=self.tools, tool_policy=self.policy, context_policy=self.context_policy, recall=recall
        )
        if self.more is not None:
            self.more(app)
        self.apps.append(app)
        return app

    def executor(self, **parts: Any) -> MemoryInterventionExecutor:
        """Return an executor like the study's, but for these parts."""
        same = self.study.executor
        given: dict[str, Any] = {
            "snapshots": same.snapshots,
            "executions": same.executions,
            "overlay_provider": same.overlay_provider,
            "runtime_runner": same.runtime_runner,
            "evaluator": same.evaluator,
            "request_keys": {KEY.key_id: KEY},
            "current_request_key_id": KEY.key_id,
        }
        return MemoryInterventionExecutor(**(given | parts))

    def factory(self, kind: type[TrialApplicationFactory] = TrialApplicationFactory) -> Any:
        """Return a factory of that class for this agent."""
        return kind(self.build_app, self.assembly, session_store=self.stores.sessions, budget_ledger=self.ledger)

    def over(self, factory: Any, **parts: Any) -> MemoryInterventionExecutor:
        """Return an executor whose runner builds its applications by `factory`."""
        return self.executor(runtime_runner=CayuMemoryInterventionRuntimeRunner(factory), **parts)

    def request(
        self,
        arm: Intervention | None = None,
        case: EvalCase = CASE,
        *,
        trial_id: str = "t1",
        candidate_id: str = "c1",
        mode: AgentSnapshotTrialStateMode = AgentSnapshotTrialStateMode.RESET_EACH_TRIAL,
        messages: Sequence[Message] | None = None,
        **fields: Any,
    ) -> MemoryInterventionTrialRequest:
        """Return a request for one trial of an arm, by default the baseline."""
        asked = messages or (Message.text("user", case.question),)
        return MemoryInterventionTrialRequest(
            spec=self.study.spec(arm or baseline(), case, mode),
            candidate_id=candidate_id,
            trial_id=trial_id,
            case=case.contract,
            run_request=RunRequest(agent_name="reader", messages=tuple(asked)),
            **fields,
        )

    async def execute(self, *args: Any, **fields: Any) -> MemoryInterventionTrialOutcome:
        """Execute the trial that `request` returns for these arguments."""
        return await self.study.executor.execute_trial(self.request(*args, **fields))

    async def journal(self, request: MemoryInterventionTrialRequest) -> MemoryInterventionExecutionRecord | None:
        """Return what the journal holds of a request."""
        return await self.stores.executions.load(request.execution_id)

    async def has_session(self, request: MemoryInterventionTrialRequest) -> bool:
        """Whether the session of a request exists."""
        return await self.stores.sessions.load(request.session_id) is not None


def contents(bench: Bench) -> list[Any]:
    """Everything that the in-memory stores of a bench hold: documents, journal and sessions, to compare."""
    stores: Any = bench.stores
    held = [store._bodies for store in (stores.snapshots, stores.executions._documents, stores.sessions._documents)]
    logs = {name: (stream.state, list(stream.records)) for name, stream in stores.sessions._streams.items()}
    return [*map(dict, held), logs]


def arm(name: str, kind: str, *changes: MemoryInterventionChange, control: str | None = None) -> Intervention:
    """An intervention of exactly these changes."""
    wanted = MemoryNegativeControlKind(control) if control else None
    return Intervention(name, MemoryInterventionKind(kind), lambda case, memories: changes, wanted)


def change(entry_id: str, revision: int = 1, text: str | None = None, **fixture: Any) -> MemoryInterventionChange:
    """A change of one entry: with a text it is put in, without it is omitted."""
    put = MemoryInterventionFixture.create(text=text, **fixture) if text is not None else None
    return MemoryInterventionChange(entry_id=entry_id, revision=revision, fixture=put)


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


Watch = Callable[[MemoryInterventionExecutionRecord], Awaitable[None]]


class JournalProxy(MemoryInterventionExecutionStore):
    """A journal over another one; `before` and `after` see each record that is written, and may raise."""

    def __init__(
        self, inner: MemoryInterventionExecutionStore, before: Watch | None = None, after: Watch | None = None
    ) -> None:
        self.inner, self.before, self.after = inner, before, after
        self.written: list[MemoryInterventionExecutionRecord] = []

    async def begin(self, record: MemoryInterventionExecutionRecord) -> MemoryInterventionExecutionRecord:
        return await self.inner.begin(record)

    async def load(self, execution_id: str) -> MemoryInterventionExecutionRecord | None:
        return await self.inner.load(execution_id)

    async def compare_and_set(
        self, expected: MemoryInterventionExecutionRecord, desired: MemoryInterventionExecutionRecord
    ) -> MemoryInterventionExecutionRecord:
        if self.before is not None:
            await self.before(desired)
        written = await self.inner.compare_and_set(expected, desired)
        self.written.append(written)
        if self.after is not None:
            await self.after(written)
        return written

    async def transition_runtime_dispatch_ownership(
        self, execution_id: str, request: Any
    ) -> MemoryInterventionRuntimeOwnershipResult:
        return await self.inner.transition_runtime_dispatch_ownership(execution_id, request)


class CountingOverlay(KnowledgeOverlayProvider):
    """Counts how often it is asked, and lets a test act before and after, and change what it returns."""

    asked: list[str]
    before: Callable[[], Awaitable[None]] | None = None
    after: Callable[[], Awaitable[None]] | None = None
    forge: Callable[[MemoryInterventionRuntimeView], MemoryInterventionRuntimeView] | None = None

    async def apply(self, **given: Any) -> Any:
        self.asked.append("apply")
        return await self._watched(given)

    async def recover(self, **given: Any) -> Any:
        self.asked.append("recover")
        return await self._watched(given)

    async def _watched(self, given: dict[str, Any]) -> Any:
        if self.before is not None:
            await self.before()
        view = await super().recover(**given)
        if self.after is not None:
            await self.after()
        return self.forge(view) if self.forge is not None else view


def counting_overlay(bench: Bench) -> CountingOverlay:
    """An overlay provider like the study's that counts."""
    made = CountingOverlay(bench.knowledge.bind(SCOPE), SCOPE, documents=bench.stores.snapshots, recall=bench.recall)
    made.asked = []
    return made


async def view_of(
    bench: Bench, made: Intervention | None = None, trial_id: str = "t1"
) -> MemoryInterventionRuntimeView:
    """Open the overlay of a trial with its effect applied, as the executor does."""
    request, snapshots = bench.request(made, trial_id=trial_id), bench.study.executor.snapshots
    copy = await snapshots.materialize(
        AgentSnapshotMaterializationRequest(
            snapshot_fingerprint=bench.study.snapshot.fingerprint, candidate_id="c1", trial_id=trial_id, access=SCOPE
        )
    )
    judge = bench.study.executor.evaluator.evaluator_fingerprint
    trial = await snapshots.begin_trial(copy, case_id="door", trial_id=trial_id, evaluator_fingerprint=judge)
    return await bench.study.executor.overlay_provider.apply(
        spec=request.spec,
        operation=MemoryInterventionOperation.of(request.spec, copy, trial),
        materialization=copy,
        trial=trial,
    )


def texts(request: ModelRequest) -> list[str]:
    """What the model was given, message by message."""
    return [message.plain_text for message in request.messages]


async def ids_of(store: KnowledgeStore) -> list[str]:
    """The ids of everything that a bound store shows."""
    return [entry.id for entry in await store.list_entries()]


class CountingEvaluator(MemoryInterventionEvaluator):
    """Passes everything on to another evaluator, and remembers what it was asked."""

    def __init__(self, inner: MemoryInterventionEvaluator) -> None:
        self.inner = inner
        self.evaluator_fingerprint = inner.evaluator_fingerprint
        self.asked: list[tuple[str, str]] = []

    async def evaluate(
        self, *, operation_id: str, case: EvalCaseContractV1, runtime: MemoryInterventionRuntimeResult
    ) -> EvalTrialResult:
        self.asked.append(("evaluate", operation_id))
        return await self.inner.evaluate(operation_id=operation_id, case=case, runtime=runtime)

    async def recover(
        self, *, operation_id: str, case: EvalCaseContractV1, runtime: MemoryInterventionRuntimeResult
    ) -> EvalTrialResult:
        self.asked.append(("recover", operation_id))
        return await self.inner.recover(operation_id=operation_id, case=case, runtime=runtime)


class Lost(Exception):
    """Stands for a process that is gone: nothing catches it on the way."""


def once(fault: Callable[[], BaseException] = Lost) -> Callable[..., Awaitable[None]]:
    """A hook that raises the first time."""
    raised: list[bool] = []

    async def hook(*args: Any) -> None:
        if not raised:
            raised.append(True)
            raise fault()

    return hook


def at(phase: str, hook: Watch) -> Watch:
    """A hook for the records of one phase only."""

    async def watch(record: MemoryInterventionExecutionRecord) -> None:
        if record.phase == phase:
            await hook(record)

    return watch
