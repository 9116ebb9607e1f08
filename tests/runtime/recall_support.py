"""What the tests of automatic recall share: a shelf that is watched, a model that looks, and an agent over both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from runtime.recall_scenarios import ENTRIES, QUESTION, RECALL, SCOPE
from runtime.support import SESSION, StoreProxy, identity

from cayu import (
    AgentSpec,
    CayuApp,
    Environment,
    EnvironmentSpec,
    KnowledgeAccessScope,
    KnowledgeEntry,
    Message,
    ResumeRequest,
    RunRequest,
)
from cayu.knowledge import KnowledgeQuery, KnowledgeSearchResult, KnowledgeStore
from cayu.knowledge.store import BoundKnowledgeStore
from cayu.providers import ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.providers.scripted import Batch
from cayu.recall import AutomaticRecallPolicy
from cayu.sessions.context import ContextPolicy
from cayu.sessions.streams import SessionStore
from cayu.storage import InMemoryKnowledgeStore
from cayu.tools import Tool, ToolPolicy

Search = Callable[[KnowledgeQuery], Awaitable[None]]


class Watched(BoundKnowledgeStore):
    """A shelf seen through the scope of the tests; counts its searches, and runs a hook before each."""

    def __init__(self, inner: KnowledgeStore, before: Search | None = None) -> None:
        super().__init__(inner, SCOPE)
        self.inner = inner
        self.before = before
        self.queries: list[KnowledgeQuery] = []

    async def search(
        self, query: KnowledgeQuery, access_scope: KnowledgeAccessScope | None = None
    ) -> KnowledgeSearchResult:
        """Search, after the hook."""
        self.queries.append(query)
        if self.before is not None:
            await self.before(query)
        return await super().search(query, access_scope)

    async def rewrite(self, entry_id: str, text: str) -> None:
        """Give an entry another text."""
        found = await self.get_entry(entry_id)
        changed = found.model_copy(update={"text": text})
        await self.inner.append_entry_revision(changed, expected_revision=found.revision)


async def shelf(*entries: KnowledgeEntry, before: Search | None = None) -> Watched:
    """Return a shelf in memory, by default with the entries of the tests."""
    inner = InMemoryKnowledgeStore()
    for entry in entries or ENTRIES:
        await inner.create_entry(entry)
    return Watched(inner, before)


class Looking(ScriptedModelProvider):
    """A script that notes what the session's log holds when it is asked, before it answers."""

    def __init__(self, batches: Sequence[Batch], store: SessionStore | StoreProxy, *, hermetic: bool = True) -> None:
        super().__init__(batches)
        self.hermetic = hermetic
        self.saw: list[list[str]] = []
        self.entered = asyncio.Event()
        self.gate: Callable[[], Awaitable[None]] | None = None
        self._store = store

    async def count_input_tokens(self, request: ModelRequest) -> int:
        """Be brief about it."""
        return 100

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        """Look, and answer."""
        loaded = await self._store.load(SESSION)
        self.saw.append([record.type for record in loaded.records] if loaded else [])
        self.entered.set()
        if self.gate is not None:
            await self.gate()
        async for event in super().stream(request):
            yield event


@dataclass
class Agent:
    """What an application of these tests is made of."""

    knowledge: KnowledgeStore | None
    batches: Sequence[Batch] = ("done",)
    recall: AutomaticRecallPolicy | None = RECALL
    tools: Sequence[Tool] = ()
    tool_policy: ToolPolicy | None = None
    context_policy: ContextPolicy | None = None
    provider: ScriptedModelProvider | None = None
    prompt: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """For `CayuApp`."""

    def app(self, store: SessionStore | StoreProxy | None = None) -> CayuApp:
        """Return the application, over a store in memory when none is given."""
        app = CayuApp(session_store=cast("SessionStore | None", store), **self.options)
        app.register_provider(self.provider or ScriptedModelProvider(self.batches))
        app.register_agent(
            AgentSpec(name="a", model="m", system_prompt=self.prompt),
            tools=self.tools,
            tool_policy=self.tool_policy,
            context_policy=self.context_policy,
            recall=self.recall,
        )
        spec = EnvironmentSpec(name="lab", execution_profile_identity=identity("lab"))
        app.register_environment(Environment(spec, knowledge_store=self.knowledge), default=True)
        return app


def asking(text: str = QUESTION, **fields: Any) -> RunRequest:
    """A new session with one question."""
    return RunRequest(agent_name="a", session_id=SESSION, messages=(Message.text("user", text),), **fields)


def going_on(text: str = QUESTION, **fields: Any) -> ResumeRequest:
    """The next turn with one question."""
    return ResumeRequest(session_id=SESSION, messages=(Message.text("user", text),), **fields)


def texts(request: ModelRequest, role: str = "user") -> list[str]:
    """What a request holds of one role, in order."""
    return [message.plain_text for message in request.messages if message.role == role]
