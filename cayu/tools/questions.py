"""The tool with which an agent asks its user; the runtime pauses instead of running it."""

from __future__ import annotations

from typing import Any

from cayu.effects import ToolEffect
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.tools.spec import Tool, ToolContext, ToolResult, ToolSpec

MAX_OPTIONS = 20


class AskUserTool(Tool):
    """Asks a question, with or without options, and pauses the session until it is answered."""

    def __init__(self, *, name: str = "ask_user", expires_in_seconds: float | None = None) -> None:
        """Name the tool, and say how long an answer is waited for (seconds; None sets no end)."""
        self.expires_in_seconds = None if expires_in_seconds is None else float(expires_in_seconds)
        self.spec = ToolSpec(
            name=name,
            description="Ask the user a question and wait for the answer. Offer options when only some make sense.",
            input_schema={
                "type": "object",
                "properties": {
                    "question": {"type": "string", "minLength": 1},
                    "options": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_OPTIONS},
                    "allow_other": {"type": "boolean", "description": "May the user answer beside the options?"},
                },
                "required": ["question"],
                "additionalProperties": False,
            },
            effect=ToolEffect.NONE,
            execution_profile_identity=ExecutionProfileBehaviorIdentity(
                name="cayu.ask-user", behavior_version=f"1:{self.expires_in_seconds}", implementation_version="1"
            ),
        )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Answer that nobody was asked: outside a session there is nobody to ask."""
        return ToolResult(content="There is nobody to ask outside a session.", is_error=True)


def question_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the stored form of the question that validated arguments ask."""
    options = list(arguments.get("options", ()))
    return {
        "question": arguments["question"],
        "options": options,
        "allow_other": arguments.get("allow_other", False) or not options,
    }
