"""What a conversation is made of: messages with typed parts, as a provider reads and writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field


class Frozen(BaseModel):
    """The base of every public record: immutable, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class TextPart(Frozen):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str


class ThinkingPart(Frozen):
    """A model's reasoning, kept for providers that want it back."""

    type: Literal["thinking"] = "thinking"
    text: str
    signature: str | None = None
    """Opaque token with which some providers authenticate their own reasoning."""


class ToolCallPart(Frozen):
    """A call that the model asked for."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    """The provider's id of the call, unique within its message."""
    name: str
    arguments: dict[str, Any] = {}


class ToolResultPart(Frozen):
    """The answer to one call."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    """The provider's id of the call that is answered."""
    name: str
    content: str
    structured: Any = None
    is_error: bool = False


Part = Annotated[TextPart | ThinkingPart | ToolCallPart | ToolResultPart, Field(discriminator="type")]
Role = Literal["system", "user", "assistant", "tool"]


class Message(Frozen):
    """One turn of the conversation."""

    role: Role
    content: tuple[Part, ...]

    @classmethod
    def text(cls, role: Role, text: str) -> Self:
        """Return a message with a single text part."""
        return cls(role=role, content=(TextPart(text=text),))

    @property
    def plain_text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The calls that the message asks for, in model order."""
        return tuple(part for part in self.content if isinstance(part, ToolCallPart))
