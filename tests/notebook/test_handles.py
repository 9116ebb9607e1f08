"""Handles show themselves in plain text and in HTML, lead on to verbs, and `Pending` is a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from notebook.conftest import ask
from notebook.reading import HOSTILE, read

from cayu.notebook import ApprovalHandle, Lab, Pending, SessionHandle

if TYPE_CHECKING:
    from notebook.conftest import Workshop


@pytest.fixture
def lab(workshop: Workshop) -> Lab:
    workshop.scripts["letter"] = [ask("send", to=HOSTILE), HOSTILE]
    workshop.scripts["question"] = [ask("ask_user", question=HOSTILE, options=[HOSTILE], allow_other=True), "thanks"]
    return workshop.open()


def bundle_of(shown: Any) -> dict[str, str]:
    bundle = shown._repr_mimebundle_(include=None, exclude=None)
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"] == repr(shown)
    read(bundle["text/html"])
    assert shown._repr_mimebundle_() == bundle
    return dict(bundle)


def test_every_handle_shows_itself_twice(lab: Lab) -> None:
    waiting = lab.run("a", "letter", session_id="s", title=HOSTILE)
    assert "interrupted, 1 decision pending" in bundle_of(waiting)["text/plain"]
    assert HOSTILE in read(bundle_of(waiting)["text/html"]).text
    handle = waiting.pending[0]
    assert isinstance(handle, ApprovalHandle)
    assert handle.id in bundle_of(handle)["text/plain"]
    assert "send" in bundle_of(handle)["text/plain"]
    assert "1 decision pending" in bundle_of(lab.pending())["text/html"]
    done = handle.approve()
    assert bundle_of(done)["text/plain"] == f"<Session s (completed): {HOSTILE}>"
    assert HOSTILE in read(bundle_of(done)["text/html"]).text
    asked = lab.run("a", "question").pending[0]
    assert HOSTILE in bundle_of(asked)["text/plain"]
    assert HOSTILE in read(bundle_of(asked)["text/html"]).text
    assert "Nothing waits" in bundle_of(lab.pending(session="s"))["text/html"]
    assert bundle_of(lab.pending(session="s"))["text/plain"] == "<nothing waits>"


def test_a_session_handle_knows_its_session(lab: Lab) -> None:
    session = lab.run("a", "letter", session_id="s")
    assert isinstance(session, SessionHandle)
    assert (session.id, session.status, session.text) == ("s", "interrupted", "")
    assert type(session.status) is str
    assert [handle.action.session for handle in session.pending] == ["s"]
    assert session.lab is lab


def test_pending_is_a_sequence(lab: Lab) -> None:
    names = ["one", "two", "three"]
    for name in names:
        lab.run("a", "letter", session_id=name)
    pending = lab.pending()
    assert isinstance(pending, Pending)
    assert isinstance(pending, Sequence)
    assert [handle.action.session for handle in pending] == names
    assert [handle.action.session for handle in reversed(pending)] == names[::-1]
    assert (len(pending), bool(pending), bool(lab.pending(session="nope"))) == (3, True, False)
    assert pending[-1].action.session == "three"
    assert [handle.action.session for handle in pending[1:]] == names[1:]
    assert pending[0] in pending
    assert pending.index(pending[1]) == 1
    assert pending.count(pending[2]) == 1
    with pytest.raises(IndexError):
        pending[3]
    assert len(repr(pending).splitlines()) == 3
    for handle in pending:
        handle.deny()
    assert len(pending) == 3  # what was read stays
    assert len(lab.pending()) == 0
