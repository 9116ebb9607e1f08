"""The restart harness: an agent runs, pauses and goes on over lives of its application, and acts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cayu import AgentSpec, CayuApp, ToolEffect
from cayu.errors import AlreadyDecided, NotRegistered, SessionNotRunning
from cayu.examples.handbook import application, order_script
from cayu.examples.receipts import ReceiptBook
from cayu.messages import ToolResultPart
from cayu.providers import ModelProvider, ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.sessions import SessionStore
from cayu.testing import RestartHarness, run_child
from cayu.tools import AskUserTool, ByNameToolPolicy, ToolPolicyDecision, tool

ORDER = "Please order nitrile gloves, two boxes."
AGENT = AgentSpec(name="helper", model="m")


def asks(name: str, id: str = "c", **arguments: Any) -> list[ModelStreamEvent]:
    return [ModelStreamEvent.tool_call(name, arguments, id)]


class Own:
    """A small application of a test, with a note of what its tools did and of its lives."""

    def __init__(self) -> None:
        self.acted: list[str] = []
        self.lives: list[CayuApp] = []
        self.policy = ByNameToolPolicy({"act": ToolPolicyDecision.REQUIRE_APPROVAL})

    def build_app(self, *, session_store: SessionStore, provider: ModelProvider | None = None) -> CayuApp:
        @tool(version="1", effect=ToolEffect.EXTERNAL)
        def act(what: str) -> str:
            """Act."""
            self.acted.append(what)
            if what == "fail":
                raise RuntimeError("no")
            return f"did {what}"

        @tool(version="1", effect=ToolEffect.NONE)
        def free(what: str) -> str:
            """Act without asking."""
            self.acted.append(what)
            return f"did {what}"

        app = CayuApp(session_store=session_store)
        app.register_provider(provider or ScriptedModelProvider(["its own provider"]))
        app.register_agent(AGENT, tools=[act, free, AskUserTool()], tool_policy=self.policy)
        self.lives.append(app)
        return app


@pytest.fixture
def own() -> Own:
    return Own()


async def test_it_runs_and_tells_where_the_session_stops(own: Own, tmp_path: Path) -> None:
    async with RestartHarness(own.build_app, store_dir=tmp_path, model_script=["hello"]) as harness:
        outcome = await harness.run("helper", "hi", session_id="s", title="T")
        assert (outcome.session_id, outcome.status, outcome.final_text) == ("s", "completed", "hello")
        assert harness.last is outcome
        assert harness.provider is not None
        assert harness.provider.requests[0].messages[-1].plain_text == "hi"
        assert (await harness.run(AGENT, "hi")).final_text == "hello"
        with pytest.raises(NotRegistered):
            await harness.run("nobody", "hi")
    assert (tmp_path / "sessions.db").exists()


async def test_without_a_script_the_application_brings_its_provider(own: Own, tmp_path: Path) -> None:
    async with RestartHarness(own.build_app, store_dir=str(tmp_path)) as harness:
        assert (await harness.run("helper", "hi")).final_text == "its own provider"
        assert harness.provider is None


async def test_the_factory_may_be_asynchronous(own: Own, tmp_path: Path) -> None:
    async def build(**given: Any) -> CayuApp:
        return own.build_app(**given)

    async with RestartHarness(build, store_dir=tmp_path, model_script=["hello"]) as harness:
        assert (await harness.run("helper", "hi")).final_text == "hello"


async def test_the_script_goes_on_over_restarts(own: Own, tmp_path: Path) -> None:
    script = [asks("act", what="one"), "first done", asks("free", what="two"), "second done"]
    async with RestartHarness(own.build_app, store_dir=tmp_path, model_script=script) as harness:
        paused = await harness.run("helper", "go")
        assert paused.status == "interrupted"
        first_life = harness.provider
        await harness.restart()
        await harness.restart()  # twice is as good as once
        assert own.acted == []
        assert (await harness.approve()).final_text == "first done"
        assert harness.provider is not first_life
        assert harness.provider is not None
        assert len(harness.provider.requests) == 1  # of this life alone
        await harness.restart()
        outcome = await harness.resume("more")
        assert outcome.final_text == "second done"
        assert outcome.session_id == paused.session_id
        await harness.assert_tool_ran_once("act")
        await harness.assert_tool_ran_once("free", paused.session_id)
    assert own.acted == ["one", "two"]
    assert len(own.lives) == 3


async def test_resume_names_a_session(own: Own, tmp_path: Path) -> None:
    async with RestartHarness(own.build_app, store_dir=tmp_path, model_script=["one", "two"]) as harness:
        await harness.run("helper", "hi", session_id="a")
        await harness.run("helper", "hi", session_id="b")
        assert (await harness.resume("more", "a")).session_id == "a"
        assert (await harness.resume("more", session_id="b", max_steps=3)).final_text == "two"


async def test_approve_with_edits_deny_and_choose(own: Own, tmp_path: Path) -> None:
    script = [[*asks("act", "c1", what="one"), *asks("act", "c2", what="two")], "done"]
    async with RestartHarness(own.build_app, store_dir=tmp_path, model_script=script) as harness:
        await harness.run("helper", "go")
        first, second = await harness.pending_actions()
        assert (first.arguments, second.arguments) == ({"what": "one"}, {"what": "two"})
        assert (await harness.deny(second)).status == "interrupted"
        outcome = await harness.approve(arguments={"what": "three"})
        assert outcome.status == "completed"
        assert [call.code for call in outcome.tool_calls] == [None, "approval_denied"]
        assert await harness.pending_actions() == ()
        await harness.assert_tool_ran_once("act")
        with pytest.raises(AlreadyDecided):
            await harness.approve(second)
        with pytest.raises(AssertionError, match="No tool_approval waits"):
            await harness.deny()
    assert own.acted == ["three"]


async def test_answering(own: Own, tmp_path: Path) -> None:
    def said(request: ModelRequest) -> str:
        part = request.messages[-1].content[-1]
        return part.content if isinstance(part, ToolResultPart) else "?"

    script = [asks("ask_user", question="Which?"), said]
    async with RestartHarness(own.build_app, store_dir=tmp_path, model_script=script) as harness:
        await harness.run("helper", "go")
        await harness.restart()
        (question,) = await harness.pending_actions()
        assert (question.kind, question.question) == ("user_input", "Which?")
        with pytest.raises(AssertionError, match="No tool_approval waits"):
            await harness.approve()
        assert (await harness.answer_user_input("the left one")).final_text == "the left one"
        with pytest.raises(AssertionError, match="No user_input waits"):
            await harness.answer_user_input("again")
        assert (await harness.answer_user_input("the left one", question)).final_text == "the left one"


async def test_running_once_is_told_apart_from_never_and_twice(own: Own, tmp_path: Path) -> None:
    twice = [*asks("free", "c1", what="x"), *asks("free", "c2", what="x"), *asks("act", "c3", what="fail")]
    script = [twice, "done"]
    async with RestartHarness(own.build_app, store_dir=tmp_path, model_script=script) as harness:
        with pytest.raises(AssertionError, match="No session has run"):
            await harness.assert_tool_ran_once("act")
        await harness.run("helper", "go")
        with pytest.raises(AssertionError, match=r"act had 0 effects, not 1; its calls: .*awaiting_approval"):
            await harness.assert_tool_ran_once("act")
        await harness.deny()
        with pytest.raises(AssertionError, match="act had 0 effects"):
            await harness.assert_tool_ran_once("act")
        with pytest.raises(AssertionError, match="free had 2 effects"):
            await harness.assert_tool_ran_once("free")
        with pytest.raises(AssertionError, match="nothing had 0 effects, not 1; its calls: none"):
            await harness.assert_tool_ran_once("nothing")


async def test_an_attempt_that_raised_after_acting_is_not_one_effect(own: Own, tmp_path: Path) -> None:
    script = [asks("act", what="fail"), "done"]
    async with RestartHarness(own.build_app, store_dir=tmp_path, model_script=script) as harness:
        await harness.run("helper", "go")
        await harness.approve()
        assert own.acted == ["fail"]
        with pytest.raises(AssertionError, match=r"act had 0 effects, not 1; its calls: \['failed'\]"):
            await harness.assert_tool_ran_once("act")


async def test_nothing_to_recover_is_said(own: Own, tmp_path: Path) -> None:
    async with RestartHarness(own.build_app, store_dir=tmp_path, model_script=["hello"]) as harness:
        with pytest.raises(AssertionError, match="pass a session_id"):
            await harness.recover()
        await harness.run("helper", "hi")
        with pytest.raises(SessionNotRunning):
            await harness.recover()


async def test_the_handbook_orders_once_over_restarts(tmp_path: Path) -> None:
    async with RestartHarness(application(tmp_path), store_dir=tmp_path) as harness:
        await harness.run("clerk", ORDER)
        await harness.restart()
        (action,) = await harness.pending_actions()
        assert (action.tool_name, action.kind, action.arguments) == (
            *("order_supplies", "tool_approval"),
            {"item": "nitrile gloves", "quantity": 2},
        )
        outcome = await harness.approve(action)
        assert outcome.final_text == "Done. Receipt 1: 2 x nitrile gloves."
        await harness.restart()
        assert (await harness.approve(action)).final_text == outcome.final_text  # an exact repeat does nothing
        await harness.assert_tool_ran_once("order_supplies")
        await harness.assert_tool_ran_once("search_knowledge")
    assert ReceiptBook(tmp_path / "receipts.db").all() == [(1, "2 x nitrile gloves")]


async def test_the_handbook_with_a_script_of_its_own(tmp_path: Path) -> None:
    script = order_script("pens", 5)._batches
    async with RestartHarness(application(tmp_path), store_dir=tmp_path, model_script=script) as harness:
        await harness.run("clerk", "Pens, please.")
        assert (await harness.deny()).final_text == "The order was not placed."
        with pytest.raises(AssertionError, match="order_supplies had 0 effects"):
            await harness.assert_tool_ran_once("order_supplies")
    assert ReceiptBook(tmp_path / "receipts.db").all() == []


async def approve_and_die(folder: str) -> str:
    """Approve the first action of the handbook's store; armed from outside to die on the way."""
    async with RestartHarness(application(folder), store_dir=folder) as harness:
        return (await harness.approve()).final_text


@pytest.mark.slow
@pytest.mark.parametrize("point", ["round.continued", "tool.dispatched", "tool.returned", "round.closed"])
async def test_a_killed_process_is_recovered_and_acts_once(tmp_path: Path, point: str) -> None:
    async with RestartHarness(application(tmp_path), store_dir=tmp_path) as harness:
        paused = await harness.run("clerk", ORDER)
        await harness.restart()
        assert run_child(f"{__file__}:approve_and_die", [str(tmp_path)], crash_at=point).killed
        outcome = await harness.recover(paused.session_id)
        assert (outcome.status, outcome.final_text) == ("completed", "Done. Receipt 1: 2 x nitrile gloves.")
        assert harness.last is outcome
        await harness.assert_tool_ran_once("order_supplies")
    assert len(ReceiptBook(tmp_path / "receipts.db").all()) == 1
