"""Laws of recall over scripts that nobody wrote: the world of `property_model`, in which the agent has a memory.

The memory is never the same twice, is slow at times and fails at times, so that whatever a request shows has to come
from the log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from runtime import property_model
from runtime.property_model import Call, Crash, Owner, Script, Step, Together, WorldModel, require
from runtime.property_play import play
from runtime.support import SESSION, identity
from runtime.test_properties import SCRIPTS, profile

from cayu import CayuApp, Environment, EnvironmentSpec, KnowledgeAccessScope, KnowledgeEntry
from cayu.canonical import loads
from cayu.events import EventType as E
from cayu.knowledge import KnowledgeQuery, KnowledgeSearchResult
from cayu.knowledge.records import KnowledgeHit
from cayu.knowledge.store import BoundKnowledgeStore
from cayu.providers import ModelRequest, ModelStreamEvent
from cayu.recall import AutomaticRecallPolicy, MemoryAttributionBounds, attribute
from cayu.recall.selection import HEADING
from cayu.sessions import fold
from cayu.sessions.streams import StoredRecord
from cayu.storage import InMemoryKnowledgeStore

pytestmark = pytest.mark.exhaustive

RECALLS = {E.RECALL_COMPLETED, E.RECALL_FAILED}
FAILING, HANGING, SLOW, EMPTY = 5, 7, 3, 4
"""Every so many searches: raise, take too long, take long, find nothing."""
SCOPE = KnowledgeAccessScope(allow_all_namespaces=True)


class Moody(BoundKnowledgeStore):
    """A memory that says something else at every search, if it says anything."""

    def __init__(self, app: CayuApp) -> None:
        super().__init__(InMemoryKnowledgeStore(), SCOPE)
        self.app = app
        self.searches = 0

    async def search(
        self, query: KnowledgeQuery, access_scope: KnowledgeAccessScope | None = None
    ) -> KnowledgeSearchResult:
        """Say what nobody has heard before."""
        self.searches += 1
        owner = self.app.services.store.owner  # type: ignore[attr-defined]
        number = self.searches + 1000 * len(owner.world.acts)
        if self.searches % SLOW == 0:
            await owner.world.sleep(2.0)
        if self.searches % FAILING == 0:
            raise ValueError("not today")
        if self.searches % HANGING == 0:
            await owner.world.sleep(100.0)
        found = KnowledgeEntry(id="go", title="Go", text=f"go {owner.name} {id(self)} {number}")
        hits = () if self.searches % EMPTY == 0 else (KnowledgeHit(entry=found, score=0.9),)
        return KnowledgeSearchResult(hits=hits, truncated=False, frontier=number)


class RecallingApp(CayuApp):
    """An application whose agent has a memory."""

    def register_agent(self, spec: Any, tools: Any = (), **options: Any) -> None:
        """Register it with a recall policy, and the environment that binds its memory."""
        super().register_agent(spec, tools, recall=AutomaticRecallPolicy(), **options)
        lab = EnvironmentSpec(name="lab", execution_profile_identity=identity("lab"))
        self.register_environment(Environment(lab, knowledge_store=Moody(self)), default=True)


class RecallingModel(WorldModel):
    """Holds each request against what is durable when it comes."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner)
        self._asked_by = owner

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        """Look first."""
        owner = self._asked_by
        loaded = await owner.world.store.load(SESSION)
        assert loaded is not None
        shown = [text for text in map(_text, request.messages) if text.startswith(HEADING)]
        durable = [recall.text for recall in fold(loaded.head.row, loaded.records).recalls if recall.text]
        drive = owner.app.services.drives.get(SESSION)
        holds = drive is not None and drive.log.lease.epoch == loaded.head.state.epoch
        if shown != (durable if holds else durable[: len(shown)]):
            owner.world.faults.append(f"a request shows {len(shown)} recalls that are not the log's")
        async for event in super().stream(request):
            yield event


def _text(message: Any) -> str:
    return str(message.plain_text)


def hold(script: Script) -> None:
    """Play a script under the laws of the house and those of recall."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(property_model, "CayuApp", RecallingApp))
        patches.enter_context(patch.object(property_model, "WorldModel", RecallingModel))
        records = play(script)
    check(records)
    found = attribute(records, b"k" * 32, MemoryAttributionBounds())
    require(found.status == "complete", f"a log of ours does not contradict itself: {found.reason}")


def check(records: Sequence[StoredRecord]) -> None:
    """One recall per message, and whatever a step may show is exposed by the time it begins."""
    positions: list[int] = []
    shown: list[int] = []
    exposed: tuple[int, list[int]] = (0, [])
    for record in records:
        payload = loads(record.body)
        if record.type in RECALLS:
            positions.append(payload["position"])
            require(payload["recall"] == len(positions), "recalls are numbered")
            shown += [payload["recall"]] if payload.get("text") else []
        elif record.type == E.EXPOSURE_RECORDED:
            exposed = payload["step"], payload["recalls"]
            require(exposed[1] == shown != [], "an exposure names every recall that is shown")
        elif record.type == E.MODEL_STARTED and shown:
            require(exposed == (payload["step"], shown), f"a step that begins has its exposure: {exposed}, {shown}")
    require(len(set(positions)) == len(positions), "a message is recalled for once")


LOST = Step("run", crash=Crash(at=2, where="write", took_effect=True))
"""The process dies when receipt, exposure and start are durable."""
TAKEN_OVER = Together(Step("run", deaf=True), Step("recover", by="B"), lag=35.0)
"""A silent owner is taken over while the model thinks."""


@profile(40)
@example(Script(((Call("read"),), ()), (LOST,)))
@example(Script(((Call("read"),), ()), (replace(LOST, crash=Crash(at=2)),)))
@example(Script(((Call("read"),),), (TAKEN_OVER,), thinking=40.0))
@given(SCRIPTS)
def test_whatever_happens_the_laws_of_recall_hold(script: Script) -> None:
    hold(script)


@pytest.mark.slow
@profile(200)
@given(SCRIPTS)
def test_the_laws_of_recall_hold_over_many_more_scripts(script: Script) -> None:
    hold(script)
