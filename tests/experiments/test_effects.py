"""The statistics of an experiment against values worked out by hand, their edges, and their promises by simulation."""

import itertools
import math
import random
from collections import defaultdict

import numpy as np
import pytest
from experiments.support import made_run
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cayu.errors import InvalidInput
from cayu.experiments import Effect, estimate, estimate_effects, holm
from cayu.interventions.specs import MemoryInterventionKind

pytestmark = pytest.mark.exhaustive

NUMBERS = ("baseline", "score", "difference", "standard_error", "low", "high", "p_value", "smallest_detectable")
UNEQUAL = (
    [0.4, -0.1, 0.3, 0.0, -0.6, 0.2, 0.5, 0.9, -0.2, 0.1, 0.0],
    ["a", "a", "a", "a", "b", "c", "c", "d", "d", "e", "e"],
)
EQUAL = ([-1.0, -0.5, 0.0, -0.5, -1.0, -1.0, 0.5, -0.5], ["a", "a", "b", "b", "c", "c", "d", "d"])
SINGLE = ([0.1, 0.4, -0.2, 0.3, 0.3, 0.8], ["only"] * 6)
OWN = ([0.1, 0.4, -0.2, 0.3, 0.3, 0.8], list("abcdef"))
TWO = ([0.2, -0.7], ["a", "b"])
SAMPLES = {"unequal": UNEQUAL, "equal": EQUAL, "one topic": SINGLE, "own topics": OWN, "two questions": TWO}
samples = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)


def clusters(differences, topics):
    """The differences of each topic; of one topic alone, each is one of its own."""
    found = defaultdict(list)
    for n, (difference, topic) in enumerate(zip(differences, topics, strict=True)):
        found[topic if len(set(topics)) > 1 else n].append(difference)
    return list(found.values())


def clustered_error(differences, topics):
    """CR1 of a mean: G/(G-1) times the sum over topics of the squared sum of residuals, over n squared, rooted."""
    n, mean, groups = len(differences), math.fsum(differences) / len(differences), clusters(differences, topics)
    squares = math.fsum(math.fsum(value - mean for value in group) ** 2 for group in groups)
    return math.sqrt(len(groups) / (len(groups) - 1) * squares) / n


def flipped_share(differences, topics):
    """The share of all flips of whole topics' signs that give a mean as far from zero as the one that was seen."""
    sums = [math.fsum(group) for group in clusters(differences, topics)]
    seen = abs(math.fsum(sums)) - 1e-9
    flips = list(itertools.product((1, -1), repeat=len(sums)))
    return sum(abs(math.fsum(s * f for s, f in zip(sums, flip, strict=True))) >= seen for flip in flips) / len(flips)


@samples
def test_the_mean_and_its_clustered_error_are_those_of_the_formula(sample):
    found = estimate(*sample)
    assert found["difference"] == pytest.approx(sum(sample[0]) / len(sample[0]))
    assert found["standard_error"] == pytest.approx(clustered_error(*sample))


@samples
def test_the_interval_is_students_over_the_topics(sample):
    found = estimate(*sample)
    half = stats.t.ppf(0.975, len(clusters(*sample)) - 1) * clustered_error(*sample)
    assert (found["low"], found["high"]) == pytest.approx((found["difference"] - half, found["difference"] + half))


def test_the_interval_by_a_printed_table():
    """Four topics have three degrees of freedom, for which tables give 3.182."""
    found = estimate(*EQUAL)
    assert (found["high"] - found["low"]) / 2 == pytest.approx(3.182 * found["standard_error"], rel=1e-3)


@samples
def test_the_p_value_is_the_share_of_sign_flips(sample):
    assert estimate(*sample)["p_value"] == pytest.approx(flipped_share(*sample))


def test_the_p_value_by_hand():
    """Of the eight flips of three topics with sums 3, 2 and -1, those to 4 or beyond in size are 4, 6, -4 and -6."""
    found = estimate([1.0, 2.0, 2.0, -1.0], ["a", "a", "b", "c"])
    assert found["p_value"] == pytest.approx(4 / 8)


@samples
def test_the_smallest_detectable_effect_is_that_of_its_formula(sample):
    degrees = len(clusters(*sample)) - 1
    reach = stats.t.ppf(0.975, degrees) + stats.t.ppf(0.8, degrees)
    assert estimate(*sample)["smallest_detectable"] == pytest.approx(reach * clustered_error(*sample))


def test_with_many_topics_the_p_value_is_sampled_under_the_seed_and_near_the_exact_one():
    rng = np.random.default_rng(5)
    values = list(rng.normal(0.2, 0.5, 15))
    topics = [f"t{n}" for n in range(15)]
    first = estimate(values, topics, seed=1)
    assert first == estimate(values, topics, seed=1)
    others = {estimate(values, topics, seed=seed)["p_value"] for seed in range(2, 6)}
    assert len(others | {first["p_value"]}) > 1
    exact = flipped_share(values, topics)
    noise = math.sqrt(exact * (1 - exact) / 9999)
    assert all(abs(p - exact) < 5 * noise for p in others)


