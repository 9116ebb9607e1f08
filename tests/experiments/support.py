"""What the tests of experiments share: a small agent over a small memory, a model that counts, runs made by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cayu import (
    AgentSpec,
    CayuApp,
    Environment,
    EnvironmentSpec,
    ExecutionProfileBehaviorIdentity,
    KnowledgeStore,
)
from cayu.errors import ProviderError
from cayu.evals import EvalCase
from cayu.experiments import (
    Experiment,
    ExperimentRun,
    Intervention,
    MemoryStudy,
    StudyStores,
    Subject,
    TrialRecord,
    baseline,
    omit,
)
from cayu.knowledge import KnowledgeAccessScope, KnowledgeEntry
from cayu.memory import MemoryInterventionRequestFingerprintKey
from cayu.providers import ExtractiveModelProvider, ModelRequest, ModelStreamEvent
from cayu.recall import AutomaticRecallPolicy
from cayu.sessions.streams import SessionStore
from cayu.storage import InMemoryKnowledgeStore

KEY = MemoryInterventionRequestFingerprintKey("k1", b"a secret of experiments")
SCOPE = KnowledgeAccessScope(allowed_namespaces=("default",))
ENTRIES = (
    KnowledgeEntry(id="door", title="Door code", text="The door code of the cold room is K4711."),
    KnowledgeEntry(id="lamp", title="Lamp", text="The broken lamp of the microscope is the left one."),
    KnowledgeEntry(id="key", title="Spare key", text="The spare key of the greenhouse hangs in the office."),
    KnowledgeEntry(id="cat", title="Cat", text="The cat of the institute eats at noon."),
)
CASES = (
    EvalCase(
        case_id="q-door",
        question="What is the door code of the cold room?",
        expected_answer="K4711",
        expected_entries=("door",),
        topic="rooms",
    ),
    EvalCase(
        case_id="q-lamp",
        question="Which lamp of the microscope is broken?",
        expected_answer="left one",
        expected_entries=("lamp",),
        topic="instruments",
    ),
    EvalCase(
        case_id="q-key",
        question="Where does the spare key of the greenhouse hang?",
        expected_answer="in the office",
        expected_entries=("key",),
        topic="rooms",
    ),
)
UNKNOWN = EvalCase(case_id="q-none", question="What is the meaning of it all?", expected_answer="42")
"""A case to which no memory holds the answer."""
LABORATORY = EnvironmentSpec(
    name="laboratory",
    execution_profile_identity=ExecutionProfileBehaviorIdentity(
        name="laboratory", behavior_version="1", implementation_version="1"
    ),
)


class Gauge(ExtractiveModelProvider):
    """The extractive model, which takes its time, counts how often it is asked at once, and may refuse a question."""

    def __init__(self, pause: float = 0.0, refuses: str | None = None) -> None:
        super().__init__()
        self.pause = pause
        self.refuses = refuses
        self.gate: asyncio.Event | None = None
        self.now = self.most = self.asked = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.pause)
            if self.gate is not None:
                await self.gate.wait()
            if self.refuses and any(self.refuses in message.plain_text for message in request.messages):
                raise ProviderError("It does not answer that.")
            async for event in super().stream(request):
                yield event
        finally:
            self.now -= 1


@dataclass
class Lab:
    """One captured agent `reader` over `ENTRIES`."""

    provider: ExtractiveModelProvider = field(default_factory=ExtractiveModelProvider)
    stores: StudyStores = field(default_factory=StudyStores.in_memory)
    knowledge: KnowledgeStore = field(default_factory=InMemoryKnowledgeStore)
    recall: AutomaticRecallPolicy = field(default_factory=AutomaticRecallPolicy)
    building: Callable[[], None] | None = None
    """Asked before each application is built, and may raise."""
    study: MemoryStudy = field(init=False)

    async def open(self, cases: Iterable[EvalCase] = (*CASES, UNKNOWN)) -> Lab:
        if await self.knowledge.frontier() == 0:
            for entry in ENTRIES:
                await self.knowledge.create_entry(entry)
        subject = Subject(self.build_app, "reader", self.knowledge.bind(SCOPE), self.recall)
        self.study = await MemoryStudy.open(subject, cases, self.stores, KEY)
        return self

    def build_app(
        self, *, session_store: Any, knowledge_store: Any, budget_ledger: Any, recall: AutomaticRecallPolicy
    ) -> CayuApp:
        if self.building is not None:
            self.building()
        app = CayuApp(session_store=session_store, budget_ledger=budget_ledger)
        app.register_provider(self.provider)
        app.register_environment(Environment(LABORATORY, knowledge_store=knowledge_store), default=True)
        app.register_agent(AgentSpec(name="reader", model="m", system_prompt="Answer from memory."), recall=recall)
        return app


@dataclass(frozen=True)
class Item:
    """A prepared control."""

    question_id: str
    kind: str
    title: str = "Note"
    text: str = "The cat sleeps."
    namespace: str = "default"
    labels: dict[str, str] = field(default_factory=dict)


async def started(sessions: SessionStore, run: ExperimentRun) -> Counter[str]:
    """How often each trial's session was started, by trial id; 0 for a trial without one."""
    found: Counter[str] = Counter()
    for record in run.records:
        loaded = await sessions.load(record.session_id) if record.session_id else None
        found[record.trial_id] = sum(item.type == "session.started" for item in loaded.records) if loaded else 0
    return found


def by_id(run: ExperimentRun) -> dict[str, TrialRecord]:
    """A run's records by trial id, each of which is there once."""
    found = {record.trial_id: record for record in run.records}
    assert len(found) == len(run.records)
    return found


def arm(name: str) -> Intervention:
    """An arm that is only a name."""
    return omit("any", name=name)


Scores = dict[str, Sequence[float | None]]
"""A question's id -> its score in each repeat."""


def made_run(topics: dict[str, str], arms: dict[str, Scores], seed: int = 0) -> ExperimentRun:
    """A finished run with these scores; the first arm is the baseline, and `topics` gives each question's topic."""
    first, *others = arms
    cases = [EvalCase(case_id=name, question="?", expected_answer="!", topic=topic) for name, topic in topics.items()]
    experiment = Experiment(cases, [Intervention(first, baseline().kind), *map(arm, others)], seed=seed)
    records = [
        TrialRecord(
            trial_id=f"{name}/{case_id}/{repeat}",
            case_id=case_id,
            topic=topics[case_id],
            intervention=name,
            repeat=repeat,
            status="completed" if score is not None else "failed",
            score=score,
        )
        for name, scores in arms.items()
        for case_id, found in scores.items()
        for repeat, score in enumerate(found, 1)
    ]
    return ExperimentRun(experiment, records, total=len(records), finished=True)
