"""Built-in tools over the selected environment's knowledge. The scope is the environment's and never an argument."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cayu.canonical import dumps
from cayu.effects import ToolEffect
from cayu.errors import KnowledgeEntryNotFound
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.knowledge.records import KnowledgeEntry, KnowledgeQuery
from cayu.tools.spec import Tool, ToolContext, ToolResult, ToolSpec

NO_STORE = "This run has no knowledge store; nothing was searched."
MAX_HITS = 20
READ_ARTIFACT = "cayu.knowledge"
"""The `type` of an artifact in which a tool says what it has read from a knowledge store."""


def _identity(name: str) -> ExecutionProfileBehaviorIdentity:
    return ExecutionProfileBehaviorIdentity(name=f"cayu.{name}", behavior_version="1", implementation_version="1")


def _shown(entry: KnowledgeEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "revision": entry.revision,
        "title": entry.title,
        "text": entry.text,
        "namespace": entry.namespace,
        "source_id": entry.source_id,
    }


def _read(entries: Iterable[KnowledgeEntry]) -> dict[str, Any]:
    """Return the artifact that says which revisions were read, for those who ask what the model has seen."""
    return {"type": READ_ARTIFACT, "items": [[entry.id, entry.revision] for entry in entries]}


class KnowledgeSearchTool(Tool):
    """Searches what the environment's scope allows."""

    requires_knowledge = True
    spec = ToolSpec(
        name="search_knowledge",
        description="Search the knowledge base for entries that answer a question.",
        input_schema={
            "type": "object",
            "properties": {
                "query": {"type": "string", "minLength": 1},
                "namespace": {"type": "string", "description": "Narrow the search to one namespace."},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_HITS},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        effect=ToolEffect.NONE,
        execution_profile_identity=_identity("search-knowledge"),
    )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Return the best entries, as JSON."""
        if ctx.knowledge_store is None or ctx.knowledge_access_scope is None:
            return ToolResult(content=NO_STORE, is_error=True)
        query = KnowledgeQuery(text=args["query"], namespace=args.get("namespace"), limit=args.get("limit", 5))
        found = await ctx.knowledge_store.search(query, access_scope=ctx.knowledge_access_scope)
        shown = {"hits": [{**_shown(hit.entry), "score": hit.score} for hit in found.hits]}
        entries = [hit.entry for hit in found.hits]
        return ToolResult(content=dumps(shown).decode(), structured=shown, artifacts=(_read(entries),))


class KnowledgeReadTool(Tool):
    """Reads one entry by its id."""

    requires_knowledge = True
    spec = ToolSpec(
        name="read_knowledge",
        description="Read one entry of the knowledge base by its id.",
        input_schema={
            "type": "object",
            "properties": {"id": {"type": "string", "minLength": 1}},
            "required": ["id"],
            "additionalProperties": False,
        },
        effect=ToolEffect.NONE,
        execution_profile_identity=_identity("read-knowledge"),
    )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Return the entry, as JSON; what lies outside the scope does not exist."""
        if ctx.knowledge_store is None or ctx.knowledge_access_scope is None:
            return ToolResult(content=NO_STORE, is_error=True)
        try:
            entry = await ctx.knowledge_store.get_entry(args["id"], access_scope=ctx.knowledge_access_scope)
        except KnowledgeEntryNotFound:
            return ToolResult(content="There is no entry with this id.", is_error=True)
        shown = _shown(entry)
        return ToolResult(content=dumps(shown).decode(), structured=shown, artifacts=(_read([entry]),))
