"""One model step: ask the provider, pass its text on as it comes, and return the whole answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from cayu.canonical import MAX_STORED_INTEGER, normalise
from cayu.errors import NotJson, ProviderError
from cayu.events import EventType as E
from cayu.messages import Message, Part, TextPart, ThinkingPart, ToolCallPart
from cayu.providers.base import ModelRequest, ModelStreamEvent
from cayu.runtime.log import SessionLog
from cayu.runtime.recalling import in_context
from cayu.runtime.registry import Assembly
from cayu.sessions.projection import Draft
from cayu.sessions.view import RecallView
from cayu.shielding import is_cancelling

logger = logging.getLogger("cayu.runtime")


@dataclass(slots=True)
class Answer:
    """What a model has said so far."""

    text: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    signature: str = ""
    calls: list[ModelStreamEvent] = field(default_factory=list)
    completed: dict[str, Any] | None = None

    def message(self) -> Message:
        """Return the answer as a message; ids that the provider left out or used twice are replaced."""
        parts: list[Part] = []
        if self.thinking:
            parts.append(ThinkingPart(text="".join(self.thinking), signature=self.signature or None))
        if self.text:
            parts.append(TextPart(text="".join(self.text)))
        taken: set[str] = set()
        free = (f"call_{number}" for number in count(1) if f"call_{number}" not in taken)
        for call in self.calls:
            identity = call.id if call.id and call.id not in taken else next(free)
            taken.add(identity)
            parts.append(ToolCallPart(id=identity, name=call.name, arguments=call.arguments))
        return Message(role="assistant", content=tuple(parts))


async def ask_model(log: SessionLog, assembly: Assembly, request: ModelRequest) -> tuple[Message, list[Draft]]:
    """Return the model's message with the events that tell of the step, which ride with the next commit.

    Raises `ProviderError`, whatever the provider raised, with a code and without content.
    """
    answer = Answer()
    try:
        stream = assembly.provider.stream(request)
        async with AsyncExitStack() as closing:
            if isinstance(stream, AsyncGenerator):
                await closing.enter_async_context(aclosing(stream))
            async for event in stream:
                await _take(log, answer, event)
                if answer.completed is not None:
                    break
        message = answer.message()
    except ProviderError:
        raise
    except asyncio.CancelledError:
        if is_cancelling():
            raise
        raise ProviderError("The provider cancelled its own stream.", code="CancelledError") from None
    except NotJson as error:
        raise ProviderError("The provider sent values outside the JSON domain.", code="not_json") from error
    except Exception as error:
        logger.exception("the provider failed in session %s", log.view.row.id)
        raise ProviderError(code=type(error).__name__) from error
    if answer.completed is None:
        raise ProviderError("The provider's stream ended without a completed event.", code="stream_ended")
    completed = {"message": message.model_dump(mode="json"), **answer.completed}
    return message, [*started(log, assembly), Draft(E.MODEL_COMPLETED, completed)]


def started(log: SessionLog, assembly: Assembly) -> list[Draft]:
    """Return the start of the step, unless it is durable already, as it may have to be before the provider is asked."""
    if log.view.model_in_flight:
        return []
    return [Draft(E.MODEL_STARTED, {"step": log.view.model_steps + 1, "model": assembly.agent.model})]


def _usage(reported: Any) -> dict[str, int]:
    """Return the counts that are counts; whatever else a provider reports is its own business."""
    found = reported if isinstance(reported, dict) else {}
    counts = {name: found.get(name) for name in ("input_tokens", "output_tokens")}
    return {name: n for name, n in counts.items() if type(n) is int and 0 <= n <= MAX_STORED_INTEGER}


def failure(log: SessionLog, assembly: Assembly, error: ProviderError) -> list[Draft]:
    """Return the events with which a session ends that could not get an answer."""
    return [
        *started(log, assembly),
        Draft(E.MODEL_ERROR, {"code": error.code}),
        Draft(E.SESSION_FAILED, {"code": "provider_failed", "detail": error.code}),
    ]


def model_request(log: SessionLog, assembly: Assembly, recalls: Sequence[RecallView]) -> ModelRequest:
    """Return what the provider is asked next, with what was recalled."""
    prompt = assembly.agent.system_prompt
    system = (Message.text("system", prompt),) if prompt else ()
    return ModelRequest.model_construct(
        model=assembly.agent.model,
        messages=(*system, *in_context(log.view.transcript, recalls)),
        tools=assembly.descriptions,
        options=assembly.agent.provider_options,
    )


async def _take(log: SessionLog, answer: Answer, event: ModelStreamEvent) -> None:
    match event.kind:
        case "text_delta":
            text = str(normalise(event.text))
            answer.text.append(text)
            await log.live(E.MODEL_TEXT_DELTA, {"text": text})
        case "thinking":
            text = str(normalise(event.text))
            answer.thinking.append(text)
            answer.signature = str(normalise(event.id)) or answer.signature
            await log.live(E.MODEL_THINKING_DELTA, {"text": text})
        case "tool_call":
            arguments = normalise(event.arguments)
            if not isinstance(arguments, dict):
                raise ProviderError("The provider sent tool arguments that are no object.", code="bad_arguments")
            name, identity = str(normalise(event.name)), str(normalise(event.id))
            answer.calls.append(ModelStreamEvent.tool_call(name, arguments, identity))
        case "completed":
            reason = str(normalise(event.payload.get("finish_reason") or "stop"))
            answer.completed = {"finish_reason": reason, "usage": _usage(event.payload.get("usage"))}
        case "error":
            raise ProviderError(code=str(event.payload.get("code", "error")))
