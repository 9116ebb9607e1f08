"""The routes of recovery, for operators: how startup went, what a plan says, and its execution."""

from __future__ import annotations

from fastapi import APIRouter

from cayu.server.background import TheServed
from cayu.server.documents import told
from cayu.server.gate import OperatorRoute, ThePrincipal
from cayu.server.records import RecoveryExecutionBody
from cayu.sessions import (
    RecoveryExecution,
    RecoveryExecutionRequest,
    RecoveryPlan,
    RecoveryPlanRequest,
    StartupRecoveryResult,
)

router = APIRouter(prefix="/api/recovery", tags=["recovery"], route_class=OperatorRoute)


@router.get("/startup", operation_id="get_startup_recovery", responses=told(403))
async def get_startup_recovery(served: TheServed) -> StartupRecoveryResult:
    """Return the latest sweep of this process over interruptions that were cut off."""
    return await served.app.get_startup_recovery_status()


@router.post("/plan", operation_id="plan_recovery", responses=told(403, 404))
async def plan_recovery(served: TheServed, body: RecoveryPlanRequest) -> RecoveryPlan:
    """Say what recovery would do with sessions; writes nothing."""
    return await served.app.plan_recovery(body)


@router.post("/execute", operation_id="execute_recovery", responses=told(403, 404, 409))
async def execute_recovery(served: TheServed, who: ThePrincipal, body: RecoveryExecutionBody) -> RecoveryExecution:
    """Execute a reviewed plan; the answer comes when every session of it has come to rest."""
    request = RecoveryExecutionRequest(
        plan=body.plan, execution_id=body.execution_id, decisions=body.decisions, requested_by=who.actor
    )
    return await served.app.execute_recovery(request)
