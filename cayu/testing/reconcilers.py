"""What a reconciler has to keep, checked against the real tool and the real service behind it."""

from __future__ import annotations

import secrets
from typing import Any

from cayu.effects import EffectOutcome
from cayu.sessions.view import arguments_digest
from cayu.tools.reconcilers import Reconciliation, ReconciliationRequest, ToolEffectReconciler
from cayu.tools.spec import Tool, ToolContext


async def check_reconciler(tool: Tool, reconciler: ToolEffectReconciler, arguments: dict[str, Any]) -> None:
    """Fail unless the reconciler tells a call that acted from one that did not, and only reads.

    Runs the tool once, under a key of its own, so use a service for tests. Raises `AssertionError` that says what is
    wrong.
    """
    acted, other = secrets.token_hex(20), secrets.token_hex(20)

    async def ask(key: str) -> Reconciliation:
        try:
            answer: object = await reconciler.reconcile(_request(tool, arguments, key))
        except Exception as error:
            raise _fault(f"it raises {type(error).__name__}; answer `unknown` when the service cannot tell") from error
        if not isinstance(answer, Reconciliation):
            raise _fault(f"it answers {type(answer).__name__}, not a Reconciliation")
        return answer

    ghost = "it finds a call that was never made, or makes it itself; a reconciler only reads"
    _expect((await ask(acted)).outcome is not EffectOutcome.COMPLETED, ghost)
    given = await tool.run(ToolContext(session_id="checked", agent_name="checked", idempotency_key=acted), arguments)
    found = await ask(acted)
    _expect(found.outcome is EffectOutcome.COMPLETED, f"the call has acted, and it answers {found.outcome}")
    if found.result is not None:
        _expect(found.result == given, "its result is not the one that the tool returned")
    _expect(await ask(acted) == found, "asked again, it answers otherwise; a reconciler only reads")
    _expect((await ask(other)).outcome is not EffectOutcome.COMPLETED, "it takes one call for another")


def _request(tool: Tool, arguments: dict[str, Any], key: str) -> ReconciliationRequest:
    return ReconciliationRequest(
        session_id="checked",
        agent_name="checked",
        tool_name=tool.spec.name,
        tool_call_id="checked.r1.c001",
        tool_round_id="checked.r1",
        effect=tool.spec.effect,
        arguments=arguments,
        arguments_digest=arguments_digest(tool.spec.name, arguments),
        idempotency_key=key,
        attempt=1,
    )


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _fault(otherwise)


def _fault(what: str) -> AssertionError:
    return AssertionError(f"The reconciler does not do its work: {what}.")
