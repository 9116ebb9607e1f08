"""The frames of memory: what was recalled, the trials of experiments, and their effects."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pytest
from experiments.support import made_run
from notebook.memory_lab import TRIALS, MemoryLab, sweep

from cayu import KnowledgeStore
from cayu.errors import InvalidInput
from cayu.experiments import Experiment, baseline, estimate_effects, recall_off
from cayu.notebook import Lab, schema, trials

FRAMES = ("recall_df", "trials_df", "effects_df")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryLab]:
    """Two experiments, one of which ran twice, and three sessions of its own, the last with a memory out of order."""
    made = MemoryLab(tmp_path_factory.mktemp("trials"))
    lab = made.open()
    study = made.study(lab)
    lab.experiment(sweep(), study).wait(30)
    lab.experiment(Experiment(sweep().cases[:1], [baseline(), recall_off()], name="short"), study).wait(30)
    lab.experiment(sweep(), study).wait(30)
    lab.run("reader", "What is the door code of the cold room?", session_id="found")
    lab.run("reader", "xyzzy", session_id="nothing")

    async def fails(*_: Any, **__: Any) -> Any:
        raise OSError("the disk is gone")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(KnowledgeStore, "search", fails)
        lab.run("reader", "Where does the spare key hang?", session_id="failed")
    yield made
    made.close()


@pytest.fixture(scope="module")
def lab(room: MemoryLab) -> Lab:
    return room.labs[0]


def frame_of(lab: Lab, name: str, *args: Any, **more: Any) -> pd.DataFrame:
    found = getattr(lab, name)(*args, **more)
    assert isinstance(found, pd.DataFrame)
    return found


def assert_declared(frame: pd.DataFrame, name: str) -> None:
    declared = schema(name)
    assert list(frame.columns) == declared["column"].tolist()
    assert [str(dtype) for dtype in frame.dtypes] == declared["dtype"].tolist()
    assert isinstance(frame.index, pd.RangeIndex)


@pytest.mark.parametrize("name", FRAMES)
def test_the_schema_is_fixed_also_where_there_is_nothing(
    lab: Lab, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    full = frame_of(lab, name)
    assert len(full) > 0
    assert_declared(full, name)
    assert_declared(frame_of(lab, name, limit=0), name)
    new = MemoryLab(tmp_path_factory.mktemp("new"))
    empty = frame_of(new.open(), name)
    assert_declared(empty, name)
    assert empty.attrs["cayu"] | {"as_of": 0} == {"rows": 0, "total": 0, "truncated": False, "as_of": 0}
    new.close()


@pytest.mark.parametrize("name", FRAMES)
def test_the_schema_says_what_every_column_is(name: str) -> None:
    declared = schema(name)
    assert all(declared["meaning"].str.len() > 5)
    assert set(declared["dtype"]) <= {"string", "datetime64[us, UTC]", "Int64", "Float64", "category", "boolean"}
    assert all(declared.set_index("column")["unit"].filter(like="_ms") == "ms")
    assert declared["column"].is_unique


@pytest.mark.parametrize("name", FRAMES)
def test_columns_limits_and_refusals_are_those_of_every_frame(lab: Lab, name: str) -> None:
    last, first = schema(name)["column"].iloc[[-1, 0]]
    assert list(frame_of(lab, name, columns=[last, first]).columns) == [last, first]
    assert list(frame_of(lab, name, None, columns=[]).columns) == []
    short = frame_of(lab, name, limit=2)
    total = len(frame_of(lab, name))
    assert (len(short), total > 2) == (2, True)
    told = short.attrs["cayu"]
    assert (told["rows"], told["total"], told["truncated"]) == (2, total, True)
    for wrong in ({"where": {"nope": 1}}, {"columns": ["nope"]}, {"columns": first}, {"limit": -1}):
        with pytest.raises(InvalidInput):
            frame_of(lab, name, **wrong)


def test_a_recall_is_a_row_for_each_memory_considered(lab: Lab) -> None:
    frame = lab.recall_df({"session_id": "found"})
    best = frame.iloc[0]
    assert (best["item_id"], best["source"], best["disposition"], best["title"]) == (
        "door",
        "knowledge",
        "injected",
        "Door code",
    )
    assert frame["place"].tolist() == list(range(1, len(frame) + 1))
    assert frame["score"].between(0, 1).all()
    assert (best["recall"], best["step"], best["revision"]) == (1, 1, 1)
    assert best["bytes"] == len("The door code of the cold room is K4711.")
    assert abs((best["at"] - datetime.now(UTC)).total_seconds()) < 600
    left_out = frame[frame["disposition"] == "left_out"]
    assert left_out["title"].isna().all()  # the text of what was not let in is in no receipt
    assert left_out["reason"].notna().all()
    assert frame["failure"].isna().all()


def test_a_recall_that_finds_nothing_or_fails_is_one_row(lab: Lab) -> None:
    frame = lab.recall_df({"session_id in": ["nothing", "failed"]}).set_index("session_id")
    assert frame["item_id"].isna().all()
    assert frame["recall"].tolist() == [1, 1]
    assert pd.isna(frame.loc["nothing", "failure"])
    assert frame.loc["failed", "failure"]
    assert "disk" not in str(frame.loc["failed", "failure"])
    assert lab.session("failed").status == "completed"
    assert lab.recall_df({"failure": frame.loc["failed", "failure"]})["session_id"].tolist() == ["failed"]


def test_recalls_tell_how_many_sessions_were_read(lab: Lab) -> None:
    told: list[tuple[int, int]] = []
    frame = lab.recall_df(progress=lambda done, total: told.append((done, total)))
    sessions = frame["session_id"].nunique()
    assert told[-1] == (sessions, sessions)
    assert sessions == 3 + TRIALS - TRIALS // 3 + 1  # the trials with recall off have none


def test_trials_are_of_the_latest_run_of_each_name(lab: Lab) -> None:
    frame = lab.trials_df()
    assert frame["experiment"].value_counts().to_dict() == {"sweep": TRIALS, "short": 2}
    assert frame["trial_id"].is_unique
    assert set(frame["status"]) == {"completed"}
    assert set(frame["phase"]) == {"finalized"}
    assert frame["failure"].isna().all()
    assert frame["session_id"].isin(lab.sessions_df()["session_id"]).all()
    assert frame["execution_id"].is_unique
    wrong = lab.trials_df({"experiment": "sweep", "passed": False}, columns=["intervention", "score", "exposures"])
    assert wrong["intervention"].value_counts().to_dict() == {"recall_off": 3, "omit_expected": 3}
    assert wrong["score"].tolist() == [0.0] * 6
    right = lab.trials_df({"intervention": "baseline", "score >=": 1, "case_id": "q-door"})
    assert right["answer"].str.contains("K4711").all()
    assert right["expected_seen"].all()
    assert set(right["exposures"]) == {1}
    assert (right["duration_ms"] > 0).all()
    assert len(lab.trials_df({"duration_ms <": 0})) == 0
    handle = lab.experiments[1]
    assert handle.trials_df({"intervention in": ["recall_off"]}, columns=["experiment"]).values.tolist() == [["short"]]


def test_effects_are_of_each_intervention_of_each_experiment(lab: Lab) -> None:
    frame = lab.effects_df(columns=["experiment", "intervention", "questions", "topics", "difference"])
    assert frame.values.tolist() == [
        ["sweep", "recall_off", 3, 2, -1.0],
        ["sweep", "omit_expected", 3, 2, -1.0],
        ["short", "recall_off", 1, 1, -1.0],
    ]
    single = lab.effects_df({"experiment": "short"}).iloc[0]
    assert single[["standard_error", "low", "high", "p_value", "p_holm", "smallest_detectable"]].isna().all()
    assert (single["incomparable"], single["unscored"], single["reasons"]) == (0, 0, "")
    assert lab.experiments[1].effects_df()["experiment"].tolist() == ["short"]
    assert len(lab.effects_df({"p_holm <": 0.05})) == 0


def test_trials_without_an_answer_have_a_row_each() -> None:
    topics = {"a": "one", "b": "two"}
    run = made_run(topics, {"base": {"a": [1], "b": [1]}, "arm": {"a": [0], "b": [None]}})
    data = trials.trials_data([run])
    assert data["score"] == [1, 1, 0, None]
    assert data["status"] == ["completed"] * 3 + ["failed"]
    effects = trials.effects_data([("x", estimate_effects(run))])
    assert (effects["questions"], effects["unscored"], effects["reasons"]) == ([1], [1], [""])
    assert list(effects) == schema("effects_df")["column"].tolist()
