"""A case is named by its exact content: its revision changes with anything of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cayu.evals import EvalCase, EvalCaseContractV1, question_cases
from cayu.storage import handbook_questions

CASE = EvalCase(
    case_id="c", question="How cold is it?", expected_answer="four degrees", expected_entries=("a", "b"), topic="rooms"
)
OTHER: dict[str, Any] = {
    "case_id": "d",
    "question": "How cold is it? ",
    "expected_answer": "five degrees",
    "expected_entries": ("b", "a"),
    "topic": "general",
}


def test_every_field_has_another_value_here() -> None:
    assert OTHER.keys() == EvalCase.model_fields.keys()


@pytest.mark.parametrize("name", OTHER)
def test_the_revision_changes_with_anything(name: str) -> None:
    changed = CASE.model_copy(update={name: OTHER[name]})
    assert changed.contract.case_revision != CASE.contract.case_revision
    assert changed.contract.case_id == ("d" if name == "case_id" else "c")


def test_the_same_case_has_one_contract_also_after_a_file() -> None:
    assert EvalCase.model_validate_json(CASE.model_dump_json()).contract == CASE.contract
    assert EvalCaseContractV1.model_validate_json(CASE.contract.model_dump_json()) == CASE.contract


def test_a_contract_tells_nothing_of_the_content() -> None:
    told = CASE.contract.model_dump_json()
    assert CASE.contract.model_dump().keys() == {"case_id", "case_revision"}
    assert "cold" not in told
    assert "degrees" not in told


@pytest.mark.parametrize(
    "wrong", [{"question": ""}, {"case_id": " c"}, {"case_id": ""}, {"topic": "x" * 257}, {"answer": "4"}]
)
def test_a_case_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        EvalCase.model_validate(CASE.model_dump() | wrong)


@pytest.mark.parametrize("revision", ["", "0" * 63, "A" * 64, 1])
def test_a_contract_names_a_real_revision(revision: Any) -> None:
    with pytest.raises(ValidationError):
        EvalCaseContractV1(case_id="c", case_revision=revision)


def test_the_handbook_s_questions_are_cases() -> None:
    questions = handbook_questions()
    cases = question_cases(questions)
    assert [case.case_id for case in cases] == [question.id for question in questions]
    assert [case.expected_answer for case in cases] == [question.answer for question in questions]
    assert [case.expected_entries for case in cases] == [question.expected_entries for question in questions]
    assert [case.question for case in cases] == [question.question for question in questions]
    assert len({case.contract.case_revision for case in cases}) == len(questions)
    assert 1 < len({case.topic for case in cases}) < len(cases)
