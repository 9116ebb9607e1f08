"""The public names of approvals and questions; they live in `cayu.sessions` and `cayu.tools`."""

from cayu.sessions.records import PendingAction, PendingActionPage, PendingActionQuery
from cayu.sessions.requests import ResolutionActor, ToolApprovalDecision, ToolApprovalRequest, UserInputResponse
from cayu.tools.questions import AskUserTool

__all__ = [
    "AskUserTool",
    "PendingAction",
    "PendingActionPage",
    "PendingActionQuery",
    "ResolutionActor",
    "ToolApprovalDecision",
    "ToolApprovalRequest",
    "UserInputResponse",
]
