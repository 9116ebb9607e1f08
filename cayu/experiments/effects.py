"""What each intervention did to the score: paired differences by question, with errors that respect their topics.

After Miller (2024), "Adding Error Bars to Evals": repeats are averaged within a question, a question is compared with
itself under the baseline, and the standard error of the mean difference is clustered by topic, with the regression's
small-sample correction and Student's t over the topics. The p-value is of a permutation test that flips the signs of
whole topics, corrected over the interventions by Holm's method. The statistics are those of statsmodels and scipy.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cayu.errors import InvalidInput
from cayu.experiments.sweep import ExperimentRun, Pair
from cayu.messages import Frozen

LEVEL = 0.95
"""Of the intervals."""
POWER = 0.8
"""With which the smallest detectable effect would have been found."""
VANISHING = 1e-9
"""A standard error below this is none."""
PLACES = 12
"""Decimal places of a difference; what is beyond them is rounding."""
RESAMPLES = 9999
"""Permutations at most; with fewer than 14 topics all of them are taken."""


class Effect(Frozen):
    """One intervention against the baseline."""

    intervention: str
    questions: int
    """That both arms have a score for."""
    topics: int
    baseline: float | None = None
    """Mean score of these questions without the intervention, from 0 to 1."""
    score: float | None = None
    difference: float | None = None
    """Mean of the questions' differences, from -1 to 1; below zero when the intervention costs score."""
    standard_error: float | None = None
    """Of the difference, clustered by topic; by question where there is one topic, or differences cancel out within
    each. 0 when all questions differ alike: then nothing is known of how others would."""
    low: float | None = None
    """Ends of the 95 % interval."""
    high: float | None = None
    p_value: float | None = None
    """That signs of whole topics make a difference as large; with fewer than 6 topics it cannot be below 5 %."""
    p_holm: float | None = None
    """Corrected over all interventions of the experiment."""
    smallest_detectable: float | None = None
    """The effect that a design of this standard error finds four times in five, at the 5 % level without correction;
    missing when the standard error is 0."""
    incomparable: int = 0
    """Pairs of trials that were left out, since they differ in more than the intervention."""
    unscored: int = 0
    """Pairs of trials that were left out, since one of them has no score."""
    reasons: tuple[str, ...] = ()
    """Why pairs are not comparable."""


class Question(NamedTuple):
    """One question's means over its repeats."""

    topic: str
    baseline: float
    score: float

    @property
    def difference(self) -> float:
        """What the intervention changed."""
        return self.score - self.baseline


def estimate_effects(run: ExperimentRun) -> tuple[Effect, ...]:
    """Return the effect of each intervention, in the order of the experiment."""
    arms: dict[str, list[Pair]] = {
        arm.name: [] for arm in run.experiment.interventions if arm.name != run.experiment.baseline.name
    }
    for pair in run.pairs():
        arms[pair.intervention.intervention].append(pair)
    found = [_effect(name, pairs, run.experiment.seed) for name, pairs in arms.items()]
    return _corrected(found)


def estimate(differences: Sequence[float], topics: Sequence[str], seed: int = 0) -> dict[str, float]:
    """Return the statistics of paired differences, one per question, clustered by their topics.

    With a single topic each question is taken for a topic of its own. `smallest_detectable` is missing when all
    questions differ alike. Raises `InvalidInput` for fewer than two questions.
    """
    if len(differences) < 2 or len(differences) != len(topics) or not all(map(math.isfinite, differences)):
        raise InvalidInput("Effects are estimated from at least two finite differences, each with its topic.")
    import numpy as np
    from scipy import stats

    values = np.round(np.asarray(differences, dtype=float), PLACES)
    groups = np.unique(np.asarray(topics if len(set(topics)) > 1 else range(len(values))), return_inverse=True)[1]
    degrees = int(groups.max())
    mean = float(values.mean())
    if np.ptp(values) == 0.0:
        error, low, high = 0.0, mean, mean
    else:
        fitted = _fitted(values, groups)
        if fitted.bse[0] < VANISHING:  # what differs cancels out within every topic, which says nothing of others
            degrees = len(values) - 1
            fitted = _fitted(values, np.arange(len(values)))
        error = float(fitted.bse[0])
        low, high = (float(end) for end in fitted.conf_int(alpha=1 - LEVEL)[0])
    sums = np.bincount(groups, weights=values)
    tested = stats.permutation_test(
        (sums,),
        lambda flipped, axis: flipped.mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(seed),
    )
    reach = float(stats.t.ppf((1 + LEVEL) / 2, degrees) + stats.t.ppf(POWER, degrees))
    found = {"difference": mean, "standard_error": error, "low": low, "high": high}
    found["p_value"] = float(tested.pvalue) if values.any() else 1.0
    return found | ({"smallest_detectable": reach * error} if error > 0 else {})


def _fitted(values: Any, groups: Any) -> Any:
    """Return the regression of differences on their mean, with an error clustered by `groups`."""
    import numpy as np
    from statsmodels.regression.linear_model import OLS

    clusters = {"groups": groups, "df_correction": True}
    return OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds=clusters, use_t=True)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method, in their order."""
    from statsmodels.stats.multitest import multipletests

    return [float(p) for p in multipletests(p_values, method="holm")[1]] if p_values else []


def questions(pairs: Sequence[Pair]) -> dict[str, Question]:
    """Return the means of each question's comparable pairs, by case id."""
    by_case: defaultdict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        if not pair.mismatches and pair.difference is not None:
            by_case[pair.baseline.case_id].append(pair)
    return {name: _question(found) for name, found in sorted(by_case.items())}


def _question(pairs: Sequence[Pair]) -> Question:
    count = len(pairs)
    return Question(
        pairs[0].baseline.topic,
        math.fsum(pair.baseline.score or 0.0 for pair in pairs) / count,
        math.fsum(pair.intervention.score or 0.0 for pair in pairs) / count,
    )


def _effect(name: str, pairs: Sequence[Pair], seed: int) -> Effect:
    asked = list(questions(pairs).values())
    known: dict[str, Any] = {
        "intervention": name,
        "questions": len(asked),
        "topics": len({question.topic for question in asked}),
        "incomparable": sum(bool(pair.mismatches) for pair in pairs),
        "unscored": sum(not pair.mismatches and pair.difference is None for pair in pairs),
        "reasons": tuple(sorted({str(reason) for pair in pairs for reason in pair.mismatches})),
    }
    if asked:
        known["baseline"] = math.fsum(question.baseline for question in asked) / len(asked)
        known["score"] = math.fsum(question.score for question in asked) / len(asked)
        known["difference"] = round(known["score"] - known["baseline"], PLACES)
    if len(asked) > 1:
        known |= estimate([question.difference for question in asked], [question.topic for question in asked], seed)
    return Effect(**known)


def _corrected(found: Sequence[Effect]) -> tuple[Effect, ...]:
    tested = {effect.intervention: effect.p_value for effect in found if effect.p_value is not None}
    corrected: Mapping[str, float] = dict(zip(tested, holm(list(tested.values())), strict=True))
    return tuple(effect.model_copy(update={"p_holm": corrected.get(effect.intervention)}) for effect in found)
