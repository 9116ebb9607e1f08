"""What is studied, where its trials stand, and the checks that an application is fit for trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cayu.budgets.ledger import BudgetLedger
from cayu.errors import InvalidInput
from cayu.interventions.journal import MemoryInterventionExecutionStore
from cayu.knowledge.store import KnowledgeStore
from cayu.memory.applications import BuildApp, built
from cayu.recall.policy import AutomaticRecallPolicy
from cayu.runtime.app import CayuApp
from cayu.sessions.limits import BudgetLimit, RunLimits
from cayu.sessions.streams import SessionStore
from cayu.snapshots.profiles import AgentSnapshotExecutionProfileRef
from cayu.snapshots.store import AgentSnapshotStore
from cayu.storage.interventions import (
    InMemoryMemoryInterventionExecutionStore,
    SQLiteMemoryInterventionExecutionStore,
)
from cayu.storage.memory import InMemorySessionStore
from cayu.storage.snapshots import InMemoryAgentSnapshotStore, SQLiteAgentSnapshotStore
from cayu.storage.sql.sqlite.sessions import SQLiteSessionStore

DEFAULT_TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Subject:
    """The agent that is studied."""

    build_app: BuildApp
    """`build_app(*, session_store, knowledge_store, budget_ledger, recall) -> CayuApp`, called for each trial."""
    agent_name: str
    knowledge: KnowledgeStore
    """Bound to what the agent may read; it is never written."""
    recall: AutomaticRecallPolicy = field(default_factory=AutomaticRecallPolicy)
    environment_name: str | None = None
    """None takes the application's default."""
    limits: RunLimits = field(default_factory=RunLimits)
    """Of each trial's session."""
    budget_limits: tuple[BudgetLimit, ...] = ()
    """What each trial's session may spend; one without a budget id counts for the trial alone."""
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    """How long each trial's session may take, from 1 to 3600."""

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for parts of another kind."""
        wanted = (
            ("build_app", isinstance(self.build_app, Callable), "a function that builds the application"),  # type: ignore[arg-type]
            ("agent_name", isinstance(self.agent_name, str), "the name of an agent"),
            ("knowledge", isinstance(self.knowledge, KnowledgeStore), "a KnowledgeStore"),
            ("recall", isinstance(self.recall, AutomaticRecallPolicy), "an AutomaticRecallPolicy"),
        )
        for name, fits, what in wanted:
            if not fits:
                raise InvalidInput(f"{name} of a Subject is {what}, not a {type(getattr(self, name)).__name__}.")
        if self.knowledge.bound_access_scope() is None:
            raise InvalidInput("The knowledge store of a study is bound to what the agent may read; pass bind(scope).")


@dataclass(frozen=True, slots=True)
class StudyStores:
    """Where trials stand: their sessions, the snapshots with their overlays, and the journal."""

    sessions: SessionStore
    snapshots: AgentSnapshotStore
    executions: MemoryInterventionExecutionStore

    @classmethod
    def in_memory(cls) -> StudyStores:
        """Return stores in this process only."""
        return cls(InMemorySessionStore(), InMemoryAgentSnapshotStore(), InMemoryMemoryInterventionExecutionStore())

    @classmethod
    def in_file(cls, path: str | Path) -> StudyStores:
        """Return stores in one SQLite file, made when it is new."""
        return cls.beside(SQLiteSessionStore(path))

    @classmethod
    def beside(cls, sessions: SessionStore) -> StudyStores:
        """Return stores in the file of a session store. Raises `InvalidInput` for one that is no SQLite store."""
        if not isinstance(sessions, SQLiteSessionStore):
            words = "keeps nothing else; give the snapshots and the journal stores of their own"
            raise InvalidInput(f"A {type(sessions).__name__} {words}: StudyStores(sessions, snapshots, executions).")
        return cls(
            sessions,
            SQLiteAgentSnapshotStore.beside(sessions),
            SQLiteMemoryInterventionExecutionStore.beside(sessions),
        )

    async def aclose(self) -> None:
        """Close what was opened; safe to call twice."""
        for store in (self.executions, self.snapshots, self.sessions):
            await store.aclose()


async def probe(subject: Subject, sessions: SessionStore, ledger: BudgetLedger) -> CayuApp:
    """Return an application of the subject, after making sure that it uses what it is given.

    It is built twice, with recall as it is and switched off, and nothing of it runs. Raises `InvalidInput`.
    """
    for recall in (subject.recall.switched_off(), subject.recall):
        app = await built(subject.build_app, sessions, ledger, subject.knowledge, recall)
        assembly = app.assembly(subject.agent_name, subject.environment_name)
        environment = assembly.environment
        used = {
            "session_store": app.session_store is sessions,
            "budget_ledger": app.budget_ledger is ledger,
            "knowledge_store": environment is not None and environment.knowledge_store is subject.knowledge,
            "recall": assembly.recall == recall,
        }
        for name, holds in used.items():
            if not holds:
                raise InvalidInput(f"build_app does not use the {name} that it is given; pass it on.")
    unavailable = AgentSnapshotExecutionProfileRef.of(assembly.profile).unavailable
    if unavailable:
        words = "declares no identity, so no second application can be known to be the same"
        raise InvalidInput(f"In this application {', '.join(unavailable)} {words}.")
    return app
