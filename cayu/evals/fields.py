"""The kinds of fields that evidence is made of: strict, bounded, and equal in every record."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr

MAX_ID_CHARS = 256
"""Characters of an id."""
MAX_SESSION_ID_CHARS = 512
"""Characters of a session's or a causal budget's id."""
FINGERPRINT_PATTERN = r"^[0-9a-f]{64}$"


def _plain(value: str) -> str:
    if not value.strip() or value != value.strip():
        raise ValueError("an id is not blank, and has no space at its ends")
    return value


def _exact_integer(value: Any) -> Any:
    if type(value) is not int:
        raise ValueError("a whole number is given as an int, and neither as a bool nor as a float")
    return value


def _exact_bool(value: Any) -> Any:
    if type(value) is not bool:
        raise ValueError("this is True or False and nothing else")
    return value


Id = Annotated[StrictStr, Field(max_length=MAX_ID_CHARS), AfterValidator(_plain)]
"""An id of at most 256 characters, not blank and not padded."""
SessionId = Annotated[StrictStr, Field(max_length=MAX_SESSION_ID_CHARS), AfterValidator(_plain)]
"""The id of a session or a causal budget."""
Fingerprint = Annotated[StrictStr, Field(pattern=FINGERPRINT_PATTERN)]
"""A SHA-256 or HMAC-SHA-256 as 64 lower-case hexadecimal digits."""
Count = Annotated[StrictInt, Field(ge=0), BeforeValidator(_exact_integer)]
"""A whole number from 0 on; neither `True` nor `1.0` passes for one."""
ExactFlag = BeforeValidator(_exact_bool)
"""Keeps `1` from passing for the literal `True`."""
ExactBool = Annotated[bool, ExactFlag]
"""A real boolean."""
Exactly = BeforeValidator(_exact_integer)
"""Keeps `True` and `1.0` from passing for the literal 1."""
