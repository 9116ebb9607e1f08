"""The check that users give their reconcilers to: it passes a right one and names what is wrong with a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cayu.examples.courier import Courier, CourierReconciler, SendParcelTool, parcel_result
from cayu.testing import check_reconciler
from cayu.tools import EffectOutcome, Reconciliation, ReconciliationRequest, ToolEffectReconciler

ARGUMENTS = {"recipient": "ann"}


async def test_a_right_reconciler_passes_and_the_tool_ran_once(tmp_path: Path) -> None:
    courier = Courier(tmp_path / "courier.db")
    await check_reconciler(SendParcelTool(courier), CourierReconciler(courier), ARGUMENTS)
    assert courier.all() == [(1, "ann")]


class Wrong(ToolEffectReconciler):
    def __init__(self, courier: Courier, fault: str) -> None:
        self.courier, self.fault, self.asked = courier, fault, 0

    async def reconcile(self, request: ReconciliationRequest) -> Reconciliation:
        self.asked += 1
        if self.fault == "sees ghosts":
            return Reconciliation(outcome=EffectOutcome.COMPLETED)
        if self.fault == "is blind":
            return Reconciliation(outcome=EffectOutcome.FAILED)
        if self.fault == "mixes keys up":
            found = [number for number, _ in self.courier.all()]
        else:
            found = self.courier.find(request.idempotency_key)
        if not found:
            return Reconciliation(outcome=EffectOutcome.UNKNOWN)
        number = found[0] + (1 if self.fault == "makes results up" else 0)
        number += self.asked if self.fault == "wavers" and self.asked > 2 else 0
        return Reconciliation(outcome=EffectOutcome.COMPLETED, result=parcel_result(number))


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("sees ghosts", "never made"),
        ("is blind", "has acted"),
        ("makes results up", "not the one"),
        ("wavers", "only reads"),
        ("mixes keys up", "one call for another"),
    ],
)
async def test_a_wrong_one_is_told_what_is_wrong(fault: str, told: str, tmp_path: Path) -> None:
    courier = Courier(tmp_path / "courier.db")
    with pytest.raises(AssertionError, match=told):
        await check_reconciler(SendParcelTool(courier), Wrong(courier, fault), ARGUMENTS)
