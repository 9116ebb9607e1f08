"""Delivery of timing records to sinks: beside the work, bounded, and of no consequence to it.

Each sink has a queue of its own, so that one which is stuck keeps nothing from the others. Whoever works a queue off is
a task of the running loop and ends with the queue, so nothing is left between two `asyncio.run` calls but the records.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterable
from inspect import iscoroutinefunction

from cayu.errors import InvalidInput
from cayu.observability.sinks import EventSink, TimingSink
from cayu.shielding import is_cancelling
from cayu.timing.costs import metered
from cayu.timing.fold import record_of
from cayu.timing.marks import Attempt
from cayu.timing.records import RuntimeTimingConfig

logger = logging.getLogger("cayu.timing")


LOOK_SECONDS = 0.1
"""How often a flush looks whether a queue is still being worked off, should it not hear of it."""


class SinkQueue:
    """What waits for one sink."""

    def __init__(self, sink: TimingSink, config: RuntimeTimingConfig) -> None:
        self.sink = sink
        self._config = config
        self._waiting: deque[Attempt] = deque()
        self._current: Attempt | None = None
        """What is being delivered."""
        self._worker: asyncio.Task[None] | None = None
        self._turn = 0
        """The number of the worker."""
        self._starting = threading.Lock()
        self._watching: list[asyncio.Future[None]] = []
        """Resolved when the next record is done with."""
        self._handled = 0
        self._stopped = False
        self._letting: asyncio.Task[None] | None = None
        self.dropped = 0
        self.failed = 0

    def __len__(self) -> int:
        """Return how many records wait or are being delivered."""
        return 0 if self._stopped else len(self._waiting) + (self._current is not None)

    def add(self, attempt: Attempt) -> None:
        """Queue one record, or drop it when the queue is full."""
        if len(self) < self._config.sink_queue_capacity:
            self._waiting.append(attempt)
        else:
            self.dropped += 1
        self.work()

    def work(self) -> asyncio.Task[None] | None:
        """Have the queue worked off by a task of the running loop; return it. Without a loop the records wait for one.

        A worker of another loop is left to it while that loop runs, and replaced when it does not.
        """
        with self._starting:
            worker = self._worker
            if worker is not None and not worker.done() and worker.get_loop().is_running():
                return worker
            if len(self) == 0:
                return None
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return None
            if worker is not None and not worker.done() and not worker.get_loop().is_closed():
                worker.get_loop().call_soon_threadsafe(worker.cancel)  # should that loop go on after all
            self._put_back(self._turn)
            self._turn += 1
            self._worker = loop.create_task(self._work(self._turn), name=f"cayu timing to {type(self.sink).__name__}")
            return self._worker

    @property
    def worker(self) -> asyncio.Task[None] | None:
        """The task of the running loop that is at work, if there is one."""
        worker = self._worker
        is_here = worker is not None and not worker.done() and worker.get_loop() is asyncio.get_running_loop()
        return worker if is_here else None

    def drop(self) -> None:
        """Drop what waits, and stop."""
        self.dropped += len(self)
        self._stopped = True
        self._waiting.clear()
        if (worker := self.worker) is not None:
            worker.cancel()

    async def flush(self) -> None:
        """Wait until what is queued now was delivered or dropped."""
        target = self._handled + len(self)
        while self._handled < target and self.work() is not None:
            handled = asyncio.get_running_loop().create_future()
            self._watching.append(handled)
            await asyncio.wait([handled], timeout=LOOK_SECONDS)

    async def _work(self, turn: int) -> None:
        metered(None)  # what a sink writes is not the work of the session that happened to start this task
        while self._waiting and turn == self._turn:
            self._current = self._waiting.popleft()
            try:
                await self._deliver(self._current)
            except (asyncio.CancelledError, GeneratorExit) as stopped:
                if isinstance(stopped, asyncio.CancelledError) and not is_cancelling():
                    self._tell(stopped)
                else:
                    self._put_back(turn)
                    raise
            except (KeyboardInterrupt, SystemExit):
                self._handle(turn)
                raise
            except BaseException as error:  # noqa: BLE001 - a sink that fails, in whatever way, fails alone
                self._tell(error)
            self._handle(turn)

    def _put_back(self, turn: int) -> None:
        """Leave what a worker did not come to deliver to the next one; one that was replaced has nothing to leave."""
        attempt = self._current
        if attempt is not None and turn == self._turn:
            self._current = None
            if not self._stopped:
                self._waiting.appendleft(attempt)

    def _tell(self, error: BaseException) -> None:
        """Count a failure; the log has the first one of each sink only, and never its words."""
        self.failed += 1
        if self.failed == 1:
            logger.warning("sink %s failed on a timing record: %s", type(self.sink).__name__, type(error).__name__)

    def _handle(self, turn: int) -> None:
        """Count a record that is done with, and tell those who flush; that of a worker replaced is its successor's."""
        if turn != self._turn:
            return
        self._current = None
        self._handled += 1
        watching, self._watching = self._watching, []
        for handled in watching:
            try:
                handled.get_loop().call_soon_threadsafe(_resolve, handled)
            except RuntimeError:
                continue  # its loop has ended, and with it whoever waited

    async def _deliver(self, attempt: Attempt) -> None:
        """Give one record to the sink, and drop it when the sink takes too long."""
        limit = asyncio.timeout(self._config.sink_timeout_seconds)
        try:
            async with limit:
                await self.sink.emit_timing(record_of(attempt))
        except TimeoutError:
            if not limit.expired():
                raise
            self.dropped += not self._stopped

    def let_go(self) -> asyncio.Task[None] | None:
        """Tell the sink that no more comes; return the task that does so within the timeout, None when it is done.

        Once is enough, unless the loop has ended over it.
        """
        loop, begun = asyncio.get_running_loop(), self._letting
        if begun is not None and begun.done() and not begun.cancelled():
            return None
        if begun is None or begun.cancelled() or begun.get_loop() is not loop:
            self._letting = loop.create_task(self._let_go())
        return self._letting

    async def _let_go(self) -> None:
        if not isinstance(self.sink, EventSink):
            return
        try:
            async with asyncio.timeout(self._config.sink_timeout_seconds):
                await self.sink.close_timing()
        except asyncio.CancelledError as error:
            if is_cancelling():
                raise
            self._tell(error)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - closing goes on whatever one sink does
            self._tell(error)


