"""One event loop in one daemon thread, which owns an application, its stores and every connection.

Blocking calls hand a coroutine over and wait; awaiting ones wait on the caller's own loop. Nothing here patches asyncio
and nothing re-enters a loop: on the bridge's own thread a blocking call raises, because it would wait for itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from cayu.errors import LabClosed, OnLabLoop

T = TypeVar("T")
CLOSING_SECONDS = 10.0
"""How long closing waits for what is at work."""


class Bridge:
    """A private event loop with a blocking and an awaiting door."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="cayu-lab", daemon=True)
        self._closed = False
        self._thread.start()

    def is_here(self) -> bool:
        """True on the bridge's own thread, where nothing may block."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop and return at once; the way of callbacks, from any thread."""
        if self._closed:
            work.close()
            raise LabClosed
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; Ctrl-C cancels it, and is raised once it has ended.

        Raises `OnLabLoop` on the bridge's own thread.
        """
        if self.is_here():
            work.close()
            raise OnLabLoop
        future = self.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            self._drain()
            raise

    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and await it from any other one; a cancelled caller cancels it."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Cancel what is at work, let it end, and stop the thread; safe to call twice."""
        if self._closed:
            return
        if self.is_here():
            raise OnLabLoop
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSING_SECONDS)

    def _drain(self) -> None:
        """Wait until the loop has worked off what a cancellation set going."""
        asyncio.run_coroutine_threadsafe(_settle(), self._loop).result(CLOSING_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


async def _settle() -> None:
    """Wait for the tasks that are being cancelled."""
    cancelling = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and task.cancelling()]
    if cancelling:
        await asyncio.wait(cancelling)


async def _cancel_all() -> None:
    """Cancel every other task and wait for it to end."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
