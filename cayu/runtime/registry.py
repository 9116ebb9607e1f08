"""What an application has registered, and the assembly of it that one session runs under, with its profile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cayu.agents import AgentSpec
from cayu.environments import Environment
from cayu.errors import InvalidInput, MissingBinding, NotRegistered
from cayu.identity import RUNTIME_PROTOCOL, ComponentDigest, ExecutionProfile, IdentityMint
from cayu.providers.base import ModelProvider, ModelRequest, ModelStreamEvent, ToolDescription
from cayu.recall.policy import AutomaticRecallPolicy
from cayu.sessions.context import ContextPolicy
from cayu.sessions.recovery import Registrations
from cayu.tools.policy import AllowAllToolPolicy, ToolPolicy
from cayu.tools.reconcilers import ToolEffectReconciler
from cayu.tools.spec import InputValidator, Tool, check_tools
from cayu.tools.subagents import SubagentTool


@dataclass(frozen=True, slots=True)
class Registered:
    """One agent with what it may do."""

    spec: AgentSpec
    tools: Mapping[str, Tool]
    validators: Mapping[str, InputValidator]
    policy: ToolPolicy
    reconcilers: Mapping[str, ToolEffectReconciler]
    context_policy: ContextPolicy | None = None
    recall: AutomaticRecallPolicy | None = None


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything that one session runs under."""

    agent: AgentSpec
    provider: ModelProvider
    tools: Mapping[str, Tool]
    validators: Mapping[str, InputValidator]
    policy: ToolPolicy
    environment: Environment | None
    descriptions: tuple[ToolDescription, ...]
    profile: ExecutionProfile
    reconcilers: Mapping[str, ToolEffectReconciler]
    """By tool name."""
    context_policy: ContextPolicy | None = None
    recall: AutomaticRecallPolicy | None = None

    @property
    def registrations(self) -> Registrations:
        """What recovery needs to know of this assembly."""
        own = (name for name, tool in self.tools.items() if isinstance(tool, SubagentTool))
        return Registrations(
            tools=frozenset(self.tools),
            reconciled=frozenset((*self.reconcilers, *own)),
            asks_again=self.provider.hermetic,
        )


