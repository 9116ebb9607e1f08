"""A captured agent: what cannot be studied, and requests that follow from the agent, the memory and the design."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from experiments.support import CASES, ENTRIES, KEY, SCOPE, UNKNOWN, Gauge, Item, Lab, by_id, started

from cayu import AgentSpec, CayuApp, Environment, EnvironmentSpec
from cayu.budgets.ledger import DocumentBudgetLedger
from cayu.canonical import file_digest
from cayu.errors import InvalidInput, SnapshotNotFound
from cayu.evals import question_cases
from cayu.examples.handbook import READERS, load_handbook
from cayu.experiments import (
    Experiment,
    Intervention,
    MemoryStudy,
    StudyStores,
    Subject,
    baseline,
    estimate_effects,
    inject,
    omit,
    omit_expected,
    recall_off,
    replace_expected,
    run_experiment,
)
from cayu.interventions.requests import MemoryInterventionRequestFingerprintKey
from cayu.interventions.specs import MemoryInterventionKind
from cayu.knowledge import KnowledgeEntry
from cayu.providers import ExtractiveModelProvider
from cayu.recall import AutomaticRecallPolicy
from cayu.sessions.limits import RunLimits
from cayu.snapshots.records import AgentSnapshotTrialStateMode
from cayu.storage import (
    InMemoryKnowledgeStore,
    SQLiteKnowledgeStore,
    SQLiteSessionStore,
    handbook_controls,
    handbook_questions,
)


async def test_a_store_without_a_scope_is_refused():
    with pytest.raises(InvalidInput, match=r"bind\(scope\)"):
        await MemoryStudy.open(
            Subject(Lab().build_app, "reader", InMemoryKnowledgeStore()), CASES, StudyStores.in_memory(), KEY
        )


async def test_an_application_with_a_component_of_no_identity_is_refused():
    def build_app(*, session_store, knowledge_store, budget_ledger, recall):
        app = CayuApp(session_store=session_store, budget_ledger=budget_ledger)
        app.register_provider(ExtractiveModelProvider())
        app.register_environment(Environment(EnvironmentSpec(name="e"), knowledge_store=knowledge_store), default=True)
        app.register_agent(AgentSpec(name="reader", model="m"), recall=recall)
        return app

    knowledge = InMemoryKnowledgeStore().bind(SCOPE)
    with pytest.raises(InvalidInput, match="environment"):
        await MemoryStudy.open(Subject(build_app, "reader", knowledge), CASES, StudyStores.in_memory(), KEY)


async def test_an_agent_that_takes_no_recall_policy_is_refused():
    def build_app(*, session_store, knowledge_store, budget_ledger, recall):
        return Lab().build_app(
            session_store=session_store, knowledge_store=knowledge_store, budget_ledger=budget_ledger, recall=None
        )

    knowledge = InMemoryKnowledgeStore().bind(SCOPE)
    with pytest.raises(InvalidInput, match="recall"):
        await MemoryStudy.open(Subject(build_app, "reader", knowledge), CASES, StudyStores.in_memory(), KEY)


async def test_an_application_may_be_built_asynchronously():
    lab = Lab()
    await lab.open()

    async def build_app(**given):
        return lab.build_app(**given)

    study = await MemoryStudy.open(
        Subject(build_app, "reader", lab.knowledge.bind(SCOPE)), CASES, StudyStores.in_memory(), KEY
    )
    run = await run_experiment(Experiment(CASES[:1], [baseline()]), study)
    assert [record.score for record in run.records] == [1.0]


async def test_the_memories_of_a_study_are_what_the_agent_may_read():
    knowledge = InMemoryKnowledgeStore()
    await knowledge.create_entry(KnowledgeEntry(id="hidden", text="The door code is 1.", visibility="private"))
    await knowledge.create_entry(KnowledgeEntry(id="elsewhere", text="The door code is 2.", namespace="other"))
    for entry in ENTRIES:
        await knowledge.create_entry(entry)
    lab = await Lab(knowledge=knowledge).open()
    assert set(lab.study.memories) == {entry.id for entry in ENTRIES}


async def test_a_study_keeps_the_memory_that_it_captured():
    lab = await Lab().open()
    await lab.knowledge.create_entry(KnowledgeEntry(id="later", text="The door code of the cold room is 1234."))
    await lab.knowledge.append_entry_revision(
        ENTRIES[0].model_copy(update={"text": "The door code of the cold room is K9999."}), expected_revision=1
    )
    run = await run_experiment(Experiment(CASES[:1], [baseline(), omit_expected()]), lab.study)
    found = {record.intervention: record for record in run.records}
    assert found["baseline"].score == 1.0
    assert found["omit_expected"].status == "completed"
    assert "1234" not in (found["omit_expected"].answer or "")
    assert set(lab.study.memories) == {entry.id for entry in ENTRIES}


async def same_and_other(other: Lab, cases=(*CASES,)):
    """The execution ids of one trial in the usual lab, in its twin, and in `other`."""
    labs = [await Lab().open(CASES), await Lab().open(CASES), await other.open(cases)]
    planned = Experiment(CASES[:1], [baseline()]).trials()[0]
    return [lab.study.request(planned).execution_id for lab in labs]


@pytest.mark.requirement("B026")
async def test_the_same_agent_over_the_same_memory_gives_the_same_trials():
    first, twin, changed = await same_and_other(Lab(recall=AutomaticRecallPolicy(max_injected_items=1)))
    assert first == twin
    assert first != changed


async def test_other_cases_leave_the_trials_of_a_case_as_they_are():
    first, twin, changed = await same_and_other(Lab(), CASES[:2])
    assert first == twin == changed


async def test_an_arm_or_a_case_that_was_changed_has_trials_of_its_own():
    lab = await Lab().open()
    scores = []
    for name in ("lamp", "door"):
        run = await run_experiment(Experiment(CASES[:1], [baseline(), omit(name, name="one")]), lab.study)
        scores.append([record.score for record in run.records if record.intervention == "one"])
    assert scores == [[1.0], [0.0]]
    asked = CASES[0].model_copy(update={"question": f"{CASES[0].question} Say it briefly."})
    again = await MemoryStudy.open(lab.study.subject, [asked], lab.stores, KEY)
    run = await run_experiment(Experiment([asked], [baseline()]), again)
    assert [record.status for record in run.records] == ["completed"]


async def test_what_would_show_no_effect_is_refused_before_any_trial():
    study = (await Lab().open()).study
    other = CASES[0].model_copy(update={"expected_answer": "another"})
    elsewhere = Item("q-door", "irrelevant", text="A note.", namespace="attic")
    for cases, arm, words in (
        ([other], omit("lamp"), "has changed since; open the study again"),
        (CASES, inject("irrelevant", [elsewhere]), "namespace 'attic'"),
        (CASES, Intervention("bad", "omit_items", lambda case, memories: 1 / 0), "'bad' fail for case .*ZeroDivision"),
    ):
        with pytest.raises(InvalidInput, match=words):
            study.check(Experiment(cases, [baseline(), arm]))


async def test_a_key_means_the_same_secret_for_as_long_as_the_store_stands():
    lab = await Lab().open()
    other = MemoryInterventionRequestFingerprintKey(KEY.key_id, b"another secret of some length")
    with pytest.raises(InvalidInput, match="put the key file back"):
        await MemoryStudy.open(lab.study.subject, CASES, lab.stores, other)


async def test_a_request_asks_the_cases_question_with_labels_to_find_its_session_by():
    study = (await Lab().open()).study
    spending = RunLimits(max_total_tokens=500)
    study.subject = replace(study.subject, timeout_seconds=7, limits=spending)
    planned = Experiment(CASES[:1], [baseline()], name="pilot", seed=3).trials()[0]
    request = study.request(planned)
    run = request.run_request
    assert [message.plain_text for message in run.messages] == [CASES[0].question]
    assert run.labels == {"experiment": "pilot", "intervention": "baseline"}
    assert (run.agent_name, run.environment_name) == ("reader", "laboratory")
    assert request.case == CASES[0].contract
    assert request.timeout_seconds == 7
    assert run.limits == spending
    assert run.title == f"baseline, {CASES[0].case_id}, 1"
    assert request.trial_id.startswith(f"{planned.trial_id}@")


async def test_the_label_is_the_whole_name_of_the_experiment():
    study = (await Lab().open()).study
    planned = Experiment(CASES[:1], [baseline()], name="pilot/second").trials()[0]
    assert study.request(planned).run_request.labels["experiment"] == "pilot/second"


async def test_the_spec_names_state_mode_and_recall():
    study = (await Lab().open()).study
    off = study.spec(recall_off(), CASES[0], AgentSnapshotTrialStateMode.ACCUMULATE_WITHIN_CANDIDATE)
    assert off.kind is MemoryInterventionKind.AUTOMATIC_RECALL_OFF
    assert off.trial_state_mode is AgentSnapshotTrialStateMode.ACCUMULATE_WITHIN_CANDIDATE
    assert (off.starting_recall_mode, off.trial_recall_mode) == ("strong_matches", "off")
    kept = study.spec(omit_expected(), CASES[0])
    assert kept.trial_recall_policy_fingerprint == kept.starting_recall_policy_fingerprint
    assert kept.trial_state_mode is AgentSnapshotTrialStateMode.RESET_EACH_TRIAL


async def test_an_arm_that_does_not_fit_is_named_with_its_case():
    lab = await Lab(recall=AutomaticRecallPolicy(mode="off")).open()
    with pytest.raises(InvalidInput, match="recall is off already; leave 'recall_off' out"):
        lab.study.check(Experiment(CASES, [baseline(), recall_off()]))
    controls = [Item("q-lamp", "irrelevant", text=f"Note {n}.") for n in range(17)]
    with pytest.raises(InvalidInput, match=r"'irrelevant' does not fit case 'q-lamp': .* 16 items"):
        lab.study.check(Experiment(CASES, [baseline(), inject("irrelevant", controls)]))
    lab.study.check(Experiment(CASES, [baseline(), omit_expected()]))


async def test_the_study_is_of_the_environment_that_is_named():
    lab = Lab()

    def build_app(**given):
        app = lab.build_app(**given)
        spec = EnvironmentSpec(name="second", execution_profile_identity=Gauge().execution_profile_identity)
        app.register_environment(Environment(spec, knowledge_store=given["knowledge_store"]))
        return app

    await lab.open()
    subject = Subject(build_app, "reader", lab.knowledge.bind(SCOPE), environment_name="second")
    study = await MemoryStudy.open(subject, CASES, StudyStores.in_memory(), KEY)
    planned = Experiment(CASES[:1], [baseline()]).trials()[0]
    assert study.request(planned).run_request.environment_name == "second"


async def test_a_session_store_that_keeps_nothing_else_is_refused():
    with pytest.raises(InvalidInput, match="InMemorySessionStore"):
        StudyStores.beside(StudyStores.in_memory().sessions)


async def test_stores_in_one_file_are_closed_twice_and_leave_one_file(tmp_path):
    path = tmp_path / "lab.db"
    stores = StudyStores.in_file(path)
    lab = await Lab(stores=stores).open()
    await run_experiment(Experiment(CASES[:1], [baseline()]), lab.study)
    assert lab.study.executor.durable_state_paths().execution_store == (path.resolve(),)
    await stores.aclose()
    await stores.aclose()
    assert path.exists()


async def test_a_session_store_that_is_open_already_is_used(tmp_path):
    sessions = SQLiteSessionStore(tmp_path / "lab.db")
    stores = StudyStores.beside(sessions)
    assert stores.sessions is sessions
    assert stores.snapshots.durable_state_paths() == stores.executions.durable_state_paths()
    await stores.aclose()


async def test_the_knowledge_file_is_only_read(tmp_path):
    knowledge = SQLiteKnowledgeStore(tmp_path / "knowledge.db")
    lab = await Lab(knowledge=knowledge).open()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    frontier = await knowledge.frontier()
    arms = [baseline(), omit_expected(), inject("irrelevant", [Item("q-door", "irrelevant")]), recall_off()]
    run = await run_experiment(Experiment(CASES, arms), lab.study)
    assert {record.status for record in by_id(run).values()} == {"completed", "not_applicable"}
    assert await knowledge.frontier() == frontier
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name in before} == before
    await knowledge.aclose()


@pytest.mark.slow
async def test_twelve_questions_of_twelve_topics_under_six_arms_twice(tmp_path):
    knowledge = SQLiteKnowledgeStore(tmp_path / "handbook.db")
    await load_handbook(knowledge)
    await knowledge.aclose()
    before = {path.name: file_digest(path.read_bytes()) for path in tmp_path.iterdir()}
    knowledge = SQLiteKnowledgeStore(tmp_path / "handbook.db")
    cases, controls = question_cases(handbook_questions()), handbook_controls()
    chosen = cases[::5]
    assert len({case.topic for case in chosen}) == 12
    stores = StudyStores.in_file(tmp_path / "runs.db")
    subject = Subject(Lab().build_app, "reader", knowledge.bind(READERS))
    study = await MemoryStudy.open(subject, cases, stores, KEY)
    arms = [
        baseline(),
        recall_off(),
        omit_expected(),
        replace_expected(controls),
        inject("irrelevant", controls),
        inject("conflicting", controls),
    ]
    experiment = Experiment(chosen, arms, repeats=2)
    run = await run_experiment(experiment, study)
    assert run.failures == []
    assert len(by_id(run)) == 12 * 6 * 2
    assert set((await started(stores.sessions, run)).values()) == {1}
    await stores.aclose()
    await knowledge.aclose()

    for name, digest in before.items():
        assert file_digest((tmp_path / name).read_bytes()) == digest
    for record in run.records:
        binding = run.bindings[record.trial_id]
        assert binding.proves_no_memory_exposure == (record.exposures == 0)
        if record.intervention == "recall_off":
            assert binding.proves_no_memory_exposure
        if record.intervention == "baseline":
            assert not binding.proves_no_memory_exposure
    found = {effect.intervention: effect for effect in estimate_effects(run)}
    assert list(found) == ["recall_off", "omit_expected", "stale", "irrelevant", "conflicting"]
    assert all((effect.questions, effect.topics) == (12, 12) for effect in found.values())
    assert all(effect.incomparable == effect.unscored == 0 for effect in found.values())
    missing, beside = found["omit_expected"], found["irrelevant"]
    assert missing.high < beside.low
    assert missing.p_holm < 0.05 < beside.p_holm
    assert missing.difference <= -0.5
    assert abs(beside.difference) <= 0.1
    assert found["recall_off"].score == 0.0
    assert found["stale"].difference <= -0.5


async def test_a_study_goes_on_with_an_earlier_snapshot_though_the_memory_has_grown():
    lab = await Lab().open()
    study, subject = lab.study, lab.study.subject
    first = Experiment(CASES[:1], [baseline()], name="night").trials()[0]
    before = await study.executor.execute_trial(study.request(first))
    await lab.knowledge.write(KnowledgeEntry(id="later", text="This was written at midnight."), 0)
    again = await MemoryStudy.open(
        subject, (*CASES, UNKNOWN), lab.stores, KEY, snapshot_fingerprint=study.snapshot.fingerprint
    )
    assert again.snapshot == study.snapshot
    assert "later" not in again.memories
    assert await again.executor.execute_trial(again.request(first)) == before
    anew = await MemoryStudy.open(subject, (*CASES, UNKNOWN), lab.stores, KEY)
    assert anew.snapshot.fingerprint != study.snapshot.fingerprint
    with pytest.raises(SnapshotNotFound):
        await MemoryStudy.open(subject, (*CASES, UNKNOWN), lab.stores, KEY, snapshot_fingerprint="0" * 64)


OWN = {
    "session_store": lambda: StudyStores.in_memory().sessions,
    "budget_ledger": lambda: DocumentBudgetLedger(StudyStores.in_memory().sessions),
    "knowledge_store": lambda: InMemoryKnowledgeStore().bind(SCOPE),
    "recall": lambda: AutomaticRecallPolicy(max_injected_items=1),
}


async def opened(build_app, cases=CASES, **options):
    subject = Subject(build_app, "reader", InMemoryKnowledgeStore().bind(SCOPE))
    return await MemoryStudy.open(subject, cases, StudyStores.in_memory(), KEY, **options)


@pytest.mark.parametrize("name", list(OWN))
async def test_an_application_that_does_not_use_what_it_is_given_is_refused(name):
    with pytest.raises(InvalidInput, match=f"does not use the {name} that it is given"):
        await opened(lambda **given: Lab().build_app(**given | {name: OWN[name]()}))


async def test_an_application_over_the_usual_policy_hard_coded_is_refused():
    """With recall as it is both agree; only switched off it shows."""
    with pytest.raises(InvalidInput, match="does not use the recall that it is given"):
        await opened(lambda **given: Lab().build_app(**given | {"recall": AutomaticRecallPolicy()}))


async def test_a_function_that_builds_nothing_is_refused():
    with pytest.raises(InvalidInput, match="build_app returned a NoneType"):
        await opened(lambda **given: None)


@pytest.mark.parametrize(
    ("name", "part"),
    [("build_app", "app"), ("agent_name", None), ("knowledge", None), ("recall", "off"), ("recall", None)],
)
def test_a_subject_of_other_parts_is_refused(name, part):
    parts = {"build_app": Lab().build_app, "agent_name": "reader", "knowledge": InMemoryKnowledgeStore().bind(SCOPE)}
    with pytest.raises(InvalidInput, match=f"{name} of a Subject is .*, not a {type(part).__name__}"):
        Subject(**parts | {name: part})


async def test_what_a_study_cannot_be_opened_with_is_refused():
    for cases in ([], ["q-door"]):
        with pytest.raises(InvalidInput, match="at least one EvalCase"):
            await opened(Lab().build_app, cases)
    with pytest.raises(InvalidInput, match="'loosely' is no scoring; there are exact, contains"):
        await opened(Lab().build_app, scoring="loosely")
    subject = Subject(Lab().build_app, "reader", InMemoryKnowledgeStore().bind(SCOPE))
    with pytest.raises(InvalidInput, match="not a bytes"):
        await MemoryStudy.open(subject, CASES, StudyStores.in_memory(), b"a secret")


SETS = """
from cayu.evals import EvalCase
from cayu.knowledge import KnowledgeAccessScope
from cayu.snapshots.records import scope_fingerprint

names = {f"name-{n}" for n in range(12)}
scope = KnowledgeAccessScope(
    allowed_namespaces=names,
    allowed_visibilities=frozenset(names),
    allowed_source_types=names,
    allowed_source_ids=names,
    allowed_statuses=names,
)
case = EvalCase(case_id="c", question="?", expected_answer="!", expected_entries=names)
print(scope_fingerprint(scope), case.contract.case_revision)
"""


@pytest.mark.slow
def test_sets_have_the_same_fingerprint_in_every_process():
    command = [sys.executable, "-c", SETS]
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONHASHSEED": seed})
        for seed in ("1", "2", "3")
    ]
    told = [child.communicate(timeout=60)[0].split() for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(told[0]) == 2
    assert told[0] == told[1] == told[2]
