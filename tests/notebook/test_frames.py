"""The frames: declared dtypes also when empty, conditions that filter or refuse, true values, and size."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from notebook.conftest import Workshop, ask

from cayu.errors import InvalidInput
from cayu.notebook import Lab, schema
from cayu.notebook.schemas import SCHEMAS
from cayu.providers import ModelStreamEvent

if TYPE_CHECKING:
    from cayu.notebook import SessionHandle

STORED = ("sessions_df", "events_df", "messages_df", "calls_df", "approvals_df")
TIMED = ("rounds_df", "phases_df")
FRAMES = (*STORED, *TIMED, "errors_df")
TALK = [
    ModelStreamEvent.thinking("hm"),
    ModelStreamEvent.text_delta("I look."),
    ModelStreamEvent.tool_call("look", {"word": "ü"}, "c1"),
    ModelStreamEvent.tool_call("boom", {}, "c2"),
    ModelStreamEvent.completed("tool_calls", {"input_tokens": 5, "output_tokens": 7}),
]
SCRIPTS: dict[str, list[Any]] = {
    "talk": [TALK, "done"],
    "letter": [ask("send", to="ann"), "sent"],
    "question": [ask("ask_user", question="Which?", options=["A", "B"]), "thanks"],
    "wait": [ask("hold"), "done"],
    "unknown": [ask("nope", x=1), "done"],
    "fails": [[ModelStreamEvent.error("overloaded")]],
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab in which everything happened once: approved with an edit, denied, pending, answered, asked, and so on."""
    workshop = Workshop(tmp_path_factory.mktemp("told"), dict(SCRIPTS))
    lab = workshop.open()
    lab.run("a", "talk", session_id="talk", title="Talk")
    lab.run("a", "letter", session_id="edited").pending[0].approve({"to": "bob"}, by="me")
    lab.run("a", "letter", session_id="denied").pending[0].deny("no need", by="you")
    lab.run("a", "letter", session_id="pending")
    lab.run("a", "question", session_id="answered").pending[0].answer("A", by="me")
    lab.run("a", "question", session_id="asked")
    running = lab._bridge.submit(lab.arun("a", "wait", session_id="interrupted"))
    assert workshop.entered.wait(5)
    lab.interrupt("interrupted", "enough")
    running.result(5)
    lab.run("a", "unknown", session_id="unknown")
    lab.run("a", "fails", session_id="fails")
    yield lab
    lab.close()


ORDER = ["talk", "edited", "denied", "pending", "answered", "asked", "interrupted", "unknown", "fails"]


def frame_of(lab: Lab, name: str, *args: Any, **more: Any) -> pd.DataFrame:
    found = getattr(lab, name)(*args, **more)
    assert isinstance(found, pd.DataFrame)
    return found


def only(frame: pd.DataFrame, **equal: str) -> dict[str, Any]:
    """The one row with these values, by column; missing values are None."""
    for name, value in equal.items():
        frame = frame[frame[name].astype("string") == value]
    assert len(frame) == 1
    return {name: None if pd.isna(value) else value for name, value in frame.iloc[0].items()}


def assert_declared(frame: pd.DataFrame, name: str) -> None:
    declared = schema(name)
    assert list(frame.columns) == declared["column"].tolist()
    assert [str(dtype) for dtype in frame.dtypes] == declared["dtype"].tolist()
    assert isinstance(frame.index, pd.RangeIndex)


# Schemas.


@pytest.mark.parametrize("name", FRAMES)
def test_an_empty_frame_has_its_columns_and_dtypes(workshop: Workshop, name: str) -> None:
    frame = frame_of(workshop.open(), name)
    assert len(frame) == 0
    assert_declared(frame, name)
    assert frame.attrs["cayu"]["rows"] == 0


@pytest.mark.parametrize("name", FRAMES)
def test_a_full_frame_has_its_columns_and_dtypes(told: Lab, name: str) -> None:
    told.problems.keep("somewhere", ValueError("x"), "talk")
    frame = frame_of(told, name)
    assert len(frame) > 0
    assert_declared(frame, name)
    nothing_left = frame_of(told, name, {"session_id": "no such session"})
    assert len(nothing_left) == 0
    assert_declared(nothing_left, name)
    assert_declared(frame_of(told, name, limit=0), name)