def _resolve(handled: asyncio.Future[None]) -> None:
    if not handled.done():
        handled.set_result(None)


class TimingDelivery:
    """Hands what was timed to every sink that wants it."""

    def __init__(self, config: RuntimeTimingConfig, sinks: Iterable[TimingSink]) -> None:
        self._config = config
        self._queues: list[SinkQueue] = []
        self._closed = False
        self._left: list[SinkQueue] = []
        """Queues that are done with for good."""
        self._dropped_late = 0
        for sink in sinks:
            self.add_sink(sink)

    def add_sink(self, sink: TimingSink) -> None:
        """Deliver to one more sink from now on, if it wants timing; a sink is given each record once.

        Raises `InvalidInput` for an object that cannot take timing.
        """
        if isinstance(sink, type):
            raise InvalidInput(f"{sink.__name__} is a class; pass a sink made of it, {sink.__name__}(...).")
        if not iscoroutinefunction(getattr(sink, "emit_timing", None)):
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
        """Deliver what can be delivered within one sink timeout, drop the rest, and deliver nothing any more.

        Called again, it finishes what a cancelled call has left.
        """
        self._closed = True
        seconds = self._config.sink_timeout_seconds
        queues = [queue for queue in self._queues if queue not in self._left]
        if not queues:
            return
        flushing = [asyncio.ensure_future(queue.flush()) for queue in queues]
        try:
            await asyncio.wait(flushing, timeout=seconds)
        finally:
            for flush in flushing:
                flush.cancel()
        workers = [queue.worker for queue in queues if queue.worker is not None]
        for queue in queues:
            queue.drop()
        letting = [task for queue in queues if (task := queue.let_go()) is not None]
        if workers:
            await asyncio.wait(workers, timeout=seconds)
        if letting:
            _, late = await asyncio.wait(letting, timeout=2 * seconds)
            for task in late:
                task.cancel()
        self._left += queues
