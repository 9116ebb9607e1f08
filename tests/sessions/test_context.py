"""What a context policy keeps of a conversation: whole turns, and what that is called."""

from __future__ import annotations

import pytest

from cayu.errors import InvalidInput
from cayu.messages import Message, ToolCallPart, ToolResultPart
from cayu.sessions.context import ContextPolicy, RecentTurnsContextPolicy


def said(role: str, text: str) -> Message:
    return Message.text(role, text)  # type: ignore[arg-type]


ASKED = Message(role="assistant", content=(ToolCallPart(id="c", name="look"),))
ANSWERED = Message(role="tool", content=(ToolResultPart(tool_call_id="c", name="look", content="seen"),))
FIRST = (said("user", "one"), ASKED, ANSWERED, said("assistant", "first"))
SECOND = (said("user", "two"), said("assistant", "second"))
THIRD = (said("user", "three"), ASKED, ANSWERED, ASKED, ANSWERED, said("assistant", "third"))
WHOLE = (*FIRST, *SECOND, *THIRD)


@pytest.mark.parametrize(
    ("turns", "kept"), [(0, ()), (1, THIRD), (2, (*SECOND, *THIRD)), (3, WHOLE), (4, WHOLE), (1000, WHOLE)]
)
def test_so_many_turns_are_kept_whole(turns: int, kept: tuple[Message, ...]) -> None:
    assert tuple(RecentTurnsContextPolicy(turns).compact(WHOLE)) == kept


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_no_answer_is_kept_without_its_call(turns: int) -> None:
    kept = RecentTurnsContextPolicy(turns).compact(WHOLE)
    assert not kept or kept[0].role == "user"


@pytest.mark.parametrize("turns", [0, 1])
def test_an_empty_conversation_stays_empty(turns: int) -> None:
    assert tuple(RecentTurnsContextPolicy(turns).compact(())) == ()


def test_one_turn_is_the_default_and_fewer_than_none_are_refused() -> None:
    assert tuple(RecentTurnsContextPolicy().compact(WHOLE)) == THIRD
    with pytest.raises(InvalidInput, match="-1 turns"):
        RecentTurnsContextPolicy(-1)


def test_the_number_of_turns_is_its_identity() -> None:
    names = [RecentTurnsContextPolicy(turns).execution_profile_identity for turns in (0, 1, 2, 1)]
    assert names[1] == names[3]
    assert len({name.model_dump_json() for name in names}) == 3


def test_a_policy_that_says_nothing_of_itself_has_no_identity() -> None:
    class Mine(ContextPolicy):
        def compact(self, messages: object) -> tuple[Message, ...]:
            return ()

    assert Mine().execution_profile_identity is None