def test_the_schema_says_what_every_column_is() -> None:
    # A plan's frame belongs to its handle; those of memory have tests of their own.
    assert set(SCHEMAS) == {*FRAMES, "plan_df", "recall_df", "trials_df", "effects_df"}
    allowed = {"string", "datetime64[us, UTC]", "Int64", "Float64", "category", "boolean"}
    for name in FRAMES:
        declared = schema(name)
        assert list(declared.columns) == ["column", "dtype", "unit", "meaning"]
        assert set(declared["dtype"]) <= allowed
        assert declared["meaning"].str.len().min() > 3
        assert declared["column"].is_unique
        durations = declared[declared["column"].str.endswith("_ms")]
        assert set(durations["unit"]) <= {"ms"}
        assert set(durations["dtype"]) <= {"Float64"}
    with pytest.raises(InvalidInput, match="sessions_df"):
        schema("nope_df")


# Arguments.


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"tool_calls": 2}, ["talk"]),
        ({"tool_calls ==": 2}, ["talk"]),
        ({"tool_calls >=": 1}, ["interrupted", "edited", "talk"]),
        ({"tool_calls >": 1}, ["talk"]),
        ({"events <": 5}, ["fails"]),
        ({"events <=": 4}, ["fails"]),
        ({"tool_calls !=": 0}, ["interrupted", "edited", "talk"]),
        ({"session_id in": ["talk", "fails", "nope"]}, ["fails", "talk"]),
        ({"session_id": ["talk"]}, ["talk"]),
        ({"session_id": ("talk", "fails")}, ["fails", "talk"]),
        ({"session_id": {"talk"}}, ["talk"]),
        ({"session_id": "talk"}, ["talk"]),
        ({"session_id ==": "talk"}, ["talk"]),
        ({"session_id !=": "talk", "status": "completed"}, ["unknown", "answered", "denied", "edited"]),
        ({"session_id >": "pending"}, ["unknown", "talk"]),
        ({"status": "failed"}, ["fails"]),
        ({"status !=": "completed"}, ["fails", "interrupted", "asked", "pending"]),
        ({"status in": ["failed", "interrupted"], "pending": 0}, ["fails", "interrupted"]),
        ({" status  ==": "failed"}, ["fails"]),
        ({"title": "Talk"}, ["talk"]),
        ({"title !=": "Talk"}, []),
        ({"title in": []}, []),
    ],
)
def test_conditions(told: Lab, condition: dict[str, Any], expected: list[str]) -> None:
    assert told.sessions_df(condition)["session_id"].tolist() == expected
    assert told.sessions_df(where=condition, columns=["session_id"])["session_id"].tolist() == expected


def test_conditions_on_flags_and_durations(told: Lab) -> None:
    assert told.calls_df({"is_error": True})["tool_name"].tolist()[0] == "boom"
    assert told.calls_df({"edited": True})["session_id"].tolist() == ["edited"]
    assert len(told.calls_df({"duration_ms >=": 0})) == 4
    assert len(told.calls_df({"duration_ms <": 0})) == 0
    assert told.events_df({"type": ["session.completed", "session.failed"]})["session_id"].tolist() == [
        *("talk", "edited", "denied", "answered", "unknown", "fails")
    ]
    assert told.events_df({"type": "session.failed"})["session_id"].tolist() == ["fails"]
    assert told.events_df({"type": "session.failed", "session_id": "talk"})["session_id"].tolist() == []


def test_values_out_of_another_frame_are_welcome(told: Lab) -> None:
    call = told.calls_df({"tool_name": "boom"}).iloc[0]
    session = told.sessions_df({"session_id": "talk"}).iloc[0]
    assert told.calls_df({"is_error": call.is_error, "tool_name": call.tool_name})["session_id"].tolist() == ["talk"]
    assert len(told.calls_df({"is_error": pd.array([True]).to_numpy(bool)[0]})) > 0  # numpy's own True
    assert told.sessions_df({"events": session.events, "status": session.status})["session_id"].tolist() == ["talk"]
    assert told.sessions_df({"created_at": session.created_at})["session_id"].tolist() == ["talk"]
    assert len(told.calls_df({"duration_ms >=": call.duration_ms, "session_id": session.session_id})) > 0


