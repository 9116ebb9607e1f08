"""What each arm does to the memory of a case: its changes, and the cases to which it does nothing."""

import pytest
from experiments.support import CASES, ENTRIES, UNKNOWN, Item, Lab

from cayu.errors import InvalidInput
from cayu.evals import EvalCase
from cayu.experiments import (
    Experiment,
    Intervention,
    baseline,
    inject,
    omit,
    omit_expected,
    recall_off,
    replace_expected,
)
from cayu.interventions.specs import MemoryInterventionKind as Kind
from cayu.interventions.specs import MemoryNegativeControlKind as Control
from cayu.storage import handbook_controls, handbook_entries, handbook_questions

MEMORIES = {entry.id: entry.model_copy(update={"revision": n}) for n, entry in enumerate(ENTRIES, 3)}
DOOR, LAMP, KEY_CASE = CASES
BOTH = EvalCase(case_id="both", question="?", expected_answer="!", expected_entries=("lamp", "door"))
CONTROLS = [Item(case.case_id, kind, text=f"{kind} {case.case_id}") for case in (DOOR, LAMP) for kind in Control]


def only_change(arm, case):
    (change,) = arm.changes(case, MEMORIES)
    return change


@pytest.mark.parametrize("arm", [baseline(), recall_off()])
@pytest.mark.parametrize("case", [*CASES, UNKNOWN])
def test_arms_that_leave_the_memory_apply_to_every_case(arm, case):
    assert list(arm.changes(case, MEMORIES)) == []
    assert arm.applies_to(case, MEMORIES)
    assert arm.control is None


def test_the_kinds_and_names_of_the_arms():
    arms = [
        baseline(),
        recall_off(),
        omit_expected(),
        omit("a", "b"),
        replace_expected(CONTROLS),
        inject("irrelevant", CONTROLS),
        inject(Control.ADVERSARIAL, CONTROLS, "trick"),
    ]
    assert [(arm.name, arm.kind) for arm in arms] == [
        ("baseline", Kind.AS_DECLARED),
        ("recall_off", Kind.AUTOMATIC_RECALL_OFF),
        ("omit_expected", Kind.OMIT_ITEMS),
        ("omit a, b", Kind.OMIT_ITEMS),
        ("stale", Kind.REPLACE_ITEMS),
        ("irrelevant", Kind.NEGATIVE_CONTROL),
        ("trick", Kind.NEGATIVE_CONTROL),
    ]


def test_omit_expected_names_the_standing_revisions_of_the_answers():
    change = only_change(omit_expected(), LAMP)
    assert (change.entry_id, change.revision, change.fixture) == ("lamp", MEMORIES["lamp"].revision, None)
    both = omit_expected().changes(BOTH, MEMORIES)
    assert [change.entry_id for change in both] == ["lamp", "door"]


def test_omit_expected_does_not_apply_to_a_case_without_a_memory():
    assert not omit_expected().applies_to(UNKNOWN, MEMORIES)


@pytest.mark.parametrize("arm", [omit_expected(), omit("gone"), replace_expected([Item("lost", "stale")])])
def test_an_entry_that_is_not_in_the_memory_is_refused_by_its_id(arm):
    lost = EvalCase(case_id="lost", question="?", expected_answer="!", expected_entries=("gone",))
    with pytest.raises(InvalidInput, match="'gone'"):
        arm.changes(lost, MEMORIES)


def test_omit_takes_the_same_entries_out_in_every_case():
    arm = omit("cat", "door", name="two")
    found = [arm.changes(case, MEMORIES) for case in (*CASES, UNKNOWN)]
    assert [change.entry_id for change in found[0]] == ["cat", "door"]
    assert all(changes == found[0] for changes in found)
    assert arm.name == "two"


def test_omit_needs_an_entry():
    with pytest.raises(InvalidInput, match="at least one entry"):
        omit()


def test_replace_expected_puts_the_stale_control_where_the_answer_stood():
    change = only_change(replace_expected(CONTROLS), DOOR)
    assert (change.entry_id, change.revision) == ("door", MEMORIES["door"].revision)
    assert change.fixture is not None
    assert change.fixture.text == "stale q-door"


def test_replace_expected_takes_the_first_of_several_stale_controls():
    controls = [Item(DOOR.case_id, "stale", text="first"), Item(DOOR.case_id, "stale", text="second")]
    assert only_change(replace_expected(controls), DOOR).fixture.text == "first"


