"""Errors as answers: every one is `application/problem+json` (RFC 9457) and carries no content of a session.

`STATUSES` says which error becomes which HTTP status. What is not in it is a fault of the server: it is logged, and the
answer says nothing of it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException as StarletteHTTPException

from cayu.canonical import dumps, normalise
from cayu.errors import (
    BudgetExceeded,
    CayuError,
    ExecutionProfileError,
    InvalidInput,
    MissingBinding,
    NotRegistered,
    PendingActionNotFound,
    RecoveryError,
    SessionError,
    SessionNotFound,
    StoreError,
    StreamConflict,
)

logger = logging.getLogger("cayu.server")

PROBLEM_JSON = "application/problem+json"
MAX_FIELDS = 20
"""Fields that one answer names at most."""
MAX_PLACE = 200
"""Characters of a field's place."""
MAX_MESSAGE = 400
"""Characters of what is said of a field."""

STATUSES: Mapping[type[CayuError], int] = {
    InvalidInput: 422,
    NotRegistered: 409,
    MissingBinding: 409,
    SessionError: 409,
    SessionNotFound: 404,
    PendingActionNotFound: 404,
    RecoveryError: 409,
    ExecutionProfileError: 409,
    BudgetExceeded: 409,
    StoreError: 503,
    StreamConflict: 409,
}
"""Error -> HTTP status; the nearest base class counts."""

_CODES = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    422: "invalid_request",
    500: "internal_error",
}


class FieldProblem(BaseModel):
    """One field of a request that breaks a rule."""

    place: str
    """Where it stands, as in `body.session_id`."""
    rule: str
    """The rule's short name."""
    message: str
    """The rule in words; never the value that was given."""


class Problem(BaseModel):
    """What went wrong, with the ids that it is about as further members."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    """`about:blank` for what HTTP knows itself, otherwise `urn:cayu:problem:CODE`."""
    title: str
    status: int
    detail: str | None = None
    code: str
    """The error's class, or a word for what HTTP knows itself."""
    errors: list[FieldProblem] | None = None
    """The fields that break a rule, 20 at most."""


class Refusal(HTTPException):
    """A request that the server itself turns down, with a code of its own."""

    def __init__(
        self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **ids: str
    ) -> None:
        super().__init__(status, detail, headers=dict(headers or {}))
        self.code = code
        self.ids = ids


async def answer(request: Request, error: Exception) -> Response:
    """Return the response that tells of an error."""
    headers = getattr(error, "headers", None) if isinstance(error, StarletteHTTPException) else None
    return problem_response(problem_of(error), headers)


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Return a problem as a response."""
    body = dumps(normalise(problem.model_dump(exclude_none=True)))
    return Response(body, problem.status, headers, PROBLEM_JSON)


def problem_of(error: Exception) -> Problem:
    """Return what a caller may know of an error; the rest is logged."""
    match error:
        case Refusal():
            return _plain(error.status_code, error.detail, error.code, **error.ids)
        case StarletteHTTPException():
            return _plain(error.status_code, None)
        case RequestValidationError():
            return _invalid(error.errors())
        case CayuError():
            status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), None)
            if status is not None:
                return _known(error, status)
    logger.error("a request failed", exc_info=error)
    return _plain(500, "Something failed in the server, which has logged it.")


def _plain(status: int, detail: str | None, code: str | None = None, **ids: str) -> Problem:
    phrase = HTTPStatus(status).phrase
    word = code or _CODES.get(status, re.sub(r"\W+", "_", phrase.lower()))
    return Problem(title=phrase, status=status, detail=detail, code=word, **ids)


def _known(error: CayuError, status: int) -> Problem:
    code = type(error).__name__
    ids = {name: value for name, value in error.attributes.items() if name.endswith("_id") and isinstance(value, str)}
    detail = str(error)
    if isinstance(error, StoreError):
        logger.warning("the store refused: %s", error)
        if status == HTTPStatus.SERVICE_UNAVAILABLE and "path" in error.attributes:
            detail = "The store cannot do this now. Try again later; the server's log says what is wrong with it."
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", code).capitalize()
    return Problem(type=f"urn:cayu:problem:{code}", title=title, status=status, detail=detail, code=code, **ids)


def _invalid(found: Sequence[Any]) -> Problem:
    problem = _plain(422, f"{len(found)} field(s) of the request break a rule; correct them and send it again.")
    problem.errors = [
        FieldProblem(
            place=".".join(str(part) for part in each["loc"])[:MAX_PLACE],
            rule=str(each["type"]),
            message=str(each["msg"])[:MAX_MESSAGE],
        )
        for each in found[:MAX_FIELDS]
    ]
    return problem
