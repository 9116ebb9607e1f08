"""A reader that answers from what it is reminded of, for experiments on its memory; it needs no key.

`reader` builds the application of a trial. `handbook_subject` and `python_subject` say what is studied: the laboratory
handbook, or the topics of the Python language reference.
"""

from __future__ import annotations

from pathlib import Path

from cayu import AgentSpec, CayuApp, Environment, EnvironmentSpec, ExecutionProfileBehaviorIdentity, KnowledgeStore
from cayu.budgets import BudgetLedger
from cayu.evals import EvalCase, question_cases
from cayu.examples.handbook import READERS, load_handbook
from cayu.experiments import (
    Experiment,
    MemoryStudy,
    StudyStores,
    Subject,
    baseline,
    inject,
    key_beside,
    omit_expected,
    recall_off,
    replace_expected,
    run_experiment,
)
from cayu.knowledge import KnowledgeAccessScope
from cayu.providers import ExtractiveModelProvider
from cayu.recall import AutomaticRecallPolicy
from cayu.sessions import SessionStore
from cayu.storage import SQLiteKnowledgeStore, handbook_controls, handbook_questions

PYTHON_READERS = KnowledgeAccessScope(allowed_namespaces=("python",))
"""What the reader of the language reference may read."""


def reader(
    *,
    session_store: SessionStore | None = None,
    knowledge_store: KnowledgeStore | None = None,
    budget_ledger: BudgetLedger | None = None,
    recall: AutomaticRecallPolicy | None = None,
) -> CayuApp:
    """Build an application with one agent, which has no tools: what it knows is what it is reminded of."""
    app = CayuApp(session_store=session_store, budget_ledger=budget_ledger)
    app.register_provider(ExtractiveModelProvider())
    app.register_environment(Environment(_ENVIRONMENT, knowledge_store=knowledge_store), default=True)
    app.register_agent(AgentSpec(name="reader", model="extractive", system_prompt=_PROMPT), recall=recall)
    return app


def handbook_subject(knowledge: KnowledgeStore) -> Subject:
    """Return the reader over a store that holds the handbook; only its public entries are recalled."""
    return Subject(build_app=reader, agent_name="reader", knowledge=knowledge.bind(READERS))


def python_subject(knowledge: KnowledgeStore) -> Subject:
    """Return the reader over a store that holds the Python topics; they are long, so they get more room."""
    recall = AutomaticRecallPolicy(max_candidate_text_bytes=65_536, max_total_bytes=98_304, max_injected_items=2)
    return Subject(build_app=reader, agent_name="reader", knowledge=knowledge.bind(PYTHON_READERS), recall=recall)


async def sweep(folder: str, name: str) -> int:
    """Run the handbook's sweep in a folder and return how many trials have a score; for child processes."""
    home = Path(folder)
    knowledge, stores = SQLiteKnowledgeStore(home / "knowledge.db"), StudyStores.in_file(home / "memory.db")
    await load_handbook(knowledge)
    experiment = handbook_sweep(name)
    study = await MemoryStudy.open(
        handbook_subject(knowledge), experiment.cases, stores, key_beside(home / "memory.db")
    )
    try:
        run = await run_experiment(experiment, study)
    finally:
        await stores.aclose()
        await knowledge.aclose()
    return sum(record.score is not None for record in run.records)


def handbook_sweep(name: str, questions: int = 60, repeats: int = 1) -> Experiment:
    """Return the experiment of the handbook's questions under every kind of intervention."""
    controls = handbook_controls()
    return Experiment(
        cases=question_cases(handbook_questions()[:questions]),
        interventions=(
            baseline(),
            recall_off(),
            omit_expected(),
            replace_expected(controls),
            *(inject(kind, controls) for kind in ("irrelevant", "conflicting", "adversarial")),
        ),
        repeats=repeats,
        name=name,
    )


def python_cases() -> tuple[EvalCase, ...]:
    """Return questions about the language reference, each with the topic that answers it."""
    return tuple(
        EvalCase(
            case_id=f"python-{name}-{number}",
            question=question,
            expected_answer=answer,
            expected_entries=(f"python-{name}",),
            topic=name,
        )
        for name, asked in _PYTHON.items()
        for number, (question, answer) in enumerate(asked, 1)
    )


_PROMPT = "Answer from what you are reminded of."
_ENVIRONMENT = EnvironmentSpec(
    name="reading-room",
    execution_profile_identity=ExecutionProfileBehaviorIdentity(
        name="reading-room", behavior_version="1", implementation_version="1"
    ),
)
_PYTHON: dict[str, tuple[tuple[str, str], ...]] = {
    "assert": (("What are assert statements a convenient way to insert into a program?", "debugging assertions"),),
    "break": (
        (
            "What happens when break passes control out of a try statement with a finally clause?",
            "executed before really leaving the loop",
        ),
    ),
    "continue": (("Where may continue only occur syntactically nested?", "syntactically nested in a"),),
    "pass": (("What happens when the pass statement is executed?", "nothing happens"),),
    "global": (("What does the global statement want identifiers to be interpreted as?", "interpreted as globals"),),
    "lambda": (("What do lambda expressions yield?", "yields a function object"),),
    "while": (("What is the while statement used for?", "repeated execution as long as an expression is true"),),
    "raise": (
        (
            "What does raise re-raise if no expressions are present?",
            "re-raises the exception that is currently being handled",
        ),
    ),
    "return": (("Where may return only occur syntactically nested?", "nested in a function definition"),),
    "nonlocal": (("What does nonlocal cause names to refer to?", "previously bound variables in the nearest"),),
    "slicings": (("What does a slicing select a range of?", "range of items in a sequence object"),),
}
"""Topic -> its questions, each with words of the answer that stand in the topic."""
