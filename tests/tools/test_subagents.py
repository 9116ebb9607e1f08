"""The tool that asks another agent: what it declares, what it hands on, and how an end reads."""

from __future__ import annotations

from typing import Any

import pytest

from cayu import ToolEffect
from cayu.sessions import RunLimits
from cayu.tools import SubagentTool, ToolContext
from cayu.tools.spec import ChildOutcome, ChildTask, InputValidator
from cayu.tools.subagents import MAX_ANSWER_CHARACTERS


class FakeChildren:
    """Ends every task in the same way, and remembers what was asked."""

    def __init__(self, status: str = "completed", text: str = "found", reason: str = "") -> None:
        self._outcome = ChildOutcome("s.child", status, text, reason)
        self.tasks: list[ChildTask] = []

    async def run(self, task: ChildTask) -> ChildOutcome:
        self.tasks.append(task)
        return self._outcome


def context(children: FakeChildren | None) -> ToolContext:
    return ToolContext(session_id="s", agent_name="a", children=children)


def test_it_is_named_after_its_agent_and_may_be_named_otherwise() -> None:
    assert SubagentTool("reader").spec.name == "ask_reader"
    assert "reader" in SubagentTool("reader").spec.description
    spec = SubagentTool("reader", name="look_up", description="Looks things up.").spec
    assert (spec.name, spec.description) == ("look_up", "Looks things up.")


def test_it_may_be_repeated_under_its_key_beside_others() -> None:
    spec = SubagentTool("reader").spec
    assert (spec.effect, spec.parallel_safe) == (ToolEffect.IDEMPOTENT, True)


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"task": "read"}, True),
        ({"task": ""}, False),
        ({}, False),
        ({"task": 1}, False),
        ({"task": "a", "b": 1}, False),
    ],
)
def test_it_takes_a_task_and_nothing_else(arguments: dict[str, Any], fits: bool) -> None:
    assert (InputValidator(SubagentTool("reader").spec).problem(arguments) is None) is fits


@pytest.mark.parametrize(
    "other",
    [
        SubagentTool("writer"),
        SubagentTool("reader", max_steps=7),
        SubagentTool("reader", max_answer_characters=7),
        SubagentTool("reader", limits=RunLimits(max_tool_calls=7)),
    ],
)
def test_what_bounds_a_child_belongs_to_the_identity(other: SubagentTool) -> None:
    identity = SubagentTool("reader").spec.execution_profile_identity
    assert identity is not None
    assert identity == SubagentTool("reader").spec.execution_profile_identity
    assert other.spec.execution_profile_identity != identity


async def test_it_hands_on_the_task_with_its_bounds() -> None:
    children, limits = FakeChildren(), RunLimits(max_tool_calls=3)
    await SubagentTool("reader", limits=limits, max_steps=5).run(context(children), {"task": "read it"})
    assert children.tasks == [ChildTask("reader", "read it", limits, 5, MAX_ANSWER_CHARACTERS)]


async def test_the_answer_is_the_childs_text() -> None:
    result = await SubagentTool("reader").run(context(FakeChildren()), {"task": "read"})
    assert (result.content, result.is_error) == ("found", False)
    assert result.structured == {"child_session_id": "s.child", "status": "completed", "truncated": False}


@pytest.mark.parametrize(("text", "read"), [("12345", "12345"), ("123456", "12345 [cut]"), ("", "")])
async def test_a_long_answer_is_cut_and_marked(text: str, read: str) -> None:
    tool = SubagentTool("reader", max_answer_characters=5)
    result = await tool.run(context(FakeChildren(text=text)), {"task": "read"})
    assert result.content == read
    assert result.structured["truncated"] is (read != text)


@pytest.mark.parametrize(
    ("status", "reason"), [("failed", "provider failed"), ("interrupted", "awaiting human"), ("not run", "no such")]
)
async def test_any_other_end_is_an_error_that_names_the_session(status: str, reason: str) -> None:
    children = FakeChildren(status, "half a thought", reason)
    result = await SubagentTool("reader").run(context(children), {"task": "read"})
    assert result.is_error
    assert result.content == f"The child session s.child is {status}: {reason}."
    assert "half a thought" not in result.content
    assert result.structured == {"child_session_id": "s.child", "status": status, "truncated": False}


async def test_a_small_bound_never_cuts_the_name_of_a_session_that_waits() -> None:
    """The one thing that a human needs is where to decide."""
    tool = SubagentTool("reader", max_answer_characters=5)
    result = await tool.run(context(FakeChildren("interrupted", "", "awaiting human")), {"task": "read"})
    assert "s.child" in result.content


async def test_outside_a_session_there_is_nobody() -> None:
    result = await SubagentTool("reader").run(context(None), {"task": "read"})
    assert result.is_error
    assert "outside a session" in result.content
