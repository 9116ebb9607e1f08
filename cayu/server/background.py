"""Runs that go on after the request that set them going was answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from cayu.events import Event
from cayu.runtime import CayuApp
from cayu.server.problems import Refusal

logger = logging.getLogger("cayu.server")

IsDecision = Callable[[Event], bool]
First = asyncio.Future[Event]


class Background:
    """Holds the runs of one server until they end, or until the server stops."""

    def __init__(self) -> None:
        self._first: dict[asyncio.Task[None], First] = {}
        self._closing = False

    @property
    def count(self) -> int:
        """How many runs are at work."""
        return len(self._first)

    async def begin(self, events: AsyncGenerator[Event, None], is_decision: IsDecision) -> Event:
        """Let a run go on by itself; return its first event that `is_decision` accepts, once that is durable.

        Raises what the run raises before, and `Refusal` when it ends without one or the server stops. What it raises
        afterwards is logged.
        """
        if self._closing:
            raise _stopping()
        first: First = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(_exhaust(events, is_decision, first), name="cayu server run")
        self._first[task] = first
        task.add_done_callback(self._first.pop)
        return await first

    async def close(self, app: CayuApp) -> None:
        """Take no more runs, interrupt those at work, close the application, and wait until nothing is left."""
        self._closing = True
        early = [task for task, first in self._first.items() if not first.done()]
        for task in early:
            task.cancel()  # it may not have claimed its session yet, and then the application does not know of it
        if early:
            await asyncio.wait(early)
        try:
            await app.aclose()
        finally:
            if self._first:
                await asyncio.wait(list(self._first))


async def _exhaust(events: AsyncGenerator[Event, None], is_decision: IsDecision, first: First) -> None:
    try:
        async with aclosing(events):
            async for event in events:
                if not first.done() and is_decision(event):
                    first.set_result(event)
    except Exception as error:
        if first.done():
            logger.exception("a run that a request has set going has failed")
        else:
            first.set_exception(error)
    finally:
        if not first.done():
            first.set_exception(_stopping())


def _stopping() -> Refusal:
    return Refusal(503, "stopping", "The server is stopping; look at the session again when it is back.")


@dataclass(frozen=True, slots=True)
class Served:
    """What the routes of one server work on."""

    app: CayuApp
    background: Background = field(default_factory=Background)


async def served_by(request: Request) -> Served:
    """Return what the server of a request works on."""
    served = request.app.state.served
    assert isinstance(served, Served)
    return served


TheServed = Annotated[Served, Depends(served_by)]
