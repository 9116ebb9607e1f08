"""A model without a model: it looks the question up and answers with the sentences that fit best.

Deterministic, keyless and offline. What it says depends only on what stands in its context, which is what makes it fit
for measuring what a memory is worth.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from cayu.canonical import loads
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.knowledge.ranking import content_tokens, text_score
from cayu.messages import Message, TextPart, ToolResultPart
from cayu.providers.base import ModelProvider, ModelRequest, ModelStreamEvent, ToolDescription

NOTHING_FOUND = "I found nothing about that in what I was given."
MINIMUM_SCORE = 0.12
_QUERY_NAMES = ("query", "question", "text", "q", "search")
_LOOKUP = re.compile(r"search|look_?up|find|retrieve|knowledge|handbook", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


class ExtractiveModelProvider(ModelProvider):
    """Calls the lookup tool once per question, if there is one, then answers with the best-matching sentences."""

    hermetic = True

    def __init__(self, *, name: str = "extractive", sentences: int = 2) -> None:
        """`sentences` is how many an answer quotes at most."""
        self.name = name
        self._sentences = sentences

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        """The built-in declaration."""
        return ExecutionProfileBehaviorIdentity(
            name="cayu.extractive-model", behavior_version=f"1:{self._sentences}", implementation_version="1"
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        """Look up or answer."""
        question, since = _question(request.messages)
        lookup = _lookup_tool(request.tools)
        if lookup is not None and not any(message.role == "tool" for message in since):
            yield ModelStreamEvent.tool_call(lookup.name, _lookup_arguments(lookup, question), id="lookup")
            yield _completed(request, "tool_calls", "")
            return
        answer = self._answer(question, request.messages)
        yield ModelStreamEvent.text_delta(answer)
        yield _completed(request, "stop", answer)

    def _answer(self, question: str, messages: Sequence[Message]) -> str:
        wanted = content_tokens(question)
        scored: dict[str, float] = {}
        for passage, title in _passages(messages, question):
            for sentence in _SENTENCE_END.split(passage):
                score = text_score(wanted, title, sentence)
                if score >= MINIMUM_SCORE:
                    scored[sentence.strip()] = max(score, scored.get(sentence.strip(), 0.0))
        best = sorted(scored, key=lambda sentence: (-scored[sentence], sentence))[: self._sentences]
        return " ".join(best) or NOTHING_FOUND


def _question(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "user":
            return messages[index].plain_text, messages[index + 1 :]
    return "", ()


def _lookup_tool(tools: Sequence[ToolDescription]) -> ToolDescription | None:
    for tool in tools:
        required = set(tool.input_schema.get("required", ()))
        if _LOOKUP.search(tool.name) and len(required) <= 1 and required <= set(_QUERY_NAMES):
            return tool
    return None


def _lookup_arguments(tool: ToolDescription, question: str) -> dict[str, Any]:
    properties = tool.input_schema.get("properties", {})
    return next(({name: question} for name in _QUERY_NAMES if name in properties), {})


def _passages(messages: Sequence[Message], question: str) -> Iterator[tuple[str, str]]:
    for message in messages:
        for part in message.content:
            if isinstance(part, ToolResultPart) and not part.is_error:
                yield from _texts(part)
            elif isinstance(part, TextPart) and message.role in ("system", "user") and part.text != question:
                yield part.text, ""


def _texts(part: ToolResultPart) -> Iterator[tuple[str, str]]:
    data = part.structured
    if data is None and part.content.startswith(("{", "[")):
        try:
            data = loads(part.content)
        except ValueError:
            data = None
    if data is None:
        yield part.content, ""
    else:
        yield from _walk(data, "")


def _walk(data: Any, title: str) -> Iterator[tuple[str, str]]:
    if isinstance(data, dict):
        title = data.get("title", title) if isinstance(data.get("title", title), str) else title
        if isinstance(data.get("text"), str):
            yield data["text"], title
        for value in data.values():
            if isinstance(value, dict | list):
                yield from _walk(value, title)
    elif isinstance(data, list):
        for value in data:
            yield from _walk(value, title)


def _completed(request: ModelRequest, finish_reason: str, answer: str) -> ModelStreamEvent:
    read = sum(len(message.plain_text.split()) for message in request.messages)
    usage = {"input_tokens": read, "output_tokens": len(answer.split())}
    return ModelStreamEvent.completed(finish_reason, usage)
