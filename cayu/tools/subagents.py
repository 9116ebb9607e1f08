"""The tool with which an agent gives a task to another agent, in a session of its own.

The child session's id derives from the call, so a replay after a crash finds the child where it stands and goes on
with it: nothing that the child has done is done again.
"""

from __future__ import annotations

from typing import Any

from cayu.effects import ToolEffect
from cayu.errors import InvalidInput
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.sessions.limits import RunLimits
from cayu.sessions.states import SessionStatus
from cayu.sessions.view import SessionView
from cayu.tools.spec import ChildOutcome, ChildTask, Tool, ToolContext, ToolResult, ToolSpec

MAX_ANSWER_CHARACTERS = 20_000
MAX_CHILD_STEPS = 100


class SubagentTool(Tool):
    """Runs a registered agent on a task, in a child session, and returns its last words.

    The child spends under its parent's causal budget, is interrupted with its parent, and has its own log, approvals
    and recovery. While a child waits for somebody its parent waits too, as for any call whose outcome is not known:
    bring the child to its end, then execute a recovery plan of the parent, which reads the answer.
    """

    def __init__(
        self,
        agent_name: str,
        *,
        name: str | None = None,
        description: str | None = None,
        limits: RunLimits | None = None,
        max_steps: int = MAX_CHILD_STEPS,
        max_answer_characters: int = MAX_ANSWER_CHARACTERS,
    ) -> None:
        """Name the agent that works; `limits` and `max_steps` bound each child, `max_answer_characters` its answer."""
        if max_steps < 1 or max_answer_characters < 1:
            raise InvalidInput("max_steps and max_answer_characters are at least 1.")
        self.agent_name = agent_name
        self.limits = limits or RunLimits()
        self.max_steps = max_steps
        self.max_answer_characters = max_answer_characters
        bounds = self.limits.model_dump_json(exclude_defaults=True)
        self.spec = ToolSpec(
            name=name or f"ask_{agent_name}",
            description=description or f"Give a task to the agent {agent_name} and get its answer.",
            input_schema={
                "type": "object",
                "properties": {"task": {"type": "string", "minLength": 1, "description": "What to do, in full."}},
                "required": ["task"],
                "additionalProperties": False,
            },
            effect=ToolEffect.IDEMPOTENT,
            execution_profile_identity=ExecutionProfileBehaviorIdentity(
                name=f"cayu.subagent:{agent_name}"[:256],
                behavior_version=f"1:{max_steps}:{max_answer_characters}:{bounds}"[:256],
                implementation_version="1",
            ),
        )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Run the child to where it stops; outside a session there is nobody to do the work."""
        if ctx.children is None:
            return ToolResult(content="There are no other agents outside a session.", is_error=True)
        task = ChildTask(self.agent_name, args["task"], self.limits, self.max_steps, self.max_answer_characters)
        return child_result(await ctx.children.run(task), self.max_answer_characters)


ANSWERS = "cayu.answers"
"""Where a child's metadata names the call whose result it is: `{"call": id, "characters": bound}`."""


def child_session_id(tool_call_id: str) -> str:
    """Return the id of the session that works for a call."""
    return f"{tool_call_id}.child"


def child_outcome(view: SessionView) -> ChildOutcome:
    """Return where a child session stands."""
    reasons = view.interruption if view.status == SessionStatus.INTERRUPTED else view.error
    reason = str((reasons or {}).get("reason") or (reasons or {}).get("code") or "")
    return ChildOutcome(view.row.id, view.status, view.final_text, reason.replace("_", " "))


def child_result(child: ChildOutcome, max_characters: int = MAX_ANSWER_CHARACTERS) -> ToolResult:
    """Return what the parent's model reads of a child: its last words, or that it did not complete."""
    done = child.status == SessionStatus.COMPLETED
    text = child.text if done else f"The child session {child.session_id} is {child.status}: {child.reason}."
    cut = done and len(text) > max_characters
    return ToolResult(
        content=f"{text[:max_characters]} [cut]" if cut else text,
        structured={"child_session_id": child.session_id, "status": str(child.status), "truncated": cut},
        is_error=not done,
    )