def test_conditions_on_times(told: Lab) -> None:
    middle = told.sessions_df({"session_id": "asked"})["created_at"][0]
    later = ["fails", "unknown", "interrupted"]
    for moment in (middle, middle.to_pydatetime(warn=False), middle.isoformat()):
        assert told.sessions_df({"created_at >": moment})["session_id"].tolist() == later
    assert told.sessions_df({"created_at ==": middle})["session_id"].tolist() == ["asked"]
    east = middle.tz_convert("Asia/Tokyo")
    assert told.sessions_df({"created_at >": east})["session_id"].tolist() == later
    hour = timedelta(hours=1)
    now = datetime.now(UTC)
    assert len(told.sessions_df({"created_at >=": now - hour, "created_at <=": now + hour})) == len(ORDER)


def test_a_time_without_a_zone_is_utc(told: Lab) -> None:
    assert len(told.sessions_df({"created_at >=": "2026-01-01"})) == len(ORDER)
    assert len(told.sessions_df({"created_at <": datetime(2026, 1, 1)})) == 0


def test_times_may_be_listed(told: Lab) -> None:
    middle = told.sessions_df({"session_id": "asked"})["created_at"][0]
    assert told.sessions_df({"created_at in": [middle]})["session_id"].tolist() == ["asked"]
    assert told.sessions_df({"created_at in": [middle.isoformat()]})["session_id"].tolist() == ["asked"]


@pytest.mark.parametrize(
    "condition",
    [
        {"created_at >=": "rubbish"},
        {"created_at >=": 5.5j},
        {"events >=": "a"},
        {"status <": 5},
        {"events in": 5},
        {"session_id in": "talk"},
        {"created_at >=": None},
        {"title": None},
        {"events": None},
        {"events": True},
        {"session_id": 5},
    ],
)
def test_a_value_that_does_not_fit_its_column_is_refused(told: Lab, condition: dict[str, Any]) -> None:
    (key,) = condition
    with pytest.raises(InvalidInput, match=key.split()[0]):
        told.sessions_df(condition)


@pytest.mark.parametrize("name", FRAMES)
def test_an_unknown_column_is_refused_with_the_columns_there_are(told: Lab, name: str) -> None:
    listed = ", ".join(schema(name)["column"])
    for ask_for in ({"where": {"nope": 1}}, {"where": {"nope >=": 1}}, {"columns": ["nope"]}):
        with pytest.raises(InvalidInput, match=f"{name} has no column 'nope'; columns: {listed}"):
            frame_of(told, name, **ask_for)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "key", ["status =", "status => ", "status like", "status >= 3", "", "a b c", ">=", "status\n;"]
)
def test_a_malformed_condition_is_refused(told: Lab, key: str) -> None:
    with pytest.raises(InvalidInput, match=r"is no condition; write a column|has no column"):
        told.sessions_df({key: 1})


@pytest.mark.parametrize("name", FRAMES)
def test_columns_are_given_as_asked(told: Lab, name: str) -> None:
    told.problems.keep("somewhere", ValueError("x"), "talk")
    full = frame_of(told, name)
    wanted = list(full.columns[2:0:-1])
    pd.testing.assert_frame_equal(frame_of(told, name, columns=wanted), full[wanted])
    some = frame_of(told, name, {"session_id": "talk"}, columns=wanted)
    assert list(some.columns) == wanted
    assert len(some) == (full["session_id"] == "talk").sum()


@pytest.mark.parametrize("name", FRAMES)
def test_a_limited_frame_says_so(told: Lab, name: str) -> None:
    told.problems.keep("somewhere", ValueError("x"))
    told.problems.keep("somewhere", ValueError("x"))
    told.problems.read()  # so that the next two frames say the same
    full = frame_of(told, name)
    attrs = dict(full.attrs["cayu"])
    as_of = datetime.fromisoformat(attrs.pop("as_of"))
    assert abs(datetime.now(UTC) - as_of) < timedelta(seconds=10)
    assert attrs == {"rows": len(full), "total": len(full), "truncated": False}
    short = frame_of(told, name, limit=1)
    pd.testing.assert_frame_equal(short, full.head(1))
    assert {**short.attrs["cayu"], "as_of": ""} == {"rows": 1, "total": len(full), "truncated": True, "as_of": ""}
    assert not frame_of(told, name, limit=len(full)).attrs["cayu"]["truncated"]
    with pytest.raises(InvalidInput, match="limit"):
        frame_of(told, name, limit=-1)


