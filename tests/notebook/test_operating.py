"""A stuck session in a lab: planned, shown as a frame and as HTML, settled, and repeated harmlessly."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cayu.errors import InvalidInput, StaleRecoveryPlanError
from cayu.examples.courier import AGENT, Courier, build_app
from cayu.notebook import Lab, schema
from cayu.notebook.operating import PlanHandle
from cayu.runtime import RuntimeConfig
from cayu.sessions import RecoveryDecision
from cayu.tools import ToolContext, ToolOutcomeUnknown, ToolResult

HOSTILE = "<img src=x onerror=alert(1)>"


class LostCourier(Courier):
    """Takes the parcel and never says so."""

    def send(self, reference: str, recipient: str) -> int:
        super().send(reference, recipient)
        raise ToolOutcomeUnknown


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr("cayu.examples.courier.Courier", LostCourier)
    with Lab.open(tmp_path / "runs.db", factory=partial(build_app, folder=tmp_path)) as opened:
        yield opened


def acted(plan: PlanHandle) -> RecoveryDecision:
    row = plan.df.iloc[0]
    return RecoveryDecision(
        session_id=row["session_id"], tool_call_id=row["tool_call_id"], action="tool_mark_completed", content="sent"
    )


def test_the_plan_is_a_frame_and_its_execution_goes_on(lab: Lab, tmp_path: Path) -> None:
    session = lab.run(AGENT, "go", session_id="s")
    assert session.status == "interrupted"
    plan = lab.plan_recovery(session)
    assert list(plan.df.columns) == list(schema("plan_df")["column"])
    row = plan.df.iloc[0]
    assert (row["blockers"], row["subject"], row["effect"]) == ("tool_effect_outcome_unknown", "tool_call", "external")
    assert Courier(tmp_path / "courier.db").find(row["idempotency_key"]) == [1]
    done = plan.execute("night", [acted(plan)], by="ann")
    assert [item.status for item in done.items] == ["executed"]
    assert (session.refresh().status, session.text) == ("completed", "The parcel is on its way.")
    assert [item.status for item in lab.execute_recovery(plan, "night", [acted(plan)]).items] == ["repeated"]
    [event] = session.events_df(where={"type": "tool.effect.reconciled"})["payload"]
    assert '"by":"ann"' in event
    with pytest.raises(StaleRecoveryPlanError):
        plan.execute("another night", [acted(plan)])
    assert Courier(tmp_path / "courier.db").all() == [(1, "the cold room")]


async def test_the_twins_are_awaited(lab: Lab) -> None:
    session = await lab.arun(AGENT, "go")
    plan = await lab.aplan_recovery(session.id)
    done = await lab.aexecute_recovery(plan.plan, "night", [acted(plan)])
    assert done.items[0].session_status == "completed"
    assert (await lab.aplan_recovery()).df.empty


def test_a_plan_shows_itself_and_nothing_of_it_is_markup(lab: Lab) -> None:
    lab.run(AGENT, "go", session_id=HOSTILE)
    plan = lab.plan_recovery(agent=AGENT)
    shown = plan._repr_mimebundle_()
    assert "tool effect outcome unknown" in shown["text/plain"]
    assert "send_parcel" in shown["text/html"]
    assert HOSTILE not in shown["text/html"]
    assert "Nothing is at unrest" in lab.plan_recovery(agent="nobody")._repr_mimebundle_()["text/html"]


def test_a_lab_that_only_looks_plans_nothing(lab: Lab, tmp_path: Path) -> None:
    lab.run(AGENT, "go")
    with Lab.open(tmp_path / "runs.db", mode="ro") as looking, pytest.raises(InvalidInput, match="only looks"):
        looking.plan_recovery()


async def test_the_tool_context_of_the_example_stands_alone(tmp_path: Path) -> None:
    async with build_app(folder=tmp_path) as app:
        assert app.agent_names == (AGENT,)
        assert isinstance(app.services.config, RuntimeConfig)
        tool = app.services.registry.assemble(AGENT, None).tools["send_parcel"]
        given = await tool.run(ToolContext("s", AGENT, idempotency_key="k"), {"recipient": "bob"})
        assert given == ToolResult(content="Parcel 1 is on its way.", structured={"parcel": 1})
