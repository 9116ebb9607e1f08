"""Static HTML: what models, tools and users write is text and never markup, what is long folds, times read well."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from notebook.conftest import ask
from notebook.reading import HOSTILE, Reader, read

from cayu.notebook.html import (
    LONG_TEXT,
    action_html,
    card,
    clock_time,
    esc,
    folded,
    json_text,
    moment_text,
    pending_html,
    session_html,
    status_text,
)
from cayu.providers import ModelStreamEvent
from cayu.sessions.records import PendingAction
from cayu.sessions.streams import StreamRow
from cayu.sessions.view import SessionView

if TYPE_CHECKING:
    from notebook.conftest import Workshop


def times(reader: Reader) -> int:
    """How often the hostile text stands where a reader sees it, as it was written."""
    return reader.text.count(HOSTILE)


def hostile_action(**more: object) -> PendingAction:
    fields = {
        "id": HOSTILE,
        "kind": "tool_approval",
        "session": HOSTILE,
        "title": HOSTILE,
        "detail": HOSTILE,
        "agent_name": HOSTILE,
        "tool_name": HOSTILE,
        "tool_effect": HOSTILE,
        "arguments": {"text": "<i>", HOSTILE: 1},
        "arguments_digest": "<b>" + "0" * 61,
    }
    return PendingAction(**(fields | more))  # type: ignore[arg-type]


def test_escaping() -> None:
    assert esc("<a href='x'>&\"") == "&lt;a href=&#x27;x&#x27;&gt;&amp;&quot;"
    assert esc(5) == "5"
    reader = read(card(HOSTILE, HOSTILE, [esc(HOSTILE)]))
    assert times(reader) == 3


def test_the_conversation_is_text(workshop: Workshop) -> None:
    workshop.scripts[HOSTILE] = [
        [
            ModelStreamEvent.thinking(HOSTILE),
            ModelStreamEvent.text_delta(HOSTILE),
            ModelStreamEvent.tool_call("look", {"word": HOSTILE}, "c1"),
            ModelStreamEvent.tool_call(HOSTILE, {HOSTILE: HOSTILE}, "c2"),
        ],
        HOSTILE,
    ]
    lab = workshop.open()
    session = lab.run("a", HOSTILE, session_id=HOSTILE, title=HOSTILE)
    assert session.status == "completed"
    reader = read(session_html(session.view))
    # title, id, user, thinking, text, a tool's name, its result, the last answer
    assert times(reader) >= 8
    escaped = json_text(HOSTILE)[1:-1]
    assert reader.text.count(escaped) >= 2  # the arguments, as JSON
    assert f"about {HOSTILE}" in reader.text


def test_an_open_round_and_a_failure_are_text(workshop: Workshop) -> None:
    workshop.scripts["letter"] = [ask("send", to=HOSTILE), "sent"]
    workshop.scripts["fails"] = [[ModelStreamEvent.error(HOSTILE)]]
    lab = workshop.open()
    waiting = lab.run("a", "letter")
    assert json_text(HOSTILE)[1:-1] in read(session_html(waiting.view)).text
    assert "awaiting approval" in read(session_html(waiting.view)).text
    read(action_html(waiting.pending[0].action))
    failed = lab.run("a", "fails", title=HOSTILE)
    assert times(read(session_html(failed.view))) >= 1


def test_error_details_are_text() -> None:
    view = SessionView(StreamRow(HOSTILE, "i", HOSTILE, "p", HOSTILE), status="failed")
    view.error = {"code": HOSTILE, "detail": HOSTILE}
    view.interruption = {"reason": HOSTILE}
    reader = read(session_html(view))
    assert times(reader) >= 6  # id, agent in title and facts, model, code, detail
    view.status = "interrupted"
    read(session_html(view))


def test_an_action_is_text() -> None:
    reader = read(action_html(hostile_action(), HOSTILE, HOSTILE))
    # title, state, note, tool, effect, agent, session, why
    assert times(reader) == 8
    assert "<b>0000000000000…" in reader.text
    question = hostile_action(kind="user_input", question=HOSTILE, options=(HOSTILE, "B"), arguments=None)
    assert times(read(action_html(question))) >= 7
    # what waits: title, agent, id
    assert times(read(pending_html([hostile_action(), hostile_action()]))) == 6


def test_a_question_shows_its_options() -> None:
    asked = hostile_action(kind="user_input", question="Which?", options=("Freezer A", HOSTILE), arguments=None)
    text = read(action_html(asked)).text
    assert "Which?" in text
    assert "Freezer A" in text, "a reader of the card cannot know what may be answered"
    assert HOSTILE in text


def test_a_decision_shows_everything_it_needs() -> None:
    action = PendingAction(
        id="i",
        kind="tool_approval",
        session="the-session",
        title="Run it?",
        detail="it spends money",
        agent_name="clerk",
        tool_name="send",
        tool_effect="external",
        arguments={"to": "ä", "n": [1, {"x": None}]},
        arguments_digest="ab" * 32,
        requested_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        expires_at=datetime(2026, 1, 3, 3, 4, 5, tzinfo=UTC),
    )
    text = read(action_html(action)).text
    for shown in ("Run it?", "pending", "the-session", "clerk", "send", "external", "it spends money", '"to": "ä"'):
        assert shown in text
    assert "ab" * 8 in text
    assert "2026-01-02 03:04:05 UTC" in text
    assert "2026-01-03 03:04:05 UTC" in text
    assert "no deadline" in read(action_html(action.model_copy(update={"expires_at": None}))).text


@pytest.mark.parametrize("extra", [-1, 0, 1, 50_000])
def test_long_text_folds_and_nothing_is_lost(extra: int) -> None:
    text = HOSTILE + "x" * (LONG_TEXT - len(HOSTILE) + extra)
    reader = read(folded(text))
    if extra <= 0:
        assert reader.text == text
        assert "details" not in reader.elements
    else:
        assert text in reader.folded
        assert f"all {len(text)} characters" in reader.text
        assert len(reader.text) - len(reader.folded) < LONG_TEXT


def test_what_is_long_in_a_session_folds(workshop: Workshop) -> None:
    long = "long " * 1000
    workshop.scripts[long] = [
        [ModelStreamEvent.thinking(long), ModelStreamEvent.text_delta(long), *ask("look", word="x" * 20_000)],
        long,
    ]
    session = workshop.open().run("a", long)
    reader = read(session_html(session.view))
    for text in (long, "x" * 20_000):
        assert text in reader.folded
    unfolded = len(reader.text) - len(reader.folded)
    assert unfolded < 6 * LONG_TEXT, "the call's arguments are not folded"


def test_a_session_says_where_it_stands(workshop: Workshop) -> None:
    workshop.scripts["two"] = [[*ask("send", to="a"), ModelStreamEvent.tool_call("send", {"to": "b"}, "p1")], "done"]
    lab = workshop.open()
    waiting = lab.run("a", "two")
    assert status_text(waiting.view) == "interrupted, 2 decisions pending"
    waiting.pending[0].approve()
    assert status_text(waiting.refresh().view) == "interrupted, 1 decision pending"
    limited = lab.run("a", "two", max_steps=1)
    for handle in limited.pending:
        handle.deny()
    assert status_text(limited.refresh().view) == "interrupted, limit reached"
    assert status_text(lab.run("a", "go").view) == "completed"


def test_nothing_waits() -> None:
    assert "Nothing waits for a decision" in read(pending_html([])).text


def test_the_theme_is_the_readers() -> None:
    html = card("Title", "interrupted, 1 decision pending", [])
    assert "var(--jp-layout-color1,#fff)" in html
    assert 'class="cayu-badge cayu-interrupted"' in html
    assert "cayu-completed" in card("Title", "completed", [])


def test_moments() -> None:
    assert clock_time(1_700_000_000_000_000) == "2023-11-14 22:13:20 UTC"
    assert moment_text(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02 00:00:00 UTC"
    assert moment_text(None) == ""
