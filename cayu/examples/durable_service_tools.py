"""A tool over a service, in a session that outlives its process: every phase runs in an OS process of its own.

    python -m cayu.examples.durable_service_tools start  --dir work
    python -m cayu.examples.durable_service_tools resume --dir work
    python -m cayu.examples.durable_service_tools pause  --dir work
    python -m cayu.examples.durable_service_tools approve --dir work      (or deny)
    python -m cayu.examples.durable_service_tools repeat --dir work

`start` and `resume` prove that the supplied knowledge store was searched, that its present evidence within the scope
reached the provider, that forbidden records did not, and that the earlier conversation survived. With
`--wiring environment` on both, the store is the selected environment's and not the tool's own. `pause`, `approve` or
`deny`, and `repeat` rebuild a pending approval around a tool that issues one receipt. `--change` rebuilds the
application with one part of one identity changed; such a phase ends with exit code 3 before any request or effect.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cayu import (
    AgentSpec,
    CayuApp,
    Environment,
    EnvironmentSpec,
    ExecutionProfileBehaviorIdentity,
    ExecutionProfileMismatchError,
    KnowledgeAccessScope,
    KnowledgeEntry,
    KnowledgeQuery,
    KnowledgeStore,
    Message,
    ResumeRequest,
    RunOutcome,
    RunRequest,
    SQLiteKnowledgeStore,
    SQLiteSessionStore,
    Tool,
    ToolContext,
    ToolEffect,
    ToolPolicy,
    ToolResult,
    ToolSpec,
    run_to_completion,
)
from cayu.approvals import PendingActionQuery, ResolutionActor, ToolApprovalDecision, ToolApprovalRequest
from cayu.examples.receipts import OrderSuppliesTool, ReceiptBook
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.tools import ToolPolicyDecision, ToolPolicyRequest, ToolPolicyResult

CONVERSATION, APPROVAL = "conversation", "approval"
"""The two sessions of the example."""
SCOPE = KnowledgeAccessScope(allowed_namespaces=("handbook",), allowed_visibilities=("public",))
QUERY = KnowledgeQuery(text="shipping samples", namespace="handbook")
FIRST_TEXT = "Samples are shipped on Tuesdays in a cooled box."
LATER_TEXT = "Samples are shipped on Thursdays in a cooled box."
FORBIDDEN = ("The code of the shipping safe is restricted.", "Shipping prices belong to another department.")
PARTS = ("name", "behavior_version", "implementation_version")
CHANGES = tuple(f"{place}.{part}" for place in ("tool", "policy", "environment") for part in PARTS)
OPAQUE = "tool.undeclared"
REFUSED = 3
"""The exit code of a phase that the execution profile refused."""
ACTOR = ResolutionActor(subject="lead-scientist", source="example")


@dataclass(frozen=True, slots=True)
class Identities:
    """The declarations of one build of the application, with at most one part changed."""

    change: str | None = None

    def of(self, place: str, name: str) -> ExecutionProfileBehaviorIdentity | None:
        """Return the declaration of the tool, the policy or the environment."""
        if self.change == f"{place}.undeclared":
            return None
        declared = dict(zip(PARTS, (name, "1", "1"), strict=True))
        changed_place, _, part = (self.change or "").partition(".")
        if changed_place == place:
            declared[part] += "-changed"
        return ExecutionProfileBehaviorIdentity(**declared)


@dataclass(slots=True)
class Evidence:
    """What the tools of this process did."""

    searches: int = 0
    receipts_asked: int = 0


class HandbookReader(Tool):
    """Searches the handbook: the store given to it, or the selected environment's."""

    def __init__(
        self, evidence: Evidence, identity: ExecutionProfileBehaviorIdentity | None, store: KnowledgeStore | None
    ) -> None:
        if store is not None and store.bound_access_scope() is None:
            raise ValueError("HandbookReader needs a bound store: bind it to the principal's scope first.")
        super().__init__()
        self._evidence = evidence
        self._store = store
        self.spec = ToolSpec(
            name="lookup_handbook",
            description="Search the handbook, as far as this principal may read it.",
            effect=ToolEffect.NONE,
            execution_profile_identity=identity,
        )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Return the present evidence; without a store there is none, and that is an error."""
        store = self._store or ctx.knowledge_store
        if store is None:
            return ToolResult(content="This run binds no handbook.", is_error=True)
        scope = None if self._store is not None else ctx.knowledge_access_scope
        found = await store.search(QUERY, access_scope=scope)
        self._evidence.searches += 1
        payload = found.model_dump(mode="json")
        return ToolResult(content=json.dumps(payload), structured=payload)


class CountedOrders(OrderSuppliesTool):
    """The ordering tool, counted."""

    def __init__(self, evidence: Evidence, book: ReceiptBook) -> None:
        super().__init__(book)
        self._evidence = evidence

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Count and order."""
        self._evidence.receipts_asked += 1
        return await super().run(ctx, args)


