"""Where snapshots stand: documents that are replaced by a pure decision, in one transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from cayu.canonical import JSON
from cayu.sessions.streams import Decide


class AgentSnapshotStore(ABC):
    """Documents by collection and id. What is read from it is checked against its fingerprint."""

    @abstractmethod
    async def transact(self, collection: str, id: str, decide: Decide) -> JSON:
        """Replace one document by what `decide(current, now)` answers, None leaving it as it is; return what stands.

        `now` is the store's clock in microseconds since 1970. `decide` is plain and may be called again.
        """

    @abstractmethod
    async def read(self, collection: str, id: str) -> JSON:
        """Return one document, None when there is none."""

    @abstractmethod
    def durable_state_paths(self) -> tuple[Path, ...]:
        """Return the local files that hold this store's state; none for a store in memory."""

    @abstractmethod
    async def aclose(self) -> None:
        """Give up connections and files; safe to call twice."""
