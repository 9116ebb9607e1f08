"""Work that is not torn apart by a cancellation: it ends first, then the cancellation is told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T]) -> tuple[T, bool]:
    """Run `work` to its end whatever happens to the caller; return its result and whether the caller was cancelled."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = cancelled or not task.cancelled()
        except BaseException:  # noqa: BLE001 - it is raised from the task below
            break
    return task.result(), cancelled
