"""A laboratory's assistants: one reads the handbook and answers, one orders supplies once a human has approved.

Both work without a key. `application(folder)` returns the factory that `Lab.open` and `RestartHarness` call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cayu import (
    AgentSpec,
    CayuApp,
    Environment,
    EnvironmentSpec,
    ExecutionProfileBehaviorIdentity,
    KnowledgeAccessScope,
    KnowledgeStore,
    SQLiteKnowledgeStore,
)
from cayu.examples.receipts import OrderSuppliesTool, ReceiptBook
from cayu.knowledge import KnowledgeEntry
from cayu.messages import ToolResultPart
from cayu.notebook import Lab
from cayu.providers import ExtractiveModelProvider, ModelProvider, ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.sessions import SessionStore
from cayu.storage import handbook_entries
from cayu.tools import AskUserTool, ByEffectToolPolicy, KnowledgeReadTool, KnowledgeSearchTool

READERS = KnowledgeAccessScope(
    allowed_namespaces=("handbook", "safety", "equipment", "ordering", "people", "records"),
    allowed_visibilities=("public",),
)
"""What the assistants may read: every namespace, but only what is public."""


def order_script(item: str = "nitrile gloves", quantity: int = 2) -> ScriptedModelProvider:
    """Return a model that looks the rule up, orders, and reports the receipt."""

    def report(request: ModelRequest) -> str:
        answer = request.messages[-1].content[-1]
        if isinstance(answer, ToolResultPart) and not answer.is_error:
            return f"Done. {answer.content}."
        return "The order was not placed."

    return ScriptedModelProvider(
        [
            [ModelStreamEvent.tool_call("search_knowledge", {"query": "Who may order supplies?"}, id="look")],
            [ModelStreamEvent.tool_call("order_supplies", {"item": item, "quantity": quantity}, id="order")],
            report,
        ],
        name="scripted",
    )


async def load_handbook(store: KnowledgeStore, entries: tuple[KnowledgeEntry, ...] | None = None) -> None:
    """Fill an empty knowledge store with the handbook, or with `entries`; a filled one stays as it is."""
    if await store.frontier() > 0:
        return
    for entry in entries if entries is not None else handbook_entries():
        await store.create_entry(entry)


def application(folder: str | Path) -> Callable[..., Any]:
    """Return a factory for the assistants, which keep their knowledge and receipts in `folder`."""
    home = Path(folder)

    async def build_app(
        *,
        session_store: SessionStore | None = None,
        knowledge_store: KnowledgeStore | None = None,
        provider: ModelProvider | None = None,
    ) -> CayuApp:
        """Build the application; what is not passed is its own default."""
        knowledge = knowledge_store or SQLiteKnowledgeStore(home / "knowledge.db")
        await load_handbook(knowledge)
        app = CayuApp(session_store=session_store, knowledge_store=knowledge)
        app.register_provider(ExtractiveModelProvider(), default=True)
        app.register_provider(provider or order_script())
        bound = knowledge if knowledge.bound_access_scope() is not None else knowledge.bind(READERS)
        app.register_environment(Environment(_ENVIRONMENT, knowledge_store=bound), default=True)
        reading = (KnowledgeSearchTool(), KnowledgeReadTool())
        app.register_agent(AgentSpec(name="reader", model="extractive", system_prompt=_READER), tools=reading)
        app.register_agent(
            AgentSpec(name="clerk", model="scripted", provider_name="scripted", system_prompt=_CLERK),
            tools=(*reading, OrderSuppliesTool(ReceiptBook(home / "receipts.db")), AskUserTool()),
            tool_policy=ByEffectToolPolicy(),
        )
        return app

    return build_app


def approve_in(folder: str, action_id: str) -> str:
    """Approve one action of a folder's store and return what the clerk says then; for child processes."""
    with Lab.open(Path(folder) / "runs.db", factory=application(folder)) as lab:
        found = next(handle for handle in lab.pending() if handle.id == action_id)
        return found.approve(by="a colleague").text


_READER = "Answer from the handbook."
_CLERK = "Order what is asked for, by the rules of the handbook."
_ENVIRONMENT = EnvironmentSpec(
    name="laboratory",
    execution_profile_identity=ExecutionProfileBehaviorIdentity(
        name="laboratory", behavior_version="1", implementation_version="1"
    ),
)