def test_with_thirteen_topics_no_seed_enters():
    values = list(np.random.default_rng(5).normal(0.2, 0.5, 13))
    topics = [f"t{n}" for n in range(13)]
    assert estimate(values, topics, seed=1) == estimate(values, topics, seed=2)


def test_the_order_and_the_names_of_topics_do_not_matter():
    values, topics = UNEQUAL
    order = list(range(len(values)))
    random.Random(3).shuffle(order)
    names = {topic: f"another {9 - n}" for n, topic in enumerate(sorted(set(topics)))}
    shuffled = estimate([values[at] for at in order], [names[topics[at]] for at in order])
    assert shuffled == pytest.approx(estimate(values, topics))


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ([], []),
        ([0.03], [0.03]),
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.04, 0.01], [0.04, 0.02]),
        ([0.5, 0.6, 0.9], [1.0, 1.0, 1.0]),
        ([0.02, 0.02, 0.02], [0.06, 0.06, 0.06]),
        ([0.0, 1.0], [0.0, 1.0]),
    ],
)
def test_holm_by_hand(p_values, corrected):
    assert holm(p_values) == pytest.approx(corrected)


DEGENERATE = {
    "all zero": ([0.0] * 6, list("aabbcc"), {"p_value": 1.0, "low": 0.0, "high": 0.0, "difference": 0.0}),
    "all equal": ([0.5] * 6, list("aabbcc"), {"p_value": 0.25, "low": 0.5, "high": 0.5, "standard_error": 0.0}),
    "all -1": ([-1.0] * 12, list("abcdefghijkl"), {"p_value": 2 / 2**12, "difference": -1.0}),
    "all equal, many topics": ([0.1] * 20, list("abcdefghijklmnopqrst"), {"p_value": 2 / 10_000}),
    "two equal questions": ([1.0, 1.0], ["a", "b"], {"p_value": 0.5}),
    "two questions of one topic": ([1.0, 0.0], ["a", "a"], {"difference": 0.5, "standard_error": 0.5}),
    "nothing between the topics": ([1.0, -1.0] * 3, list("aabbcc"), {"p_value": 1.0, "standard_error": 0.2**0.5}),
    "equal but for rounding": ([0.1 + 0.2, 0.3, 0.3], list("abc"), {"p_value": 0.25, "difference": 0.3}),
}


@pytest.mark.parametrize(("values", "topics", "expected"), DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_differences_have_numbers(values, topics, expected):
    found = estimate(values, topics)
    assert all(math.isfinite(number) for number in found.values())
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("values", [[], [0.5]])
def test_fewer_than_two_questions_are_refused_in_words(values):
    with pytest.raises(InvalidInput, match="two finite differences"):
        estimate(values, ["a"] * len(values))


differences = st.floats(-1, 1).map(lambda x: round(x, 3)) | st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0, 1 / 3])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(differences, st.sampled_from("abcdef")), min_size=2, max_size=14), st.integers(0, 3))
def test_any_differences_give_numbers_in_their_ranges(pairs, seed):
    values, topics = zip(*pairs, strict=True)
    found = estimate(values, topics, seed)
    assert all(math.isfinite(number) for number in found.values())
    assert 0.0 < found["p_value"] <= 1.0
    assert found["standard_error"] >= 0.0
    assert found.get("smallest_detectable", 0.0) >= 0.0
    assert found["low"] <= found["difference"] + 1e-12
    assert found["difference"] <= found["high"] + 1e-12


def test_repeats_are_averaged_within_a_question():
    topics = {"q1": "a", "q2": "a", "q3": "b"}
    run = made_run(
        topics,
        {
            "baseline": {"q1": [1.0, 0.0, 1.0], "q2": [1.0, 1.0, 1.0], "q3": [0.0, 0.0, 1.0]},
            "other": {"q1": [0.0, 0.0, 0.0], "q2": [1.0, 0.0, 0.0], "q3": [1.0, 0.0, 1.0]},
        },
    )
    (effect,) = estimate_effects(run)
    means = [-2 / 3, -2 / 3, 1 / 3]
    assert (effect.questions, effect.topics, effect.incomparable, effect.unscored) == (3, 2, 0, 0)
    assert effect.baseline == pytest.approx((2 / 3 + 1 + 1 / 3) / 3)
    assert effect.score == pytest.approx((0 + 1 / 3 + 2 / 3) / 3)
    assert effect.difference == pytest.approx(sum(means) / 3)
    assert effect.standard_error == pytest.approx(clustered_error(means, ["a", "a", "b"]))
    assert effect.p_value == pytest.approx(flipped_share(means, ["a", "a", "b"]))


