"""Cases: a question with what a good answer holds, and the contract under which a trial names it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from cayu.canonical import fingerprint
from cayu.evals.fields import Fingerprint, Id
from cayu.knowledge.records import InOrder
from cayu.messages import Frozen


class EvalCaseContractV1(Frozen):
    """A case by its name and its exact content, without the content."""

    case_id: Id
    case_revision: Fingerprint
    """Changes with anything of the case."""


class EvalCase(Frozen):
    """One question with its expected answer."""

    case_id: Id
    question: str = Field(min_length=1)
    expected_answer: str = Field(min_length=1)
    """What a right answer says."""
    expected_entries: Annotated[tuple[str, ...], InOrder] = ()
    """Ids of the memories that hold the answer."""
    topic: Id = "general"
    """Cases of one topic are not independent of each other."""

    @property
    def contract(self) -> EvalCaseContractV1:
        """The case as trials name it."""
        revision = fingerprint("cayu.eval-case", self.model_dump(mode="json"))
        return EvalCaseContractV1(case_id=self.case_id, case_revision=revision)


def question_cases(questions: Iterable[Any]) -> tuple[EvalCase, ...]:
    """Return questions such as `cayu.storage.handbook_questions()` as cases.

    A question has an `id`, the `question`, its `answer`, the `expected_entries` and its `topic`.
    """
    return tuple(
        EvalCase(
            case_id=question.id,
            question=question.question,
            expected_answer=question.answer,
            expected_entries=question.expected_entries,
            topic=question.topic,
        )
        for question in questions
    )