class _Silent(ModelProvider):
    """A provider that is never asked."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        """Refuse."""
        raise InvalidInput("Nothing is asked while a session is only being closed.")


class Registry:
    """The registrations of one application."""

    def __init__(self) -> None:
        self._mint = IdentityMint()
        self._agents: dict[str, Registered] = {}
        self._providers: dict[str, ModelProvider] = {}
        self._environments: dict[str, Environment] = {}
        self._default_provider: str | None = None
        self._default_environment: str | None = None

    def add_provider(self, provider: ModelProvider, default: bool) -> None:
        """Register a provider under its own name; the first one is the default until another says so."""
        if not isinstance(provider, ModelProvider):
            raise InvalidInput(f"{type(provider).__name__} is not a ModelProvider.")
        _refuse_double("provider", provider.name, self._providers)
        self._providers[provider.name] = provider
        if default or self._default_provider is None:
            self._default_provider = provider.name

    def add_environment(self, environment: Environment, default: bool) -> None:
        """Register an environment under its own name."""
        if not isinstance(environment, Environment):
            raise InvalidInput(f"{type(environment).__name__} is not an Environment.")
        _refuse_double("environment", environment.spec.name, self._environments)
        self._environments[environment.spec.name] = environment
        if default:
            self._default_environment = environment.spec.name

    def add_agent(
        self,
        spec: AgentSpec,
        tools: Sequence[Tool],
        policy: ToolPolicy | None,
        reconcilers: Mapping[str, ToolEffectReconciler],
        context_policy: ContextPolicy | None = None,
        recall: AutomaticRecallPolicy | None = None,
    ) -> None:
        """Register an agent with its tools and policies; without a tool policy every call is allowed."""
        if not isinstance(spec, AgentSpec):
            raise InvalidInput(f"{type(spec).__name__} is not an AgentSpec.")
        if policy is not None and not isinstance(policy, ToolPolicy):
            raise InvalidInput(f"The tool policy is {policy!r:.80}, not an instance of a ToolPolicy.")
        if not isinstance(context_policy, ContextPolicy | None):
            raise InvalidInput(f"The context policy is {context_policy!r:.80}, not an instance of a ContextPolicy.")
        if not isinstance(recall, AutomaticRecallPolicy | None):
            raise InvalidInput(f"recall is {recall!r:.80}, not an AutomaticRecallPolicy.")
        _refuse_double("agent", spec.name, self._agents)
        listed = tuple(tools)
        check_tools(listed)
        _check_reconcilers(reconcilers, {tool.spec.name for tool in listed})
        self._agents[spec.name] = Registered(
            spec=spec,
            tools={tool.spec.name: tool for tool in listed},
            validators={tool.spec.name: InputValidator(tool.spec) for tool in listed},
            policy=policy or AllowAllToolPolicy(),
            reconcilers=dict(reconcilers),
            context_policy=context_policy,
            recall=recall,
        )

    def nothing(self) -> Assembly:
        """Return an assembly without anything that could run, for work that only closes."""
        spec = AgentSpec(name="nobody", model="none")
        profile = ExecutionProfile({})
        return Assembly(spec, _Silent(), {}, {}, AllowAllToolPolicy(), None, (), profile, {})

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The registered agents, in the order of registration."""
        return tuple(self._agents)

    @property
    def is_hermetic(self) -> bool:
        """True when every registered provider works in this process alone."""
        return all(provider.hermetic for provider in self._providers.values())

    def tools_of(self, agent_name: str) -> Mapping[str, Tool]:
        """Return the tools that are registered for an agent; none for one that is not registered."""
        agent = self._agents.get(agent_name)
        return agent.tools if agent is not None else {}

    def assemble(self, agent_name: str, environment_name: str | None, *, choose_default: bool = False) -> Assembly:
        """Return what a session of that agent runs under.

        `choose_default` lets a missing environment name select the application's default, for new sessions. Raises
        `NotRegistered` and `MissingBinding`.
        """
        agent = _find("agent", agent_name, self._agents)
        provider = _find("provider", agent.spec.provider_name or self._default_provider, self._providers)
        if environment_name is None and choose_default:
            environment_name = self._default_environment
        environment = _find("environment", environment_name, self._environments) if environment_name else None
        for tool in agent.tools.values():
            if tool.requires_knowledge and (environment is None or environment.knowledge_store is None):
                raise MissingBinding(tool_name=tool.spec.name)
        recalls = agent.recall is not None and agent.recall.mode != "off"
        if recalls and (environment is None or environment.knowledge_store is None):
            words = f"Agent {agent_name!r} has automatic recall, and the run has no knowledge store"
            raise MissingBinding(f"{words}; select an environment that binds one.", tool_name="automatic recall")
        return Assembly(
            agent=agent.spec,
            provider=provider,
            tools=agent.tools,
            validators=agent.validators,
            policy=agent.policy,
            environment=environment,
            descriptions=tuple(
                ToolDescription(
                    name=tool.spec.name, description=tool.spec.description, input_schema=tool.spec.input_schema
                )
                for tool in agent.tools.values()
            ),
            profile=self._profile(agent, provider, environment),
            reconcilers=agent.reconcilers,
            context_policy=agent.context_policy,
            recall=agent.recall,
        )

    def _profile(self, agent: Registered, provider: ModelProvider, environment: Environment | None) -> ExecutionProfile:
        mint = self._mint
        spec = agent.spec.model_dump(mode="json", exclude={"metadata"})
        policy = type(agent.policy).__qualname__
        return ExecutionProfile(
            {
                "agent": mint.declared("agent", spec),
                "provider": mint.component("provider", provider.name, provider.execution_profile_identity),
                "tools": _tools_digest(mint, agent.tools.values()),
                "tool_policy": mint.component("tool_policy", policy, agent.policy.execution_profile_identity),
                "environment": _environment_digest(mint, environment),
                "context_policy": _context_digest(mint, agent.context_policy),
                "recall_policy": recall_digest(agent.recall),
                "runtime_protocol": mint.declared("runtime_protocol", RUNTIME_PROTOCOL),
            }
        )


def recall_digest(policy: AutomaticRecallPolicy | None) -> ComponentDigest:
    """Return the identity of a recall policy, which says everything about itself."""
    return IdentityMint().declared("recall_policy", policy.fingerprint() if policy is not None else None)


def _context_digest(mint: IdentityMint, policy: ContextPolicy | None) -> ComponentDigest:
    if policy is None:
        return mint.declared("context_policy", None)
    return mint.component("context_policy", type(policy).__qualname__, policy.execution_profile_identity)


def _tools_digest(mint: IdentityMint, tools: Any) -> ComponentDigest:
    material = sorted((tool.spec.model_dump(mode="json") for tool in tools), key=lambda spec: str(spec["name"]))
    declared = all(spec["execution_profile_identity"] is not None for spec in material)
    return mint.declared("tools", material) if declared else mint.opaque("tools", material)


def _environment_digest(mint: IdentityMint, environment: Environment | None) -> ComponentDigest:
    if environment is None:
        return mint.declared("environment", None)
    spec = environment.spec
    scope = environment.knowledge_access_scope
    material = {"name": spec.name, "scope": scope.model_dump(mode="json") if scope else None}
    return mint.component("environment", material, spec.execution_profile_identity)


def _check_reconcilers(reconcilers: Mapping[str, ToolEffectReconciler], tools: set[str]) -> None:
    for name, reconciler in reconcilers.items():
        if not isinstance(reconciler, ToolEffectReconciler):
            raise InvalidInput(f"The reconciler of {name!r} is {reconciler!r:.80}, not a ToolEffectReconciler.")
        if name not in tools:
            raise InvalidInput(f"There is a reconciler for {name!r}, and the agent has no tool of that name.")


def _find(kind: str, name: str | None, known: Mapping[str, Any]) -> Any:
    if name is None or name not in known:
        raise NotRegistered(kind=kind, name=name, known=", ".join(sorted(known)) or "none")
    return known[name]


def _refuse_double(kind: str, name: str, known: Mapping[str, Any]) -> None:
    if name in known:
        raise InvalidInput(f"There is a {kind} named {name!r} already; give each its own name.")