class HandbookPolicy(ToolPolicy):
    """Reading is free, ordering asks a human."""

    def __init__(self, identity: ExecutionProfileBehaviorIdentity | None) -> None:
        self._identity = identity

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity | None:
        """The declaration of this build."""
        return self._identity

    async def authorize(self, request: ToolPolicyRequest) -> ToolPolicyResult:
        """Decide by the effect class."""
        if request.tool_effect is ToolEffect.NONE:
            return ToolPolicyResult(decision=ToolPolicyDecision.ALLOW)
        return ToolPolicyResult(decision=ToolPolicyDecision.REQUIRE_APPROVAL, reason="orders spend the group's money")


@dataclass
class Build:
    """One life of the application over the directory."""

    folder: Path
    wiring: str = "constructor"
    identities: Identities = field(default_factory=Identities)
    evidence: Evidence = field(default_factory=Evidence)
    provider: ScriptedModelProvider = field(default_factory=lambda: ScriptedModelProvider(_script()))

    def __post_init__(self) -> None:
        """Open the directory's stores."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.receipts = ReceiptBook(self.folder / "receipts.db")
        self.knowledge = SQLiteKnowledgeStore(self.folder / "knowledge.db")

    def app(self) -> CayuApp:
        """Build the application: registered components, each with its declaration."""
        app = CayuApp(session_store=SQLiteSessionStore(self.folder / "sessions.db"))
        app.register_provider(self.provider)
        bound = self.knowledge.bind(SCOPE)
        spec = EnvironmentSpec(
            name="handbook", execution_profile_identity=self.identities.of("environment", "handbook-environment")
        )
        app.register_environment(Environment(spec, knowledge_store=bound))
        reader_store = bound if self.wiring == "constructor" else None
        reader = HandbookReader(self.evidence, self.identities.of("tool", "handbook-reader"), reader_store)
        app.register_agent(
            AgentSpec(name="assistant", model="scripted"),
            tools=(reader, CountedOrders(self.evidence, self.receipts)),
            tool_policy=HandbookPolicy(self.identities.of("policy", "handbook-policy")),
        )
        return app

    def told(self) -> str:
        """Return everything that this process's provider was told, as JSON text."""
        return json.dumps([request.model_dump(mode="json") for request in self.provider.requests])

    def facts(self, outcome: RunOutcome | None = None) -> dict[str, Any]:
        """Return what this phase can show."""
        facts: dict[str, Any] = {
            "provider_requests": len(self.provider.requests),
            "searches": self.evidence.searches,
            "receipts_asked": self.evidence.receipts_asked,
            "receipts": self.receipts.all(),
        }
        if outcome is not None:
            facts |= {"session": outcome.session_id, "status": outcome.status, "answer": outcome.final_text}
        return facts


def _script() -> list[Any]:
    look = [ModelStreamEvent.tool_call("lookup_handbook", id="look")]
    order = [ModelStreamEvent.tool_call("order_supplies", {"item": "cooled boxes", "quantity": 2}, id="order")]

    def first(request: Any) -> Any:
        return order if "order" in request.messages[0].plain_text else look

    return [first, "So it stands.", look, "So it stands now."]


async def start(build: Build) -> dict[str, Any]:
    """Fill the handbook and hold the first turn."""
    entries = {"shipping": FIRST_TEXT, "safe": FORBIDDEN[0], "prices": FORBIDDEN[1]}
    for name, text in entries.items():
        visibility = "restricted" if name == "safe" else "public"
        namespace = "finance" if name == "prices" else "handbook"
        await build.knowledge.create_entry(
            KnowledgeEntry(id=name, text=text, title="Shipping samples", namespace=namespace, visibility=visibility)
        )
    environment = "handbook" if build.wiring == "environment" else None
    async with build.app() as app:
        outcome = await run_to_completion(
            app,
            RunRequest(
                agent_name="assistant",
                session_id=CONVERSATION,
                environment_name=environment,
                messages=(Message.text("user", "When are samples shipped?"),),
            ),
        )
    _prove(build, FIRST_TEXT)
    return build.facts(outcome)


