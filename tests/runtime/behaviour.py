"""One small application whose parts carry declarations that a test may change, in this process or in a child."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cayu import (
    AgentSpec,
    CayuApp,
    Environment,
    EnvironmentSpec,
    ExecutionProfileBehaviorIdentity,
    Message,
    ResumeRequest,
    RunRequest,
    SQLiteSessionStore,
    Tool,
    ToolContext,
    ToolEffect,
    ToolPolicy,
    ToolResult,
    ToolSpec,
)
from cayu.canonical import loads
from cayu.providers import ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.runtime import ExecutionProfilePolicy
from cayu.tools import ToolPolicyDecision, ToolPolicyRequest, ToolPolicyResult

SESSION = "one"
TOOL = "lookup_canary_member"
COMPONENTS = ("tool", "policy", "environment")
CLASS_OF = {"tool": "tools", "policy": "tool_policy", "environment": "environment", "provider": "provider"}
FIELDS = ("name", "behavior_version", "implementation_version")

Identity = ExecutionProfileBehaviorIdentity
Hook = Callable[[], None]


def declared(component: str) -> Identity:
    """A declaration whose every word can be searched for."""
    return Identity(**{name: f"canary-{component}-{name}" for name in FIELDS})


@dataclass(frozen=True)
class Parts:
    """What the application is made of; None leaves a part undeclared."""

    tool: Identity | None = field(default_factory=lambda: declared("tool"))
    policy: Identity | None = field(default_factory=lambda: declared("policy"))
    environment: Identity | None = field(default_factory=lambda: declared("environment"))
    provider: Identity | None = field(default_factory=lambda: declared("provider"))
    decision: ToolPolicyDecision = ToolPolicyDecision.ALLOW
    effect: ToolEffect = ToolEffect.NONE
    calls: bool = True
    """The model asks for the tool before it answers."""

    def changed(self, component: str, name: str = "behavior_version") -> Parts:
        """The same parts, one of them with another word in its declaration."""
        identity: Identity = getattr(self, component)
        return replace(self, **{component: identity.model_copy(update={name: f"canary-{component}-changed"})})

    def without(self, component: str) -> Parts:
        """The same parts, one of them undeclared."""
        return replace(self, **{component: None})


class Lookup(Tool):
    def __init__(self, identity: Identity | None, effect: ToolEffect, hook: Hook | None) -> None:
        self.spec = ToolSpec(name=TOOL, description="Looks.", effect=effect, execution_profile_identity=identity)
        self.runs = 0
        self._hook = hook

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        self.runs += 1
        if self._hook is not None:
            self._hook()
        return ToolResult(content="looked")


class Policy(ToolPolicy):
    def __init__(self, identity: Identity | None, decision: ToolPolicyDecision) -> None:
        self._identity = identity
        self._decision = decision

    @property
    def execution_profile_identity(self) -> Identity | None:
        return self._identity

    async def authorize(self, request: ToolPolicyRequest) -> ToolPolicyResult:
        return ToolPolicyResult(decision=self._decision)


class Provider(ScriptedModelProvider):
    """A script with a declaration of its own, which runs a hook while it is asked."""

    def __init__(self, parts: Parts, hook: Hook | None) -> None:
        call = [ModelStreamEvent.tool_call(TOOL)]
        super().__init__([call, "done", call, "done again"] if parts.calls else ["done"], repeat_last=True)
        self._identity = parts.provider
        self._hook = hook

    @property
    def execution_profile_identity(self) -> Identity:
        return self._identity  # type: ignore[return-value]

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        if self._hook is not None:
            self._hook()
        async for event in super().stream(request):
            yield event


@dataclass
class Rig:
    """An application with the parts that can be counted."""

    app: CayuApp
    provider: Provider
    tool: Lookup
    store: SQLiteSessionStore

    @property
    def effects(self) -> tuple[int, int]:
        """How often the provider was asked and the tool ran."""
        return len(self.provider.requests), self.tool.runs

    async def log(self) -> list[tuple[str, dict[str, Any]]]:
        """The session's log as (type, payload)."""
        loaded = await self.store.load(SESSION)
        assert loaded is not None
        return [(record.type, loads(record.body)) for record in loaded.records]

    async def types(self) -> list[str]:
        return [type for type, _ in await self.log()]


def build(
    path: Path,
    parts: Parts | None = None,
    *,
    in_model: Hook | None = None,
    in_tool: Hook | None = None,
    policy: ExecutionProfilePolicy | None = None,
) -> Rig:
    """Build the application anew over the file at `path`, as a new process would."""
    parts = parts or Parts()
    store = SQLiteSessionStore(path)
    app = CayuApp(session_store=store, execution_profile_policy=policy)
    provider = Provider(parts, in_model)
    tool = Lookup(parts.tool, parts.effect, in_tool)
    app.register_provider(provider)
    spec = AgentSpec(name="ann", model="m", provider_options={"b": 1, "a": [1.5, None]})
    app.register_agent(spec, tools=[tool], tool_policy=Policy(parts.policy, parts.decision))
    app.register_environment(Environment(EnvironmentSpec(name="lab", execution_profile_identity=parts.environment)))
    return Rig(app, provider, tool, store)


def start(**more: Any) -> RunRequest:
    messages = (Message.text("user", "go"),)
    return RunRequest(agent_name="ann", messages=messages, session_id=SESSION, environment_name="lab", **more)


def following(**more: Any) -> ResumeRequest:
    return ResumeRequest(session_id=SESSION, messages=(Message.text("user", "more"),), **more)


def image(source: Path, target: Path) -> None:
    """Keep the file as it is at this moment: what is left when the process is lost now."""
    with closing(sqlite3.connect(source)) as held, closing(sqlite3.connect(target)) as kept:
        held.backup(kept)
