"""Sessions: requests, records, states, the log's meaning, and the store that holds it."""

from cayu.sessions.fold import apply, fold
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
    "CallState",
    "CallView",
    "InterruptSessionRequest",
    "PendingAction",
    "PendingActionPage",
    "PendingActionQuery",
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
    "session_record",
]
