"""The two storage primitives: streams (sessions) and documents, and the rule of who may write.

`decide_append` is the whole rule - compare-and-set, fencing, leases, legal states - as one pure function. A backend
reads a stream's head, asks it, and writes what it answers, all inside one transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from cayu.canonical import JSON, dumps, loads, normalise
from cayu.clock import MICROSECOND
from cayu.errors import (
    InvalidInput,
    SessionAlreadyExists,
    SessionNotFound,
    SessionRunFenced,
    SessionRunning,
    StreamConflict,
)
from cayu.events import EventType
from cayu.sessions.states import SESSION, SessionStatus

T = TypeVar("T")

LEASE_SECONDS = 30.0
"""How long a claim holds without a renewal, by the store's clock."""


class StreamRow(NamedTuple):
    """The part of a stream's head that its first write fixes for good."""

    id: str
    """The session id, at most 512 characters, chosen by the caller or minted."""
    instance_id: str
    """Names this very session in the world: never reused, and safe to show."""
    agent_name: str
    provider_name: str
    model: str
    environment_name: str | None = None
    parent_session_id: str | None = None
    causal_budget_id: str | None = None
    title: str | None = None
    labels: Mapping[str, str] | None = None
    metadata: Mapping[str, JSON] | None = None


class StreamState(NamedTuple):
    """The part of a stream's head that every write may move."""

    version: int = 0
    """The sequence of the last record."""
    status: str = SessionStatus.PENDING
    epoch: int = 0
    """Counts claims; a writer of an older epoch is fenced."""
    owner: str | None = None
    lease_expires_at: int | None = None
    """Microseconds since 1970, by the store's clock."""
    model_steps: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    pending: int = 0
    """How many actions wait for a human."""
    created_at: int = 0
    updated_at: int = 0


COUNTERS = ("model_steps", "tool_calls", "input_tokens", "output_tokens", "pending")
"""The columns of a head that a unit of work may add to."""


@dataclass(frozen=True, slots=True)
class StreamHead:
    """A stream's row as one value."""

    row: StreamRow
    state: StreamState


@dataclass(frozen=True, slots=True)
class Record:
    """An event to be appended; its sequence and time are given by the store."""

    type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """An event as it stands in a stream."""

    sequence: int
    type: str
    at: int
    """Microseconds since 1970, by the store's clock, equal for the records of one unit of work."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Item:
    """A projection of one thing inside a session that is listed across sessions: a pending action, an effect."""

    kind: str
    key: str
    state: str
    due_at: int | None = None
    """When it expires, in microseconds since 1970."""
    body: bytes = b"{}"


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item with the session that it belongs to."""

    session_id: str
    item: Item


@dataclass(frozen=True, slots=True)
class Held:
    """The fence of a writer that owns the stream under `epoch`."""

    epoch: int
    owner: str


@dataclass(frozen=True, slots=True)
class Take:
    """The fence of a writer that claims the stream with this very write."""

    owner: str
    evicting: str | None = None
    """An owner known to be gone, whose lease need not run out first."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of work on one stream: all of it is written, or none."""

    stream: str
    expected_version: int | None
    """The version that the writer has read; None appends wherever the stream stands (interrupt requests only)."""
    fence: Held | Take | None
    records: tuple[Record, ...] = ()
    create: StreamRow | None = None
    add: Mapping[str, int] | None = None
    """Column of `COUNTERS` -> amount."""
    items: tuple[Item, ...] = ()
    release: bool = False
    """Give the stream up with this write."""
    lease_seconds: float = LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a reader needs to fold a stream."""

    head: StreamHead
    records: Sequence[StoredRecord]
    now: int
    """The store's clock at the read, in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class HeadQuery:
    """Which heads to list, newest first; the cursor is the position after which to go on."""

    session_id: str | None = None
    agent_name: str | None = None
    status: str | None = None
    parent_session_id: str | None = None
    """List the sessions that work for this one; goes with no other condition than a page."""
    text: str | None = None
    """Part of an id, a title or an agent's name, in any case."""
    after: str | None = None
    """`next` of the page before."""
    limit: int = 50

    def __post_init__(self) -> None:
        """Refuse a condition beside a parent, which a store would not look at."""
        others = (self.session_id, self.agent_name, self.status, self.text)
        if self.parent_session_id is not None and any(each is not None for each in others):
            raise InvalidInput("A listing of a session's children takes no other condition.")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A bounded part of a listing."""

    rows: Sequence[T]
    next: str | None
    """The cursor of the following page, None at the end."""
    total: int
    """How many rows the whole listing has."""


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Which records to scan, in the order of (stream, sequence)."""

    session_id: str | None = None
    types: tuple[str, ...] = ()
    limit: int | None = None
    bodies: bool = True
    """False leaves the bodies out, for readers that need positions and times only."""


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """Which items to list, in the order in which their sessions were created."""

    session_id: str | None = None
    kinds: tuple[str, ...] = ()
    state: str | None = None
    after: str | None = None
    """`next` of the page before."""
    limit: int = 50


def cursor(*position: int | str) -> str:
    """Return a position in a listing as opaque text."""
    return dumps(list(position)).decode()


def cursor_position(text: str, *kinds: type) -> tuple[Any, ...]:
    """Return the position that `cursor` wrote. Raises `InvalidInput` for any other text."""
    try:
        position = normalise(loads(text))
    except ValueError:
        position = None
    if not isinstance(position, list) or [type(part) for part in position] != list(kinds):
        raise InvalidInput("The cursor is none that a listing gave; leave it out to start over.")
    return tuple(position)


