"""What the children of the crash and race tests of trials run: one agent over one memory, and components that tell.

The agent recalls by itself, and looks things up in one round of tools. Whenever the executor calls a component, a line
is written to a file outside every store that says what was called, and what the journal held at that moment.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cayu import (
    AgentSpec,
    CayuApp,
    Environment,
    EnvironmentSpec,
    ExecutionProfileBehaviorIdentity,
    RuntimeConfig,
    SQLiteSessionStore,
)
from cayu.evals import EvalCase, EvalTrialResult
from cayu.experiments import Experiment, Intervention, MemoryStudy, StudyStores, Subject, baseline, run_experiment
from cayu.experiments.arms import omit_expected, recall_off
from cayu.experiments.design import PlannedTrial
from cayu.experiments.sweep import ExperimentRun
from cayu.knowledge import KnowledgeAccessScope, KnowledgeEntry
from cayu.memory import (
    MemoryInterventionChange,
    MemoryInterventionExecutor,
    MemoryInterventionFixture,
    MemoryInterventionKind,
    MemoryInterventionRequestFingerprintKey,
    MemoryInterventionTrialRequest,
)
from cayu.providers import ExtractiveModelProvider, ModelRequest, ModelStreamEvent
from cayu.storage import InMemoryKnowledgeStore
from cayu.storage.interventions import SQLiteMemoryInterventionExecutionStore
from cayu.storage.snapshots import SQLiteAgentSnapshotStore
from cayu.tools import KnowledgeSearchTool

KEY = MemoryInterventionRequestFingerprintKey("k1", b"the same after every restart")
SCOPE = KnowledgeAccessScope(allowed_namespaces=("default",))
TIMEOUT_SECONDS = 300
COLD, LAMP = "cold-room", "lamp"
WAS, IS = "A sample may stay in the cold room for 96 hours.", "A sample may stay in the cold room for 48 hours."
ENTRIES = (
    KnowledgeEntry(id=COLD, title="Cold room", text=WAS),
    KnowledgeEntry(id=LAMP, title="Lamps", text="The left lamp of the microscope in the cold room is broken."),
    KnowledgeEntry(id="gloves", title="Gloves", text="Nitrile gloves are in the second drawer."),
)
CASE = EvalCase(
    case_id="stay",
    question="How many hours may a sample stay in the cold room?",
    expected_answer="48 hours",
    expected_entries=(COLD,),
)
ROOM = EnvironmentSpec(
    name="laboratory",
    execution_profile_identity=ExecutionProfileBehaviorIdentity(
        name="laboratory", behavior_version="1", implementation_version="1"
    ),
)


def replace_it(case: EvalCase, memories: Any) -> Sequence[MemoryInterventionChange]:
    """Say otherwise how long a sample may stay."""
    fixture = MemoryInterventionFixture.create(text=IS, title="Cold room")
    return [MemoryInterventionChange(entry_id=COLD, revision=1, fixture=fixture)]


REPLACED = Intervention("replaced", MemoryInterventionKind.REPLACE_ITEMS, replace_it)


class LookingUp(ExtractiveModelProvider):
    """Looks things up once or twice in its one round of tools; may be held before it answers."""

    def __init__(self, lookups: int, held: asyncio.Event | None) -> None:
        super().__init__()
        self._lookups, self._held = lookups, held

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        """Ask and answer as the provider does that this one is made of."""
        if self._held is not None and request.messages[-1].role == "tool":
            self._held.set()
            await asyncio.sleep(3600)
        async for event in super().stream(request):
            yield event
            if event.kind == "tool_call" and self._lookups > 1:
                yield ModelStreamEvent.tool_call(event.name, {**event.arguments, "limit": 1}, id="again")


def note(folder: Path, name: str, **told: Any) -> None:
    """Write one line to a file of its own, and see that it stands before anything else happens."""
    with open(folder / f"{name}.jsonl", "a", encoding="ascii") as lines:
        lines.write(json.dumps(told) + "\n")
        lines.flush()
        os.fsync(lines.fileno())


def notes(folder: Path, name: str) -> list[dict[str, Any]]:
    """What was noted so far."""
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text("ascii").splitlines()] if path.exists() else []


class Told:
    """Passes everything on to a component, and notes the calls that do something, with what the journal has then."""

    def __init__(self, folder: Path, name: str, inner: Any, journal: SQLiteMemoryInterventionExecutionStore) -> None:
        self._folder, self._name, self._inner, self._journal = folder, name, inner, journal
        self.executions: dict[str, str] = {}
        """The executions of which the journal is asked, by trial id."""

    def __getattr__(self, called: str) -> Any:
        found = getattr(self._inner, called)
        if called not in ("apply", "evaluate", "recover", "run"):
            return found

        async def act(**given: Any) -> Any:
            told = {"call": called, "pid": os.getpid()}
            if "operation_id" in given:
                told |= {"operation": given["operation_id"], "session": given["runtime"].session_id}
            else:
                told |= {"operation": given["operation"].fingerprint}
                told |= await self._standing(self.executions.get(given["trial"].trial_id))
            note(self._folder, self._name, **told)
            return await found(**given)

        return act

    async def _standing(self, execution_id: str | None) -> dict[str, Any]:
        """What of a trial is durable at this moment."""
        record = await self._journal.load(execution_id) if execution_id is not None else None
        if record is None:
            return {}
        owner = record.runtime_dispatch_ownership
        return {
            "phase": record.phase,
            "committed_to": record.operation_fingerprint,
            "claimed": record.runtime_session_create_claim is not None,
            "owner": owner.owner_id if owner is not None else None,
        }


class Judge:
    """An evaluator who is paid for each verdict, and keeps them in a book: one for each operation.

    A verdict says its number among those on its session, so that a second one would be another result.
    """

    def __init__(self, folder: Path, inner: Any) -> None:
        self._folder, self._inner = folder, inner
        self.evaluator_fingerprint = inner.evaluator_fingerprint

    async def evaluate(self, *, operation_id: str, runtime: Any, **given: Any) -> EvalTrialResult:
        """Return the verdict in the book, or make one; two judges at once wait for each other."""
        with open(self._folder / "book.lock", "a", encoding="ascii") as lock:
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
            kept = [line for line in notes(self._folder, "verdicts") if line["session"] == runtime.session_id]
            for line in kept:
                if line["operation"] == operation_id:
                    return EvalTrialResult.model_validate_json(json.dumps(line["verdict"]))
            found: EvalTrialResult = await self._inner.evaluate(operation_id=operation_id, runtime=runtime, **given)
            verdict = found.model_copy(update={"structured_output": {"number": len(kept) + 1}})
            told = {"operation": operation_id, "session": runtime.session_id}
            note(self._folder, "verdicts", **told, verdict=verdict.model_dump(mode="json"))
            return verdict

    async def recover(self, **given: Any) -> EvalTrialResult:
        """Return the verdict that was made, or make it."""
        return await self.evaluate(**given)


class Laboratory(NamedTuple):
    """A study over one file, with the executor whose components tell of their calls."""

    study: MemoryStudy
    executor: MemoryInterventionExecutor
    told: Sequence[Told]

    def request(self, number: int = 0) -> MemoryInterventionTrialRequest:
        """The request for one trial of the case, the same in every process."""
        request = self.study.request(PlannedTrial(CASE, REPLACED, 1, f"trial/{number}", "trial"))
        for component in self.told:
            component.executions[request.trial_id] = request.execution_id
        return request


@asynccontextmanager
async def laboratory(
    folder: Path, lookups: int = 1, hours: int = 0, late: float = 0.0, held: asyncio.Event | None = None
) -> AsyncIterator[Laboratory]:
    """Open everything over the files in a folder.

    The journal's clock is `hours` ahead, so that nobody waits for the ownership of a process that has died; the
    executor's is `late` seconds ahead. `held` is set when the model is asked for its answer, which it then never gives.
    """
    path = folder / "trials.db"
    stores = StudyStores(
        SQLiteSessionStore(path),
        SQLiteAgentSnapshotStore(path),
        SQLiteMemoryInterventionExecutionStore(path, ownership_clock=ahead(hours * 3600)),
    )

    def build_app(*, session_store: Any, knowledge_store: Any, budget_ledger: Any, recall: Any) -> CayuApp:
        config = RuntimeConfig(cancel_grace_seconds=0.05)
        app = CayuApp(session_store=session_store, budget_ledger=budget_ledger, config=config)
        app.register_provider(LookingUp(lookups, held))
        app.register_environment(Environment(ROOM, knowledge_store=knowledge_store), default=True)
        app.register_agent(AgentSpec(name="reader", model="m"), tools=[KnowledgeSearchTool()], recall=recall)
        return app

    knowledge = InMemoryKnowledgeStore()
    for entry in ENTRIES:
        await knowledge.create_entry(entry)
    study = await MemoryStudy.open(Subject(build_app, "reader", knowledge.bind(SCOPE)), cases(), stores, KEY)
    made, journal = study.executor, stores.executions
    assert isinstance(journal, SQLiteMemoryInterventionExecutionStore)
    judge = Judge(folder, made.evaluator)
    named = {"overlay": made.overlay_provider, "runner": made.runtime_runner, "evaluator": judge}
    told: list[Any] = [Told(folder, name, component, journal) for name, component in named.items()]
    study.executor = MemoryInterventionExecutor(
        snapshots=made.snapshots,
        executions=journal,
        overlay_provider=told[0],
        runtime_runner=told[1],
        evaluator=told[2],
        request_keys={KEY.key_id: KEY},
        current_request_key_id=KEY.key_id,
        clock=ahead(late),
    )
    try:
        yield Laboratory(study, study.executor, told)
    finally:
        await stores.aclose()


def ahead(seconds: float) -> Any:
    """A clock that is ahead of this machine's."""
    return lambda: datetime.now(UTC) + timedelta(seconds=seconds)


