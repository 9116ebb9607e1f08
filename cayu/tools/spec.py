"""What a tool is: its specification, what it receives and what it gives back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from jsonschema_rs import Draft202012Validator, ReferencingError, ValidationError
from pydantic import Field, field_validator

from cayu.canonical import normalise
from cayu.effects import ToolEffect
from cayu.errors import InvalidInput
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.knowledge.records import KnowledgeAccessScope
from cayu.knowledge.store import KnowledgeStore
from cayu.messages import Frozen
from cayu.sessions.limits import RunLimits

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL_NAME = r"^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$"
"""What every provider accepts as a tool's name."""
MOST_PROBLEMS = 5


class ToolSpec(Frozen):
    """What a model and the runtime know of a tool before it runs."""

    name: str = Field(pattern=TOOL_NAME)
    description: str
    input_schema: dict[str, Any] = NO_ARGUMENTS
    """JSON Schema (draft 2020-12) of the arguments, an object."""
    effect: ToolEffect = ToolEffect.EXTERNAL
    parallel_safe: bool = True
    """May run beside its neighbours in a round."""
    max_terminal_payload_bytes: int | None = Field(default=None, ge=1)
    """Largest result to keep, in bytes of JSON; None takes the application's bound."""
    execution_profile_identity: ExecutionProfileBehaviorIdentity | None = None
    """None leaves the tool opaque: sessions that have it do not survive a rebuild of the application."""

    @field_validator("input_schema")
    @classmethod
    def _is_a_schema(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            _compiled(value)
        except (ValidationError, ReferencingError) as error:
            place = _path(getattr(error, "instance_path", ()))
            raise ValueError(f"input_schema is not a self-contained JSON Schema at {place}") from None
        if value.get("type") != "object":
            raise ValueError('input_schema describes an object: it needs "type": "object"')
        return dict(normalise(value))


class ToolResult(Frozen):
    """What a call gives back to the model and to the log."""

    content: str
    """What the model reads."""
    structured: Any = None
    """The same as data, inside the JSON domain."""
    artifacts: tuple[Any, ...] = ()
    """References to things kept elsewhere, inside the JSON domain; not shown to the model."""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ChildTask:
    """Work for another agent."""

    agent_name: str
    task: str
    limits: RunLimits
    max_steps: int
    answer_characters: int | None = None
    """Set when the child's answer is the call's whole result, cut to so many characters: then the child's log alone
    says what became of the call. None for a tool that does more than that."""


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """Where a child session stopped."""

    session_id: str
    status: str
    """A `SessionStatus`."""
    text: str
    """The last thing that its model said."""
    reason: str = ""
    """Why it did not complete, in fixed words."""


class ChildSessions(Protocol):
    """Runs sessions on behalf of one call."""

    async def run(self, task: ChildTask) -> ChildOutcome:
        """Run the call's child session, or go on with it where it stands, to where it stops."""
        ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a call knows of its surroundings."""

    session_id: str
    agent_name: str
    environment_name: str | None = None
    causal_budget_id: str | None = None
    idempotency_key: str = ""
    """The same for every attempt at this call, and for no other call."""
    knowledge_store: KnowledgeStore | None = None
    """The selected environment's store; None without one."""
    knowledge_access_scope: KnowledgeAccessScope | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    children: ChildSessions | None = None
    """Runs child sessions of this call; None outside a session."""


class Tool(ABC):
    """Something that an agent can call. A subclass sets `spec` and implements `run`."""

    spec: ToolSpec
    requires_knowledge: ClassVar[bool] = False
    """True refuses a run whose environment binds no knowledge store, before any provider is asked."""

    @abstractmethod
    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Do the work. An exception becomes an error result that the model reads.

        `TimeoutError` and `ToolOutcomeUnknown` say that the tool lost touch with its service: unless the tool's effect
        is `NONE`, the outcome is then unknown, and has to be found out.
        """


class InputValidator:
    """Checks arguments against one tool's schema; made once, when the tool is registered."""

    def __init__(self, spec: ToolSpec) -> None:
        self._validator = _compiled(spec.input_schema)

    def problem(self, arguments: object) -> str | None:
        """Return where and how the arguments miss the schema, None when they fit.

        Names places and rules, never the values, which may be long or private.
        """
        found = {f"{_path(error.instance_path)} {_broken(error)}" for error in self._validator.iter_errors(arguments)}
        return "; ".join(sorted(found)[:MOST_PROBLEMS]) or None


_NAMING = frozenset({"required", "additionalProperties"})
"""Rules whose message names properties and holds no value."""


def _broken(error: ValidationError) -> str:
    rule = str(error.schema_path[-1])
    return f"breaks {rule!r}: {error.message}" if rule in _NAMING else f"breaks {rule!r}"


def _compiled(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(schema, retriever=_refuse_retrieval)


def _refuse_retrieval(uri: str) -> Any:
    raise LookupError(f"a tool's schema stands on its own; {uri!r} is not fetched")


def _path(parts: Sequence[str | int]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def check_tools(tools: tuple[Tool, ...]) -> None:
    """Refuse a set of tools that is not usable: things that are no tools, and names that occur twice."""
    names = set()
    for tool in tools:
        if isinstance(tool, type) or not isinstance(getattr(tool, "spec", None), ToolSpec):
            raise InvalidInput(f"{tool!r:.80} is not a Tool with a spec; subclass Tool or use @tool.")
        if tool.spec.name in names:
            raise InvalidInput(f"Two tools are named {tool.spec.name!r}; give each its own name.")
        names.add(tool.spec.name)
