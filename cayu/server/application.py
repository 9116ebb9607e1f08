"""Puts a server together from its parts, by itself or below a path of another one, and ties it to a life of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Mount

from cayu.errors import CayuError, InvalidInput
from cayu.runtime import CayuApp
from cayu.server import pending, recovery, sessions
from cayu.server.background import Served
from cayu.server.documents import DocumentedServer, bearer
from cayu.server.gate import MAX_BODY_BYTES, Gate
from cayu.server.principals import Authenticate
from cayu.server.problems import answer


def create_server(
    app: CayuApp,
    *,
    authenticate: Authenticate,
    recover_on_start: bool = True,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """Return an ASGI application over `app`, which it owns: its lifespan ends with `app.aclose()`.

    `recover_on_start` takes up interruptions that a crash has cut off before the first request; a failure of the store
    fails the start. Raises `InvalidInput` without an authenticator.
    """
    if not isinstance(app, CayuApp):
        raise InvalidInput(f"A server serves a CayuApp, and was given a {type(app).__name__}.")
    if not callable(authenticate):
        raise InvalidInput(
            "A server needs an authenticator: pass authenticate=BearerTokens({token: Principal('you')}), or a function "
            "of the request that returns a Principal, or None for nobody. It starts without one never."
        )
    if max_body_bytes < 1:
        raise InvalidInput("max_body_bytes is at least 1.")
    served = Served(app)

    def lifespan(_: FastAPI) -> AbstractAsyncContextManager[None]:
        return _alive(served, recover_on_start)

    server = DocumentedServer(
        title="Cayu",
        summary="Durable agent sessions: read them, decide what waits, stop them, recover them.",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(bearer)],
        lifespan=lifespan,
    )
    server.state.served = served
    server.add_middleware(Gate, authenticate=authenticate, max_body_bytes=max_body_bytes)
    for kind in (HTTPException, RequestValidationError, CayuError):
        server.add_exception_handler(kind, answer)
    for routes in (recovery, sessions, pending):
        server.include_router(routes.router)
    return server


def mount_server(
    host: FastAPI,
    app: CayuApp,
    *,
    authenticate: Authenticate,
    path: str = "/cayu",
    recover_on_start: bool = True,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """Serve `app` below a path of another application and return what was mounted.

    The host's lifespan starts and stops it, inside its own; so mount before the host starts. The rest is as with
    `create_server`. Raises `InvalidInput` for a path that is no prefix, or is taken.
    """
    if not path.startswith("/") or path.endswith("/"):
        raise InvalidInput(f"{path!r} is no path to mount at; it begins with a slash and does not end with one.")
    if any(isinstance(route, Mount) and route.path == path for route in host.routes):
        raise InvalidInput(f"Something is mounted at {path!r} already; choose another path.")
    server = create_server(
        app, authenticate=authenticate, recover_on_start=recover_on_start, max_body_bytes=max_body_bytes
    )
    around = host.router.lifespan_context

    @asynccontextmanager
    async def lifespan(outer: Any) -> AsyncIterator[Any]:
        async with around(outer) as state, server.router.lifespan_context(server):
            yield state

    host.router.lifespan_context = lifespan
    host.mount(path, server)
    return server


@asynccontextmanager
async def _alive(served: Served, recover_on_start: bool) -> AsyncIterator[None]:
    try:
        if recover_on_start:
            await served.app.resume_pending_interruption_cascades()
        yield
    finally:
        await served.background.close(served.app)
