"""An experiment as a value: every case under every arm, several times, with the same trials whenever it is asked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from cayu.errors import InvalidInput
from cayu.evals.cases import EvalCase
from cayu.evals.fields import MAX_ID_CHARS
from cayu.experiments.arms import Intervention
from cayu.interventions.specs import MemoryInterventionKind


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
        if not self.cases:
            raise InvalidInput("An experiment needs at least one case.")
        if type(self.repeats) is not int or self.repeats < 1 or type(self.seed) is not int:
            raise InvalidInput("repeats is a whole number from 1 on, and seed a whole number.")
        for what, names in (
            ("cases", [case.case_id for case in self.cases]),
            ("interventions", [arm.name for arm in self.interventions]),
        ):
            double = next((name for name in names if names.count(name) > 1), None)
            if double is not None:
                raise InvalidInput(f"Two {what} are named {double!r}; give each its own name.")
        if [arm.kind for arm in self.interventions].count(MemoryInterventionKind.AS_DECLARED) != 1:
            raise InvalidInput("An experiment has exactly one baseline; add baseline() to its interventions.")
        longest = max(len(trial.trial_id) for trial in self.trials())
        if longest > MAX_ID_CHARS:
            words = f"are up to {longest} characters long, and may have {MAX_ID_CHARS}"
            raise InvalidInput(
                f"The ids of the trials {words}; shorten the names of experiment, cases and interventions."
            )

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