async def resume(build: Build) -> dict[str, Any]:
    """Change the handbook's text, and hold the next turn in this new process."""
    bound = build.knowledge.bind(SCOPE)
    entry = await bound.get_entry("shipping")
    later = entry.model_copy(update={"text": LATER_TEXT})
    await build.knowledge.append_entry_revision(later, expected_revision=entry.revision)
    async with build.app() as app:
        request = ResumeRequest(session_id=CONVERSATION, messages=(Message.text("user", "And now?"),))
        outcome = await run_to_completion(app, request)
    _prove(build, LATER_TEXT)
    _require("When are samples shipped?" in build.told(), "the earlier conversation did not survive")
    _require(FIRST_TEXT in build.told(), "the earlier evidence did not survive")
    return build.facts(outcome)


def _prove(build: Build, text: str) -> None:
    _require(build.evidence.searches == 1, "the supplied store was not searched")
    _require(text in build.told(), "the present evidence did not reach the provider")
    for forbidden in FORBIDDEN:
        _require(forbidden not in build.told(), "a forbidden record reached the provider")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


async def pause(build: Build) -> dict[str, Any]:
    """Run into the approval, and leave it pending."""
    async with build.app() as app:
        request = RunRequest(
            agent_name="assistant",
            session_id=APPROVAL,
            environment_name="handbook",
            messages=(Message.text("user", "Please order two cooled boxes."),),
        )
        outcome = await run_to_completion(app, request)
        page = await app.list_pending_actions(PendingActionQuery(session_id=APPROVAL))
    _require(page.total == 1, "no approval waits")
    return build.facts(outcome) | {"pending": [action.id for action in page.actions]}


async def _resolve(build: Build, decision: ToolApprovalDecision, approval_id: str | None = None) -> dict[str, Any]:
    async with build.app() as app:
        page = await app.list_pending_actions(PendingActionQuery(session_id=APPROVAL))
        found = approval_id or page.actions[0].id
        build.folder.joinpath("decided.json").write_text(json.dumps([found, decision]), encoding="utf-8")
        request = ToolApprovalRequest(session_id=APPROVAL, approval_id=found, decision=decision, resolved_by=ACTOR)
        outcome = await run_to_completion(app, request)
    return build.facts(outcome)


async def approve(build: Build) -> dict[str, Any]:
    """Approve in this new process: the order is placed once."""
    facts = await _resolve(build, ToolApprovalDecision.APPROVE)
    _require(len(facts["receipts"]) == 1, "an approved order leaves one receipt")
    return facts


async def deny(build: Build) -> dict[str, Any]:
    """Deny in this new process: nothing is ordered, and the model is told."""
    facts = await _resolve(build, ToolApprovalDecision.DENY)
    _require(facts["receipts"] == [] and facts["receipts_asked"] == 0, "a denied order leaves no receipt")
    _require("a human denied this call" in build.told(), "the model was not told of the denial")
    return facts


async def repeat(build: Build) -> dict[str, Any]:
    """Make the same decision again: the recorded result comes back and nothing is done."""
    approval_id, decision = json.loads(build.folder.joinpath("decided.json").read_text(encoding="utf-8"))
    before = build.receipts.all()
    facts = await _resolve(build, ToolApprovalDecision(decision), approval_id)
    _require(build.receipts.all() == before, "a repeated decision issued a receipt")
    _require(facts["receipts_asked"] == 0 and facts["provider_requests"] == 0, "a repeated decision did something")
    return facts


Phase = Callable[[Build], Coroutine[Any, Any, dict[str, Any]]]
PHASES: dict[str, Phase] = {
    "start": start,
    "resume": resume,
    "pause": pause,
    "approve": approve,
    "deny": deny,
    "repeat": repeat,
}


async def _run(phase: Phase, build: Build) -> int:
    try:
        facts = await phase(build)
    except ExecutionProfileMismatchError as error:
        refusal = {
            "refused": type(error).__name__,
            "changed_component_classes": error.changed_component_classes,
            "differences": error.differences,
            "boundary": error.boundary,
        }
        print(json.dumps(build.facts() | refusal))
        return REFUSED
    finally:
        await build.knowledge.aclose()
    print(json.dumps(facts))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run one phase and print what it showed, as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("phase", choices=tuple(PHASES))
    parser.add_argument("--dir", type=Path, required=True, help="directory that the phases share")
    parser.add_argument("--wiring", choices=("constructor", "environment"), default="constructor")
    parser.add_argument("--change", choices=(*CHANGES, OPAQUE), help="rebuild with this part of an identity changed")
    options = parser.parse_args(arguments)
    build = Build(options.dir, options.wiring, Identities(options.change))
    return asyncio.run(_run(PHASES[options.phase], build))


if __name__ == "__main__":
    sys.exit(main())
