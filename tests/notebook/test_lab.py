"""The lab: its verbs and their twins, restarts, looking only, typed refusals, kept problems and a clean end."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from notebook.conftest import ask, driver_threads, lab_threads, until

from cayu import CayuApp
from cayu.errors import (
    AlreadyDecided,
    CayuError,
    InvalidInput,
    LabClosed,
    LabNotQuiet,
    NotRegistered,
    SessionNeedsRecovery,
    SessionNotFound,
    StoreNotADatabase,
    StoreReadOnly,
)
from cayu.examples.handbook import application
from cayu.notebook import Lab
from cayu.sessions.streams import HeadQuery
from cayu.testing import run_child

if TYPE_CHECKING:
    from notebook.conftest import Workshop

CHILDREN = str(Path(__file__).with_name("children.py"))
LETTER = [ask("send", to="ann"), "sent"]
QUESTION = [
    ask("ask_user", question="Which?", options=["A", "B"]),
    lambda request: request.messages[-1].content[0].content,
]


@pytest.fixture
def lab(workshop: Workshop) -> Lab:
    workshop.scripts |= {"letter": LETTER, "question": QUESTION, "wait": [ask("hold"), "done"]}
    return workshop.open()


# Verbs.


def test_every_verb_has_a_twin_with_the_same_signature() -> None:
    verbs = {"run", "resume", "recover", "approve", "deny", "answer", "interrupt", "session", "pending", "call"}
    for name in verbs:
        verb, twin = getattr(Lab, name), getattr(Lab, f"a{name}")
        assert inspect.iscoroutinefunction(twin), name
        assert not inspect.iscoroutinefunction(verb), name
        assert inspect.signature(verb) == inspect.signature(twin), name


def test_run_and_resume(lab: Lab) -> None:
    session = lab.run("a", "hello", session_id="s", title="Mine", labels={"k": "v"})
    assert (session.id, session.status, session.text) == ("s", "completed", "done")
    assert session.view.row.title == "Mine"
    again = lab.resume("s", "more")
    assert again.status == "completed"
    assert [message.role for message in again.view.transcript] == ["user", "assistant"] * 2
    assert len(session.view.transcript) == 2  # a handle shows what it read
    assert session.refresh() is session
    assert len(session.view.transcript) == 4
    assert session.resume("and more").status == "completed"


def test_approve_deny_and_edit(lab: Lab, workshop: Workshop) -> None:
    session = lab.run("a", "letter")
    assert (session.status, len(session.pending), workshop.sent) == ("interrupted", 1, [])
    assert session.pending[0].approve(by="me").text == "sent"
    assert workshop.sent == ["ann"]
    refused = lab.run("a", "letter")
    action = refused.pending[0].action
    assert lab.deny(action, reason="no need", by="you").status == "completed"
    with pytest.raises(AlreadyDecided, match="deny by you"):
        lab.approve(action)
    edited = lab.run("a", "letter").pending[0]
    with pytest.raises(InvalidInput, match="schema"):
        edited.approve({"to": 3})
    assert edited.approve({"to": "bob"}).status == "completed"
    assert workshop.sent == ["ann", "bob"]


def test_answer(lab: Lab) -> None:
    handle = lab.run("a", "question").pending[0]
    assert (handle.action.kind, handle.action.question) == ("user_input", "Which?")
    with pytest.raises(InvalidInput, match="none of the options"):
        handle.answer("C")
    assert handle.answer("B", by="me").text == "B"


def test_interrupt_stops_a_run(lab: Lab, workshop: Workshop) -> None:
    future = lab._bridge.submit(lab.arun("a", "wait", session_id="s"))
    assert workshop.entered.wait(5)
    lab.interrupt("s", reason="enough")
    assert future.result(5).status == "interrupted"


async def test_the_awaited_twins(lab: Lab, workshop: Workshop) -> None:
    session = await lab.arun("a", "letter", session_id="s")
    assert session.status == "interrupted"
    (handle,) = await lab.apending(session="s")
    assert (await lab.aapprove(handle.action, by="me")).text == "sent"
    assert (await lab.aresume("s", "more")).status == "completed"
    (handle,) = (await lab.arun("a", "letter")).pending
    assert (await lab.adeny(handle.action, reason="no")).status == "completed"
    (handle,) = (await lab.arun("a", "question")).pending
    assert (await lab.aanswer(handle.action, "A")).text == "A"
    assert (await lab.asession("s")).id == "s"
    rows, following, total = await lab.aheads(HeadQuery(limit=2))
    assert (len(rows), total) == (2, 3)
    assert following is not None
    running = asyncio.ensure_future(lab.arun("a", "wait", session_id="w"))
    await asyncio.to_thread(workshop.entered.wait, 5)
    await lab.ainterrupt("w")
    assert (await running).status == "interrupted"
    with pytest.raises(CayuError):
        await lab.arecover("w")
    assert await lab.acall(asyncio.sleep(0, "here")) == "here"


async def test_the_blocking_verbs_work_in_a_running_loop(lab: Lab) -> None:
    assert lab.run("a", "hello").status == "completed"
    assert len(lab.sessions_df()) == 1


def test_typed_refusals_reach_the_caller(lab: Lab) -> None:
    with pytest.raises(NotRegistered, match="'nobody'"):
        lab.run("nobody", "hello")
    with pytest.raises(SessionNotFound):
        lab.session("nope")
    with pytest.raises(SessionNotFound):
        lab.resume("nope", "hello")
    with pytest.raises(ValueError, match="max_steps"):
        lab.run("a", "hello", max_steps=0)
    assert len(lab.sessions_df()) == 0


def test_pending_is_read_now_and_by_session(lab: Lab) -> None:
    first, second = lab.run("a", "letter"), lab.run("a", "letter")
    assert [handle.action.session for handle in lab.pending()] == [first.id, second.id]
    assert [handle.action.session for handle in lab.pending(session=second.id)] == [second.id]
    first.pending[0].deny()
    assert len(lab.pending()) == 1
    assert len(first.pending) == 0


# Restarts.


def test_a_restart_builds_the_application_anew_and_keeps_what_waits(lab: Lab, workshop: Workshop) -> None:
    lab.run("a", "letter", session_id="s")
    before = lab.app
    lab.restart()
    assert lab.app is not before
    assert workshop.built == 2
    (handle,) = lab.pending()
    assert (handle.action.session, handle.action.tool_name, handle.action.arguments) == ("s", "send", {"to": "ann"})
    assert handle.action.requested_at is not None
    assert handle.approve().status == "completed"
    assert workshop.sent == ["ann"]


def test_a_handle_from_before_the_restart_still_leads_on(lab: Lab, workshop: Workshop) -> None:
    session = lab.run("a", "letter")
    handle = session.pending[0]
    lab.restart()
    assert handle.approve().status == "completed"
    assert session.refresh().status == "completed"


def test_another_lab_on_the_file_sees_what_waits(lab: Lab, workshop: Workshop) -> None:
    lab.run("a", "letter")
    lab.close()
    second = workshop.open()
    assert [handle.approve().status for handle in second.pending()] == ["completed"]
    assert workshop.sent == ["ann"]


def test_a_restart_interrupts_what_runs(lab: Lab, workshop: Workshop) -> None:
    future = lab._bridge.submit(lab.arun("a", "wait", session_id="s"))
    assert workshop.entered.wait(5)
    lab.restart()
    until(future.done, "the run to end")
    assert lab.session("s").status == "interrupted"
    lab.check_quiet()


def test_a_restart_leaves_no_connection_behind(tmp_path: Path) -> None:
    before = {*driver_threads()}
    with Lab.open(tmp_path / "runs.db", factory=application(tmp_path)) as lab:
        lab.run("reader", "How are samples labelled?")
        one_life = len({*driver_threads()} - before)
        for _ in range(2):
            lab.restart()
            lab.run("reader", "How are samples labelled?")
        assert len({*driver_threads()} - before) == one_life, "every life of the application left connections open"
    until(lambda: not {*driver_threads()} - before, "the connections of a closed lab to end")


# Factories.


def test_a_factory_may_be_asynchronous(workshop: Workshop) -> None:
    async def build(**given: Any) -> CayuApp:
        await asyncio.sleep(0)
        return workshop.build_app(**given)

    lab = workshop.open(factory=build)
    assert lab.run("a", "hello").status == "completed"
    lab.restart()
    assert lab.run("a", "hello").status == "completed"


async def _raising(**_: Any) -> CayuApp:
    raise LookupError("no such model")


def _raising_at_once(**_: Any) -> CayuApp:
    raise LookupError("no such model")


@pytest.mark.parametrize("factory", [_raising, _raising_at_once])
def test_a_factory_that_raises_says_so_and_leaves_nothing_behind(
    workshop: Workshop, factory: Callable[..., Any]
) -> None:
    before = lab_threads()
    with pytest.raises(LookupError, match="no such model"):
        workshop.open(factory=factory)
    assert lab_threads() == before, "the loop of the lab that could not be opened is still there"


def test_a_factory_that_returns_something_else_is_refused_and_leaves_nothing_behind(workshop: Workshop) -> None:
    before = lab_threads()
    with pytest.raises(InvalidInput, match="The factory returned str; it returns a CayuApp"):
        workshop.open(factory=lambda **_: "app")
    assert lab_threads() == before, "the loop of the lab that could not be opened is still there"


def test_a_factory_that_raises_on_a_restart_leaves_a_lab_that_can_be_closed(workshop: Workshop) -> None:
    def build(**given: Any) -> CayuApp:
        if workshop.built:
            raise LookupError("gone")
        return workshop.build_app(**given)

    lab = workshop.open(factory=build)
    with pytest.raises(LookupError, match="gone"):
        lab.restart()
    with pytest.raises(CayuError):
        lab.run("a", "hello")
    lab.close()


# Files.


def test_a_missing_folder_is_a_typed_error(tmp_path: Path) -> None:
    before = lab_threads()
    with pytest.raises(StoreReadOnly, match="does not exist; create it"):
        Lab.open(tmp_path / "nope" / "runs.db", factory=CayuApp)
    with pytest.raises(StoreNotADatabase, match="there is no such file"):
        Lab.open(tmp_path / "nope.db")
    assert lab_threads() == before
    assert list(tmp_path.iterdir()) == []


def test_a_garbage_file_is_a_typed_error_and_stays_as_it_is(tmp_path: Path) -> None:
    before, path = lab_threads(), tmp_path / "notes.txt"
    path.write_text("dear diary\n" * 100)
    for mode in ("rw", "ro"):
        with pytest.raises(StoreNotADatabase, match=r"notes\.txt"):
            Lab.open(path, mode=mode)  # type: ignore[arg-type]
    assert lab_threads() == before
    assert path.read_text() == "dear diary\n" * 100
    assert list(tmp_path.iterdir()) == [path]


def test_looking_at_a_file_that_is_not_there_creates_none(tmp_path: Path) -> None:
    with pytest.raises(StoreNotADatabase, match="no such file"):
        Lab.open(tmp_path / "runs.db", mode="ro")
    assert list(tmp_path.iterdir()) == []


def test_a_lab_that_only_looks_refuses_every_verb(lab: Lab, workshop: Workshop) -> None:
    action = lab.run("a", "letter", session_id="s").pending[0].action
    looking = workshop.open(mode="ro")
    verbs: list[Callable[[], object]] = [
        lambda: looking.run("a", "hello"),
        lambda: looking.resume("s", "hello"),
        lambda: looking.recover("s"),
        lambda: looking.approve(action),
        lambda: looking.deny(action),
        lambda: looking.answer(action, "A"),
        lambda: looking.interrupt("s"),
    ]
    for verb in verbs:
        with pytest.raises(InvalidInput, match="only looks"):
            verb()
    assert looking.session("s").status == "interrupted"
    assert [handle.id for handle in looking.pending()] == [action.id]
    assert looking.sessions_df()["status"].tolist() == ["interrupted"]
    assert "only looks" in repr(looking)
    looking.restart()
    assert len(looking.sessions_df()) == 1
    assert workshop.built == 1
    looking.check_quiet()


def test_a_lab_without_a_factory_only_looks(workshop: Workshop) -> None:
    workshop.open().close()
    lab = workshop.open(factory=None)
    with pytest.raises(InvalidInput, match="open it with factory=build_app"):
        lab.run("a", "hello")


@pytest.mark.slow
def test_looking_goes_on_while_another_process_writes(workshop: Workshop) -> None:
    workshop.open().close()
    command = [sys.executable, CHILDREN, "writes", str(workshop.folder), "40"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "0\n"
        looking = workshop.open(mode="ro")
        counts, slowest = [], 0.0
        while child.poll() is None:
            begun = time.monotonic()
            frame = looking.sessions_df()
            events = looking.events_df(columns=["session_id", "sequence"])
            slowest = max(slowest, time.monotonic() - begun)
            counts.append(len(frame))
            for _, group in events.groupby("session_id"):
                assert group["sequence"].tolist() == list(range(1, len(group) + 1))
    assert child.returncode == 0
    assert counts == sorted(counts)
    assert counts[0] < 40
    assert len(looking.sessions_df()) == 40
    assert set(looking.sessions_df()["status"]) == {"completed"}
    assert slowest < 2


# Problems.


def test_a_watcher_that_fails_never_fails_the_run(lab: Lab) -> None:
    def watcher(event: Any) -> None:
        raise ZeroDivisionError(f"at {event.type}")

    session = lab.run("a", "hello", session_id="s", on_event=watcher)
    assert session.status == "completed"
    with pytest.raises(LabNotQuiet, match="ZeroDivisionError in on_event"):
        lab.check_quiet()
    with pytest.raises(LabNotQuiet):
        lab.check_quiet()  # looking at the refusal is not reading
    kept = lab.errors_df()
    assert set(kept["source"]) == {"on_event"}
    assert set(kept["session_id"]) == {"s"}
    assert kept["message"][0] == "at session.started"
    assert not kept["read"].any()
    lab.check_quiet()
    assert lab.errors_df()["read"].all()


def test_a_refused_reading_leaves_problems_unread(lab: Lab) -> None:
    lab.problems.keep("a card", ValueError("x"))
    with pytest.raises(InvalidInput):
        lab.errors_df({"nope": 1})
    with pytest.raises(LabNotQuiet):
        lab.check_quiet()


def test_the_watcher_hears_every_event_in_order(lab: Lab) -> None:
    heard: list[Any] = []
    session = lab.run("a", "hello", on_event=heard.append)
    stored = [event.sequence for event in heard if event.sequence is not None]
    assert stored == session.events_df()["sequence"].tolist()
    heard.clear()
    lab.resume(session.id, "more", on_event=heard.append)
    assert heard[0].type == "session.resumed"


def test_a_session_at_work_is_not_quiet(lab: Lab, workshop: Workshop) -> None:
    lab.check_quiet()
    future = lab._bridge.submit(lab.arun("a", "wait", session_id="s"))
    assert workshop.entered.wait(5)
    with pytest.raises(LabNotQuiet, match="session s is still at work"):
        lab.check_quiet()
    workshop.freed.set()
    assert future.result(5).status == "completed"
    lab.check_quiet()


@pytest.mark.slow
def test_recover_goes_on_after_a_lost_process(tmp_path: Path) -> None:
    with Lab.open(tmp_path / "runs.db", factory=application(tmp_path)) as lab:
        session = lab.run("clerk", "Please order nitrile gloves, two boxes.")
        arguments = [str(tmp_path), session.pending[0].id]
        assert run_child("cayu.examples.handbook:approve_in", arguments, crash_at="tool.returned").killed
        with pytest.raises(SessionNeedsRecovery):
            session.resume("Are you there?")
        heard: list[Any] = []
        recovered = lab.recover(session.id, on_event=heard.append)
        assert (recovered.status, recovered.text) == ("completed", "Done. Receipt 1: 2 x nitrile gloves.")
        assert [event.type for event in heard][-1] == "session.completed"
        call = recovered.calls_df({"tool_name": "order_supplies"}).iloc[0]
        assert (call.attempt, call.replayed) == (2, True)


# The end.


def test_closing_twice_and_leaving_a_block(workshop: Workshop) -> None:
    before = lab_threads()
    with workshop.open() as lab:
        assert lab.run("a", "hello").status == "completed"
    lab.close()
    lab.close()
    assert lab_threads() == before


async def test_everything_after_the_end_raises_lab_closed(lab: Lab) -> None:
    session = lab.run("a", "letter", session_id="s")
    handle = session.pending[0]
    lab.close()
    blocking: list[Callable[[], object]] = [
        lambda: lab.run("a", "hello"),
        lambda: lab.resume("s", "hello"),
        lambda: lab.recover("s"),
        handle.approve,
        handle.deny,
        lambda: handle.answer("A"),
        lambda: lab.interrupt("s"),
        lambda: lab.session("s"),
        session.refresh,
        lambda: session.pending,
        lab.pending,
        lab.restart,
        lab.sessions_df,
        lab.events_df,
        lab.messages_df,
        lab.calls_df,
        lab.approvals_df,
        lambda: lab.call(asyncio.sleep(0)),
    ]
    for verb in blocking:
        with pytest.raises(LabClosed, match=r"Lab\.open"):
            verb()
    action = handle.action
    awaiting: list[Callable[[], Any]] = [
        lambda: lab.arun("a", "hello"),
        lambda: lab.aresume("s", "hello"),
        lambda: lab.arecover("s"),
        lambda: lab.aapprove(action),
        lambda: lab.adeny(action),
        lambda: lab.aanswer(action, "A"),
        lambda: lab.ainterrupt("s"),
        lambda: lab.asession("s"),
        lab.apending,
        lambda: lab.aheads(HeadQuery()),
        lambda: lab.acall(asyncio.sleep(0)),
    ]
    for twin in awaiting:
        with pytest.raises(LabClosed):
            await twin()
    assert "text/html" in session._repr_mimebundle_()  # what was read still shows
    assert repr(lab).startswith("<Lab ")
    assert len(lab.errors_df()) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("plainly", 0), ("raising", 1), ("at work", 0)])
def test_a_script_that_forgets_to_close_exits_within_a_second(tmp_path: Path, how: str, code: int) -> None:
    command = [sys.executable, CHILDREN, "forgets_to_close", str(tmp_path), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line == "the end\n":
                break
        ended = time.monotonic()
        try:
            child.wait(10)
        finally:
            child.kill()
        took = time.monotonic() - ended
        assert child.stderr is not None
        assert child.returncode == code, child.stderr.read()
    assert took < 1


def test_what_was_cut_off_is_named_with_what_waits(tmp_path: Path) -> None:
    with Lab.open(tmp_path / "runs.db", factory=application(tmp_path)) as lab:
        action = lab.run("clerk", "Please order nitrile gloves, two boxes.").pending[0]
        child = run_child("cayu.examples.handbook:approve_in", [str(tmp_path), action.id], crash_at="tool.returned")
        assert child.killed
        waiting = lab.pending()
        assert (len(waiting), waiting.lost) == (0, (action.action.session,))
        assert f"lab.recover('{action.action.session}')" in repr(waiting)
        assert "was cut off" in waiting._repr_mimebundle_()["text/html"]
        assert lab.recover(action.action.session).status == "completed"
        assert lab.pending().lost == ()


def test_a_factory_that_forgets_its_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="pass it on"):
        Lab.open(tmp_path / "runs.db", factory=lambda session_store=None: CayuApp())
    with pytest.raises(InvalidInput, match="factory is a function"):
        Lab.open(tmp_path / "runs.db", factory=CayuApp())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="'rw' or 'ro'"):
        Lab.open(tmp_path / "runs.db", mode="w")  # type: ignore[arg-type]
    with pytest.raises(StoreNotADatabase, match="it is a folder"):
        Lab.open(tmp_path, factory=CayuApp)
