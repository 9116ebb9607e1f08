"""Nested event loops, for scripts pasted into a cell of an older kernel, and only when the user asks."""

from __future__ import annotations

import sys

from cayu.errors import NestedLoopsRefused

REFUSED_FROM = 7
"""The major version of ipykernel from which nested loops lose queued cells."""


def allow_nested_loops() -> None:
    """Let `asyncio.run(main())` work inside a running loop, by patching asyncio for the whole process.

    Raises `NestedLoopsRefused` on ipykernel 7 and newer, where it would lose the cells that Run All has queued; write
    `await main()` or `lab.call(main())` there.
    """
    kernel = sys.modules.get("ipykernel")
    if kernel is not None and int(str(kernel.__version__).split(".")[0]) >= REFUSED_FROM:
        raise NestedLoopsRefused
    import nest_asyncio

    nest_asyncio.apply()
