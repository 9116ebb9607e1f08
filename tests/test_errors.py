"""Tests the exception tree: its drawing, its default messages and its way through a pickle."""

import copy
import inspect
import pickle
import re
import string
from typing import get_type_hints

import pytest

import cayu.errors
from cayu.errors import CayuError, InvalidInput, KnowledgeScopeError, NotJson, SessionNotFound, StoreBusy

BRANCH = re.compile(r"^ {4}(?P<lead>(?:[│ ] {3})*(?:[├└]── )?)(?P<name>[A-Z]\w+)(?: {2,}\w[\w ]*)?$")


def real_tree() -> dict[str, str]:
    """Class -> its parent inside the tree."""
    classes = [item for item in vars(cayu.errors).values() if inspect.isclass(item) and issubclass(item, CayuError)]
    return {kind.__name__: kind.__bases__[0].__name__ for kind in classes if kind is not CayuError}


def drawn_tree() -> dict[str, str]:
    """Class -> the class under which the module's docstring draws it."""
    path: list[str] = []
    found: dict[str, str] = {}
    for line in (cayu.errors.__doc__ or "").splitlines():
        match = BRANCH.match(line)
        if match is None:
            assert not re.search(r"[├└│]", line), f"not understood: {line!r}"
            continue
        depth = len(match["lead"]) // 4
        path[depth:] = [match["name"]]
        if depth:
            found[match["name"]] = path[depth - 1]
        else:
            assert match["name"] == "CayuError"
    return found


def every_class() -> list[type[CayuError]]:
    return [getattr(cayu.errors, name) for name in ("CayuError", *real_tree())]


def fields(kind: type[CayuError]) -> list[str]:
    """The attributes that the default message quotes."""
    text = inspect.cleandoc(kind.__doc__ or "")
    return [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]


def attributes(kind: type[CayuError]) -> dict[str, str]:
    """An example of each attribute that the class declares or its message quotes."""
    return {name: f"<{name}>" for name in (*get_type_hints(kind), *fields(kind))}


def test_the_drawing_is_the_tree() -> None:
    assert drawn_tree() == real_tree()
    assert len(real_tree()) > 35


@pytest.mark.parametrize("kind", every_class())
def test_the_docstring_is_the_default_message(kind: type[CayuError]) -> None:
    assert kind.__doc__, "an error without a docstring has no message"
    quoted = fields(kind)
    message = str(kind(**attributes(kind)))
    assert "{" not in message
    assert all(f"<{name}>" in message for name in quoted)
    assert message[-1] == "."
    assert all(" ".join(line.split()) == line for line in message.splitlines())


@pytest.mark.parametrize("kind", every_class())
def test_attributes_ride_on_the_error(kind: type[CayuError]) -> None:
    assert set(fields(kind)) <= set(get_type_hints(kind)), "the message quotes what the class does not declare"
    given = attributes(kind)
    error = kind(**given)
    assert {name: getattr(error, name) for name in given} == given


@pytest.mark.parametrize("kind", every_class())
@pytest.mark.parametrize("message", [None, "Told {in} other words."])
def test_an_error_survives_a_pickle(kind: type[CayuError], message: str | None) -> None:
    error = kind(message, **attributes(kind))
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is kind
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_a_message_of_its_own_is_taken_as_it_is() -> None:
    assert str(InvalidInput("with {braces}")) == "with {braces}"
    assert str(SessionNotFound(session_id="{x}")).startswith("There is no session '{x}' in this store")


def test_errors_can_be_raised_by_their_class_alone() -> None:
    with pytest.raises(KnowledgeScopeError, match="bound to"):
        raise KnowledgeScopeError


def test_input_errors_are_value_errors_too() -> None:
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(KnowledgeScopeError, ValueError)
    assert not issubclass(StoreBusy, ValueError)
    assert isinstance(NotJson(path="$", problem="odd"), ValueError)
