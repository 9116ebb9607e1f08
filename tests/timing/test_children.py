"""A call that runs a session: its execution holds the session's time, and the session has records of its own."""

from __future__ import annotations

import pytest
from runtime.support import SESSION, calls, new_run, play
from timing.support import TickingClock, consume, lasting, ns, round_of, steps_of, took

from cayu import AgentSpec, CayuApp
from cayu.providers.scripted import ScriptedModelProvider
from cayu.sessions.streams import HeadQuery
from cayu.testing import FakeClock
from cayu.timing.phases import EXECUTION
from cayu.tools import SubagentTool


def tree(clock: FakeClock) -> CayuApp:
    """An application whose agent `a` asks `b`, whose tool takes a second."""
    app = CayuApp()
    app.services.clock = clock
    below = [SubagentTool("b")], [calls(("ask_b", {"task": "work"})), "thanks"]
    for name, (tools, script) in {"a": below, "b": ([lasting(clock, "t", 1)], [calls("t"), "the answer"])}.items():
        app.register_provider(ScriptedModelProvider(script, name=f"model of {name}"))
        app.register_agent(AgentSpec(name=name, model="m", provider_name=f"model of {name}"), tools=tools)
    return app


async def child_of(app: CayuApp) -> str:
    [head] = (await app.session_store.heads(HeadQuery(parent_session_id=SESSION))).rows
    return head.row.id


@pytest.mark.requirement("A121")
async def test_a_parents_execution_holds_the_childs_second_and_the_child_tells_its_own() -> None:
    app = tree(FakeClock())
    await play(app.run(new_run()))
    parent, child = await round_of(app), await round_of(app, await child_of(app))
    assert parent.session_id == SESSION
    assert child.session_id == await child_of(app)
    assert [call.tool_name for call in (*parent.calls, *child.calls)] == ["ask_b", "t"]
    for record in (parent, child):
        assert took(record, EXECUTION) == took(record.calls[0], EXECUTION) == ns(1), "nothing is subtracted"
    steps = await steps_of(app, await child_of(app))
    assert [step.after_tool_round_id for step in steps] == [None, child.tool_round_id]


@pytest.mark.requirement("A121")
async def test_everything_that_a_child_observes_lies_inside_its_parents_execution() -> None:
    clock = TickingClock()
    app = tree(clock)
    await consume(app.run(new_run()), clock, 0.5)
    parent, child = await round_of(app), await round_of(app, await child_of(app))
    steps = await steps_of(app, await child_of(app))
    inside = sum(ns(record.duration_seconds) for record in (child, *steps))
    assert took(parent, EXECUTION) >= inside > ns(1)
    phase = parent.phase(EXECUTION)
    assert phase.first_started_at is not None
    assert phase.last_completed_at is not None
    for record in (child, *steps):
        assert phase.first_started_at <= record.started_at <= record.completed_at <= phase.last_completed_at
    assert took(parent, EXECUTION) < ns(1.5), "the consumer of the parent has nothing of the child's"
