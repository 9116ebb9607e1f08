"""Tests the vocabulary of events: every published type is there, and unknown ones read back as text."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from cayu.events import LIVE_ONLY, Event, EventType, event_type, trusted_event

PUBLISHED = {
    "session": "started resumed completed failed interrupted interrupt_requested awaiting_user_input limit_reached "
    "run_fenced execution_profile.decided execution_profile.rejected interruption_cascade_completed "
    "interruption_cascade_failed",
    "model": "started text.delta thinking.delta completed error retry",
    "tool.call": "approval_requested approved approval_denied approval_expired blocked skipped started staged "
    "completed failed",
    "tool.round": "opened committed",
    "tool.effect": "intent_recorded outcome_unknown reconciled",
    "context": "counted",
    "memory": "recall.completed recall.failed exposure.recorded",
    "budget": "reserved reconciled limit_reached",
    "recovery": "plan.item.executed",
}
VALUES = {f"{area}.{name}" for area, names in PUBLISHED.items() for name in names.split()}


def test_every_published_type_is_there_and_no_other() -> None:
    assert {str(item) for item in EventType} == VALUES
    assert len(VALUES) == 42


@pytest.mark.parametrize("value", sorted(VALUES))
def test_a_known_value_reads_back_as_its_member(value: str) -> None:
    found = event_type(value)
    assert isinstance(found, EventType)
    assert found == value


@pytest.mark.parametrize("value", ["", "model.dreamt", "SESSION_STARTED", "session.started "])
def test_an_unknown_value_reads_back_as_plain_text(value: str) -> None:
    found = event_type(value)
    assert type(found) is str
    assert found == value


def test_only_deltas_are_never_stored() -> None:
    assert {"model.text.delta", "model.thinking.delta"} == LIVE_ONLY


def test_an_event_survives_json_and_keeps_a_later_release_s_type() -> None:
    event = Event(
        id="s1.4",
        type="model.dreamt",
        session_id="one",
        sequence=4,
        timestamp=datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=UTC),
        agent_name="ann",
        payload={"a": [1, None]},
    )
    assert Event.model_validate_json(event.model_dump_json()) == event
    assert (event.environment_name, event.tool_name) == (None, None)


def test_events_are_closed_and_frozen() -> None:
    known = {"id": "x", "type": "t", "session_id": "s", "sequence": 1, "timestamp": 0, "agent_name": "a"}
    event = Event.model_validate(known)
    with pytest.raises(ValidationError):
        Event.model_validate({**known, "colour": "red"})
    with pytest.raises(ValidationError):
        event.type = "u"  # type: ignore[misc]


def test_an_event_of_a_log_can_be_copied_with_changes() -> None:
    made = {"id": "x.1", "type": EventType.SESSION_STARTED, "session_id": "s", "sequence": 1, "agent_name": "a"}
    rest = {"timestamp": datetime.now(UTC), "environment_name": None, "tool_name": None, "payload": {}}
    event = trusted_event(made | rest)
    changed = event.model_copy(update={"session_id": "t"})
    assert (event.session_id, changed.session_id) == ("s", "t")
    assert changed == Event.model_validate(changed.model_dump())
