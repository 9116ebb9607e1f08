"""The public conformance suite, over every backend that this release has."""

from __future__ import annotations

from pathlib import Path

import pytest

from cayu.clock import Clock
from cayu.sessions.streams import SessionStore
from cayu.storage import InMemorySessionStore, SQLiteSessionStore
from cayu.testing.stores import DURABLE_STORE_CHECKS, SESSION_STORE_CHECKS, Check, Open


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return how a store of each backend is opened."""

    def memory(clock: Clock) -> SessionStore:
        return InMemorySessionStore(clock=clock)

    def sqlite(clock: Clock) -> SessionStore:
        return SQLiteSessionStore(tmp_path / "store.db", clock=clock)

    return memory if request.param == "memory" else sqlite


@pytest.mark.parametrize("check", SESSION_STORE_CHECKS, ids=lambda check: check.__name__)
async def test_every_backend_conforms(check: Check, open_store: Open) -> None:
    await check(open_store)


@pytest.mark.requirement("A003")
@pytest.mark.parametrize("check", DURABLE_STORE_CHECKS, ids=lambda check: check.__name__)
async def test_durable_backends_outlive_their_process(check: Check, tmp_path: Path) -> None:
    await check(lambda clock: SQLiteSessionStore(tmp_path / "store.db", clock=clock))
