"""Work that a cancellation does not tear apart: it ends first, and the cancellation comes at the next suspension.

So a caller always learns what its write has become, and still stops soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Unstoppable(asyncio.Future[T]):
    """A future that whoever waits for it cannot cancel: the work behind it ends in any case."""

    def cancel(self, msg: Any | None = None) -> bool:
        """Refuse; the waiting task is told of its cancellation when the work has ended."""
        return False


async def settled(future: Unstoppable[T]) -> T:
    """Wait for a future to its end, whatever happens to the waiting task, and return its result."""
    try:
        return await future
    except asyncio.CancelledError:
        _cancel_again()
        return future.result()


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, whatever happens to the waiting task, and return its result."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = cancelled or not task.cancelled()
        except BaseException:  # noqa: BLE001 - it is raised from the task below
            break
    if cancelled:
        _cancel_again()
    return task.result()


async def outlast(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result, taking any cancellation that comes meanwhile as heard."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if waiting is not None and not task.cancelled():
                waiting.uncancel()
        except BaseException:  # noqa: BLE001 - it is raised from the task below
            break
    return task.result()


def is_cancelling() -> bool:
    """True when the present task was asked to stop, and did not just meet a cancellation that leaked from elsewhere."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _cancel_again() -> None:
    """Deliver a cancellation that was held back, without counting it twice."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
        task.cancel()
