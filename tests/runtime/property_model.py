"""A small world in which sessions meet everything at once: time, a store, tools that act, and processes that die.

Two applications share one store. A script says what the model plays and what is done. It is played on a loop whose time
is the world's own, so that leases run out in no time and the same script always plays alike. `property_play` plays it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

from runtime.support import SESSION, FakeClock, calls, identity

from cayu import AgentSpec, CayuApp, RuntimeConfig, ToolEffect
from cayu.approvals import AskUserTool
from cayu.canonical import loads
from cayu.effects import MAX_ATTEMPTS, EffectOutcome, idempotency_key
from cayu.errors import StoreBusy, StoreFull, StoreOutcomeUnknown
from cayu.events import EventType as E
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.providers import ModelRequest, ModelStreamEvent
from cayu.providers.scripted import Batch, ScriptedModelProvider
from cayu.sessions.streams import Loaded, SessionStore, StreamState, Unit
from cayu.tools import Tool, ToolContext, ToolPolicy, ToolPolicyDecision, ToolPolicyRequest, ToolPolicyResult
from cayu.tools.reconcilers import Reconciliation, ReconciliationRequest, ToolEffectReconciler, ToolOutcomeUnknown
from cayu.tools.spec import ToolResult, ToolSpec

LEASE = 30.0
GRACE = 5.0
PATIENCE = 60.0
"""Seconds after which whoever is silent has lost its lease."""
BRIEF = 20.0
"""Seconds within which the hasty approvals and questions want their answer."""
MOST_TURNS = 200_000
"""Turns of the loop after which a script is taken to run in circles."""
TERMINAL_TYPES = frozenset({E.TOOL_COMPLETED, E.TOOL_FAILED, E.TOOL_BLOCKED, E.TOOL_SKIPPED})
KNOWN_TYPES = TERMINAL_TYPES | {E.TOOL_STAGED, E.EFFECT_RECONCILED}
EFFECTS = {
    "read": (ToolEffect.NONE, True),
    "look": (ToolEffect.NONE, False),
    "put": (ToolEffect.IDEMPOTENT, True),
    "set": (ToolEffect.IDEMPOTENT, False),
    "send": (ToolEffect.EXTERNAL, True),
    "pay": (ToolEffect.EXTERNAL, False),
}
"""The tools of the world, with their effect and whether they run beside others."""


class Died(BaseException):
    """The process of an application is gone."""


class Broken(AssertionError):
    """A law of the world does not hold."""


def require(holds: object, law: str) -> None:
    """Raise `Broken` unless a law holds."""
    if not holds:
        raise Broken(law)


class Short:
    """Shows only the fields that are not at their default, so that a shrunk script reads well."""

    def __repr__(self) -> str:
        told = []
        for each in fields(cast(Any, self)):
            value = getattr(self, each.name)
            if value != each.default:
                told.append(f"{each.name}={value!r}")
        return f"{type(self).__name__}({', '.join(told)})"


@dataclass(frozen=True, repr=False)
class Call(Short):
    """One call that the model asks for."""

    tool: str = "read"
    policy: str = "allow"
    """allow, deny, ask, brief (an approval that expires), revocable (denied once the world revokes), or fail."""
    fate: str = "return"
    """return, raise, unknown (loses touch with its service), cancel (cancels itself), deaf (outlives a cancellation)"""
    before: float = 0.0
    """Seconds until it acts."""
    after: float = 0.0
    """Seconds from its act to its result."""


@dataclass(frozen=True, repr=False)
class Crash(Short):
    """Where a process dies: at its n-th write, act or model step from now on, before or after that took effect."""

    at: int = 1
    where: str = "write"
    took_effect: bool = False
    known: bool = True
    """False when nobody can tell that it is gone, so that its lease has to run out."""


@dataclass(frozen=True, repr=False)
class Trouble(Short):
    """What the store answers to somebody's n-th write from now on."""

    at: int = 1
    answer: str = "busy"
    """busy (nothing is written), lost (nothing is written and nobody says so), unheard (it is written and nobody says
    so), full (nothing is written, for good)."""


