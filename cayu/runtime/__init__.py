"""The runtime: it drives sessions through model steps and tool rounds, each step durable."""

from cayu.runtime.app import CayuApp
from cayu.runtime.config import RuntimeConfig
from cayu.runtime.outcome import RunOutcome, ToolCallOutcome, run_to_completion
from cayu.runtime.profiles import AdoptionRequest, AdoptionVerdict, ExecutionProfilePolicy

__all__ = [
    "AdoptionRequest",
    "AdoptionVerdict",
    "CayuApp",
    "ExecutionProfilePolicy",
    "RunOutcome",
    "RuntimeConfig",
    "ToolCallOutcome",
    "run_to_completion",
]
