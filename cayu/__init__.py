"""Cayu Lab: durable, long-running agents, and what you need to study them.

Everything that a first application needs is here; the namespaces beside it hold the rest.
"""

from cayu.agents import AgentSpec
from cayu.effects import ToolEffect
from cayu.environments import Environment, EnvironmentSpec
from cayu.errors import CayuError, ExecutionProfileMismatchError
from cayu.events import Event, EventType
from cayu.identity import ExecutionProfileAdoptionIntent, ExecutionProfileBehaviorIdentity
from cayu.knowledge import KnowledgeAccessScope, KnowledgeEntry, KnowledgeQuery, KnowledgeStore
from cayu.messages import Message
from cayu.runtime import CayuApp, RunOutcome, RuntimeConfig, run_to_completion
from cayu.sessions import ResumeRequest, RunLimits, RunRequest, SessionStatus
from cayu.storage import SQLiteKnowledgeStore, SQLiteSessionStore
from cayu.timing import RuntimeTimingConfig
from cayu.tools import Tool, ToolContext, ToolPolicy, ToolResult, ToolSpec, tool

__all__ = [
    "AgentSpec",
    "CayuApp",
    "CayuError",
    "Environment",
    "EnvironmentSpec",
    "Event",
    "EventType",
    "ExecutionProfileAdoptionIntent",
    "ExecutionProfileBehaviorIdentity",
    "ExecutionProfileMismatchError",
    "KnowledgeAccessScope",
    "KnowledgeEntry",
    "KnowledgeQuery",
    "KnowledgeStore",
    "Message",
    "ResumeRequest",
    "RunLimits",
    "RunOutcome",
    "RunRequest",
    "RuntimeConfig",
    "RuntimeTimingConfig",
    "SQLiteKnowledgeStore",
    "SQLiteSessionStore",
    "SessionStatus",
    "Tool",
    "ToolContext",
    "ToolEffect",
    "ToolPolicy",
    "ToolResult",
    "ToolSpec",
    "run_to_completion",
    "tool",
]
