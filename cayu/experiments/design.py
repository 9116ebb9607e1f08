"""An experiment as a value: every case under every arm, several times, with the same trials whenever it is asked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from cayu.errors import InvalidInput
from cayu.evals.cases import EvalCase
from cayu.evals.fields import MAX_ID_CHARS
from cayu.experiments.arms import Intervention, check_name
from cayu.interventions.specs import MemoryInterventionKind

MOST_REPEATS = 1000
CONTENT_CHARS = 12
"""Characters by which an executed trial's id is longer than the planned one: they follow from what is asked."""
MOST_TRIAL_ID_CHARS = MAX_ID_CHARS - CONTENT_CHARS - 1


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """One case under one arm, once."""

    case: EvalCase
    intervention: Intervention
    repeat: int
    """From 1."""
    trial_id: str
    experiment: str
    """The experiment's name."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """Cases under interventions. Raises `InvalidInput` unless exactly one arm is a baseline and all names differ."""

    cases: Sequence[EvalCase]
    interventions: Sequence[Intervention]
    repeats: int = 1
    """Trials of each case under each arm; their differences are averaged before anything is compared."""
    seed: int = 0
    """Part of the trials' ids, and decides their order."""
    name: str = field(default="experiment")

    def __post_init__(self) -> None:
        """Check the design."""
        object.__setattr__(self, "cases", tuple(self.cases))
        object.__setattr__(self, "interventions", tuple(self.interventions))
        _check_members(self.cases, EvalCase, "cases", "such as those of question_cases(...)")
        _check_members(self.interventions, Intervention, "interventions", "such as baseline(), with its parentheses")
        if type(self.repeats) is not int or not 1 <= self.repeats <= MOST_REPEATS:
            raise InvalidInput(f"repeats is a whole number from 1 to {MOST_REPEATS}.")
        if type(self.seed) is not int or self.seed < 0:
            raise InvalidInput("seed is a whole number from 0 on.")
        names = {"cases": [case.case_id for case in self.cases]}
        names["interventions"] = [arm.name for arm in self.interventions]
        for what, listed in names.items():
            double = next((name for name in listed if listed.count(name) > 1), None)
            if double is not None:
                raise InvalidInput(f"Two {what} are named {double!r}; give each its own name.")
        check_name("An experiment", self.name)
        if [arm.kind for arm in self.interventions].count(MemoryInterventionKind.AS_DECLARED) != 1:
            raise InvalidInput("An experiment has exactly one baseline; add baseline() to its interventions.")
        longest = max(len(self._trial_id(case, arm, self.repeats)) for case in self.cases for arm in self.interventions)
        if longest > MOST_TRIAL_ID_CHARS:
            words = f"are up to {longest} characters long, and may have {MOST_TRIAL_ID_CHARS}"
            raise InvalidInput(f"The trials' ids {words}; shorten the names of experiment, cases and interventions.")

    @property
    def baseline(self) -> Intervention:
        """The arm that the others are compared with."""
        return next(arm for arm in self.interventions if arm.kind is MemoryInterventionKind.AS_DECLARED)

    def trials(self) -> tuple[PlannedTrial, ...]:
        """Return every trial in the order in which they are run.

        The arms of one case and repeat come together, and these blocks are shuffled: a part of the run can be compared
        and is a fair sample of all.
        """
        order = random.Random(self.seed)  # noqa: S311 - an order, and no secret
        blocks = [(case, repeat) for repeat in range(1, self.repeats + 1) for case in self.cases]
        order.shuffle(blocks)
        return tuple(
            PlannedTrial(case, arm, repeat, self._trial_id(case, arm, repeat), self.name)
            for case, repeat in blocks
            for arm in order.sample(self.interventions, len(self.interventions))
        )

    def _trial_id(self, case: EvalCase, arm: Intervention, repeat: int) -> str:
        """Return a trial's id, in which no name can pass for two."""
        parts = (self.name, str(self.seed), case.case_id, arm.name, str(repeat))
        return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)


def _check_members(members: Sequence[object], kind: type, what: str, example: str) -> None:
    if not members or not all(isinstance(member, kind) for member in members):
        raise InvalidInput(f"An experiment has at least one of its {what}, {example}.")
