"""Sessions: requests, records, states, the log's meaning, and the store that holds it."""

from cayu.sessions.context import ContextPolicy, RecentTurnsContextPolicy
from cayu.sessions.fold import apply, fold
from cayu.sessions.limits import BudgetLimit, RunLimits, TokenPrices
from cayu.sessions.plans import (
    BlockedSession,
    BlockerCode,
    NeededDecision,
    RecoveryAction,
    RecoveryDecision,
    RecoveryExecution,
    RecoveryExecutionRequest,
    RecoveryItemResult,
    RecoveryItemStatus,
    RecoveryPlan,
    RecoveryPlanItem,
    RecoveryPlanRequest,
    StartupRecoveryResult,
)
from cayu.sessions.records import PendingAction, PendingActionPage, PendingActionQuery, Session, session_record
from cayu.sessions.requests import (
    InterruptSessionRequest,
    ResolutionActor,
    ResumeRequest,
    RunRequest,
    ToolApprovalDecision,
    ToolApprovalRequest,
    UserInputResponse,
)
from cayu.sessions.states import CallState, RoundState, SessionStatus
from cayu.sessions.streams import SessionStore
from cayu.sessions.view import CallView, RoundView, SessionView

__all__ = [
    "BlockedSession",
    "BlockerCode",
    "BudgetLimit",
    "CallState",
    "CallView",
    "ContextPolicy",
    "InterruptSessionRequest",
    "NeededDecision",
    "PendingAction",
    "PendingActionPage",
    "PendingActionQuery",
    "RecentTurnsContextPolicy",
    "RecoveryAction",
    "RecoveryDecision",
    "RecoveryExecution",
    "RecoveryExecutionRequest",
    "RecoveryItemResult",
    "RecoveryItemStatus",
    "RecoveryPlan",
    "RecoveryPlanItem",
    "RecoveryPlanRequest",
    "ResolutionActor",
    "ResumeRequest",
    "RoundState",
    "RoundView",
    "RunLimits",
    "RunRequest",
    "Session",
    "SessionStatus",
    "SessionStore",
    "SessionView",
    "StartupRecoveryResult",
    "TokenPrices",
    "ToolApprovalDecision",
    "ToolApprovalRequest",
    "UserInputResponse",
    "apply",
    "fold",
    "session_record",
]
