"""One claim's work on one session: enter, ask, run rounds, and end - by itself, by an interruption, or by a fence.

A drive is a task of its own. The generator that a caller iterates takes events from its outbox; closing the generator,
cancelling the caller and an interrupt request all end in one place, `_stop`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from cayu.budgets.ledger import BudgetLedger
from cayu.clock import Clock
from cayu.crashpoints import reach
from cayu.errors import CayuError, ProviderError, SessionRunFenced, StoreClosed, StoreError
from cayu.events import Event
from cayu.events import EventType as E
from cayu.identity import IdentityStrength
from cayu.messages import Message
from cayu.observability.sinks import EventSink
from cayu.runtime.budgeting import StepBudget, release_open
from cayu.runtime.config import RuntimeConfig
from cayu.runtime.lineage import cascade_drafts
from cayu.runtime.log import SessionLog
from cayu.runtime.outbox import Outbox
from cayu.runtime.planning import plan_round, refused, round_id_of
from cayu.runtime.recalling import remember
from cayu.runtime.registry import Assembly, Registry
from cayu.runtime.rounds import RoundRunner, limit_drafts
from cayu.runtime.steps import ask_model, failure, model_request, started
from cayu.runtime.timing import RuntimeTiming
from cayu.sessions.accounting import step_limit
from cayu.sessions.projection import Draft
from cayu.sessions.records import session_record
from cayu.sessions.streams import SessionStore, StreamHead, StreamRow
from cayu.sessions.view import CallView, SessionView
from cayu.shielding import finish, is_cancelling
from cayu.timing.phases import CONSUMER, CONTEXT_POLICY, RECALL, ROUND_COMMIT
from cayu.timing.records import RuntimeTimingConfig
from cayu.timing.session import SessionTiming
from cayu.tools.spec import ChildSessions

logger = logging.getLogger("cayu.runtime")

MOST_TIMEOUTS = 3
"""Timeouts in a row after which a sink gets no more events."""


@dataclass(slots=True)
class Services:
    """What every drive of one application shares."""

    store: SessionStore
    registry: Registry
    config: RuntimeConfig
    clock: Clock
    ledger: BudgetLedger
    sinks: tuple[EventSink, ...] = ()
    timing: RuntimeTiming = field(default_factory=lambda: RuntimeTiming(RuntimeTimingConfig()))
    children: Callable[[Drive, CallView], ChildSessions] | None = None
    """Gives a call of a drive the means to run child sessions."""
    drives: dict[str, Drive] = field(default_factory=dict)
    """The drives that hold a session in this application, by session id."""
    begun: set[Drive] = field(default_factory=set)
    """The drives that have not ended, whether or not they hold their session yet."""
    closed: bool = False
    """True once the application is closing; nothing is begun any more."""
    serves: str | None = None
    """The piece of work whose reserved sessions this application may go on with."""
    _timeouts: Counter[int] = field(default_factory=Counter)

    async def emit(self, events: Sequence[Event], timing: SessionTiming) -> None:
        """Hand stored events to every sink, in order; one that keeps timing out is left out from then on."""
        for event in events:
            if event.sequence is not None:
                with timing.delivering(event):
                    await self._emit(event)

    async def _emit(self, event: Event) -> None:
        for index, sink in enumerate(self.sinks):
            if self._timeouts[index] >= MOST_TIMEOUTS:
                continue
            task = asyncio.ensure_future(_emitted(sink, event))
            done, _ = await asyncio.wait([task], timeout=self.config.sink_timeout_seconds)
            self._timeouts[index] = 0 if done else self._timeouts[index] + 1
            if not done:
                task.cancel()
                logger.warning("sink %s is too slow for %s", type(sink).__name__, event.type)


class Drive:
    """Runs one session from an entry to the point where it ends or pauses."""

    def __init__(
        self, services: Services, enter: Callable[[Drive], Awaitable[bool]], config: RuntimeConfig | None = None
    ) -> None:
        """`enter` makes the first commit, which claims the session; it answers whether there is more to do.

        `config` stands in for the application's.
        """
        self.services = services
        self.config = config or services.config
        self.timing = services.timing.session(services.clock)
        self._enter = enter
        self._outbox = Outbox()
        self._interrupting = False
        self._budget: StepBudget | None = None
        self._task: asyncio.Task[None] | None = None
        self.log: SessionLog
        self.assembly: Assembly
        self.rounds: RoundRunner

    async def events(self) -> AsyncGenerator[Event, None]:
        """Start the drive and yield what it publishes. Raises what ended it, once all events are out."""
        if self.services.closed:
            raise StoreClosed("This application is closed; build a new one.")
        self.services.begun.add(self)
        self._task = asyncio.create_task(self._main(), name="cayu drive")
        try:
            async for event in self._outbox.events():
                yield event
            await asyncio.wait([self._task])
            if not (self._interrupting and self._task.cancelled()):
                self._task.result()
        finally:
            self._outbox.abandon()
            if not self._task.done():
                self._task.cancel()
            await finish(_ended(self._task))
            self.services.begun.discard(self)

    def attach(
        self,
        view: SessionView,
        assembly: Assembly,
        *,
        create: StreamRow | None = None,
        evicting: str | None = None,
        epoch: int = 0,
        role: str = "",
    ) -> None:
        """Set the session that this drive works on; called by the entry before its first commit.

        `epoch` is that of the claim which was found, and `role` how the new claim is called in the store, for those who
        find it taken.
        """
        services = self.services
        if hasattr(self, "log"):
            self.log.stop()
        self.timing.attach(view.row.id, view.row.instance_id)
        self.log = SessionLog(services.store, view, self.config, services.clock, self._publish, self.timing)
        self.log.create, self.log.evicting, self.log.found_epoch = create, evicting, epoch
        if role:
            self.log.claim_as(role)
        self.log.on_interrupt = self.interrupt
        self.log.on_claim = self._register
        self.assembly = assembly
        spawn = services.children
        children = partial(spawn, self) if spawn is not None else None
        self.rounds = RoundRunner(self.log, assembly, self.config, children)

    def interrupt(self) -> None:
        """Stop the work as soon as possible; safe to call at any time, from this loop."""
        if self._task is not None and not self._interrupting and not self._task.done():
            self._interrupting = True
            self._task.cancel()

    async def shut(self) -> None:
        """Interrupt the work and wait until it has ended."""
        self.interrupt()
        self._outbox.abandon()
        if self._task is not None:
            await finish(_ended(self._task))

    def _register(self) -> None:
        self.services.drives[self.log.view.row.id] = self

    async def republish(self, events: Sequence[Event]) -> None:
        """Hand events that stand in the log already to the caller, and to nobody else."""
        await self._outbox.deliver(events)

    async def _publish(self, events: Sequence[Event]) -> None:
        self.timing.durable()
        if self.services.sinks:
            await finish(self.services.emit(events, self.timing))
        self.timing.delivered(events)
        with self.timing.within(CONSUMER, None):
            await self._outbox.deliver(events)

    async def _main(self) -> None:
        self.timing.begin()
        try:
            await self._guarded()
        finally:
            if hasattr(self, "log"):
                self.log.stop()
                if self.services.drives.get(self.log.view.row.id) is self:
                    del self.services.drives[self.log.view.row.id]
            self._outbox.close()
            if hasattr(self, "log") and self.log.lease.epoch is None:
                self.timing.drop()
            self.timing.end()

    async def _guarded(self) -> None:
        try:
            await self._work()
        except asyncio.CancelledError:
            if not hasattr(self, "log") or not self.log.claimed:
                raise
            await finish(self._stop("interrupt_requested" if self._interrupting else "cancelled"))
            if not self._interrupting:
                raise
        except (SessionRunFenced, StoreError):
            await finish(self._drop_tools())
            raise
        except Exception as error:
            if hasattr(self, "log") and self.log.claimed:
                await finish(self._fail(error))
            raise

    async def _work(self) -> None:
        goes_on = await self._enter(self)
        while goes_on:
            if is_cancelling():
                await asyncio.sleep(0)  # a cancellation that was held back is told here
            goes_on = await self._step()

    async def _step(self) -> bool:
        view = self.log.view
        self.timing.begin_step(view.model_steps + 1)
        timed = view.run.limits.max_elapsed_seconds is not None
        reached = step_limit(view, await self.services.store.now() if timed else 0)
        if reached is not None:
            self.timing.end()
            await self.log.commit(limit_drafts(reached), release=True)
            return False
        with self.timing.within(RECALL, None):
            memory = await remember(self.log, self.assembly)
        if memory.failed is not None:
            self.timing.end()
            ended = Draft(E.SESSION_FAILED, {"code": "recall_failed", "detail": memory.failed})
            await self.log.commit([*memory.drafts, ended], release=True)
            return False
        with self.timing.within(CONTEXT_POLICY, None):
            request = model_request(self.log, self.assembly, memory.recalls)
        start = started(self.log, self.assembly)
        self._budget = budget = StepBudget(self.services.ledger, self.log)
        try:
            if not await budget.reserve(self.assembly.provider, request, memory.drafts, start):
                return False
            self.timing.asked()
            message, drafts = await ask_model(self.log, self.assembly, request)
        except ProviderError as error:
            self.timing.end()
            given_back = await self._give_back()
            await self.log.commit([*given_back, *failure(self.log, self.assembly, error)], release=True)
            return False
        reach("model.answered")
        drafts += await budget.reconcile(drafts[-1].payload["usage"])
        if message.tool_calls:
            return await self._round(message, drafts)
        reach("session.closing")
        await self.log.commit([*drafts, Draft(E.SESSION_COMPLETED, {})], release=True)
        reach("session.closed")
        return False

    async def _round(self, message: Message, drafts: list[Draft]) -> bool:
        """Open the round that a model's answer asks for, and run it or pause."""
        view = self.log.view
        self.timing.begin_round(round_id_of(view), view.model_steps + 1)
        now = await self.services.store.now()
        session = session_record(StreamHead(view.row, self.log.state))
        planned = await plan_round(self.assembly, self.log, session, message, now)
        lead = [*drafts, planned.opening]
        if planned.asks:
            paused = Draft(E.SESSION_INTERRUPTED, {"reason": "awaiting_human", "tool_round_id": planned.round.id})
            self._warn_of_opaque_parts()
            with self.timing.within(ROUND_COMMIT, None):
                await self.log.commit([*lead, *planned.asks, paused], release=True, opened=planned.round)
            reach("session.paused")
            return False
        calls = [call for call in planned.round.calls if not refused(call)]
        if await self.rounds.begin(lead, calls, opened=planned.round, point="round.opened"):
            await self.rounds.run()
        return not self.log.released

    def _warn_of_opaque_parts(self) -> None:
        """Say, while there is time, that a rebuilt application will not be accepted."""
        components = self.assembly.profile.components
        opaque = [name for name, item in components.items() if item.strength is IdentityStrength.OPAQUE]
        if opaque and self.services.store.durable_state_paths():
            logger.warning(
                "session %s pauses, and only this application object can go on with it: no identity declared for %s",
                self.log.view.row.id,
                ", ".join(opaque),
            )

    async def _stop(self, reason: str) -> None:
        """End an interrupted session: results in time are kept, the round is closed unless an outcome is unknown."""
        self.timing.stopping()
        drafts = await self.rounds.stop()
        drafts += await self._give_back()
        opened = self.log.view.open_round
        if opened is not None:
            drafts += self.rounds.closing(drafts, opened)
        drafts += await cascade_drafts(self.services.store, self.log.view.row.id)
        ended = {"reason": reason}
        if opened is not None and (opened.unknown or any(draft.type == E.EFFECT_OUTCOME_UNKNOWN for draft in drafts)):
            ended |= {"needs": "manual_recovery", "tool_round_id": opened.id}
        with self.timing.within_round(ROUND_COMMIT):
            await self.log.commit([*drafts, Draft(E.SESSION_INTERRUPTED, ended)], release=True)

    async def _give_back(self) -> list[Draft]:
        spent = self._budget.spent if self._budget is not None else None
        return await release_open(self.services.ledger, self.log, spent)

    async def _drop_tools(self) -> None:
        """Stop tools whose results nobody may write any more."""
        if hasattr(self, "rounds"):
            await self.rounds.stop()

    async def _fail(self, error: Exception) -> None:
        logger.error("the runtime failed in session %s", self.log.view.row.id, exc_info=error)
        self.timing.stopping()
        try:
            drafts = await self.rounds.stop()
            drafts += await self._give_back()
            opened = self.log.view.open_round
            drafts += self.rounds.closing(drafts, opened) if opened is not None else []
            ended = Draft(E.SESSION_FAILED, {"code": "runtime_error", "detail": type(error).__name__})
            with self.timing.within_round(ROUND_COMMIT):
                await self.log.commit([*drafts, ended], release=True)
        except CayuError:
            logger.exception("the failure of session %s could not be recorded", self.log.view.row.id)


async def _emitted(sink: EventSink, event: Event) -> None:
    """Hand one event to one sink; a sink that fails, in whatever way, fails alone."""
    try:
        await sink.emit(event)
    except (Exception, asyncio.CancelledError):
        logger.warning("sink %s failed on %s", type(sink).__name__, event.type, exc_info=True)


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
