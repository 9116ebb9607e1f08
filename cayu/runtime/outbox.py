"""How a run hands its events to whoever iterates it: one batch at a time, and it waits until they are taken.

The run goes on only when the consumer asks for more, as if its code stood inside the consumer's loop. A consumer that
has gone away is not waited for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable

from cayu.events import Event


class Outbox:
    """A rendezvous between one run and one consumer."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()
        self._closed = False
        self._abandoned = False

    async def deliver(self, events: Iterable[Event]) -> None:
        """Hand events over, and wait until the consumer has worked them off."""
        if self._abandoned:
            return
        self._events.extend(events)
        if self._events:
            self._drained.clear()
            self._changed.set()
            await self._drained.wait()

    def close(self) -> None:
        """Say that no more will come."""
        self._closed = True
        self._changed.set()

    def abandon(self) -> None:
        """Say that nobody takes events any more; whoever waits goes on."""
        self._abandoned = True
        self._drained.set()

    async def events(self) -> AsyncIterator[Event]:
        """Yield events until the box is closed and empty."""
        while True:
            while self._events:
                yield self._events.popleft()
            self._drained.set()
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()
