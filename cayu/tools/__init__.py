"""Tools: specifications, policies, built-ins, and the decorator that makes one from a function."""

from cayu.effects import EffectOutcome, ToolEffect, ToolEffectReceipt
from cayu.tools.functions import FunctionTool, tool
from cayu.tools.knowledge import KnowledgeReadTool, KnowledgeSearchTool
from cayu.tools.policy import (
    AllowAllToolPolicy,
    AlwaysRequireApprovalToolPolicy,
    ByEffectToolPolicy,
    ByNameToolPolicy,
    ToolPolicy,
    ToolPolicyDecision,
    ToolPolicyRequest,
    ToolPolicyResult,
)
from cayu.tools.questions import AskUserTool
from cayu.tools.reconcilers import (
    Reconciliation,
    ReconciliationRequest,
    ToolEffectReconciler,
    ToolOutcomeUnknown,
)
from cayu.tools.spec import ChildOutcome, ChildSessions, ChildTask, Tool, ToolContext, ToolResult, ToolSpec
from cayu.tools.subagents import SubagentTool

__all__ = [
    "AllowAllToolPolicy",
    "AlwaysRequireApprovalToolPolicy",
    "AskUserTool",
    "ByEffectToolPolicy",
    "ByNameToolPolicy",
    "ChildOutcome",
    "ChildSessions",
    "ChildTask",
    "EffectOutcome",
    "FunctionTool",
    "KnowledgeReadTool",
    "KnowledgeSearchTool",
    "Reconciliation",
    "ReconciliationRequest",
    "SubagentTool",
    "Tool",
    "ToolContext",
    "ToolEffect",
    "ToolEffectReceipt",
    "ToolEffectReconciler",
    "ToolOutcomeUnknown",
    "ToolPolicy",
    "ToolPolicyDecision",
    "ToolPolicyRequest",
    "ToolPolicyResult",
    "ToolResult",
    "ToolSpec",
    "tool",
]
