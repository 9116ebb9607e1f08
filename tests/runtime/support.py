"""What the tests of sessions and of the runtime share: small tools, clocks, stores with hooks, and invariants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from cayu import AgentSpec, CayuApp, Event, Message, ResumeRequest, RunRequest, RuntimeConfig, ToolEffect
from cayu.approvals import PendingActionQuery
from cayu.canonical import loads
from cayu.effects import EffectState
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.providers.base import ModelStreamEvent
from cayu.providers.scripted import Batch, ScriptedModelProvider
from cayu.runtime.outcome import outcome_of
from cayu.sessions import CallState, SessionView, ToolApprovalDecision, ToolApprovalRequest, fold
from cayu.sessions.projection import FAILED_CODES
from cayu.sessions.requests import ResolutionActor
from cayu.sessions.streams import ItemQuery, Loaded, SessionStore, StreamState, Unit
from cayu.tools import Tool, ToolContext, ToolPolicy, ToolPolicyDecision, ToolPolicyRequest, ToolPolicyResult
from cayu.tools.spec import ToolResult, ToolSpec

SESSION = "s"
Work = Callable[[ToolContext, dict[str, Any]], Awaitable[object]]
Hook = Callable[[Unit], Awaitable[None]]
ANY_OBJECT: dict[str, Any] = {"type": "object"}
QUICK = RuntimeConfig(cancel_grace_seconds=0.05)
"""A configuration whose interruptions do not wait long."""


def identity(name: str) -> ExecutionProfileBehaviorIdentity:
    return ExecutionProfileBehaviorIdentity(name=name, behavior_version="1", implementation_version="1")


class FakeTool(Tool):
    """A tool that does what it is given, and remembers its calls; `ended` holds those that ran to their end."""

    def __init__(
        self,
        name: str,
        work: Work | None = None,
        *,
        effect: ToolEffect = ToolEffect.NONE,
        parallel_safe: bool = True,
        schema: dict[str, Any] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.spec = ToolSpec(
            name=name,
            description=name,
            input_schema=schema or ANY_OBJECT,
            effect=effect,
            parallel_safe=parallel_safe,
            max_terminal_payload_bytes=max_bytes,
            execution_profile_identity=identity(name),
        )
        self._work = work
        self.contexts: list[ToolContext] = []
        self.calls: list[dict[str, Any]] = []
        self.ended: list[dict[str, Any]] = []
        self.entered = asyncio.Event()

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        self.contexts.append(ctx)
        self.calls.append(args)
        self.entered.set()
        given = await self._work(ctx, args) if self._work else ToolResult(content=f"{self.spec.name} did it")
        self.ended.append(args)
        return cast(ToolResult, given)


class FakePolicy(ToolPolicy):
    """Answers each call from a function of the request, and remembers what it was asked."""

    def __init__(self, decide: Callable[[ToolPolicyRequest], ToolPolicyResult | ToolPolicyDecision]) -> None:
        self._decide = decide
        self.asked: list[ToolPolicyRequest] = []

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        return identity("fake-policy")

    async def authorize(self, request: ToolPolicyRequest) -> ToolPolicyResult:
        self.asked.append(request)
        answer = self._decide(request)
        return answer if isinstance(answer, ToolPolicyResult) else ToolPolicyResult(decision=answer)


@dataclass
class FakeClock:
    """Time that moves only when a test moves it."""

    us: int = 1_700_000_000_000_000
    seconds: float = 1000.0

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return self.seconds

    def monotonic_ns(self) -> int:
        return round(self.seconds * 1_000_000_000)

    def advance(self, seconds: float) -> None:
        self.us += round(seconds * 1_000_000)
        self.seconds += seconds


@dataclass
class StoreProxy:
    """Passes everything on to another store; `before` and `after` see each append and may raise in its stead."""

    inner: SessionStore
    before: Hook | None = None
    after: Hook | None = None
    units: list[Unit] = field(default_factory=list)
    renewals: int = 0
    loads: list[Exception] = field(default_factory=list)
    """Errors that the next reads raise."""
    renewing: Exception | None = None
    """What every renewal raises, if anything."""

    async def append(self, unit: Unit) -> tuple[StreamState, int]:
        if self.before is not None:
            await self.before(unit)
        written = await self.inner.append(unit)
        self.units.append(unit)
        if self.after is not None:
            await self.after(unit)
        return written

    async def renew(self, *args: Any) -> StreamState:
        self.renewals += 1
        if self.renewing is not None:
            raise self.renewing
        return await self.inner.renew(*args)

    async def load(self, stream: str, after: int = 0) -> Loaded | None:
        if self.loads:
            raise self.loads.pop(0)
        return await self.inner.load(stream, after)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def types(self) -> list[list[str]]:
        """The types of the records of each write that the store took."""
        return [[record.type for record in unit.records] for unit in self.units]


def has(unit: Unit, type: str) -> bool:
    """Whether a write carries an event of that type."""
    return any(record.type == type for record in unit.records)


def calls(*wanted: str | tuple[str, dict[str, Any]]) -> list[ModelStreamEvent]:
    """An answer that asks for tools, by name or by (name, arguments)."""
    asked = [(each, {}) if isinstance(each, str) else each for each in wanted]
    return [ModelStreamEvent.tool_call(name, args, f"p{index}") for index, (name, args) in enumerate(asked)]


def make_app(
    store: SessionStore | StoreProxy | None = None,
    batches: Sequence[Batch] = ("done",),
    tools: Sequence[Tool] = (),
    policy: ToolPolicy | None = None,
    **options: Any,
) -> CayuApp:
    """An application with one agent `a`; other options go to `CayuApp`."""
    app = CayuApp(session_store=cast("SessionStore | None", store), **options)
    app.register_provider(ScriptedModelProvider(batches))
    app.register_agent(AgentSpec(name="a", model="m"), tools=tools, tool_policy=policy)
    return app


def new_run(session_id: str = SESSION, **fields: Any) -> RunRequest:
    return RunRequest(agent_name="a", messages=(Message.text("user", "go"),), session_id=session_id, **fields)


def next_turn(session_id: str = SESSION, **fields: Any) -> ResumeRequest:
    return ResumeRequest(session_id=session_id, messages=(Message.text("user", "more"),), **fields)


def approval(approval_id: str, decision: str = "approve", by: str | None = None, **fields: Any) -> ToolApprovalRequest:
    return ToolApprovalRequest(
        session_id=fields.pop("session_id", SESSION),
        approval_id=approval_id,
        decision=ToolApprovalDecision(decision),
        resolved_by=ResolutionActor(subject=by) if by else None,
        **fields,
    )


async def play(stream: AsyncIterator[Event]) -> list[Event]:
    """Take all events of a stream."""
    return [event async for event in stream]


def types_of(events: Sequence[Event]) -> list[str]:
    """The types of the stored events."""
    return [event.type for event in events if event.sequence is not None]


async def waiting_ids(app: CayuApp, session_id: str = SESSION) -> list[str]:
    """The ids of what waits for a human in a session."""
    page = await app.list_pending_actions(PendingActionQuery(session_id=session_id))
    return [action.id for action in page.actions]


async def log_of(app: CayuApp, session_id: str = SESSION) -> Loaded:
    loaded = await app.session_store.load(session_id)
    assert loaded is not None
    return loaded


async def logged(app: CayuApp, type: str, session_id: str = SESSION) -> list[dict[str, Any]]:
    """The payloads of the events of one type, in order."""
    return [loads(record.body) for record in (await log_of(app, session_id)).records if record.type == type]


async def status_of(app: CayuApp, session_id: str = SESSION) -> str:
    return (await outcome_of(app, session_id)).status


async def assert_consistent(app: CayuApp, session_id: str = SESSION) -> SessionView:
    """Hold a session's head, items and transcript against the fold of its log; return the fold."""
    loaded = await log_of(app, session_id)
    view, head = fold(loaded.head.row, loaded.records), loaded.head.state
    assert [record.sequence for record in loaded.records] == list(range(1, len(loaded.records) + 1))
    assert (head.version, head.status) == (view.version, view.status)
    assert (head.model_steps, head.tool_calls) == (view.model_steps, view.tool_calls)
    assert (head.input_tokens, head.output_tokens) == (view.usage.input_tokens, view.usage.output_tokens)
    unknown = view.open_round.unknown if view.open_round else []
    waits = {call.action_id for call in view.awaiting} | {f"{call.id}.recovery" for call in unknown}
    items = (await app.session_store.items(ItemQuery(session_id=session_id, limit=10_000))).rows
    assert {row.item.key for row in items if row.item.state == "pending"} == waits
    assert head.pending == len(waits)
    effects = {row.item.key: row.item.state for row in items if row.item.kind == "effect"}
    assert effects == _expected_effects(view)
    assert_answered(view)
    return view


def _expected_effects(view: SessionView) -> dict[str, str]:
    expected: dict[str, str] = {}
    for opened in view.rounds:
        for call in opened.calls:
            if call.effect is ToolEffect.NONE or call.attempt == 0:
                continue
            if call.state == CallState.STARTED:
                expected[call.id] = EffectState.STARTED
            elif call.state == CallState.UNKNOWN:
                expected[call.id] = EffectState.UNKNOWN
            else:
                expected[call.id] = EffectState.FAILED if call.code in FAILED_CODES else EffectState.COMPLETED
    return expected


def assert_answered(view: SessionView) -> None:
    """Every tool call of the transcript is answered by the very next message, in order, but for an open round."""
    messages = view.transcript[:-1] if view.open_round else view.transcript
    for asking, answer in zip(messages, [*messages[1:], None], strict=True):
        if asking.tool_calls:
            assert answer is not None
            assert answer.role == "tool"
            assert [part.tool_call_id for part in answer.content] == [part.id for part in asking.tool_calls]  # type: ignore[union-attr]
