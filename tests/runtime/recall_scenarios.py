"""What the children of the tests of recall run until they die: an agent with a memory in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cayu import (
    AgentSpec,
    CayuApp,
    Environment,
    EnvironmentSpec,
    ExecutionProfileBehaviorIdentity,
    KnowledgeAccessScope,
    KnowledgeEntry,
    Message,
    RunRequest,
    SQLiteKnowledgeStore,
    SQLiteSessionStore,
    Tool,
    ToolContext,
    ToolEffect,
    ToolResult,
    ToolSpec,
    run_to_completion,
)
from cayu.budgets import BudgetLimit
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.recall import AutomaticRecallMode, AutomaticRecallPolicy

SESSION = "s"
QUESTION = "How cold is the cold room?"
STRONG = "The cold room is kept at four degrees."
WEAK = "Visitors wear a badge where it is cold."
SECRET = "The cold room hides the crown jewels."
ENTRIES = (
    KnowledgeEntry(id="room", title="Cold room", text=STRONG, namespace="lab"),
    KnowledgeEntry(id="badge", title="Badge", text=WEAK, namespace="lab"),
    KnowledgeEntry(id="lunch", title="Lunch", text="Soup is served at noon.", namespace="lab"),
    KnowledgeEntry(id="jewels", title="Cold room", text=SECRET, namespace="safe"),
)
"""One that answers the question well, one that answers it a little, one that does not, and one out of sight."""
SCOPE = KnowledgeAccessScope(allowed_namespaces=("lab",))
RECALL = AutomaticRecallPolicy(
    mode=AutomaticRecallMode.OFFER_AND_STRONG_MATCHES, minimum_inject_score=0.5, minimum_offer_score=0.1
)
BUDGET = BudgetLimit(budget_id="shared", max_tokens=1_000_000)


class Looking(Tool):
    """Does nothing."""

    spec = ToolSpec(
        name="look",
        description="Look.",
        effect=ToolEffect.NONE,
        execution_profile_identity=ExecutionProfileBehaviorIdentity(
            name="look", behavior_version="1", implementation_version="1"
        ),
    )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Look."""
        return ToolResult(content="seen")


def build(folder: Path, *, hermetic: bool = True) -> CayuApp:
    """Return the application over two files of the folder; its model asks for one call and then says so."""
    app = CayuApp(session_store=SQLiteSessionStore(folder / "sessions.db"))
    provider = ScriptedModelProvider([[ModelStreamEvent.tool_call("look", {}, id="c")], "done"])
    provider.hermetic = hermetic
    app.register_provider(provider)
    app.register_agent(AgentSpec(name="a", model="m"), tools=[Looking()], recall=RECALL)
    identity = ExecutionProfileBehaviorIdentity(name="lab", behavior_version="1", implementation_version="1")
    knowledge = SQLiteKnowledgeStore(folder / "knowledge.db").bind(SCOPE)
    spec = EnvironmentSpec(name="lab", execution_profile_identity=identity)
    app.register_environment(Environment(spec, knowledge_store=knowledge), default=True)
    return app


async def run(folder: str, hermetic: bool, budgets: bool) -> str:
    """Run the session to its end, over a shelf that `fill` has filled."""
    async with build(Path(folder), hermetic=hermetic) as app:
        request = RunRequest(
            agent_name="a",
            session_id=SESSION,
            messages=(Message.text("user", QUESTION),),
            budget_limits=(BUDGET,) if budgets else (),
        )
        return str((await run_to_completion(app, request)).status)


async def fill(folder: Path) -> None:
    """Put the entries on the shelf."""
    store = SQLiteKnowledgeStore(folder / "knowledge.db")
    for entry in ENTRIES:
        await store.create_entry(entry)
    await store.aclose()
