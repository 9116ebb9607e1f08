"""A provider that plays a script: for tests, examples and everything that must not depend on a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from cayu.errors import ProviderError
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.providers.base import ModelProvider, ModelRequest, ModelStreamEvent

Batch = str | Sequence[ModelStreamEvent] | Callable[[ModelRequest], "str | Sequence[ModelStreamEvent]"]
"""One answer: a text, the events of a stream, or a function of the request that gives either."""


class ScriptedModelProvider(ModelProvider):
    """Gives the n-th answer of a conversation from the n-th batch.

    The place in the script follows from the request itself - it counts the answers that stand in it - so the same
    script serves many sessions at once, and a new process goes on where the old one stopped. A stream that lacks its
    `completed` gets one. Beyond the last batch the provider fails, or repeats it with `repeat_last=True`.
    """

    hermetic = True

    def __init__(self, batches: Sequence[Batch], *, name: str = "scripted", repeat_last: bool = False) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        """Every request received, in order."""
        self._batches = list(batches)
        self._repeat_last = repeat_last

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        """The script is data, so two scripted providers behave alike."""
        return ExecutionProfileBehaviorIdentity(
            name="cayu.scripted-model", behavior_version="1", implementation_version="1"
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        """Play the batch that is due."""
        self.requests.append(request)
        position = sum(message.role == "assistant" for message in request.messages)
        if position >= len(self._batches) and not (self._repeat_last and self._batches):
            raise ProviderError(
                "The script has no answer left for this conversation; add a batch.", code="script_ended"
            )
        batch = self._batches[min(position, len(self._batches) - 1)]
        played = batch(request) if callable(batch) else batch
        events = [ModelStreamEvent.text_delta(played)] if isinstance(played, str) else list(played)
        for event in events:
            yield event
        if not events or events[-1].kind not in ("completed", "error"):
            calls = any(event.kind == "tool_call" for event in events)
            yield ModelStreamEvent.completed("tool_calls" if calls else "stop")