def cases() -> list[EvalCase]:
    """The case of the single trials, and those of the sweep."""
    asked = [CASE.model_copy(update={"case_id": f"stay-{n}", "expected_answer": "96 hours"}) for n in range(SWEPT)]
    return [CASE, *asked]


SWEPT = 8
"""Cases of the sweep."""


# What the children do.


async def execute(folder: str, lookups: int = 1, hours: int = 0, late: float = 0.0) -> dict[str, Any]:
    """Execute the trial, or go on with it, and return its outcome."""
    async with laboratory(Path(folder), lookups, hours, late) as lab:
        outcome: dict[str, Any] = (await lab.executor.execute_trial(lab.request())).model_dump(mode="json")
        return outcome


async def execute_in(folders: Sequence[str], lookups: int = 1, hours: int = 0, late: float = 0.0) -> list[Any]:
    """Execute the trial of each folder; the error's words stand for the outcome of one that fails."""
    found: list[Any] = []
    for folder in folders:
        try:
            found.append(await asyncio.wait_for(execute(folder, lookups, hours, late), 20))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


async def cancel(folder: str, lookups: int = 1) -> str:
    """Execute the trial, and cancel it while its model thinks; return what is raised then."""
    held = asyncio.Event()
    async with laboratory(Path(folder), lookups, held=held) as lab:
        task = asyncio.create_task(lab.executor.execute_trial(lab.request()))
        await held.wait()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "CancelledError"
        return "nothing"


