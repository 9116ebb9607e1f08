"""A session's log as its current owner writes it: the one door through which a run's events become durable.

A commit is applied to the view only after the store has taken it, and published only after that. An interrupt request
that slips in is rebased over; any other change by someone else means that the session was taken over, and ends the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cayu.canonical import dumps, loads
from cayu.clock import Clock, as_datetime
from cayu.errors import SessionRunFenced, StoreBusy, StoreError, StoreOutcomeUnknown, StreamConflict
from cayu.events import LIVE_ONLY, Event, event_type, trusted_event
from cayu.events import EventType as E
from cayu.runtime.config import RuntimeConfig
from cayu.runtime.ownership import forget, new_owner
from cayu.sessions.fold import apply, check_calls
from cayu.sessions.projection import Draft, asks_human, counters, items
from cayu.sessions.streams import (
    Held,
    Record,
    SessionStore,
    StoredRecord,
    StreamRow,
    StreamState,
    Take,
    Unit,
)
from cayu.sessions.view import RoundView, SessionView
from cayu.shielding import finish
from cayu.timing.costs import metered
from cayu.timing.session import SessionTiming

logger = logging.getLogger("cayu.runtime")

T = TypeVar("T")

Publish = Callable[[Sequence[Event]], Awaitable[None]]
RETRY_SECONDS = 0.05


@dataclass(slots=True)
class Lease:
    """A claim as its holder sees it, on its own monotonic clock."""

    owner: str
    epoch: int | None = None
    """None until the first write has claimed the session."""
    written_at: float = 0.0
    """Monotonic seconds just before the last write or renewal that the store took."""

    def ends_at(self, config: RuntimeConfig) -> float:
        """Return the monotonic second from which the holder must not act."""
        return self.written_at + config.lease_seconds


@dataclass(slots=True)
class SessionLog:
    """The log of one session, for one claim."""

    store: SessionStore
    view: SessionView
    config: RuntimeConfig
    clock: Clock
    publish: Publish
    timing: SessionTiming
    state: StreamState = field(default_factory=StreamState)
    """The head as the store last gave it."""
    create: StreamRow | None = None
    """Set when the first commit creates the session."""
    evicting: str | None = None
    """An owner that is provably gone and may be evicted by the first commit."""
    lease: Lease = field(default_factory=lambda: Lease(new_owner()))
    on_interrupt: Callable[[], None] | None = None
    on_claim: Callable[[], None] | None = None
    released: bool = False
    found_epoch: int = 0
    """The epoch under which the session was found; claims after it are somebody else's."""
    _beating: asyncio.Task[None] | None = None

    @property
    def claimed(self) -> bool:
        """True while this log holds its session."""
        return self.lease.epoch is not None and not self.released

    def claim_as(self, role: str) -> None:
        """Name what the claim is for; before the first commit only."""
        forget(self.lease.owner)
        self.lease = Lease(new_owner(role))

    async def commit(self, drafts: Sequence[Draft], *, release: bool = False, opened: RoundView | None = None) -> None:
        """Make drafts durable in one transaction, then apply and publish them.

        `opened` is the round as the drafts leave it, when that is not what the view holds. Raises `SessionRunFenced`
        when the session was taken over, `StreamConflict` when the first commit came too late, and the store's errors.
        """
        before, after = self.view.open_round or opened, opened or self.view.open_round
        check_calls(before, [(draft.type, draft.payload) for draft in drafts], self.view.row.id)
        now = await self.store.now() if asks_human(drafts) else 0
        unit = Unit(
            stream=self.view.row.id,
            expected_version=self.view.version,
            fence=self._fence(),
            records=tuple(Record(str(draft.type), dumps(draft.payload)) for draft in drafts),
            create=self.create if self.lease.epoch is None else None,
            add=counters(drafts),
            items=items(drafts, after, self.view.row.agent_name, now),
            release=release,
            lease_seconds=self.config.lease_seconds,
        )
        begun = self.clock.monotonic()
        try:
            state, at = await self.store.append(unit)
            rebased: list[StoredRecord] = []
        except (StreamConflict, StoreBusy, StoreOutcomeUnknown) as error:
            state, at, rebased = await finish(self._settle(unit, error))
        if self.timing.measures_writes:
            sizes: list[Any] = []
            for draft, record in zip(drafts, unit.records, strict=True):
                sizes += (draft.type, draft.payload.get("tool_call_id"), len(record.body))
            self.timing.wrote(sizes)
        if self.lease.epoch is None and self.on_claim is not None:
            self.on_claim()
        self.state = state
        self.lease.epoch, self.lease.written_at = state.epoch, begun
        first = state.version - len(drafts) + 1
        stored = [StoredRecord(first + i, record.type, at, record.body) for i, record in enumerate(unit.records)]
        for kept, draft in zip(stored, drafts, strict=True):
            apply(self.view, kept.sequence, kept.type, at, draft.payload)
        if release:
            self._let_go()
        elif self._beating is None:
            self._beating = asyncio.create_task(self._beat(), name=f"lease of {self.view.row.id}")
        await self.publish([self.event(record) for record in (*rebased, *stored)])

    async def insist(self, act: Callable[[], Awaitable[T]]) -> T:
        """Repeat an act while the store is busy and the claim holds; then raise what the store says."""
        while True:
            try:
                return await act()
            except (StoreBusy, StoreOutcomeUnknown) as error:
                await self._wait_or_give_up(error, self.lease.ends_at(self.config))

    async def live(self, type: str, payload: dict[str, Any]) -> None:
        """Publish an event that is only live."""
        at = self.clock.now_us()
        await self.publish([build_event(self.view.row, StoredRecord(0, type, at, dumps(payload)))])

    def event(self, record: StoredRecord) -> Event:
        """Return a stored record as callers see it."""
        return build_event(self.view.row, record)

    def check_lease(self) -> None:
        """Raise `SessionRunFenced` when the claim may have run out by now; asked just before each dispatch."""
        if not self.claimed or self.clock.monotonic() >= self.lease.ends_at(self.config):
            raise SessionRunFenced(session_id=self.view.row.id)

    def _fence(self) -> Held | Take:
        if self.lease.epoch is None:
            return Take(self.lease.owner, evicting=self.evicting)
        return Held(self.lease.epoch, self.lease.owner)

    async def _settle(self, unit: Unit, error: StoreError) -> tuple[StreamState, int, list[StoredRecord]]:
        """Find out what became of a unit that was not acknowledged, and write it if it was not written.

        Gives up when the claim that stood at the first error runs out, and before the claim at once.
        """
        rebased: list[StoredRecord] = []
        until = self.lease.ends_at(self.config) if self.lease.epoch is not None else 0.0
        unsure = isinstance(error, StoreOutcomeUnknown)
        while True:
            try:
                found = await self._read_back(unit) if unsure else None
                if found is not None:
                    return (*found, rebased)
                if isinstance(error, StreamConflict):
                    rebased += await self._rebase(error)
                    unit = replace(unit, expected_version=self.view.version)
            except (StoreBusy, StoreOutcomeUnknown) as unreadable:
                await self._wait_or_give_up(unreadable, until)
                continue
            if not isinstance(error, StreamConflict):
                await self._wait_or_give_up(error, until)
            try:
                return (*await self.store.append(unit), rebased)
            except (StreamConflict, StoreBusy, StoreOutcomeUnknown) as again:
                error = again
                unsure = isinstance(again, StoreOutcomeUnknown)

    async def _wait_or_give_up(self, error: StoreError, until: float) -> None:
        """Wait a moment before a retry; raise `error` when the monotonic second `until` would pass meanwhile."""
        if self.clock.monotonic() + RETRY_SECONDS >= until:
            raise error
        await asyncio.sleep(RETRY_SECONDS)

    async def _rebase(self, conflict: StreamConflict) -> list[StoredRecord]:
        """Take in interrupt requests that came in between; anything else means that the session was taken over."""
        if self.lease.epoch is None:
            raise conflict
        loaded = await self.store.load(self.view.row.id, self.view.version)
        news = list(loaded.records) if loaded else []
        if not news or any(record.type != E.SESSION_INTERRUPT_REQUESTED for record in news):
            raise SessionRunFenced(session_id=self.view.row.id)
        for record in news:
            apply(self.view, record.sequence, record.type, record.at, loads(record.body))
        self._notice_interrupt()
        return news

    async def _read_back(self, unit: Unit) -> tuple[StreamState, int] | None:
        """Return what the store holds if it took the unit after all, None if it did not.

        The same records by another claim are not ours. A claim that would have ended with the unit leaves no trace of
        whose it was, so the entry starts over and finds its own decision as a repeat.
        """
        first = self.lease.epoch is None
        loaded = await self.store.load(unit.stream, self.view.version)
        if loaded is None:
            return None
        if first and unit.release:
            raise StreamConflict(stream=unit.stream, expected=self.view.version, actual=loaded.head.state.version)
        state = loaded.head.state
        ours = state.owner == self.lease.owner if not unit.release else state.epoch == self.lease.epoch
        mine = [(record.type, record.body) for record in unit.records]
        found = [(record.type, record.body) for record in loaded.records[: len(mine)]]
        if not ours or mine != found:
            return None
        return state._replace(version=self.view.version + len(mine)), loaded.records[0].at if mine else loaded.now

    async def _beat(self) -> None:
        """Renew the claim whenever nothing was written for a while."""
        metered(None)  # a renewal belongs to no phase
        while True:
            due = self.lease.written_at + self.config.renew_after_seconds - self.clock.monotonic()
            await asyncio.sleep(max(due, RETRY_SECONDS))
            if due > 0 or self.lease.epoch is None:
                continue
            begun = self.clock.monotonic()
            try:
                held = Held(self.lease.epoch, self.lease.owner)
                state = await self.store.renew(self.view.row.id, held, self.config.lease_seconds)
            except SessionRunFenced:
                self._notice_interrupt()
                return
            except Exception as error:  # noqa: BLE001 - whatever a store raises, the next renewal is tried
                logger.warning("renewal of session %s failed: %s", self.view.row.id, type(error).__name__)
                continue
            self.lease.written_at = max(self.lease.written_at, begun)
            if state.status == "interrupting":
                self._notice_interrupt()

    def _notice_interrupt(self) -> None:
        if self.on_interrupt is not None:
            self.on_interrupt()

    def _let_go(self) -> None:
        self.released = True
        self.stop()

    def stop(self) -> None:
        """End the renewals and forget the claim of this process."""
        forget(self.lease.owner)
        if self._beating is not None:
            self._beating.cancel()


def build_event(row: StreamRow, record: StoredRecord) -> Event:
    """Return the public form of a stored record; its payload is a copy of its own."""
    payload = loads(record.body)
    live = record.type in LIVE_ONLY
    return trusted_event(
        {
            "id": f"{row.instance_id}.{record.type if live else record.sequence}",
            "type": event_type(record.type),
            "session_id": row.id,
            "sequence": None if live else record.sequence,
            "timestamp": as_datetime(record.at),
            "agent_name": row.agent_name,
            "environment_name": row.environment_name,
            "tool_name": payload.pop("tool_name", None),
            "payload": payload,
        }
    )
