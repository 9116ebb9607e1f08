"""The OpenAPI document: every route says which problems it may answer with, and in which media type."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.security import HTTPBearer

from cayu.server.problems import PROBLEM_JSON, Problem

EVERYWHERE = (401, 413, 422, 500, 503)
"""Problems that every route may answer with."""
_MEANINGS = {
    401: "Nobody known has sent the request.",
    403: "The principal lacks the role that this needs.",
    404: "There is no such session or pending action.",
    409: "The session is not in the state that this needs; nothing was done.",
    413: "The body is too large.",
    422: "The request breaks a rule; nothing was written.",
    500: "Something failed in the server.",
    503: "The store, or the authentication, is not available now.",
}
_PROBLEM = "#/components/schemas/Problem"

bearer = HTTPBearer(
    auto_error=False, scheme_name="bearer", description="What the server's authenticator accepts, commonly a token."
)
"""Documents how requests authenticate; the gate has done it by then."""


def told(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the problems of one route, those that every route has included."""
    return {status: {"model": Problem, "description": _MEANINGS[status]} for status in sorted({*EVERYWHERE, *statuses})}


class DocumentedServer(FastAPI):
    """A FastAPI application whose document names the media type of problems."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        document = super().openapi()
        for path in document["paths"].values():
            for operation in path.values():
                for response in operation["responses"].values():
                    content = response.get("content", {})
                    if content.get("application/json", {}).get("schema", {}).get("$ref") == _PROBLEM:
                        content[PROBLEM_JSON] = content.pop("application/json")
        return document
