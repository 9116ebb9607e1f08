"""Compaction at a resume: durable with it, replayed from the log, and what it took away can be recalled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runtime.recall_scenarios import QUESTION, RECALL, STRONG
from runtime.recall_support import Agent, Looking, asking, going_on, shelf, texts
from runtime.support import (
    SESSION,
    FakeClock,
    FakePolicy,
    FakeTool,
    assert_consistent,
    calls,
    identity,
    log_of,
    logged,
    play,
    status_of,
    waiting_ids,
)

from cayu import KnowledgeEntry, Message, SQLiteSessionStore
from cayu.errors import ExecutionProfileMismatchError, InvalidInput
from cayu.events import EventType as E
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.providers import ScriptedModelProvider
from cayu.recall.selection import HEADING
from cayu.runtime.outcome import session_view
from cayu.sessions.context import ContextPolicy, RecentTurnsContextPolicy
from cayu.storage import InMemorySessionStore
from cayu.tools import ToolPolicyDecision, ToolPolicyResult

EMPTY = KnowledgeEntry(id="lunch", title="Lunch", text="Soup is served at noon.", namespace="lab")
LOST = "The cold room failed on Monday."


def scripted(*answers: str) -> Looking:
    """A model that gives its answers one after the other, whatever the conversation has lost."""
    given = list(answers)
    return Looking([lambda request: given.pop(0)] * len(answers), InMemorySessionStore())


def compacting(text: str = QUESTION, **fields: Any) -> Any:
    return going_on(text, compact_context=True, **fields)


async def test_a_compacted_conversation_is_what_the_model_reads_from_then_on() -> None:
    provider = scripted("one", "two", "three", "four")
    app = Agent(
        None, provider=provider, recall=None, context_policy=RecentTurnsContextPolicy(1), prompt="Be kind."
    ).app()
    await play(app.run(asking("first")))
    await play(app.resume(going_on("second")))
    await play(app.resume(compacting("third")))
    await play(app.resume(going_on("fourth")))
    said = [[message.plain_text for message in request.messages] for request in provider.requests]
    assert said[2:] == [
        ["Be kind.", "second", "two", "third"],
        ["Be kind.", "second", "two", "third", "three", "fourth"],
    ]
    view = await assert_consistent(app)
    assert view.compacted == ["first", "one"]
    assert [message.plain_text for message in view.transcript][:2] == ["second", "two"]


async def test_it_stands_in_the_resume_and_the_old_messages_stay_in_the_log() -> None:
    app = Agent(None, provider=scripted("one", "two"), recall=None, context_policy=RecentTurnsContextPolicy(0)).app()
    await play(app.run(asking("first")))
    await play(app.resume(compacting("second")))
    [resumed] = await logged(app, E.SESSION_RESUMED)
    assert resumed["compacted"] == []
    [started] = await logged(app, E.SESSION_STARTED)
    assert [message["content"][0]["text"] for message in started["messages"]] == ["first"]


async def test_a_resume_that_does_not_ask_for_it_holds_none() -> None:
    app = Agent(None, ["one", "two"], None, context_policy=RecentTurnsContextPolicy(0)).app()
    await play(app.run(asking("first")))
    await play(app.resume(going_on("second")))
    assert ["compacted" in each for each in await logged(app, E.SESSION_RESUMED)] == [False]


async def test_it_is_replayed_after_a_restart_and_never_decided_again(tmp_path: Path) -> None:
    counted = []

    class Counting(RecentTurnsContextPolicy):
        def compact(self, messages: Sequence[Message]) -> Sequence[Message]:
            counted.append(len(messages))
            return super().compact(messages)

    agent = Agent(None, recall=None, context_policy=Counting(1))
    views = []
    for request in (asking("first"), going_on("second"), compacting("third"), None):
        agent.provider = ScriptedModelProvider(["said"], repeat_last=True)
        async with agent.app(SQLiteSessionStore(tmp_path / "s.db")) as app:
            if request is not None:
                await play(app.run(request) if not counted and not views else app.resume(request))
            views.append(await assert_consistent(app))
    assert counted == [4]
    assert views[-1].transcript == views[-2].transcript
    assert [message.plain_text for message in views[-1].transcript] == ["second", "said", "third", "said"]
    assert views[-1].compacted == ["first"], "what still stands in the conversation is not lost"


async def test_without_a_policy_it_is_refused_and_nothing_is_written() -> None:
    provider = scripted("one", "two")
    app = Agent(None, provider=provider, recall=None).app()
    await play(app.run(asking("first")))
    before = (await log_of(app)).head
    with pytest.raises(InvalidInput, match="no context policy"):
        await play(app.resume(compacting("second")))
    assert ((await log_of(app)).head, len(provider.requests)) == (before, 1)
    await play(app.resume(going_on("second")))
    assert await status_of(app) == "completed"


async def test_with_an_open_round_it_is_refused_and_nothing_is_written() -> None:
    clock = FakeClock()
    expiring = ToolPolicyResult(decision=ToolPolicyDecision.REQUIRE_APPROVAL, approval_expires_in_seconds=10)
    agent = Agent(None, [calls("look"), "done"], None, [FakeTool("look")], FakePolicy(lambda request: expiring))
    app = replace(agent, context_policy=RecentTurnsContextPolicy(1)).app(InMemorySessionStore(clock=clock))
    await play(app.run(asking("first")))
    assert len(await waiting_ids(app)) == 1
    clock.advance(60)
    before = (await log_of(app)).head
    with pytest.raises(InvalidInput, match="round is open"):
        await play(app.resume(compacting("second")))
    assert (await log_of(app)).head == before
    await play(app.resume(going_on("second")))
    assert await status_of(app) == "completed"
    await assert_consistent(app)


class Opaque(ContextPolicy):
    """Keeps everything, and says nothing of itself."""

    def compact(self, messages: Sequence[Message]) -> Sequence[Message]:
        return messages


class Named(Opaque):
    """The same with a name."""

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        return identity("keeps-all")


async def test_a_policy_without_an_identity_is_opaque_to_a_rebuilt_application(tmp_path: Path) -> None:
    for policy, accepted in ((Opaque, False), (Named, True)):
        path = tmp_path / f"{policy.__name__}.db"
        async with Agent(None, recall=None, context_policy=policy()).app(SQLiteSessionStore(path)) as app:
            await play(app.run(asking("first")))
        async with Agent(None, ["one", "two"], None, context_policy=policy()).app(SQLiteSessionStore(path)) as app:
            if accepted:
                await play(app.resume(compacting("second")))
                continue
            with pytest.raises(ExecutionProfileMismatchError) as caught:
                await play(app.resume(compacting("second")))
            assert caught.value.changed_component_classes == ("context_policy",)


async def test_a_policy_that_raises_is_heard_and_nothing_is_written() -> None:
    class Broken(Named):
        def compact(self, messages: Sequence[Message]) -> Sequence[Message]:
            raise ZeroDivisionError

    app = Agent(None, ["one", "two"], None, context_policy=Broken()).app()
    await play(app.run(asking("first")))
    before = (await log_of(app)).head
    with pytest.raises(ZeroDivisionError):
        await play(app.resume(compacting("second")))
    assert (await log_of(app)).head == before


# With recall.


async def test_what_compaction_has_taken_away_can_be_recalled() -> None:
    provider = scripted("Noted.", "Fine.", "On Monday.", "done")
    agent = Agent(await shelf(EMPTY), provider=provider, context_policy=RecentTurnsContextPolicy(0))
    app = agent.app()
    await play(app.run(asking(LOST)))
    await play(app.resume(compacting("How are you?")))
    await play(app.resume(compacting("When did the cold room fail?")))
    assert texts(provider.requests[0]) == [LOST], "what stands in the conversation is not recalled"
    assert texts(provider.requests[1]) == ["How are you?"]
    assert texts(provider.requests[2]) == [f"{HEADING}\n\n{LOST}", "When did the cold room fail?"]
    receipt = (await logged(app, E.RECALL_COMPLETED))[-1]
    [item] = receipt["items"]
    assert (item["source"], item["id"], item["disposition"]) == ("transcript", "message-1", "injected")
    [exposure] = await logged(app, E.EXPOSURE_RECORDED)
    assert exposure["items"] == [{"source": "transcript", "id": "message-1", "revision": 1, "disposition": "injected"}]
    await assert_consistent(app)


async def test_what_was_said_is_never_offered_by_title() -> None:
    policy = RECALL.model_copy(update={"minimum_inject_score": 1.0, "minimum_offer_score": 0.0})
    provider = scripted("Noted.", "done")
    app = Agent(await shelf(EMPTY), provider=provider, recall=policy, context_policy=RecentTurnsContextPolicy(0)).app()
    await play(app.run(asking(LOST)))
    await play(app.resume(compacting("When did the cold room fail?")))
    assert texts(provider.requests[1]) == ["When did the cold room fail?"]


async def test_a_conversation_that_goes_takes_with_it_what_was_recalled_for_it() -> None:
    provider = scripted("one", "two", "three")
    app = Agent(await shelf(), provider=provider, context_policy=RecentTurnsContextPolicy(1)).app()
    await play(app.run(asking()))
    await play(app.resume(compacting("Thanks.")))
    assert texts(provider.requests[1]) == [QUESTION, "Thanks."]
    await play(app.resume(going_on("And how cold is the room now?")))
    assert STRONG in texts(provider.requests[2])[2]
    receipts, exposures = await logged(app, E.RECALL_COMPLETED), await logged(app, E.EXPOSURE_RECORDED)
    assert [receipt["recall"] for receipt in receipts] == [1, 2, 3], "numbers go on"
    assert [(each["step"], each["recalls"]) for each in exposures] == [(1, [1]), (3, [3])]
    view = await session_view(app, SESSION)
    assert [recall.number for recall in view.recalls] == [2, 3]
    await assert_consistent(app)