def test_replace_expected_does_not_apply_without_a_control_or_without_a_memory():
    arm = replace_expected([*CONTROLS, Item(UNKNOWN.case_id, "stale")])
    assert not arm.applies_to(KEY_CASE, MEMORIES)
    assert not arm.applies_to(UNKNOWN, MEMORIES)
    assert arm.applies_to(DOOR, MEMORIES)


@pytest.mark.parametrize("kind", list(Control))
def test_inject_puts_in_a_new_item_of_the_kind(kind):
    arm = inject(kind, CONTROLS)
    change = only_change(arm, LAMP)
    assert arm.control is kind
    assert change.revision == 0
    assert change.entry_id not in MEMORIES
    assert change.fixture is not None
    assert change.fixture.text == f"{kind} q-lamp"
    assert not arm.applies_to(KEY_CASE, MEMORIES)


def test_inject_puts_in_all_items_of_a_case_under_ids_of_their_own():
    controls = [Item(DOOR.case_id, "conflicting", text=text) for text in ("one", "two", "three")]
    changes = inject("conflicting", controls).changes(DOOR, MEMORIES)
    assert [change.fixture.text for change in changes] == ["one", "two", "three"]
    assert len({change.entry_id for change in changes}) == 3


def test_a_fixture_is_what_the_control_says():
    control = Item(DOOR.case_id, "irrelevant", "Title", "Text", "safety", {"site": "north"})
    fixture = only_change(inject("irrelevant", [control]), DOOR).fixture
    assert fixture is not None
    assert (fixture.title, fixture.text, fixture.namespace) == ("Title", "Text", "safety")
    assert fixture.labels == {"site": "north"}


def test_controls_of_no_such_kind_are_refused():
    with pytest.raises(InvalidInput, match="stale"):
        replace_expected([Item(DOOR.case_id, "irrelevant")])
    with pytest.raises(InvalidInput, match="adversarial"):
        inject("adversarial", [Item(DOOR.case_id, "irrelevant")])


def test_a_kind_that_is_none_is_refused():
    with pytest.raises((InvalidInput, ValueError), match="mysterious"):
        inject("mysterious", CONTROLS)


def test_the_same_changes_whenever_asked_even_of_a_generator():
    for arm in (inject("stale", iter(CONTROLS)), replace_expected(iter(CONTROLS))):
        assert arm.changes(DOOR, MEMORIES) == arm.changes(DOOR, MEMORIES)
        assert arm.applies_to(LAMP, MEMORIES)


async def test_every_arm_makes_a_spec_that_the_executor_admits():
    study = (await Lab().open()).study
    arms = [baseline(), recall_off(), omit_expected(), omit("cat"), replace_expected(CONTROLS)]
    arms += [inject(kind, CONTROLS, f"inject {kind}") for kind in Control]
    for trial in Experiment([DOOR, LAMP], arms).trials():
        request = study.request(trial)
        assert request.spec.kind is trial.intervention.kind
        assert request.candidate_id == trial.intervention.name
        assert request.spec.negative_control_kind is trial.intervention.control
        off = trial.intervention.kind is Kind.AUTOMATIC_RECALL_OFF
        assert (request.spec.trial_recall_mode == "off") is off


def test_the_handbook_has_each_control_for_each_question():
    memories = {entry.id: entry for entry in handbook_entries()}
    controls = handbook_controls()
    arms = [replace_expected(controls), omit_expected(), *(inject(kind, controls) for kind in Control)]
    for question in handbook_questions():
        case = EvalCase(
            case_id=question.id,
            question=question.question,
            expected_answer=question.answer,
            expected_entries=question.expected_entries,
        )
        assert all(arm.applies_to(case, memories) for arm in arms)


@pytest.mark.parametrize("name", ["", " ", " arm", "arm ", "arm\n", "a\tb", "a\x1b[31m", "a\u202eb", None, 1])
def test_a_name_that_cannot_stand_in_an_id_is_refused(name):
    with pytest.raises(InvalidInput, match="printable name without space at its ends"):
        Intervention(name, Kind.AS_DECLARED)
    if name:
        with pytest.raises(InvalidInput, match="printable name"):
            omit("cat", name=name)


def test_a_kind_of_arm_that_is_none_is_refused_and_a_word_for_one_is_taken():
    with pytest.raises(InvalidInput, match="'mysterious' is no kind of intervention; kinds: as_declared"):
        Intervention("arm", "mysterious")
    assert Intervention("arm", "omit_items").kind is Kind.OMIT_ITEMS


def test_a_kind_of_control_that_is_none_is_refused_with_those_there_are():
    with pytest.raises(InvalidInput, match=r"'mysterious' is no kind of control; kinds: .*irrelevant"):
        inject("mysterious", CONTROLS)
