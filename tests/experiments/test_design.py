"""An experiment as a value: what is refused, and trials that are the same wherever they are planned."""

import json
import subprocess
import sys
from collections import Counter

import pytest
from experiments.support import CASES, KEY, Lab, arm

from cayu.errors import InvalidInput
from cayu.evals import EvalCase
from cayu.experiments import Experiment, baseline, omit, recall_off
from cayu.interventions.specs import MemoryInterventionKind

ARMS = (baseline(), omit("door"), recall_off())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cases": []}, "at least one of its cases"),
        ({"interventions": []}, "at least one of its interventions"),
        ({"interventions": [recall_off()]}, "exactly one baseline"),
        ({"interventions": [baseline(), arm("baseline")]}, "named"),
        ({"interventions": [baseline(), arm("a"), arm("a")]}, "named"),
        ({"cases": [CASES[0], CASES[0]]}, "named"),
        ({"repeats": 0}, "repeats"),
        ({"repeats": -1}, "repeats"),
        ({"repeats": True}, "repeats"),
        ({"repeats": 1.0}, "repeats"),
        ({"repeats": "2"}, "repeats"),
        ({"seed": True}, "seed"),
        ({"seed": 1.0}, "seed"),
    ],
)
def test_a_design_that_says_nothing_sure_is_refused(changed, words):
    with pytest.raises(InvalidInput, match=words):
        Experiment(**{"cases": CASES, "interventions": ARMS, **changed})


def test_names_too_long_for_an_id_are_refused():
    with pytest.raises(InvalidInput, match="shorten the names"):
        Experiment(CASES, ARMS, name="n" * 250)


def test_two_baselines_are_refused_under_any_names():
    second = type(ARMS[0])("another", MemoryInterventionKind.AS_DECLARED)
    with pytest.raises(InvalidInput, match="exactly one baseline"):
        Experiment(CASES, [*ARMS, second])


def test_two_cases_of_one_id_are_refused_even_with_other_content():
    twin = EvalCase(case_id=CASES[0].case_id, question="Another question?", expected_answer="x")
    with pytest.raises(InvalidInput, match="named"):
        Experiment([*CASES, twin], ARMS)


def test_a_refused_name_is_quoted():
    with pytest.raises(InvalidInput, match="'q-door'"):
        Experiment([CASES[0], CASES[0]], ARMS)


def test_the_baseline_is_found_wherever_it_stands():
    assert Experiment(CASES, ARMS[::-1]).baseline.name == "baseline"


def test_later_changes_of_the_callers_lists_change_nothing():
    cases, arms = list(CASES), list(ARMS)
    experiment = Experiment(cases, arms)
    cases.clear()
    arms.clear()
    assert len(experiment.trials()) == len(CASES) * len(ARMS)


def test_every_case_is_tried_under_every_arm_in_every_repeat_once():
    trials = Experiment(CASES, ARMS, repeats=3).trials()
    counted = Counter((trial.case.case_id, trial.intervention.name, trial.repeat) for trial in trials)
    expected = {(case.case_id, arm.name, repeat) for case in CASES for arm in ARMS for repeat in (1, 2, 3)}
    assert set(counted) == expected
    assert set(counted.values()) == {1}
    assert len({trial.trial_id for trial in trials}) == len(trials)


def test_the_seed_decides_the_order_and_is_part_of_the_ids():
    def planned(seed):
        trials = Experiment(CASES, ARMS, repeats=2, seed=seed).trials()
        return [(trial.case.case_id, trial.intervention.name, trial.repeat) for trial in trials], {
            trial.trial_id for trial in trials
        }

    order, ids = planned(1)
    assert (order, ids) == planned(1)
    other, others = planned(2)
    assert order != other
    assert sorted(order) == sorted(other)
    assert ids.isdisjoint(others)


def test_the_order_is_mixed_and_not_arm_after_arm():
    cases = [EvalCase(case_id=f"q{n}", question="?", expected_answer="!") for n in range(40)]
    first = Experiment(cases, ARMS).trials()[: len(cases)]
    counted = Counter(trial.intervention.name for trial in first)
    assert min(counted[arm.name] for arm in ARMS) >= 5
    assert [trial.case.case_id for trial in first] != [case.case_id for case in cases]


def test_names_with_a_slash_do_not_make_two_trials_one():
    cases = [EvalCase(case_id=name, question="?", expected_answer="!") for name in ("a", "a/b")]
    trials = Experiment(cases, [baseline(), arm("b/c"), arm("c")]).trials()
    assert len({trial.trial_id for trial in trials}) == len(trials)


PLAN = """
import asyncio, json
from experiments.support import CASES, Lab
from cayu.experiments import Experiment, baseline, omit, recall_off

async def main():
    lab = await Lab().open()
    trials = Experiment(CASES, [baseline(), omit("door"), recall_off()], repeats=2, seed=7).trials()
    requests = [lab.study.request(trial) for trial in trials]
    print(json.dumps([[r.trial_id, r.execution_id, r.session_id, r.causal_budget_id] for r in requests]))

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.requirement("B026")
async def test_the_ids_of_trials_are_the_same_in_two_processes(pytestconfig):
    done = subprocess.run(
        [sys.executable, "-c", PLAN],
        capture_output=True,
        check=True,
        text=True,
        env={"PYTHONPATH": f"{pytestconfig.rootpath / 'tests'}:{pytestconfig.rootpath}", "PYTHONHASHSEED": "17"},
    )
    lab = await Lab().open()
    trials = Experiment(CASES, ARMS, repeats=2, seed=7).trials()
    requests = [lab.study.request(trial) for trial in trials]
    assert json.loads(done.stdout) == [[r.trial_id, r.execution_id, r.session_id, r.causal_budget_id] for r in requests]
    assert len({r.execution_id for r in requests}) == len(requests)
    assert len({KEY.fingerprint(r) for r in requests}) == len(requests)