def test_more_repeats_of_the_same_make_nothing_surer():
    topics = {f"q{n}": f"t{n % 3}" for n in range(9)}
    scores = {name: float(n % 2) for n, name in enumerate(topics)}

    def effect(repeats):
        before = {name: [1.0] * repeats for name in topics}
        after = {name: [scores[name]] * repeats for name in topics}
        return estimate_effects(made_run(topics, {"baseline": before, "other": after}))

    assert effect(1) == effect(5)


def test_a_question_counts_once_however_many_of_its_repeats_have_a_score():
    topics = {"q1": "a", "q2": "b"}
    run = made_run(
        topics,
        {
            "baseline": {"q1": [1.0, None, 1.0], "q2": [1.0, 1.0, 1.0]},
            "other": {"q1": [None, 1.0, 0.0], "q2": [0.0, 1.0, 1.0]},
        },
    )
    (effect,) = estimate_effects(run)
    assert (effect.questions, effect.unscored) == (2, 2)
    assert effect.difference == pytest.approx((-1 - 1 / 3) / 2)
    assert effect.baseline == pytest.approx(1.0)


def test_the_mean_and_the_scores_agree():
    rng = random.Random(8)
    topics = {f"q{n}": f"t{n % 4}" for n in range(13)}
    arms = {name: {case: [rng.random(), rng.random()] for case in topics} for name in ("baseline", "x", "y")}
    for effect in estimate_effects(made_run(topics, arms)):
        assert effect.difference == pytest.approx(effect.score - effect.baseline)
        assert effect.low <= effect.difference <= effect.high


def test_the_effects_stand_in_the_order_of_the_arms_and_are_corrected_together():
    topics = {f"q{n}": f"t{n}" for n in range(8)}
    same = {name: [1.0] for name in topics}
    worse = {name: [0.0] for name in topics}
    mixed = {name: [float(n % 2)] for n, name in enumerate(topics)}
    found = estimate_effects(made_run(topics, {"baseline": same, "same": same, "worse": worse, "mixed": mixed}))
    assert [effect.intervention for effect in found] == ["same", "worse", "mixed"]
    assert [effect.p_value for effect in found] == pytest.approx([1.0, 2 / 2**8, 2 / 2**4])
    assert [effect.p_holm for effect in found] == pytest.approx(holm([1.0, 2 / 2**8, 2 / 2**4]))


def test_an_arm_without_a_question_leaves_the_correction_of_the_others():
    topics = {f"q{n}": f"t{n}" for n in range(6)}
    run = made_run(
        topics,
        {
            "baseline": {name: [1.0] for name in topics},
            "none": {name: [None] for name in topics},
            "one": {"q1": [0.0]},
            "worse": {name: [0.0] for name in topics},
        },
    )
    none, one, worse = estimate_effects(run)
    assert [getattr(none, name) for name in NUMBERS] == [None] * len(NUMBERS)
    assert (none.questions, none.unscored) == (0, 6)
    assert (one.questions, one.difference, one.p_value, one.low) == (1, -1.0, None, None)
    assert worse.p_holm == worse.p_value == pytest.approx(2 / 2**6)


def test_a_run_without_records_has_effects_without_numbers():
    run = made_run({"q": "t"}, {"baseline": {}, "other": {}})
    assert estimate_effects(run) == (Effect(intervention="other", questions=0, topics=0),)


def test_a_run_of_the_baseline_alone_has_no_effect():
    run = made_run({"q": "t"}, {"baseline": {"q": [1.0]}})
    assert run.experiment.baseline.kind is MemoryInterventionKind.AS_DECLARED
    assert estimate_effects(run) == ()


def test_the_same_scores_in_another_order_are_no_effect():
    """Sums of fractions depend on their order in the last digit, which no p-value may be made of."""
    topics = {f"q{n}": f"t{n}" for n in range(12)}
    before = {name: [0.1, 0.2, 0.3] for name in topics}
    after = {name: [0.3, 0.2, 0.1] for name in topics}
    (effect,) = estimate_effects(made_run(topics, {"baseline": before, "other": after}))
    assert effect.p_value == 1.0
    assert effect.low <= 0.0 <= effect.high


