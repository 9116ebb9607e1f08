"""Who is asking: principals, the role of operators, and an authenticator over fixed bearer tokens."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from pydantic import ValidationError

from cayu.canonical import keyed_fingerprint, same
from cayu.errors import InvalidInput
from cayu.sessions import ResolutionActor

OPERATOR = "operator"
"""The role that recovery asks for."""
SOURCE = "server"
"""How decisions made through this server are marked in a session's log."""
MIN_TOKEN = 16
"""Characters of a bearer token, at least."""

_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whom an authenticator has recognised. Raises `InvalidInput` for what cannot stand in a log."""

    subject: str
    """Who it is, 1 to 256 characters; written beside every decision."""
    roles: Set[str] = frozenset()
    """What it may do beyond reading and deciding; see `OPERATOR`."""
    tenant: str | None = None
    """For whom it acts. It is recorded, and isolates nothing."""
    claims: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """More of what the authenticator knows, as JSON; written beside every decision, so nothing secret."""

    def __post_init__(self) -> None:
        roles: Any = self.roles
        if isinstance(roles, str) or not all(isinstance(role, str) for role in roles):
            raise InvalidInput("The roles of a principal are a set of names, as in Principal('ada', {'operator'}).")
        object.__setattr__(self, "roles", frozenset(roles))
        try:
            object.__setattr__(self, "claims", self.actor.claims)
        except ValidationError as error:
            wrong = ", ".join(sorted({str(each["loc"][0]) for each in error.errors(include_input=False)}))
            raise InvalidInput(
                f"This principal cannot be recorded; its {wrong} is wrong. A subject has 1 to 256 characters, "
                "a tenant at most 256, and claims are JSON."
            ) from None

    @property
    def actor(self) -> ResolutionActor:
        """The principal as a session's log names it."""
        return ResolutionActor(subject=self.subject, tenant=self.tenant, source=SOURCE, claims=dict(self.claims))


Authenticate = Callable[[Request], Principal | Awaitable[Principal | None] | None]
"""Recognises who sends a request by its headers, address and client, or answers None.

The body is not there to be read. A plain function runs on the event loop and must not block; one that raises, or that
answers anything else, lets nobody in.
"""


class BearerTokens:
    """Recognises the holders of fixed tokens, given as token -> principal, in `Authorization: Bearer TOKEN`.

    Tokens are kept as keyed digests only. Every request is compared with all of them in constant time. Raises
    `InvalidInput` for tokens that are empty, short or cannot travel in a header.
    """

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        if not principals:
            raise InvalidInput("There is no token, so nobody could be let in; give at least one.")
        self._secret = secrets.token_bytes(32)
        self._known: list[tuple[str, Principal]] = []
        token: Any
        for place, (token, principal) in enumerate(principals.items(), 1):
            if not isinstance(token, str) or len(token) < MIN_TOKEN or not _TOKEN.fullmatch(token):
                raise InvalidInput(
                    f"Token {place} is not fit for use: a token has at least {MIN_TOKEN} characters, of letters, "
                    "digits and -._~+/ only. secrets.token_urlsafe() makes a good one."
                )
            if not isinstance(principal, Principal):
                raise InvalidInput(f"Token {place} belongs to a {type(principal).__name__}; give it a Principal.")
            self._known.append((self._digest(token), principal))

    def __call__(self, request: Request) -> Principal | None:
        """Return whose token the request bears; None without exactly one known token."""
        given = request.headers.getlist("authorization")
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        presented = self._digest(token.strip(" ") if scheme.lower() == "bearer" else "")
        found = None
        for digest, principal in self._known:
            if same(digest, presented):
                found = principal
        return found

    def __repr__(self) -> str:
        return f"BearerTokens({len(self._known)} known)"

    def _digest(self, token: str) -> str:
        return keyed_fingerprint(self._secret, "cayu.bearer-token", token)
