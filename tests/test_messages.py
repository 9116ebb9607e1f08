"""Tests messages and their parts: closed, frozen, and the same after a way through JSON."""

from typing import Any

import pytest
from pydantic import ValidationError

from cayu.messages import Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

PARTS = (
    ThinkingPart(text="hm", signature="sig"),
    TextPart(text="Let me "),
    ToolCallPart(id="a", name="look", arguments={"q": [1, {"b": None}]}),
    TextPart(text="look."),
    ToolCallPart(id="b", name="look"),
    ToolResultPart(tool_call_id="a", name="look", content="found", structured={"n": 1}, is_error=True),
)


def test_text_makes_a_message_of_one_part() -> None:
    message = Message.text("user", "Hello")
    assert message == Message(role="user", content=(TextPart(text="Hello"),))
    assert message.plain_text == "Hello"
    assert message.tool_calls == ()


def test_text_and_calls_are_read_in_order() -> None:
    message = Message(role="assistant", content=PARTS)
    assert message.plain_text == "Let me look."
    assert [call.id for call in message.tool_calls] == ["a", "b"]


@pytest.mark.parametrize("mode", ["json", "python"])
def test_a_message_survives_its_dump(mode: Any) -> None:
    message = Message(role="assistant", content=PARTS)
    again = Message.model_validate(message.model_dump(mode=mode))
    assert again == message
    assert [type(part) for part in again.content] == [type(part) for part in PARTS]


@pytest.mark.parametrize(
    "record",
    [
        {"role": "robot", "content": []},
        {"role": "user", "content": [{"type": "image", "text": "x"}]},
        {"role": "user", "content": [{"text": "without a type"}]},
        {"role": "user", "content": [{"type": "text", "text": "x", "colour": "red"}]},
        {"role": "user", "content": [], "name": "ann"},
        {"role": "user", "content": [{"type": "tool_call", "id": "a"}]},
        {"role": "user"},
        {"role": "user", "content": "a plain string"},
    ],
)
def test_other_shapes_are_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Message.model_validate(record)


def test_messages_do_not_change() -> None:
    message = Message.text("user", "Hello")
    with pytest.raises(ValidationError, match="frozen"):
        message.role = "system"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        message.content[0].text = "Bye"  # type: ignore[union-attr,misc]


def test_arguments_default_to_an_object_of_their_own() -> None:
    first, second = ToolCallPart(id="a", name="x"), ToolCallPart(id="b", name="x")
    first.arguments["x"] = 1
    assert second.arguments == {}
