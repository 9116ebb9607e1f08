"""The door in front of every route: who asks, how much is sent, and what every answer carries.

It comes before routing, so that without a principal no path, method or body is told apart from any other.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cayu.canonical import JSON, normalise
from cayu.errors import NotJson
from cayu.server.principals import OPERATOR, Authenticate, Principal
from cayu.server.problems import Refusal, answer

logger = logging.getLogger("cayu.server")

MAX_BODY_BYTES = 1 << 20
"""Largest request body, unless the server is made with another bound."""
MOST_THROWN_AWAY = 8
"""Times the bound, up to which a larger body is read and thrown away: whoever is still sending misses the answer."""
_PRINCIPAL = "cayu.principal"
_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""What every answer carries."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


async def principal_of(request: Request) -> Principal:
    """Return who sent a request that has passed the gate."""
    principal = request.scope[_PRINCIPAL]
    assert isinstance(principal, Principal)
    return principal


ThePrincipal = Annotated[Principal, Depends(principal_of)]


class Gate:
    """ASGI middleware: authenticates, bounds the body, and turns what escapes the routes into a problem."""

    def __init__(self, app: ASGIApp, authenticate: Authenticate, max_body_bytes: int) -> None:
        self._app = app
        self._authenticate = authenticate
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        outgoing = _Outgoing(send)
        try:
            scope[_PRINCIPAL] = await self._recognise(Request(scope))
            incoming = await self._bounded(receive)
            if incoming is not None:
                await self._app(scope, incoming, outgoing)
        except Exception as error:  # noqa: BLE001 - whatever escapes is logged there, and answered without details
            response = await answer(Request(scope), error)
            if not outgoing.started:
                await response(scope, receive, outgoing)

    async def _recognise(self, request: Request) -> Principal:
        try:
            found = self._authenticate(request)
            principal = await found if inspect.isawaitable(found) else found
        except Exception as error:
            logger.exception("the authenticator failed")
            raise _unavailable() from error
        if principal is None:
            detail = "Nobody known has sent this request; send the header Authorization: Bearer TOKEN."
            raise Refusal(401, "unauthenticated", detail, headers={"WWW-Authenticate": "Bearer"})
        if not isinstance(principal, Principal):
            logger.error("the authenticator returned a %s, which is no Principal", type(principal).__name__)
            raise _unavailable()
        return principal

    async def _bounded(self, receive: Receive) -> Receive | None:
        """Read the body and return where to read it again; None when the client has gone."""
        body, size, more = bytearray(), 0, True
        while more and size <= self._max_body_bytes * MOST_THROWN_AWAY:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            size += len(chunk)
            body += chunk if size <= self._max_body_bytes else b""
            more = message.get("more_body", False)
        if size > self._max_body_bytes:
            detail = f"The body is larger than {self._max_body_bytes} bytes; send less."
            raise Refusal(413, "body_too_large", detail)
        return _Incoming(bytes(body), receive)


def _unavailable() -> Refusal:
    detail = "Whether this request may be served cannot be found out now; try again later."
    return Refusal(503, "authentication_unavailable", detail)


class _Incoming:
    """A body that was read, and after it whatever the connection says."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}


class _Outgoing:
    """Sends an answer with the headers that all carry."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            ours = {name for name, _ in _HEADERS}
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in ours]
            message = {**message, "headers": [*kept, *_HEADERS]}
        await self._send(message)


class JsonRoute(APIRoute):
    """A route whose body is read into the project's one JSON domain."""

    def get_route_handler(self) -> Handler:
        """Return the handler, with the body's rule before it."""
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return read


class OperatorRoute(JsonRoute):
    """A route for operators; others are refused before their body is looked at."""

    def get_route_handler(self) -> Handler:
        """Return the handler, with the role's check before it."""
        handle = super().get_route_handler()

        async def check(request: Request) -> Response:
            if OPERATOR not in (await principal_of(request)).roles:
                raise Refusal(403, "forbidden", f"This needs the role {OPERATOR!r}; ask an operator.")
            return await handle(request)

        return check


class _JsonRequest(Request):
    """A request whose JSON keeps to the domain: finite numbers, integers of 64 bits, real text, 64 levels."""

    async def json(self) -> JSON:
        """Return the body. Raises `Refusal` for anything outside the domain."""
        try:
            return normalise(json.loads(await self.body()))
        except NotJson as error:
            raise Refusal(422, "invalid_request", f"The body is outside the JSON domain. {error}") from None
        except (ValueError, RecursionError):
            detail = "The body is not JSON, or nested too deeply; correct it and send it again."
            raise Refusal(422, "invalid_request", detail) from None