def meet(folder: Path, name: str, parties: int = 2) -> None:
    """Wait until all parties are here."""
    (folder / f"{name}.{os.getpid()}").touch()
    deadline = time.monotonic() + 30
    while len(list(folder.glob(f"{name}.*"))) < parties:
        if time.monotonic() > deadline:
            raise TimeoutError(name)
        time.sleep(0.0005)


async def race(folder: str, trials: int, late_by_ms: Sequence[float]) -> list[Any]:
    """Execute each of several trials from the moment at which the other process does, or a little later."""
    home, found = Path(folder), []
    async with laboratory(home) as lab:
        for number in range(trials):
            request = lab.request(number)
            meet(home, f"trial{number}")
            await asyncio.sleep(late_by_ms[number % len(late_by_ms)] / 1000)
            try:
                found.append((await lab.executor.execute_trial(request)).model_dump(mode="json"))
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
    return found


def experiment() -> Experiment:
    """The sweep: every case under three arms."""
    return Experiment(cases()[1:], [baseline(), recall_off(), omit_expected()], name="sweep")


async def sweep(folder: str, hours: int = 0) -> list[dict[str, Any]]:
    """Run the whole experiment, or what is left of it, and return the records."""

    def tell(run: ExperimentRun) -> None:
        note(Path(folder), "progress", trial=run.records[-1].trial_id)

    async with laboratory(Path(folder), hours=hours) as lab:
        run = await run_experiment(experiment(), lab.study, concurrency=4, progress=tell)
        return [record.model_dump(mode="json") for record in run.records]


async def stopped_sweep(folder: str) -> int:
    """Begin the experiment, give up the trials in work when one is done, and return how many were done."""

    async with laboratory(Path(folder)) as lab:
        run = ExperimentRun(experiment())

        def stop(_: ExperimentRun) -> None:
            if not task.cancelling():
                task.cancel()
                asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(task.cancel))

        task = asyncio.create_task(run_experiment(run.experiment, lab.study, concurrency=4, progress=stop, run=run))
        await asyncio.wait([task])
        assert task.cancelled()
        return len(run.records)