def test_the_total_counts_what_the_conditions_let_through(told: Lab) -> None:
    frame = told.sessions_df({"status": "completed"}, limit=2)
    assert (frame.attrs["cayu"]["rows"], frame.attrs["cayu"]["total"]) == (2, 5)


@pytest.mark.parametrize("name", STORED)
def test_progress_is_told(told: Lab, name: str) -> None:
    heard: list[tuple[int, int]] = []
    frame_of(told, name, progress=lambda done, total: heard.append((done, total)))
    assert heard, f"{name} takes progress and never calls it"
    assert heard[-1] == (len(ORDER), len(ORDER))
    assert heard == sorted(heard)


# Values.


def test_sessions(told: Lab) -> None:
    frame = told.sessions_df()
    assert frame["session_id"].tolist() == ORDER[::-1]
    talk = only(frame, session_id="talk")
    assert talk["created_at"] <= talk["updated_at"] <= pd.Timestamp.now("UTC")
    times = {talk.pop("created_at"), talk.pop("updated_at"), talk.pop("instance_id")}
    assert len(times) == 3
    assert talk == {
        **{"session_id": "talk", "title": "Talk", "status": "completed", "pending": 0, "agent_name": "a", "model": "m"},
        **{"provider_name": "scripted", "environment_name": None, "model_steps": 2, "tool_calls": 2},
        **{"input_tokens": 5, "output_tokens": 7, "events": 14, "run_epoch": 1},
    }
    assert dict(zip(frame["session_id"], frame["status"].astype(str), strict=True)) == {
        **dict.fromkeys(("talk", "edited", "denied", "answered", "unknown"), "completed"),
        **dict.fromkeys(("pending", "asked", "interrupted"), "interrupted"),
        "fails": "failed",
    }
    assert frame[frame["pending"] > 0]["session_id"].tolist() == ["asked", "pending"]
    assert only(frame, session_id="edited")["run_epoch"] == 2


def test_events(told: Lab) -> None:
    frame = told.events_df()
    assert list(dict.fromkeys(frame["session_id"])) == ORDER
    for _, group in frame.groupby("session_id"):
        assert group["sequence"].tolist() == list(range(1, len(group) + 1))
        assert group["timestamp"].is_monotonic_increasing
    counts = told.sessions_df().set_index("session_id")["events"]
    assert frame.groupby("session_id").size().to_dict() == counts.to_dict()
    started = told.events_df({"session_id": "talk", "type": "tool.call.started"})
    calls = told.calls_df({"session_id": "talk"})
    assert started["tool_name"].tolist() == ["look", "boom"]
    assert started["tool_call_id"].tolist() == calls["tool_call_id"].tolist()
    assert json.loads(started["payload"][0])["attempt"] == 1
    opened = told.events_df({"session_id": "talk", "type": "tool.round.opened"})
    assert opened["tool_round_id"].tolist() == [calls["tool_round_id"][0]]
    light = told.events_df(columns=["session_id", "sequence", "type", "timestamp"])
    pd.testing.assert_frame_equal(light, frame[light.columns])


def test_messages(told: Lab) -> None:
    frame = told.messages_df({"session_id": "talk"}).drop(columns="session_id")
    rows = [tuple(None if pd.isna(value) else value for value in row) for row in frame.itertuples(index=False)]
    assert rows == [
        (1, "user", "text", "talk", None, None, None),
        (2, "assistant", "thinking", "hm", None, None, None),
        (2, "assistant", "text", "I look.", None, None, None),
        (2, "assistant", "tool_call", '{"word":"ü"}', "look", "c1", None),
        (2, "assistant", "tool_call", "{}", "boom", "c2", None),
        (3, "tool", "tool_result", "about ü", "look", "c1", False),
        (3, "tool", "tool_result", "RuntimeError: it broke", "boom", "c2", True),
        (4, "assistant", "text", "done", None, None, None),
    ]
    denied = told.messages_df({"session_id": "denied", "part": "tool_result"})
    assert denied["text"].tolist() == ["Not executed: a human denied this call. no need"]
    assert denied["is_error"].all()


