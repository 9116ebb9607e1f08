"""Finding out what a cut-off call has done: what a reconciler is asked, what it answers, and what a receipt is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pydantic import Field, field_validator

from cayu.canonical import normalise
from cayu.effects import EffectOutcome, ToolEffect, ToolEffectReceipt
from cayu.messages import Frozen
from cayu.tools.spec import ToolResult


class ToolOutcomeUnknown(Exception):
    """Raise it in a tool that lost touch with its service after it had asked for the effect.

    The call is then neither completed nor failed: a reconciler, a receipt or an operator settles it.
    """


class ChildStopped(ToolOutcomeUnknown):
    """The call's child session has stopped before its end, and is to be brought there first."""


class ReconciliationRequest(Frozen):
    """One call whose outcome is not known."""

    session_id: str
    agent_name: str
    tool_name: str
    tool_call_id: str
    tool_round_id: str
    effect: ToolEffect
    arguments: dict[str, Any]
    arguments_digest: str
    idempotency_key: str
    """The same that the tool had in its context."""
    attempt: int
    receipt: ToolEffectReceipt | None = None
    """What an operator brought; the reconciler says whether its service knows it."""


class Reconciliation(Frozen):
    """A reconciler's answer."""

    outcome: EffectOutcome
    result: ToolResult | None = None
    """What the call would have returned, with `completed` only; None leaves the model a fixed sentence."""
    reference: str | None = Field(default=None, max_length=256)
    """How the service names the effect."""

    @field_validator("result")
    @classmethod
    def _storable(cls, value: ToolResult | None) -> ToolResult | None:
        if value is not None:
            normalise(value.model_dump())
        return value

    def model_post_init(self, _context: object) -> None:
        """Refuse a result for a call that did not act."""
        if self.result is not None and self.outcome is not EffectOutcome.COMPLETED:
            raise ValueError("only a completed call has a result")


class ToolEffectReconciler(ABC):
    """Asks a service what became of a call. It reads, and never does the effect itself.

    Register it with the agent: `register_agent(..., tool_effect_reconcilers={"tool_name": reconciler})`. It is asked
    when a call was cut off, in recovery and after a timeout; one that raises leaves the outcome unknown. So
    does "it has not acted" in the process that cut the call off: there the tool's code may be at work still.
    """

    @abstractmethod
    async def reconcile(self, request: ReconciliationRequest) -> Reconciliation:
        """Say what became of the call; `unknown` when the service cannot tell now."""
