"""Work that a cancellation does not tear apart: it ends first, and the cancellation comes at the next suspension.

So a caller always learns what its write has become, and still stops soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def settled(future: asyncio.Future[T]) -> T:
    """Wait for a future to its end, whatever happens to the waiting task, and return its result."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            cancelled = cancelled or not future.cancelled()
        except BaseException:  # noqa: BLE001 - it is raised from the future below
            break
    if cancelled:
        _cancel_again()
    return future.result()


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, whatever happens to the waiting task, and return its result."""
    return await settled(asyncio.ensure_future(work))


def _cancel_again() -> None:
    """Deliver a cancellation that was held back, without counting it twice."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
        task.cancel()
