"""The OpenAPI document is whole, and requests made from it, good and bad, meet no fault of the server."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from conftest import require_tool
from runtime.support import new_run, play
from server.support import OPERATOR_HEADERS, PROBLEM, USER, client_of, tokens, unknown_app
from server.test_access import OPERATIONS

from cayu import CayuApp
from cayu.server import create_server

EXAMPLES = {"nobody": 4, "user": 8, "operator": 15}
"""Requests made up for each operation, twice: by its rules, and against them."""
SEED = 20300101


def document() -> dict[str, Any]:
    return create_server(CayuApp(), authenticate=tokens()).openapi()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_every_operation_is_documented() -> None:
    found = {(method, path) for method, path, _ in operations()}
    assert found == {(method, path.replace("/sessions/s", "/sessions/{session_id}")) for method, path in OPERATIONS}
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names) == len(OPERATIONS)
    for _, path, operation in operations():
        assert operation["security"] == [{"bearer": []}]
        assert operation["tags"]
        assert operation["description"]
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        wanted = {"200", "401", "413", "422", "500", "503"} | ({"403"} if "/recovery/" in path else set())
        assert wanted <= set(operation["responses"])
        for status, response in operation["responses"].items():
            if status != "200":
                assert response["content"] == {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    schemes = document()["components"]["securitySchemes"]
    assert [(name, scheme["type"], scheme["scheme"]) for name, scheme in schemes.items()] == [
        ("bearer", "http", "bearer")
    ]


def test_nobody_can_say_in_a_body_who_they_are() -> None:
    schemas = document()["components"]["schemas"]
    bodies = [
        name for name in schemas if name in ("Approval", "Denial", "Answer", "Interruption", "RecoveryExecutionBody")
    ]
    assert len(bodies) == 5
    for name in bodies:
        assert schemas[name]["additionalProperties"] is False
        assert not {"resolved_by", "requested_by", "actor"} & set(schemas[name]["properties"])


async def _app() -> CayuApp:
    app = await unknown_app()
    for name in ("0", "a/b"):
        await play(app.run(new_run(name)))
    return app


class Sender:
    """Sends the cases that were made up, and remembers what each operation answered."""

    def __init__(self, runner: asyncio.Runner, headers: dict[str, str]) -> None:
        self._runner, self._headers = runner, headers
        self._server = create_server(runner.run(_app()), authenticate=tokens())
        self.met: defaultdict[str, set[int]] = defaultdict(set)
        self.sent = 0

    def send(self, case: Any) -> None:
        given = case.as_transport_kwargs(base_url="http://test")
        headers = httpx.Headers([(name, value) for name, value in given["headers"].items() if name != "Authorization"])
        headers.update(self._headers)
        data = given.get("data")
        body = json.dumps(given["json"]).encode() if "json" in given else data if isinstance(data, bytes) else None
        if "json" in given:
            headers["content-type"] = "application/json"
        url = httpx.URL(given["url"]).copy_merge_params(given.get("params") or {})
        request = httpx.Request(given["method"], url, headers=headers, content=body)
        response = self._runner.run(self._send(request))
        self.met[case.operation.label].add(response.status_code)
        self.sent += 1
        assert response.status_code < 500, response.text
        assert response.headers["cache-control"] == "no-store"

    async def _send(self, request: httpx.Request) -> httpx.Response:
        async with client_of(self._server) as client:
            return await client.send(request)


@pytest.mark.slow
@pytest.mark.requirement("A066", "A067")
@pytest.mark.parametrize("who", EXAMPLES)
def test_requests_made_up_from_the_document(who: str) -> None:
    require_tool("schemathesis", importlib.util.find_spec("schemathesis"))
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed, settings

    quick = settings(
        max_examples=EXAMPLES[who],
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    schema = schemathesis.openapi.from_dict(document())
    with asyncio.Runner() as runner:
        sender = Sender(runner, {"nobody": {}, "user": USER, "operator": OPERATOR_HEADERS}[who])
        for operation in (each.ok() for each in schema.get_all_operations()):
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                cases = operation.as_strategy(generation_mode=mode)
                seed(SEED)(quick(given(cases)(lambda case: sender.send(case))))()
    assert len(sender.met) == len(OPERATIONS)
    assert sender.sent >= EXAMPLES[who] * len(OPERATIONS)
    for label, statuses in sender.met.items():
        if who == "nobody":
            assert statuses == {401}, label
        elif who == "user" and "/recovery/" in label:
            assert statuses == {403}, label