def test_the_order_of_the_records_does_not_matter():
    rng = random.Random(4)
    topics = {f"q{n}": f"t{n % 4}" for n in range(12)}
    arms = {name: {case: [rng.random(), rng.random()] for case in topics} for name in ("baseline", "x", "y")}
    run = made_run(topics, arms)
    expected = estimate_effects(run)
    rng.shuffle(run.records)
    for found, known in zip(estimate_effects(run), expected, strict=True):
        assert found.model_dump(exclude={"intervention", "reasons"}) == pytest.approx(
            known.model_dump(exclude={"intervention", "reasons"})
        )


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_no_number_that_is_none_leaves_the_effects(data):
    topics = {f"q{n}": data.draw(st.sampled_from("ab")) for n in range(data.draw(st.integers(1, 6)))}
    scores = st.sampled_from([None, 0.0, 1.0, 1 / 3, 0.25])
    arms = {
        name: {case: data.draw(st.lists(scores, min_size=2, max_size=2)) for case in topics}
        for name in ("baseline", "x", "y")
    }
    for effect in estimate_effects(made_run(topics, arms)):
        known = [getattr(effect, name) for name in (*NUMBERS, "p_holm") if getattr(effect, name) is not None]
        assert all(math.isfinite(number) for number in known)
        assert all(0.0 < p <= 1.0 for p in (effect.p_value, effect.p_holm) if p is not None)
        assert effect.p_value is None or effect.p_value <= effect.p_holm
        assert (effect.p_value is None) == (effect.questions < 2)


TOPICS, QUESTIONS = 12, 5
NAMES = [f"t{n // QUESTIONS}" for n in range(TOPICS * QUESTIONS)]
EXPERIMENTS = 1000
MODULE = "cayu.experiments.effects"


def normal_differences(rng, effect):
    """Differences with a noise that a topic's questions share, and one of their own."""
    return effect + np.repeat(rng.normal(0, 0.15, TOPICS), QUESTIONS) + rng.normal(0, 0.4, TOPICS * QUESTIONS)


def paired_scores(rng, before, after):
    """Right or wrong under both arms, for questions and topics that are unequally hard."""
    hardness = np.repeat(rng.uniform(-0.15, 0.15, TOPICS), QUESTIONS)
    first = rng.random(TOPICS * QUESTIONS) < before + hardness
    second = rng.random(TOPICS * QUESTIONS) < after + hardness + np.repeat(rng.uniform(-0.1, 0.1, TOPICS), QUESTIONS)
    return second.astype(float) - first


NOISE = {
    "normal": lambda rng: normal_differences(rng, -0.3),
    "right or wrong": lambda rng: paired_scores(rng, 0.8, 0.5),
}


@pytest.mark.parametrize("draw", NOISE.values(), ids=NOISE)
def test_nineteen_of_twenty_intervals_hold_the_true_effect(draw, monkeypatch):
    """No interval depends on the permutations, which take most of the time: a few do here."""
    monkeypatch.setattr(f"{MODULE}.RESAMPLES", 1)
    rng = np.random.default_rng(20240801)
    held = 0
    for _ in range(EXPERIMENTS):
        found = estimate(draw(rng), NAMES)
        held += found["low"] <= -0.3 <= found["high"]
    assert 0.93 <= held / EXPERIMENTS <= 0.97


INTERVENTIONS = 6


def six_of_no_effect(rng):
    """Differences under six interventions that do nothing, each with noise of topics and questions of its own."""
    return np.array([normal_differences(rng, 0.0) for _ in range(INTERVENTIONS)])


def six_beside_one_baseline(rng):
    """Right or wrong under six interventions that do nothing, all beside the same answers of the baseline."""
    chance = 0.7 + np.repeat(rng.uniform(-0.15, 0.15, TOPICS), QUESTIONS)
    before = (rng.random(TOPICS * QUESTIONS) < chance).astype(float)
    return np.array([(rng.random(TOPICS * QUESTIONS) < chance) - before for _ in range(INTERVENTIONS)])


@pytest.mark.slow
@pytest.mark.parametrize("draw", [six_of_no_effect, six_beside_one_baseline])
def test_of_twenty_experiments_without_an_effect_one_finds_something(draw):
    """All flips are taken at once here; the first experiments are held against `estimate` and `holm`."""
    flips = 1 - 2 * (np.arange(2**TOPICS) >> np.arange(TOPICS)[:, None] & 1)
    rng = np.random.default_rng(20240801)
    found = 0
    for number in range(EXPERIMENTS):
        differences = draw(rng)
        sums = differences.reshape(INTERVENTIONS, TOPICS, QUESTIONS).sum(axis=2)
        p_values = (np.abs(sums @ flips) >= np.abs(sums.sum(axis=1))[:, None] - 1e-9).mean(axis=1)
        smallest = min(1.0, INTERVENTIONS * min(p_values))
        if number < 5:
            estimated = [estimate(row, NAMES)["p_value"] for row in differences]
            assert estimated == pytest.approx(p_values)
            assert min(holm(estimated)) == pytest.approx(smallest)
        found += smallest <= 0.05
    assert found / EXPERIMENTS <= 0.05
