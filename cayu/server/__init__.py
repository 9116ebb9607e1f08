"""An HTTP API over one application, for people and services that are not in its process. Needs the extra `server`.

    import os, uvicorn
    from cayu.server import OPERATOR, BearerTokens, Principal, create_server

    tokens = BearerTokens({
        os.environ["REVIEWER_TOKEN"]: Principal("ada"),
        os.environ["OPERATOR_TOKEN"]: Principal("olga", roles={OPERATOR}),
    })
    uvicorn.run(create_server(build_app(), authenticate=tokens), timeout_graceful_shutdown=10)

    curl --fail-with-body --silent --header "Authorization: Bearer ${OPERATOR_TOKEN}" \\
      http://127.0.0.1:8000/api/recovery/startup

`mount_server(host, app, authenticate=...)` serves the same below `/cayu` of another FastAPI application.

Who may do what
    Nothing is answered to nobody: without a principal every path, `/openapi.json` included, answers 401. Any principal
    reads every session with its prompts, arguments and results, decides whatever waits, and stops what runs; the
    routes of recovery ask for the role `operator`. Authentication alone isolates no tenants: `Principal.tenant` is
    written beside decisions and keeps nothing apart. Give each tenant an application with a store of its own.
    Tokens travel as they are, so serve over TLS.

Decisions
    Whoever decides is the principal, never a field of the body. A decision is answered once it is durable, and the run
    goes on in the server. An exact repeat is answered like the first time.

Life
    The server owns the application. It takes up cut-off interruptions before the first request, and at the end
    interrupts what runs, so that it can be resumed, and closes the application with its stores. Uvicorn waits for open
    requests before that, as long as `timeout_graceful_shutdown` says.

Errors
    Every error is `application/problem+json` with a `code` and the ids it is about.
"""

from cayu.server.application import create_server, mount_server
from cayu.server.principals import OPERATOR, BearerTokens, Principal

__all__ = ["BearerTokens", "OPERATOR", "Principal", "create_server", "mount_server"]  # noqa: RUF022 - plainly sorted
