"""Runs that the server holds: what begins them answers, and the end of the server waits for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest
from server.support import waiting_app

from cayu import CayuApp, Event
from cayu.server.background import Background
from cayu.server.problems import Refusal


def event(type: str) -> Event:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    return Event(id="1", type=type, session_id="s", sequence=1, timestamp=moment, agent_name="a")


class Closing(CayuApp):
    """An application that says when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()

    async def aclose(self) -> None:
        self.closed.set()


async def test_the_end_waits_for_what_is_still_ending() -> None:
    app, ended = Closing(), []

    async def run() -> AsyncGenerator[Event, None]:
        yield event("decided")
        await app.closed.wait()
        await asyncio.sleep(0.02)
        ended.append("run")

    background = Background()
    assert (await background.begin(run(), lambda told: told.type == "decided")).type == "decided"
    assert background.count == 1
    await background.close(app)
    assert ended == ["run"]
    assert background.count == 0
    with pytest.raises(Refusal, match="stopping"):
        await background.begin(run(), lambda told: True)


async def test_a_run_that_ends_without_a_decision_is_no_answer() -> None:
    async def run() -> AsyncGenerator[Event, None]:
        yield event("something")

    background = Background()
    with pytest.raises(Refusal, match="503"):
        await background.begin(run(), lambda told: told.type == "decided")
    await background.close(await waiting_app())
    assert background.count == 0
