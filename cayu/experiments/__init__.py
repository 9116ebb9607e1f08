"""Experiments on memory: an agent's cases under several interventions, and what each of them did to the score."""

from cayu.experiments.arms import Intervention, baseline, inject, omit, omit_expected, recall_off, replace_expected
from cayu.experiments.design import Experiment, PlannedTrial
from cayu.experiments.effects import Effect, estimate, estimate_effects, holm
from cayu.experiments.keys import key_beside
from cayu.experiments.study import MemoryStudy
from cayu.experiments.subjects import StudyStores, Subject
from cayu.experiments.sweep import ExperimentRun, Pair, TrialRecord, run_experiment

__all__ = [
    "Effect",
    "Experiment",
    "ExperimentRun",
    "Intervention",
    "MemoryStudy",
    "Pair",
    "PlannedTrial",
    "StudyStores",
    "Subject",
    "TrialRecord",
    "baseline",
    "estimate",
    "estimate_effects",
    "holm",
    "inject",
    "key_beside",
    "omit",
    "omit_expected",
    "recall_off",
    "replace_expected",
    "run_experiment",
]
