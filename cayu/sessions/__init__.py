"""Sessions: requests, records, states, the log's meaning, and the store that holds it."""

from cayu.sessions.fold import apply, fold
from cayu.sessions.records import PendingAction, PendingActionPage, PendingActionQuery, Session, session_record
from cayu.sessions.recovery import CallRecovery, RecoveryPlan, plan_recovery
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
    "CallRecovery",
    "CallState",
    "CallView",
    "InterruptSessionRequest",
    "PendingAction",
    "PendingActionPage",
    "PendingActionQuery",
    "RecoveryPlan",
    "ResolutionActor",
    "ResumeRequest",
    "RoundState",
    "RoundView",
    "RunRequest",
    "Session",
    "SessionStatus",
    "SessionStore",
    "SessionView",
    "ToolApprovalDecision",
    "ToolApprovalRequest",
    "UserInputResponse",
    "apply",
    "fold",
    "plan_recovery",
    "session_record",
]