def test_calls(told: Lab) -> None:
    frame = told.calls_df()
    state = dict(zip(frame["session_id"], frame["state"].astype(str), strict=True))
    assert state == {
        **{"talk": "failed", "edited": "completed", "denied": "blocked", "pending": "awaiting_approval"},
        **{"answered": "completed", "asked": "awaiting_input", "interrupted": "failed", "unknown": "failed"},
    }
    assert frame["tool_name"].tolist() == ["look", "boom", "send", "send", "send", *["ask_user"] * 2, "hold", "nope"]
    edited = only(frame, session_id="edited")
    assert (edited["effect"], edited["arguments"], edited["content"]) == ("external", '{"to":"bob"}', "sent to bob")
    assert (edited["edited"], edited["replayed"], edited["attempt"], edited["step"]) == (True, False, 1, 1)
    took = (edited["ended_at"] - edited["started_at"]) / pd.Timedelta(milliseconds=1)
    assert edited["duration_ms"] == pytest.approx(took)
    assert took > 0
    raised = only(frame, tool_name="boom")
    assert (raised["code"], raised["is_error"], raised["content"]) == ("raised", True, "RuntimeError: it broke")
    for name, code in (("denied", "approval_denied"), ("unknown", "unknown_tool")):
        row = only(frame, session_id=name)
        assert (row["code"], row["attempt"], row["started_at"], row["duration_ms"]) == (code, 0, None, None)
    pending = only(frame, session_id="pending")
    assert (pending["ended_at"], pending["content"], pending["is_error"]) == (None, None, None)
    cut = only(frame, session_id="interrupted")
    assert cut["code"] is not None
    assert cut["started_at"] is not None


def test_the_content_of_a_call_is_what_the_model_read(told: Lab) -> None:
    read = told.messages_df({"part": "tool_result"})
    ended = told.calls_df({"state in": ["completed", "failed", "blocked"]})
    assert read["session_id"].tolist() == ended["session_id"].tolist()
    shown = dict(zip(ended["session_id"] + " " + ended["tool_name"], ended["content"].fillna("nothing"), strict=True))
    assert shown == dict(zip(read["session_id"] + " " + read["tool_name"], read["text"], strict=True))
    assert ended["is_error"].fillna(False).tolist() == read["is_error"].tolist()


def test_approvals(told: Lab) -> None:
    frame = told.approvals_df()
    assert frame["session_id"].tolist() == ["edited", "denied", "pending", "answered", "asked"]
    assert frame["state"].astype(str).tolist() == ["approve", "deny", "pending", "answer", "pending"]
    assert frame["kind"].astype(str).tolist() == ["tool_approval"] * 3 + ["user_input"] * 2
    edited = only(frame, session_id="edited")
    assert (edited["decided_by"], edited["edited"], edited["arguments"]) == ("me", True, '{"to":"bob"}')
    waited = (edited["decided_at"] - edited["requested_at"]) / pd.Timedelta(milliseconds=1)
    assert edited["waited_ms"] == pytest.approx(waited)
    assert waited > 0
    denied = only(frame, session_id="denied")
    assert (denied["decided_by"], denied["reason"], denied["edited"]) == ("you", "no need", False)
    pending = only(frame, session_id="pending")
    waiting = {handle.id: handle.action for handle in told.pending()}
    action = waiting[str(pending["action_id"])]
    assert pending["arguments_digest"] == action.arguments_digest
    assert pending["arguments"] == '{"to":"ann"}'
    assert (pending["decided_by"], pending["decided_at"], pending["waited_ms"]) == (None, None, None)
    assert pending["reason"] == "its effect is external"
    assert len(str(pending["arguments_digest"])) == 64
    assert action.requested_at is not None
    assert abs(pending["requested_at"] - action.requested_at) < timedelta(seconds=1)
    assert pending["expires_at"] is None
    assert edited["arguments_digest"] != pending["arguments_digest"]
    asked = only(frame, session_id="asked")
    assert (asked["question"], asked["tool_name"], asked["action_id"] in waiting) == ("Which?", "ask_user", True)
    assert set(waiting) == {pending["action_id"], asked["action_id"]}


