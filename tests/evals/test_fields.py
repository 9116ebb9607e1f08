"""The fields of evidence are strict: what is nearly right is refused, and nothing is turned into something else."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import TypeAdapter, ValidationError

from cayu.evals.fields import Count, ExactBool, Exactly, Fingerprint, Id, SessionId

pytestmark = pytest.mark.exhaustive

One = Annotated[Literal[1], Exactly]
GOOD: list[tuple[Any, list[Any]]] = [
    (Id, ["a", "a b", "ä" * 256, "\N{SNOWMAN}"]),
    (SessionId, ["a", "a" * 512]),
    (Fingerprint, ["0" * 64, "0123456789abcdef" * 4]),
    (Count, [0, 1, 2**63]),
    (ExactBool, [True, False]),
    (One, [1]),
]
BAD: list[tuple[Any, list[Any]]] = [
    (Id, ["", " ", "\n", " a", "a ", "a\n", "a" * 257, 1, None, b"a", ["a"]]),
    (SessionId, ["", " a", "a" * 513, 1]),
    (Fingerprint, ["0" * 63, "0" * 65, "0" * 63 + "g", "A" * 64, "0" * 64 + "\n", " " + "0" * 64, 0, b"0" * 64]),
    (Count, [-1, True, False, 1.0, "1", None]),
    (ExactBool, [0, 1, 1.0, "true", "yes", None]),
    (One, [True, 1.0, "1", 2]),
]


def pairs(given: list[tuple[Any, list[Any]]]) -> list[Any]:
    return [
        pytest.param(kind, value, id=f"{number}-{value!r:.20}")
        for number, (kind, values) in enumerate(given)
        for value in values
    ]


@pytest.mark.parametrize(("kind", "value"), pairs(GOOD))
def test_what_is_right_stays_as_it_is(kind: Any, value: Any) -> None:
    found = TypeAdapter(kind).validate_python(value)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(("kind", "value"), pairs(BAD))
def test_what_is_nearly_right_is_refused(kind: Any, value: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize(
    ("kind", "text"), [(Count, "1.0"), (Count, "true"), (ExactBool, "1"), (One, "true"), (Id, "1")]
)
def test_a_file_is_read_as_strictly(kind: Any, text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_json(text)
