"""A lab over a small memory, whose model answers at once or is held until a test lets it go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.support import CASES, ENTRIES, LABORATORY, SCOPE

from cayu import AgentSpec, CayuApp, Environment
from cayu.experiments import Experiment, Intervention, MemoryStudy, Subject, baseline, omit_expected, recall_off
from cayu.interventions.specs import MemoryInterventionKind
from cayu.notebook import Lab
from cayu.providers import ExtractiveModelProvider, ModelRequest, ModelStreamEvent
from cayu.recall import AutomaticRecallPolicy
from cayu.storage import InMemoryKnowledgeStore

TRIALS = 3 * len(CASES)
"""Of `sweep`: its arms times the questions."""


class Held(ExtractiveModelProvider):
    """The extractive model, which answers a few times and then waits until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.free = 1 << 30
        """Answers that it gives before it waits."""
        self.asked = 0
        self.freed = threading.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        self.asked += 1
        if self.asked > self.free:
            while not self.freed.is_set():
                await asyncio.sleep(0.005)
        async for event in super().stream(request):
            yield event


@dataclass
class MemoryLab:
    """One file, one memory, and the labs opened on it."""

    folder: Path
    provider: Held = field(default_factory=Held)
    knowledge: InMemoryKnowledgeStore = field(default_factory=InMemoryKnowledgeStore)
    labs: list[Lab] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "memory.db"

    def build_app(
        self,
        *,
        session_store: Any = None,
        knowledge_store: Any = None,
        budget_ledger: Any = None,
        recall: AutomaticRecallPolicy | None = None,
    ) -> CayuApp:
        app = CayuApp(session_store=session_store, budget_ledger=budget_ledger)
        app.register_provider(self.provider)
        store = knowledge_store or self.knowledge.bind(SCOPE)
        app.register_environment(Environment(LABORATORY, knowledge_store=store), default=True)
        app.register_agent(AgentSpec(name="reader", model="m"), recall=recall or AutomaticRecallPolicy())
        return app

    def open(self) -> Lab:
        lab = Lab.open(self.path, factory=self.build_app)
        self.labs.append(lab)
        if lab.call(self.knowledge.frontier()) == 0:
            for entry in ENTRIES:
                lab.call(self.knowledge.create_entry(entry))
        return lab

    def study(self, lab: Lab) -> MemoryStudy:
        return lab.study(Subject(self.build_app, "reader", self.knowledge.bind(SCOPE)), CASES)

    def hold(self, after: int = 0) -> None:
        """Let the model answer so many questions more, and then wait."""
        self.provider.freed.clear()
        self.provider.free = self.provider.asked + after

    def close(self) -> None:
        self.provider.freed.set()
        for lab in self.labs:
            lab.close()


def sweep(name: str = "sweep", arms: Sequence[Intervention] | None = None) -> Experiment:
    """The questions under a few interventions."""
    return Experiment(CASES, arms or [baseline(), recall_off(), omit_expected()], name=name)


def broken(error: BaseException) -> Intervention:
    """An arm that fails as soon as it is asked for its changes."""

    def changes(case: object, memories: object) -> Sequence[Any]:
        raise error

    return Intervention("broken", MemoryInterventionKind.OMIT_ITEMS, changes)
