"""What the runtime asks of a model, and what a model streams back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.messages import Frozen, Message


class ToolDescription(Frozen):
    """What a model is told of a tool."""

    name: str
    description: str
    input_schema: dict[str, Any]


class ModelRequest(Frozen):
    """One request to a model."""

    model: str
    messages: tuple[Message, ...]
    """The system prompt first, if there is one, then the conversation."""
    tools: tuple[ToolDescription, ...] = ()
    options: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ModelStreamEvent:
    """One thing that a model sends while it answers. A stream ends with `completed` or `error`."""

    kind: Literal["text_delta", "thinking", "tool_call", "completed", "error"]
    text: str = ""
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    payload: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def text_delta(cls, text: str) -> ModelStreamEvent:
        """A piece of the answer's text."""
        return cls("text_delta", text=text)

    @classmethod
    def thinking(cls, text: str, signature: str = "") -> ModelStreamEvent:
        """A piece of reasoning, with the provider's own mark of it if it gives one."""
        return cls("thinking", text=text, id=signature)

    @classmethod
    def tool_call(cls, name: str, arguments: dict[str, Any] | None = None, id: str = "") -> ModelStreamEvent:
        """A call that the model asks for, whole."""
        return cls("tool_call", name=name, arguments=arguments or {}, id=id)

    @classmethod
    def completed(cls, finish_reason: str = "stop", usage: dict[str, int] | None = None) -> ModelStreamEvent:
        """The end of the answer; usage counts `input_tokens` and `output_tokens`."""
        return cls("completed", payload={"finish_reason": finish_reason, "usage": usage or {}})

    @classmethod
    def error(cls, code: str) -> ModelStreamEvent:
        """The provider gave up; `code` says how, without content."""
        return cls("error", payload={"code": code})


class ModelProvider(ABC):
    """A model behind one interface. `stream` may be called again for the same request after a crash."""

    name: str = "provider"
    """Under which the provider is registered."""
    hermetic: bool = False
    """True for a provider that works in this process alone, so that it may be asked again at no cost."""

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity | None:
        """The provider's declaration; None leaves it opaque."""
        return None

    @abstractmethod
    def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        """Answer one request as an asynchronous stream. Raises `ProviderError` when it cannot."""

    async def count_input_tokens(self, request: ModelRequest) -> int:
        """Return the size of a request in the provider's tokens; by default its words, as a rough guide."""
        return sum(len(message.plain_text.split()) for message in request.messages)