def test_a_handle_reads_its_own_session(told: Lab) -> None:
    session: SessionHandle = told.session("talk")
    assert set(session.events_df()["session_id"]) == {"talk"}
    assert session.calls_df(where={"tool_name": "boom"})["state"].astype(str).tolist() == ["failed"]
    assert session.messages_df(limit=1).attrs["cayu"]["total"] == 8
    assert set(session.calls_df(where={"session_id": "edited"})["session_id"]) == {"talk"}


def test_frames_are_right_while_a_run_is_going_on(workshop: Workshop) -> None:
    workshop.scripts["wait"] = [[*ask("look", word="x"), ModelStreamEvent.tool_call("hold", {}, "p1")], "done"]
    lab = workshop.open()
    running = lab._bridge.submit(lab.arun("a", "wait", session_id="s"))
    assert workshop.entered.wait(5)
    deadline = time.monotonic() + 5
    while "tool.call.staged" not in set(lab.events_df()["type"]):
        assert time.monotonic() < deadline
    calls = lab.calls_df()
    assert calls["state"].astype(str).tolist() == ["staged", "started"]
    assert calls["content"].tolist()[0] == "about x"
    assert calls["ended_at"].isna().all()
    assert calls["started_at"].notna().all()
    assert lab.sessions_df()["status"].astype(str).tolist() == ["running"]
    assert lab.messages_df()["part"].astype(str).tolist() == ["text", "tool_call", "tool_call"]
    before = len(lab.events_df())
    assert before == lab.sessions_df()["events"][0]
    workshop.freed.set()
    assert running.result(5).status == "completed"
    assert len(lab.events_df()) > before
    assert lab.calls_df()["state"].astype(str).tolist() == ["completed", "completed"]


# Size.


def fill(path: Path, sessions: int, events: int) -> None:
    """Write a store's rows straight into its file: one session's log, over and over."""
    with closing(sqlite3.connect(path)) as raw, raw:
        columns = [row[1] for row in raw.execute("PRAGMA table_info(streams)")]
        (template,) = raw.execute("SELECT * FROM streams LIMIT 1").fetchall()
        log = raw.execute("SELECT type, at, body FROM events ORDER BY sequence").fetchall()
        at = {name: position for position, name in enumerate(columns)}
        rows = []
        for number in range(2, sessions + 1):
            row = list(template)
            row[at["key"]], row[at["id"]], row[at["instance_id"]] = number, f"s{number}", f"i{number}"
            rows.append(row)
        raw.executemany(f"INSERT INTO streams VALUES ({','.join('?' * len(columns))})", rows)
        middle = log[1:-1]
        raw.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?)",
            (
                (stream, sequence, *middle[sequence % len(middle)])
                for stream in range(2, sessions + 1)
                for sequence in range(1, events + 1)
            ),
        )


@pytest.mark.slow
def test_a_hundred_thousand_events(workshop: Workshop) -> None:
    workshop.scripts["talk"] = SCRIPTS["talk"]
    with workshop.open() as lab:
        lab.run("a", "talk", session_id="first")
    fill(workshop.path, 1001, 100)
    lab = workshop.open()
    begun = time.monotonic()
    frame = lab.events_df()
    took = time.monotonic() - begun
    begun = time.monotonic()
    light = lab.events_df(columns=["session_id", "sequence", "type", "timestamp"])
    print(f"events_df: {len(frame)} rows in {took:.2f} s; without payloads {time.monotonic() - begun:.2f} s")
    assert len(frame) == len(light) == 100_014
    assert frame.attrs["cayu"]["total"] == 100_014
    assert_declared(frame, "events_df")
    assert took < 6


@pytest.mark.slow
def test_a_hundred_thousand_sessions(workshop: Workshop) -> None:
    workshop.scripts["talk"] = SCRIPTS["talk"]
    with workshop.open() as lab:
        lab.run("a", "talk", session_id="first")
    fill(workshop.path, 100_000, 0)
    lab = workshop.open()
    begun = time.monotonic()
    frame = lab.sessions_df()
    took = time.monotonic() - begun
    begun = time.monotonic()
    short = lab.sessions_df({"status": "completed"}, columns=["session_id"], limit=10)
    print(f"sessions_df: {len(frame)} rows in {took:.2f} s; ten ids {time.monotonic() - begun:.2f} s")
    assert len(frame) == 100_000
    assert short.attrs["cayu"]["total"] == 100_000
    assert_declared(frame, "sessions_df")
    assert took < 4.5
