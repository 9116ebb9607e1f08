"""Preparing a context: compact_then_resume cuts a conversation down before its last message, once."""

from __future__ import annotations

from typing import Any

import pytest
from memory.support import QUESTION, Bench, JournalProxy, Lost, at, once, texts
from runtime.support import log_of

from cayu import CayuApp, Message
from cayu.errors import InvalidInput
from cayu.events import EventType as E
from cayu.memory import CayuMemoryInterventionRuntimeRunner
from cayu.providers import ScriptedModelProvider
from cayu.providers.base import ModelStreamEvent
from cayu.recall import AutomaticRecallPolicy
from cayu.sessions.context import RecentTurnsContextPolicy

TALK = (Message.text("user", "My name is Ada."), Message.text("user", QUESTION))
OFF = AutomaticRecallPolicy(mode="off")


@pytest.mark.requirement("B023")
async def test_without_preparation_the_model_gets_the_whole_conversation_at_once() -> None:
    provider = ScriptedModelProvider(["first", "second"])
    bench = await Bench(provider=provider, recall=OFF, context_policy=RecentTurnsContextPolicy(0)).open()
    request = bench.request(messages=TALK)
    assert request.context_preparation == "none"
    await bench.study.executor.execute_trial(request)
    assert [texts(asked) for asked in provider.requests] == [["My name is Ada.", QUESTION]]


@pytest.mark.requirement("B023")
@pytest.mark.parametrize(
    ("turns", "second"), [(0, [QUESTION]), (1, ["My name is Ada.", "first", QUESTION])], ids=["none kept", "one kept"]
)
async def test_compact_then_resume_cuts_the_conversation_down_before_the_last_message(
    turns: int, second: list[str]
) -> None:
    provider = ScriptedModelProvider(["first", "second"])
    bench = await Bench(provider=provider, recall=OFF, context_policy=RecentTurnsContextPolicy(turns)).open()
    request = bench.request(messages=TALK, context_preparation="compact_then_resume")
    outcome = await bench.study.executor.execute_trial(request)
    assert outcome.execution.status == "completed"
    assert [texts(asked) for asked in provider.requests] == [["My name is Ada."], second]
    kinds = [record.type for record in (await log_of(bench.apps[-1], request.session_id)).records]
    assert (kinds.count(E.SESSION_STARTED), kinds.count(E.SESSION_RESUMED), kinds.count(E.SESSION_COMPLETED)) == (
        1,
        1,
        2,
    )
    assert await bench.executor().execute_trial(request) == outcome
    assert len(provider.requests) == 2


@pytest.mark.requirement("B023")
async def test_compaction_without_a_policy_is_refused_before_anything_is_written() -> None:
    bench = await Bench().open()
    request = bench.request(messages=TALK, context_preparation="compact_then_resume")
    with pytest.raises(InvalidInput, match="has no context policy"):
        await bench.study.executor.execute_trial(request)
    assert await bench.journal(request) is None
    assert not await bench.has_session(request)


@pytest.mark.requirement("B023")
async def test_a_preparation_that_was_cut_off_between_its_turns_is_not_repeated() -> None:
    """The first turn is over and the second was never begun: only the second is run."""
    provider = ScriptedModelProvider(["first", "second"])
    bench = await Bench(provider=provider, recall=OFF, context_policy=RecentTurnsContextPolicy(0)).open()
    request = bench.request(messages=TALK, context_preparation="compact_then_resume")

    class Halting(CayuMemoryInterventionRuntimeRunner):
        async def _resume_compacted(self, app: CayuApp, given: Any) -> None:
            raise Lost

    with pytest.raises(Lost):
        await bench.executor(runtime_runner=Halting(bench.factory())).execute_trial(request)
    assert len(provider.requests) == 1
    outcome = await bench.study.executor.execute_trial(request)
    assert outcome.execution.status == "completed"
    assert [texts(asked) for asked in provider.requests] == [["My name is Ada."], [QUESTION]]


@pytest.mark.requirement("B023")
async def test_a_preparation_that_was_over_is_not_resumed_again() -> None:
    provider = ScriptedModelProvider(["first", "second"])
    bench = await Bench(provider=provider, recall=OFF, context_policy=RecentTurnsContextPolicy(0)).open()
    request = bench.request(messages=TALK, context_preparation="compact_then_resume")
    journal = JournalProxy(bench.stores.executions, before=at("runtime_terminal", once()))
    with pytest.raises(Lost):
        await bench.executor(executions=journal).execute_trial(request)
    assert (await bench.study.executor.execute_trial(request)).execution.status == "completed"
    assert len(provider.requests) == 2


async def test_a_first_turn_that_failed_has_no_second() -> None:
    provider = ScriptedModelProvider([[ModelStreamEvent.error("overloaded")], "second"])
    bench = await Bench(provider=provider, recall=OFF, context_policy=RecentTurnsContextPolicy(0)).open()
    request = bench.request(messages=TALK, context_preparation="compact_then_resume")
    assert (await bench.study.executor.execute_trial(request)).execution.status == "failed"
    assert len(provider.requests) == 1


async def test_what_compaction_took_out_can_be_recalled_from_the_transcript() -> None:
    provider = ScriptedModelProvider(["noted", "an answer"])
    policy = AutomaticRecallPolicy()
    bench = await Bench(provider=provider, recall=policy, context_policy=RecentTurnsContextPolicy(0)).open()
    talk = (
        Message.text("user", "The spare key hangs behind the freezer."),
        Message.text("user", "Where is the spare key?"),
    )
    await bench.study.executor.execute_trial(bench.request(messages=talk, context_preparation="compact_then_resume"))
    recalled, question = texts(provider.requests[1])
    assert "behind the freezer" in recalled
    assert question == "Where is the spare key?"