def decide_append(state: StreamState | None, unit: Unit, now: int) -> StreamState:
    """Return the head's state after `unit`, or raise what refuses it.

    `now` is the store's clock in microseconds. Raises `SessionNotFound`, `SessionAlreadyExists`, `StreamConflict`,
    `SessionRunning` (a live claim of another owner), `SessionRunFenced` (a stale epoch) and `IllegalTransition`.
    """
    if unit.create is not None:
        if state is not None:
            raise SessionAlreadyExists(session_id=unit.stream)
        state = StreamState(created_at=now)
    elif state is None:
        raise SessionNotFound(session_id=unit.stream)
    state = _fenced(state, unit, now)
    status = state.status
    for record in unit.records:
        status = SESSION.advance(status, record.type, unit.stream) if record.type in _MOVES else status
    added = {name: getattr(state, name) + amount for name, amount in (unit.add or {}).items()}
    return state._replace(version=state.version + len(unit.records), status=status, updated_at=now, **added)


_MOVES = frozenset(event for row in SESSION.table.values() for event in row)


def _fenced(state: StreamState, unit: Unit, now: int) -> StreamState:
    fence = unit.fence
    if isinstance(fence, Held) and (state.epoch, state.owner) != (fence.epoch, fence.owner):
        raise SessionRunFenced(session_id=unit.stream)
    if unit.expected_version is not None and state.version != unit.expected_version:
        raise StreamConflict(stream=unit.stream, expected=unit.expected_version, actual=state.version)
    if fence is None:
        beside = unit.items or unit.add or unit.create or unit.release
        if beside or any(record.type != EventType.SESSION_INTERRUPT_REQUESTED for record in unit.records):
            raise SessionRunFenced(session_id=unit.stream)
        return state
    epoch = state.epoch
    if isinstance(fence, Take):
        if is_owned(state, now) and state.owner != fence.evicting:
            raise SessionRunning(session_id=unit.stream, owner=readable_owner(state.owner))
        epoch += 1
    if unit.release:
        return state._replace(epoch=epoch, owner=None, lease_expires_at=None)
    return state._replace(epoch=epoch, owner=fence.owner, lease_expires_at=lease_end(now, unit.lease_seconds))


def readable_owner(owner: str | None) -> str:
    """Return the part of an owner id that is meant for people."""
    return (owner or "nobody").partition(" [")[0]


def is_owned(state: StreamState, now: int) -> bool:
    """True while a claim is live by the store's clock."""
    return state.owner is not None and state.lease_expires_at is not None and state.lease_expires_at > now


def lease_end(now: int, seconds: float) -> int:
    """Return when a lease that is granted or renewed now runs out, in microseconds."""
    return now + round(seconds * MICROSECOND)


def decide_renewal(state: StreamState | None, stream: str, held: Held, now: int, seconds: float) -> StreamState:
    """Return the head's state with a longer lease, or raise `SessionRunFenced` when the claim is no longer ours."""
    if state is None or (state.epoch, state.owner) != (held.epoch, held.owner):
        raise SessionRunFenced(session_id=stream)
    return state._replace(lease_expires_at=lease_end(now, seconds))


Decide = Callable[[JSON, int], JSON]
"""decide(current document or None, store's clock in microseconds) -> new document, or None to leave it as it is.

It is synchronous, pure and repeatable: a backend may call it again when a transaction has to be tried again.
"""


class SessionStore(ABC):
    """Streams and documents, durable or not. Every method is mandatory and every write is one transaction.

    `cayu.testing.stores` holds what an implementation must do. Transient failures raise `StoreBusy` (nothing was
    written) or `StoreOutcomeUnknown` (read back to learn); the others of `StoreError` are final.
    """

    @abstractmethod
    async def append(self, unit: Unit) -> tuple[StreamState, int]:
        """Write one unit as `decide_append` decides; return the new state and the time given to its records.

        A caller that is cancelled meanwhile gets the result all the same, and its cancellation at the next suspension
        (`cayu.shielding.finish` does that): whoever writes always learns what the write has become.
        """

    @abstractmethod
    async def renew(self, stream: str, held: Held, lease_seconds: float = LEASE_SECONDS) -> StreamState:
        """Prolong a claim as `decide_renewal` decides, whatever the version; return the head's state."""

    @abstractmethod
    async def load(self, stream: str, after: int = 0) -> Loaded | None:
        """Return head, records beyond sequence `after` and the store's clock, read as one; None if unknown."""

    @abstractmethod
    async def heads(self, query: HeadQuery) -> Page[StreamHead]:
        """List stream heads, newest first."""

    @abstractmethod
    async def records(self, query: RecordQuery) -> Sequence[tuple[str, StoredRecord]]:
        """Scan records across streams as (session id, record)."""

    @abstractmethod
    async def items(self, query: ItemQuery) -> Page[StoredItem]:
        """List items across streams."""

    @abstractmethod
    async def transact(self, collection: str, id: str, decide: Decide) -> JSON:
        """Replace one document by what `decide` answers; return the document as it stands afterwards."""

    @abstractmethod
    async def now(self) -> int:
        """Return the store's clock, in microseconds since 1970."""

    @abstractmethod
    def durable_state_paths(self) -> tuple[Path, ...]:
        """Return the local files that hold the store's state; none for a store without files."""

    @abstractmethod
    async def aclose(self) -> None:
        """Give up connections and files; safe to call twice."""