@dataclass(frozen=True, repr=False)
class Step(Short):
    """One thing that somebody does; what does not fit the moment is refused, and changes nothing."""

    what: str
    by: str = "A"
    which: int = 0
    seconds: float = 0.0
    crash: Crash | None = None
    deaf: bool = False
    """Its renewals do not reach the store."""
    trouble: Trouble | None = None
    slow: float = 0.0
    """Seconds that its consumer takes over each event."""
    leave: int = 0
    """The number of events after which its consumer goes away; 0 takes all."""
    cancelled: float = 0.0
    """Seconds after which the task that takes its events is cancelled; 0 leaves it alone."""
    max_steps: int = 100
    max_tool_calls: int | None = None
    max_elapsed_seconds: float | None = None


@dataclass(frozen=True, repr=False)
class Together(Short):
    """Two things that are done at once; the second begins `lag` seconds later."""

    first: Step
    second: Step
    lag: float = 0.0


@dataclass(frozen=True)
class Script:
    """What the model plays, and what is done."""

    plays: tuple[tuple[Call, ...], ...]
    """The rounds of the model's answers; an empty one is a final text."""
    steps: tuple[Step | Together, ...]
    reconciled: bool = False
    """Whether the external tools have reconcilers."""
    width: int = 8
    """Calls that run at once."""
    timeout: float | None = None
    """Seconds after which a tool is cut off."""
    thinking: float = 0.0
    """Seconds that the model, the policy and a reconciler take for each answer."""

    def __repr__(self) -> str:
        lines = [f"    plays: {list(play)}" for play in self.plays]
        lines += [f"    {number}. {step!r}" for number, step in enumerate(self.steps, 1)]
        numbers = f"reconciled={self.reconciled}, width={self.width}, timeout={self.timeout}, thinking={self.thinking}"
        return "\n".join([f"Script({numbers})", *lines])


class WorldLoop(asyncio.SelectorEventLoop):
    """A loop on the world's time: where it would sleep, the clock moves on; a wait for ever is a fault."""

    def __init__(self, clock: FakeClock) -> None:
        self._world_clock = clock
        self._turns = 0
        super().__init__(selectors.SelectSelector())
        self._select = self._selector.select  # type: ignore[attr-defined]
        self._selector.select = self._passing  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._world_clock.monotonic()

    def _passing(self, timeout: float | None = None) -> Any:
        self._turns += 1
        require(timeout is not None, "nothing waits for ever")
        require(self._turns < MOST_TURNS, "nothing runs in circles")
        if timeout:
            self._world_clock.advance(timeout)
        return self._select(0)


_REFUSALS = {"busy": StoreBusy, "lost": StoreOutcomeUnknown, "full": StoreFull}


@dataclass
class Mortal:
    """A store as one application reaches it: until that dies, and with whatever is between the two."""

    inner: SessionStore
    owner: Owner

    async def append(self, unit: Unit) -> tuple[StreamState, int]:
        await self._reach()
        self.owner.meet("write", took_effect=False)
        answer = self.owner.answer()
        if answer in _REFUSALS:
            raise _REFUSALS[answer](path="the world")
        written = await self.inner.append(unit)
        self.owner.meet("write", took_effect=True)
        await self._reach()
        if answer == "unheard":
            raise StoreOutcomeUnknown
        return written

    async def renew(self, *args: Any) -> StreamState:
        await self._reach()
        if self.owner.deaf:
            raise StoreBusy(path="the world")
        return await self.inner.renew(*args)

    def __getattr__(self, name: str) -> Any:
        given = getattr(self.inner, name)
        if name not in ("load", "heads", "records", "items", "transact", "now"):
            return given

        async def reached(*args: Any) -> Any:
            await self._reach()
            return await given(*args)

        return reached

    async def _reach(self) -> None:
        self.owner.live()
        await asyncio.sleep(0)
        self.owner.live()


