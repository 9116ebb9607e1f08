"""What the guide to memory experiments says of phases, statuses, places and bounds is what the code does."""

from __future__ import annotations

import re

from guides.reading import guide

from cayu.benchmarks.memory_trials import make_parser
from cayu.crashpoints import CRASH_POINTS
from cayu.evals.scoring import AnswerScoring
from cayu.experiments.effects import Effect
from cayu.interventions.comparability import MemoryInterventionMismatch
from cayu.interventions.ownership import DEFAULT_LEASE_SECONDS
from cayu.interventions.phases import FAILURE_OF, STATUSES_IN
from cayu.interventions.phases import MemoryInterventionExecutionPhase as Phase
from cayu.interventions.phases import MemoryInterventionExecutionStatus as Status
from cayu.interventions.requests import (
    MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES,
    MEMORY_INTERVENTION_EXECUTION_MAX_TIMEOUT_SECONDS,
    MIN_SECRET_BYTES,
    MemoryInterventionTrialRequest,
)
from cayu.interventions.specs import MemoryInterventionBounds, MemoryInterventionKind, MemoryNegativeControlKind
from cayu.memory.runner import MOST_PROJECTION_BYTES
from cayu.recall import AutomaticRecallMode, AutomaticRecallPolicy
from cayu.snapshots import AgentSnapshotTrialStateMode
from cayu.storage import handbook_controls, handbook_entries, handbook_questions

EXPERIMENTS = guide("memory-experiments")
PLACES = ("trial.", "overlay.", "materialization.")


def section(title: str) -> str:
    """One section of the second level, with its lines joined."""
    found = EXPERIMENTS.text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert found, f"the guide has no section {title!r}"
    return found


def prose(title: str) -> str:
    """The words of a section, on one line."""
    return " ".join(section(title).split())


def rows(title: str, number: int = 0) -> list[list[str]]:
    """The rows of one table of a section, as cells without backticks, without the head."""
    tables = re.findall(r"(?:^\|.*\|\n?)+", section(title), re.MULTILINE)
    lines = tables[number].splitlines()[2:]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


def named(title: str, number: int = 0) -> list[str]:
    """The first word of each row of a table."""
    return [cells[0].split()[0] for cells in rows(title, number)]


def test_the_modes_of_recall_are_all_there_with_their_bounds() -> None:
    assert named("Automatic recall") == list(AutomaticRecallMode)
    policy = AutomaticRecallPolicy()
    told = prose("Automatic recall")
    assert f"`minimum_inject_score` ({policy.minimum_inject_score})" in told
    assert f"`minimum_offer_score` ({policy.minimum_offer_score})" in told
    assert f"`timeout_seconds` ({policy.timeout_seconds:g})" in told
    assert f"`{policy.mode}` (the default)" in told


def test_the_handbook_is_as_large_as_told() -> None:
    told = prose("A first experiment")
    questions = handbook_questions()
    topics = {question.topic for question in questions}
    assert f"{len(handbook_entries())} entries, {len(questions)} questions in {len(topics)} topics" in told
    assert len(handbook_controls()) == 4 * len(questions)


def test_every_kind_of_intervention_and_control_is_explained() -> None:
    assert named("Your own agent") == list(MemoryInterventionKind)
    told = prose("Your own agent")
    assert all(f"`{kind}`" in told for kind in (*MemoryNegativeControlKind, *AnswerScoring))
    bounds = MemoryInterventionBounds()
    assert f"at most {bounds.max_changed_items} items, with {bounds.max_fixture_bytes // 1024} KiB" in told


def test_the_seven_phases_stand_in_their_order() -> None:
    assert named("One trial", 0) == list(Phase)


def test_each_status_stands_with_its_failure_code() -> None:
    shown = {cells[0]: cells[1] or None for cells in rows("One trial", 1)}
    assert shown == {str(status): code for status, code in FAILURE_OF.items()}
    assert list(shown) == list(Status)


def test_the_statuses_that_end_early_are_those_told() -> None:
    assert STATUSES_IN[Phase.EFFECT_RESOLVED] - {Status.ACTIVE} == set(list(Status)[-2:])
    assert "these two end at `effect_resolved`" in prose("One trial")


def test_every_place_of_a_trial_is_named_once() -> None:
    named_places = named("When it is cut off")
    assert sorted(named_places) == sorted(place for place in CRASH_POINTS if place.startswith(PLACES))
    trial = [place for place in named_places if place.startswith("trial.")]
    assert trial == [place for place in CRASH_POINTS if place.startswith("trial.")]


def test_the_bounds_are_those_of_the_code() -> None:
    default = MemoryInterventionTrialRequest.model_fields["timeout_seconds"].default
    told = prose("When it is cut off")
    assert f"a lease of {DEFAULT_LEASE_SECONDS:g} s" in told
    assert f"(`timeout_seconds`, {default}, from the claim on)" in told
    told = prose("Sizes and speed")
    assert MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES == 1 << 20
    assert "has at most 1 MiB" in told
    assert f"{MOST_PROJECTION_BYTES // 1024} KiB" in told
    assert f"{MEMORY_INTERVENTION_EXECUTION_MAX_TIMEOUT_SECONDS} s" in told
    assert MIN_SECRET_BYTES == 16


def test_every_mismatch_and_state_mode_is_explained() -> None:
    assert named("What is compared") == list(MemoryInterventionMismatch)
    assert named("Isolation") == list(AgentSnapshotTrialStateMode)


def test_the_statistics_named_are_those_of_an_effect() -> None:
    told = section("What the numbers say")
    fields = ("low", "high", "p_holm", "smallest_detectable")
    assert all(f"`{name}`" in told for name in fields)
    assert set(fields) <= set(Effect.model_fields)


def test_the_benchmark_takes_the_arguments_shown() -> None:
    shown = [command.split() for command in EXPERIMENTS.commands]
    assert len(shown) == 2
    for words in shown:
        assert words[:3] == ["python", "-m", "cayu.benchmarks.memory_trials"]
        make_parser().parse_args(words[3:])
