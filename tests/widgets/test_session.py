"""A session's view: every state that it can show, over a real store."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from widgets.support import AGENT, FREE, SENT, buttons, factory, html, letters, settle, until

from cayu.canonical import dumps
from cayu.errors import StoreBusy, StoreClosed
from cayu.notebook import Lab, SessionHandle, headless
from cayu.providers import ModelStreamEvent
from cayu.sessions.streams import HeadQuery, Record, Take, Unit
from cayu_widgets import PromptState, SessionView

if TYPE_CHECKING:
    from widgets.conftest import OpenLab

HOSTILE = "<img src=x onerror=alert(1)>"


def running(lab: Lab) -> tuple[threading.Thread, SessionHandle]:
    """Start a session that works until the test frees it."""

    def work() -> None:
        with suppress(StoreClosed):
            lab.run(AGENT, "go")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    until(lambda: not lab.calls_df(where={"state": "started"}).empty)
    return thread, lab.session(lab.sessions_df()["session_id"][0])


def test_a_finished_session_with_its_calls(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(letters(HOSTILE, text=HOSTILE), HOSTILE))
    lab.run(AGENT, "go")
    session = lab.pending()[0].approve()
    view = SessionView(session)
    until(lambda: view.state == "finished")
    shown = html(view)
    for told in ("finished, completed", "external", "completed", " ms</td>", "&lt;img"):
        assert told in shown
    assert HOSTILE not in shown
    assert HOSTILE not in view.static_html()
    assert list(buttons(view)) == ["Refresh"]


def test_a_paused_session_takes_decisions_inline_and_goes_on(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(letters("ann"), letters("bob"), "done"))
    view = SessionView(lab.run(AGENT, "go"))
    until(lambda: view.state == "paused")
    assert "paused, 1 pending" in html(view)
    buttons(view)["Approve"].click()
    until(lambda: len(view.prompts) == 2)
    assert view.prompts[0].shown.state is PromptState.APPLIED
    buttons(view.prompts[1])["Deny"].click()
    until(lambda: view.state == "finished")
    assert "approval denied" in html(view)
    assert [each["to"] for each in SENT] == ["ann"]
    buttons(view)["Refresh"].click()
    until(lambda: view.prompts == [])
    lab.check_quiet()


def test_a_running_session_is_followed_to_its_end(open_lab: OpenLab) -> None:
    lab = open_lab(batches=([ModelStreamEvent.tool_call("pause")], "the end"))
    thread, session = running(lab)
    view = SessionView(session)
    until(lambda: view.state == "live")
    assert "the end" not in html(view)
    FREE.set()
    thread.join()
    until(lambda: view.state == "finished")
    assert "the end" in html(view)
    lab.check_quiet()


def test_following_reads_the_log_only_when_it_has_grown(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = open_lab(batches=([ModelStreamEvent.tool_call("pause")], "the end"))
    thread, session = running(lab)
    reads = {"heads": 0, "logs": 0}
    aheads, asession = Lab.aheads, Lab.asession

    async def counted_heads(self: Lab, query: HeadQuery) -> Any:
        reads["heads"] += 1
        return await aheads(self, query)

    async def counted_session(self: Lab, session_id: str) -> Any:
        reads["logs"] += 1
        return await asession(self, session_id)

    monkeypatch.setattr(Lab, "aheads", counted_heads)
    monkeypatch.setattr(Lab, "asession", counted_session)
    monkeypatch.setattr("cayu_widgets.session.LOOK_SECONDS", 0.02)
    view = SessionView(session)
    until(lambda: reads["heads"] > 5)
    assert reads["logs"] == 1
    view.close()
    settle(lab)
    seen = reads["heads"]
    settle(lab)
    assert reads["heads"] == seen
    FREE.set()
    thread.join()


def test_a_lab_that_closes_leaves_a_stale_view(open_lab: OpenLab) -> None:
    lab = open_lab(batches=([ModelStreamEvent.tool_call("pause")], "the end"))
    thread, session = running(lab)
    view = SessionView(session)
    until(lambda: view.state == "live")
    lab.close()
    thread.join(10)
    assert view.state == "stale"
    assert "The lab " in html(view)
    buttons(view)["Refresh"].click()
    assert view.state == "stale"


def test_a_session_that_nobody_works_on_is_stale(open_lab: OpenLab) -> None:
    lab = open_lab()
    session = lab.run(AGENT, "go")
    done = lab.pending()[0].approve()
    store = lab.app.session_store
    (head,) = lab.call(store.heads(HeadQuery(session_id=session.id))).rows
    resumed = Record("session.resumed", dumps({"continues": True}))
    lost = Unit(session.id, head.state.version, Take("elsewhere/boot|1|1|x"), (resumed,), lease_seconds=0.01)
    lab.call(store.append(lost))
    view = SessionView(done)
    until(lambda: view.state == "stale")
    assert "lab.recover(" in html(view)


def test_an_unreadable_session_is_an_error_and_refresh_tries_again(
    open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = open_lab()
    session = lab.run(AGENT, "go")

    async def busy(*_: Any) -> Any:
        raise StoreBusy(path="runs.db")

    with monkeypatch.context() as patched:
        patched.setattr(Lab, "aheads", busy)
        view = SessionView(session)
        until(lambda: "StoreBusy" in html(view))
    assert view.state == "error"
    assert lab.errors_df()["session_id"].tolist() == [session.id]
    buttons(view)["Refresh"].click()
    until(lambda: view.state == "paused")
    assert "StoreBusy" not in html(view)


def test_a_store_without_the_session_is_an_error(open_lab: OpenLab, tmp_path: Any) -> None:
    session = open_lab().run(AGENT, "go")
    with Lab.open(tmp_path / "other.db", factory=factory()) as other:
        view = SessionView(SessionHandle(other, session.view))
        until(lambda: view.state == "error")
        assert "SessionNotFound" in html(view)


def test_headless_looking_decides_nothing(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = open_lab()
    session = lab.run(AGENT, "go")
    monkeypatch.setenv(headless.HEADLESS, "1")
    headless.script_decisions(["approve"])
    view = SessionView(session)
    until(lambda: view.state == "paused")
    assert list(buttons(view)) == ["Refresh"]
    assert "Run send?" in html(view)
    assert len(lab.pending()) == 1
