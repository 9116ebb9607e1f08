"""Delivery of timing records to sinks: beside the work, bounded, and of no consequence to it.

Each sink has a queue of its own, so that one which is stuck keeps nothing from the others. Whoever works a queue off is
a task of the running loop and ends with the queue, so nothing is left between two `asyncio.run` calls but the records.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

from cayu.errors import InvalidInput
from cayu.observability.sinks import EventSink, TimingSink
from cayu.shielding import is_cancelling
from cayu.timing.costs import metered
from cayu.timing.fold import record_of
from cayu.timing.marks import Attempt
from cayu.timing.records import RuntimeTimingConfig

logger = logging.getLogger("cayu.timing")


class SinkQueue:
    """What waits for one sink."""

    def __init__(self, sink: TimingSink, config: RuntimeTimingConfig) -> None:
        self.sink = sink
        self._config = config
        self._waiting: deque[Attempt] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._watching: list[asyncio.Future[None]] = []
        """Resolved when the next record is done with."""
        self._handled = 0
        self.dropped = 0
        self.failed = 0

    def __len__(self) -> int:
        """Return how many records wait or are being delivered."""
        return len(self._waiting)

    def add(self, attempt: Attempt) -> None:
        """Queue one record, or drop it when the queue is full."""
        if len(self._waiting) >= self._config.sink_queue_capacity:
            self.dropped += 1
            return
        self._waiting.append(attempt)
        self.work()

    def work(self) -> asyncio.Task[None] | None:
        """Have the queue worked off on the running loop; return who does."""
        if not self._waiting:
            return self._worker if self._is_working() else None
        if not self._is_working():
            name = f"cayu timing to {type(self.sink).__name__}"
            self._worker = asyncio.get_running_loop().create_task(self._work(), name=name)
        return self._worker

    def drop(self) -> None:
        """Drop what waits, and stop."""
        if self._is_working() and self._worker is not None:
            self._worker.cancel()
        self.dropped += len(self._waiting)
        self._waiting.clear()

    def _is_working(self) -> bool:
        worker = self._worker
        return worker is not None and not worker.done() and worker.get_loop() is asyncio.get_running_loop()

    async def flush(self) -> None:
        """Wait until what is queued now was delivered or dropped."""
        target = self._handled + len(self._waiting)
        while self._handled < target and (worker := self.work()) is not None:
            handled = asyncio.get_running_loop().create_future()
            self._watching.append(handled)
            await asyncio.wait([worker, handled], return_when=asyncio.FIRST_COMPLETED)

    async def _work(self) -> None:
        metered(None)  # what a sink writes is not the work of the session that happened to start this task
        while self._waiting:
            try:
                await self._deliver(self._waiting[0])
            except asyncio.CancelledError:
                if is_cancelling():
                    raise  # the record stays first, for the next loop
                self.failed += 1
            except (KeyboardInterrupt, SystemExit):
                self._handle_first()
                raise
            except BaseException as error:  # noqa: BLE001 - a sink that fails, in whatever way, fails alone
                self.failed += 1
                logger.warning("sink %s failed on a timing record: %s", type(self.sink).__name__, type(error).__name__)
            self._handle_first()

    def _handle_first(self) -> None:
        if self._waiting:
            self._waiting.popleft()
        self._handled += 1
        watching, self._watching = self._watching, []
        for handled in watching:
            if not handled.done():
                handled.set_result(None)

    async def _deliver(self, attempt: Attempt) -> None:
        """Give one record to the sink, and drop it when the sink takes too long."""
        limit = asyncio.timeout(self._config.sink_timeout_seconds)
        try:
            async with limit:
                await self.sink.emit_timing(record_of(attempt))
        except TimeoutError:
            if not limit.expired():
                raise
            self.dropped += 1


class TimingDelivery:
    """Hands what was timed to every sink that wants it."""

    def __init__(self, config: RuntimeTimingConfig, sinks: Iterable[TimingSink]) -> None:
        self._config = config
        self._queues: list[SinkQueue] = []
        self._closed = False
        self._dropped_late = 0
        for sink in sinks:
            self.add_sink(sink)

    def add_sink(self, sink: TimingSink) -> None:
        """Deliver to one more sink from now on, if it wants timing; a sink is given each record once.

        Raises `InvalidInput` for an object that cannot take timing.
        """
        if not callable(getattr(sink, "emit_timing", None)):
            raise InvalidInput(f"A timing sink has an async emit_timing(record); {type(sink).__name__} has none.")
        if any(queue.sink is sink for queue in self._queues):
            return
        if not isinstance(sink, EventSink) or sink.takes_timing:
            self._queues.append(SinkQueue(sink, self._config))

    @property
    def has_sinks(self) -> bool:
        """True when anybody wants timing."""
        return bool(self._queues)

    @property
    def queued(self) -> int:
        """Records that wait or are being delivered."""
        return sum(map(len, self._queues))

    @property
    def dropped(self) -> int:
        """Records that a sink did not get."""
        return self._dropped_late + sum(queue.dropped for queue in self._queues)

    @property
    def failed(self) -> int:
        """Records on which a sink raised."""
        return sum(queue.failed for queue in self._queues)

    def add(self, attempt: Attempt) -> None:
        """Queue one record for every sink; a closed delivery drops it."""
        if self._closed:
            self._dropped_late += len(self._queues)
            return
        for queue in self._queues:
            queue.add(attempt)

    async def flush(self) -> None:
        """Wait until what is queued now was delivered or dropped."""
        await asyncio.gather(*(queue.flush() for queue in self._queues))

    async def close(self) -> None:
        """Deliver what can be delivered within one sink timeout, drop the rest, and deliver nothing any more."""
        if self._closed:
            return
        self._closed = True
        working = [task for queue in self._queues if (task := queue.work()) is not None]
        if working:
            await asyncio.wait(working, timeout=self._config.sink_timeout_seconds)
        for queue in self._queues:
            queue.drop()
        await asyncio.gather(*map(self._let_go, self._queues))
        if working:
            await asyncio.wait(working, timeout=self._config.sink_timeout_seconds)

    async def _let_go(self, queue: SinkQueue) -> None:
        sink = queue.sink
        if not isinstance(sink, EventSink):
            return
        try:
            async with asyncio.timeout(self._config.sink_timeout_seconds):
                await sink.close_timing()
        except Exception as error:  # noqa: BLE001 - closing goes on whatever one sink does
            queue.failed += 1
            logger.warning("sink %s failed while closing: %s", type(sink).__name__, type(error).__name__)
