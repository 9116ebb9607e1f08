"""Tools: specifications, policies, built-ins, and the decorator that makes one from a function."""

from cayu.effects import ToolEffect
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
from cayu.tools.spec import Tool, ToolContext, ToolResult, ToolSpec

__all__ = [
    "AllowAllToolPolicy",
    "AlwaysRequireApprovalToolPolicy",
    "AskUserTool",
    "ByEffectToolPolicy",
    "ByNameToolPolicy",
    "FunctionTool",
    "KnowledgeReadTool",
    "KnowledgeSearchTool",
    "Tool",
    "ToolContext",
    "ToolEffect",
    "ToolPolicy",
    "ToolPolicyDecision",
    "ToolPolicyRequest",
    "ToolPolicyResult",
    "ToolResult",
    "ToolSpec",
    "tool",
]
