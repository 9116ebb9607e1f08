"""Who is let in: authenticators, the operator's role, and what no answer may tell."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from fastapi import Request
from runtime.support import make_app
from server.support import (
    ADA,
    OLGA,
    OPERATOR_HEADERS,
    OPERATOR_TOKEN,
    USER,
    USER_TOKEN,
    client_of,
    problem,
    serving,
    tokens,
    waiting_app,
)

from cayu import CayuApp
from cayu.errors import InvalidInput
from cayu.server import BearerTokens, Principal, create_server, mount_server

OPERATIONS = (
    ("GET", "/api/recovery/startup"),
    ("POST", "/api/recovery/plan"),
    ("POST", "/api/recovery/execute"),
    ("GET", "/api/sessions"),
    ("GET", "/api/sessions/s"),
    ("GET", "/api/sessions/s/events"),
    ("POST", "/api/sessions/interrupt"),
    ("GET", "/api/pending"),
    ("POST", "/api/pending/approve"),
    ("POST", "/api/pending/deny"),
    ("POST", "/api/pending/answer"),
)


@pytest.mark.parametrize("authenticate", [None, "token", {}, 7])
def test_a_server_does_not_start_without_an_authenticator(authenticate: Any) -> None:
    with pytest.raises(InvalidInput, match=r"authenticate=BearerTokens\("):
        create_server(CayuApp(), authenticate=authenticate)
    with pytest.raises(TypeError):
        create_server(CayuApp())  # type: ignore[call-arg]


def test_a_server_serves_an_application() -> None:
    with pytest.raises(InvalidInput, match="serves a CayuApp, and was given a str"):
        create_server(cast(CayuApp, "module:app"), authenticate=tokens())
    with pytest.raises(InvalidInput, match="max_body_bytes"):
        create_server(CayuApp(), authenticate=tokens(), max_body_bytes=0)


@pytest.mark.parametrize("path", ["", "/", "cayu", "/cayu/"])
def test_a_mount_needs_a_prefix(path: str) -> None:
    with pytest.raises(InvalidInput, match="no path to mount at"):
        mount_server(create_server(CayuApp(), authenticate=tokens()), CayuApp(), authenticate=tokens(), path=path)


NOBODY: list[dict[str, str]] = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer "},
    {"Authorization": "Bearer wrong-token-0123456789"},
    {"Authorization": f"Bearer {USER_TOKEN[:-1]}"},
    {"Authorization": f"Bearer {USER_TOKEN}x"},
    {"Authorization": f"Bearer {USER_TOKEN.upper()}"},
    {"Authorization": f"Basic {USER_TOKEN}"},
    {"Authorization": USER_TOKEN},
    {"Authorization": "Bearer \xff\xfe"},
    {"X-Authorization": f"Bearer {USER_TOKEN}"},
]
ELSEWHERE = (("GET", "/openapi.json"), ("GET", "/docs"), ("PUT", "/"), ("GET", "/none"))


@pytest.mark.requirement("A066")
async def test_nothing_is_answered_to_nobody() -> None:
    server = create_server(await waiting_app(), authenticate=tokens())
    async with client_of(server) as client:
        answers = set()
        for headers in NOBODY:
            given = [(b"content-type", b"application/json")]
            given += [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            for method, path in (*OPERATIONS, *ELSEWHERE):
                content = b"{" if method == "POST" else b""
                response = await client.request(method, path, content=content, headers=given)
                problem(response, 401, "unauthenticated")
                assert response.headers["www-authenticate"] == "Bearer"
                answers.add(response.content)
        assert len(answers) == 1


async def test_one_known_token_is_let_in_and_two_are_not() -> None:
    async with client_of(create_server(CayuApp(), authenticate=tokens())) as client:
        for header in (f"bearer {USER_TOKEN}", f"BEARER  {USER_TOKEN} "):
            assert (await client.get("/api/sessions", headers={"Authorization": header})).status_code == 200
        both = [("Authorization", f"Bearer {each}") for each in (USER_TOKEN, OPERATOR_TOKEN)]
        problem(await client.get("/api/sessions", headers=both), 401, "unauthenticated")


@pytest.mark.requirement("A067")
async def test_recovery_is_for_operators_only() -> None:
    headers = {**USER, "content-type": "application/json"}
    async with serving(make_app()) as client:
        for content in (b"", b"{", b"{}", b'{"plan": 1}'):
            for method, path in OPERATIONS[:3]:
                response = await client.request(method, path, headers=headers, content=content)
                assert "'operator'" in problem(response, 403, "forbidden")["detail"]
        assert (await client.get("/api/recovery/startup", headers=OPERATOR_HEADERS)).status_code == 200


async def test_the_documents_are_for_principals() -> None:
    async with serving(make_app()) as client:
        assert (await client.get("/openapi.json", headers=USER)).json()["info"]["title"] == "Cayu"
        problem(await client.get("/docs", headers=USER), 404, "not_found")


async def _seen(request: Request) -> Principal | None:
    return ADA if request.headers.get("x-user") == "ada" and request.client is not None else None


async def test_an_authenticator_may_be_asynchronous() -> None:
    async with client_of(create_server(CayuApp(), authenticate=_seen)) as client:
        assert (await client.get("/api/sessions", headers={"X-User": "ada"})).status_code == 200
        problem(await client.get("/api/sessions"), 401, "unauthenticated")


def _raises(request: Request) -> Principal | None:
    raise LookupError("the directory at ldap://secret is down")


async def _raises_later(request: Request) -> Principal | None:
    raise PermissionError("secret")


async def _reads_the_body(request: Request) -> Principal | None:
    await request.body()
    return OLGA


@pytest.mark.parametrize(
    "authenticate",
    [_raises, _raises_later, _reads_the_body, lambda request: True, lambda request: "olga", lambda: OLGA],
)
async def test_an_authenticator_that_fails_lets_nobody_in(authenticate: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(create_server(CayuApp(), authenticate=authenticate)) as client:
        with caplog.at_level(logging.ERROR, logger="cayu.server"):
            response = await client.get("/api/sessions")
        problem(response, 503, "authentication_unavailable")
        assert "secret" not in response.text
    assert "the authenticator" in caplog.text


@pytest.mark.parametrize(
    "token",
    [
        "",
        "short",
        "x" * 15,
        "with a space inside it",
        "tab\tinside-0123456789",
        "ümlaut-0123456789",
        "line-0123456789\n",
    ],
)
def test_bad_tokens_are_refused_and_not_told(token: str) -> None:
    with pytest.raises(InvalidInput, match="Token 2 is not fit") as refused:
        BearerTokens({OPERATOR_TOKEN: OLGA, token: ADA})
    assert not token or token not in str(refused.value)


def test_tokens_belong_to_principals() -> None:
    with pytest.raises(InvalidInput, match="give at least one"):
        BearerTokens({})
    with pytest.raises(InvalidInput, match="belongs to a str"):
        BearerTokens({USER_TOKEN: cast(Principal, "ada")})


def test_tokens_are_not_kept_as_they_are() -> None:
    known = tokens()
    assert repr(known) == str(known) == "BearerTokens(2 known)"
    assert USER_TOKEN not in repr(vars(known))


def test_every_token_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from cayu.server import principals

    compared: list[tuple[str, str]] = []
    real = principals.same
    monkeypatch.setattr(principals, "same", lambda left, right: (compared.append((left, right)), real(left, right))[1])
    known = tokens()
    for token, found in ((USER_TOKEN, ADA), (OPERATOR_TOKEN, OLGA), ("x", None), ("y" * 5000, None)):
        compared.clear()
        scope = {"type": "http", "headers": [(b"authorization", f"Bearer {token}".encode())]}
        assert known(Request(scope)) == found
        assert len(compared) == 2
        assert {len(each) for pair in compared for each in pair} == {64}


@pytest.mark.parametrize(
    "fields, wrong",
    [
        ({"subject": ""}, "subject"),
        ({"subject": "x" * 257}, "subject"),
        ({"subject": "a", "tenant": "t" * 257}, "tenant"),
        ({"subject": "a", "claims": {"x": object()}}, "claims"),
        ({"subject": "a", "claims": {"x": float("nan")}}, "claims"),
        ({"subject": "a", "roles": "operator"}, "set of names"),
        ({"subject": "a", "roles": [1]}, "set of names"),
    ],
)
def test_principals_can_stand_in_a_log(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidInput, match=wrong):
        Principal(**fields)


def test_a_principal_is_a_value_of_its_own() -> None:
    claims = {"groups": ["a"]}
    one = Principal("ada", {"operator"}, "t", claims)
    claims["groups"].append("b")
    assert one == Principal("ada", frozenset({"operator"}), "t", {"groups": ["a"]})
    assert len({one, one}) == 1
    assert "groups" not in repr(one)
    assert one.actor.model_dump() == {
        "subject": "ada",
        "tenant": "t",
        "source": "server",
        "claims": {"groups": ["a"]},
    }
