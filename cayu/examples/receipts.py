"""A small service that acts once per idempotency key, and the tool in front of it.

It stands for the world outside: a file of its own, which the runtime knows nothing about. Its promise is one atomic
insert per key, and says nothing of other services.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

from cayu import ExecutionProfileBehaviorIdentity, Tool, ToolContext, ToolEffect, ToolResult, ToolSpec


def _sql(name: str) -> str:
    return files("cayu.examples").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


class ReceiptBook:
    """Numbered receipts in a SQLite file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with closing(self._connect()) as raw, raw:
            raw.execute(_sql("create"))

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=5)

    def issue(self, key: str, detail: str) -> int:
        """Return the number of the receipt for `key`, issuing it if there is none."""
        with closing(self._connect()) as raw, raw:
            raw.execute(_sql("issue"), (key, detail))
            return int(raw.execute(_sql("number"), (key,)).fetchone()[0])

    def all(self) -> list[tuple[int, str]]:
        """Return every receipt, (number, detail), in order."""
        with closing(self._connect()) as raw:
            return [(int(number), str(detail)) for number, detail in raw.execute(_sql("all"))]


class OrderSuppliesTool(Tool):
    """Orders supplies and returns the receipt; a repeat under the same key returns the same receipt."""

    def __init__(self, book: ReceiptBook, *, implementation_version: str = "1") -> None:
        super().__init__()
        self.book = book
        self.spec = ToolSpec(
            name="order_supplies",
            description="Order supplies for the laboratory and return a receipt.",
            input_schema={
                "type": "object",
                "properties": {
                    "item": {"type": "string", "minLength": 1},
                    "quantity": {"type": "integer", "minimum": 1, "maximum": 100},
                },
                "required": ["item", "quantity"],
                "additionalProperties": False,
            },
            effect=ToolEffect.IDEMPOTENT,
            execution_profile_identity=ExecutionProfileBehaviorIdentity(
                name="order-supplies", behavior_version="1", implementation_version=implementation_version
            ),
        )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Issue the receipt under the call's own key."""
        detail = f"{args['quantity']} x {args['item']}"
        number = await asyncio.to_thread(self.book.issue, ctx.idempotency_key, detail)
        return ToolResult(content=f"Receipt {number}: {detail}", structured={"receipt": number, "detail": detail})