@dataclass
class Owner:
    """One application of the world, and the process that it lives in."""

    name: str
    world: World
    dead: bool = False
    deaf: bool = False
    trouble: Trouble | None = None
    writes: int = 0
    crash: Crash | None = None
    met: int = 0
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    app: CayuApp = field(init=False)

    def __post_init__(self) -> None:
        world = self.world
        script = world.script
        config = RuntimeConfig(
            lease_seconds=LEASE,
            cancel_grace_seconds=GRACE,
            parallel_width=script.width,
            tool_timeout_seconds=script.timeout,
        )
        self.app = CayuApp(session_store=cast(SessionStore, Mortal(world.store, self)), config=config)
        self.app.services.clock = world.clock
        self.app.register_provider(WorldModel(self))
        tools: list[Tool] = [WorldTool(self, name) for name in EFFECTS]
        tools += [AskUserTool(), AskUserTool(name="ask_brief", expires_in_seconds=BRIEF)]
        reconcilers = {name: WorldReconciler(world) for name in ("send", "pay")} if script.reconciled else None
        spec = AgentSpec(name="a", model="m")
        self.app.register_agent(
            spec, tools, tool_policy=WorldPolicy(world), tool_effect_reconcilers=cast(Any, reconcilers)
        )

    def live(self) -> None:
        """Go no further in a process that is gone."""
        if self.dead:
            raise Died

    def meet(self, where: str, *, took_effect: bool) -> None:
        """Die here, when it is the time and the place."""
        crash = self.crash
        if crash is None or (crash.where, crash.took_effect) != (where, took_effect):
            return
        self.met += 1
        if self.met == crash.at:
            self.dead = True
            raise Died

    def answer(self) -> str:
        """Return what the store answers to the next write; empty when all is well."""
        self.writes += 1
        trouble = self.trouble
        if trouble is None or (self.writes != trouble.at and (trouble.answer != "full" or self.writes < trouble.at)):
            return ""
        return trouble.answer

    async def end(self) -> None:
        """Stop what a dead process has left on the loop."""
        left = list(self.tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def prepare(self, step: Step) -> None:
        """Set what happens to the process during one step."""
        self.crash, self.met, self.deaf = step.crash, 0, step.deaf
        self.trouble, self.writes = step.trouble, 0


class WorldModel(ScriptedModelProvider):
    """Plays the script, in its own time; its process may die over it."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner.world.batches(), repeat_last=True)
        self._owner = owner

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        self._owner.live()
        await self._owner.world.sleep(self._owner.world.script.thinking)
        self._owner.meet("model", took_effect=False)
        async for event in super().stream(request):
            yield event
        self._owner.meet("model", took_effect=True)


class WorldTool(Tool):
    """Acts in the world, as its arguments say; it notes what the log holds when it is entered."""

    def __init__(self, owner: Owner, name: str) -> None:
        self.owner = owner
        effect, parallel = EFFECTS[name]
        self.spec = ToolSpec(
            name=name,
            description=name,
            input_schema={"type": "object"},
            effect=effect,
            parallel_safe=parallel,
            execution_profile_identity=identity(name),
        )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        owner, world, key = self.owner, self.owner.world, ctx.idempotency_key
        owner.live()
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        owner.tasks.add(task)
        world.inside[key] += 1
        try:
            await world.note_dispatch(key, self.spec)
            await self._pause(args["before"], args["fate"])
            owner.meet("act", took_effect=False)
            world.act(key, self.spec)
            owner.meet("act", took_effect=True)
            await self._pause(args["after"], args["fate"])
            return self._end(args["fate"])
        finally:
            world.inside[key] -= 1
            owner.tasks.discard(task)

    async def _pause(self, seconds: float, fate: str) -> None:
        try:
            await self.owner.world.sleep(seconds)
        except asyncio.CancelledError:
            if fate != "deaf" or self.owner.dead:
                raise
        self.owner.live()

    def _end(self, fate: str) -> ToolResult:
        match fate:
            case "raise":
                raise ValueError("no")
            case "unknown":
                raise ToolOutcomeUnknown
            case "cancel":
                raise asyncio.CancelledError
        return ToolResult(content="done")


@dataclass
class WorldPolicy(ToolPolicy):
    """Decides by what the call's arguments say."""

    world: World

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        return identity("world-policy")

    async def authorize(self, request: ToolPolicyRequest) -> ToolPolicyResult:
        await self.world.sleep(self.world.script.thinking)
        decision, seconds = ToolPolicyDecision.ALLOW, None
        match request.arguments.get("policy"):
            case "ask":
                decision = ToolPolicyDecision.REQUIRE_APPROVAL
            case "brief":
                decision, seconds = ToolPolicyDecision.REQUIRE_APPROVAL, BRIEF
            case "deny":
                decision = ToolPolicyDecision.DENY
            case "revocable" if self.world.revoked:
                decision = ToolPolicyDecision.DENY
            case "fail":
                raise ValueError("no")
        return ToolPolicyResult(decision=decision, approval_expires_in_seconds=seconds)


@dataclass
class WorldReconciler(ToolEffectReconciler):
    """Tells the truth of the world, once nothing is under way."""

    world: World

    async def reconcile(self, request: ReconciliationRequest) -> Reconciliation:
        await self.world.sleep(self.world.script.thinking)
        acted = self.world.truth(request.idempotency_key)
        found = {True: EffectOutcome.COMPLETED, False: EffectOutcome.FAILED, None: EffectOutcome.UNKNOWN}[acted]
        return Reconciliation(outcome=found)


@dataclass
class World:
    """Everything outside the runtime: time, the store, and what the tools have done."""

    script: Script
    store: SessionStore
    clock: FakeClock
    virtual: bool = True
    """False on a loop of real time, where nothing sleeps."""
    acts: Counter[str] = field(default_factory=Counter)
    dispatches: Counter[str] = field(default_factory=Counter)
    inside: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    revoked: bool = False

    def batches(self) -> list[Batch]:
        """Return the model's answers, the last of which repeats."""
        return [_asked(play) if play else "done" for play in (*self.script.plays, ())]

    async def sleep(self, seconds: float) -> None:
        """Let time pass for one of many; without virtual time, let only the others go on."""
        await asyncio.sleep(seconds if self.virtual else 0)

    async def note_dispatch(self, key: str, spec: ToolSpec) -> None:
        """Hold the entry of a tool against what is durable: its start and intent, and no result."""
        self.dispatches[key] += 1
        loaded = await self.store.load(SESSION)
        found = Counter(type for type, call_key in _by_key(loaded) if call_key == key)
        if found[E.TOOL_STARTED] < self.dispatches[key]:
            self.faults.append(f"{spec.name} was entered and its start is not durable")
        if spec.effect is not ToolEffect.NONE and found[E.EFFECT_INTENT_RECORDED] < self.dispatches[key]:
            self.faults.append(f"{spec.name} was entered and its intent is not durable")
        if any(found[type] for type in KNOWN_TYPES):
            self.faults.append(f"{spec.name} was entered and its result was known")
        if spec.effect is ToolEffect.EXTERNAL and self.dispatches[key] > 1:
            self.faults.append(f"{spec.name} is external and was entered twice")

    def act(self, key: str, spec: ToolSpec) -> None:
        """Do what a tool does."""
        self.acts[key] += 1
        most = 1 if spec.effect is ToolEffect.EXTERNAL else MAX_ATTEMPTS
        if self.acts[key] > most:
            self.faults.append(f"{spec.name} ({spec.effect}) acted {self.acts[key]} times under one key")

    def truth(self, key: str) -> bool | None:
        """Say whether a call has acted; None while it may still do."""
        return None if self.inside[key] else self.acts[key] > 0


def _asked(play: Sequence[Call]) -> Batch:
    wanted: list[str | tuple[str, dict[str, Any]]] = []
    for call in play:
        if call.tool.startswith("ask"):
            wanted.append((call.tool, {"question": "which?", "options": ["x", "y"], "allow_other": True}))
        else:
            told = {"policy": call.policy, "fate": call.fate, "before": call.before, "after": call.after}
            wanted.append((call.tool, told))
    return calls(*wanted)


def _by_key(loaded: Loaded | None) -> Iterator[tuple[str, str]]:
    """Yield (type, idempotency key) of the records that tell of a call."""
    for record in loaded.records if loaded else ():
        if record.type.startswith("tool."):
            call_id = loads(record.body).get("tool_call_id")
            if call_id is not None:
                yield record.type, key_of(cast(Loaded, loaded).head.row.instance_id, call_id)


def key_of(instance_id: str, call_id: str) -> str:
    """Return the idempotency key of a call."""
    return idempotency_key(instance_id, call_id.rpartition(".")[0], call_id)
