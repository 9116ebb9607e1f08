"""Tests the decorator that makes a tool of a function: its schema, its arguments, its results, its identity."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from cayu import AgentSpec, CayuApp, Message, RunRequest, ToolContext, ToolEffect, ToolResult, run_to_completion, tool
from cayu.errors import InvalidInput
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.tools import FunctionTool
from cayu.tools.spec import InputValidator

CONTEXT = ToolContext(session_id="one", agent_name="ann", idempotency_key="key")


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    site: str
    floor: int = 0


reading = tool(version="1", effect=ToolEffect.NONE)


@tool(version="3", effect=ToolEffect.IDEMPOTENT, parallel_safe=False, max_terminal_payload_bytes=100)
async def book(
    place: Place,
    day: date,
    colours: list[Colour] = [],  # noqa: B006 - the decorator copies defaults
    seats: Annotated[int, Field(ge=1, le=9, description="How many seats.")] = 1,
    kind: Literal["desk", "room"] = "desk",
    note: str | None = None,
) -> dict[str, Any]:
    """Book a place.

    Takes one day at a time.
    """
    colours.append(Colour.BLUE)
    return {"site": place.site, "floor": place.floor, "day": day.isoformat(), "colours": colours, "seats": seats}


def test_the_spec_comes_from_the_signature() -> None:
    spec = book.spec
    assert isinstance(book, FunctionTool)
    assert (spec.name, spec.description) == ("book", "Book a place.\n\nTakes one day at a time.")
    assert (spec.effect, spec.parallel_safe) == (ToolEffect.IDEMPOTENT, False)
    assert spec.max_terminal_payload_bytes == 100
    properties = spec.input_schema["properties"]
    assert list(properties) == ["place", "day", "colours", "seats", "kind", "note"]
    assert spec.input_schema["required"] == ["place", "day"]
    assert spec.input_schema["additionalProperties"] is False
    assert "title" not in spec.input_schema
    assert properties["seats"]["description"] == "How many seats."
    assert (properties["seats"]["minimum"], properties["seats"]["default"]) == (1, 1)
    assert properties["kind"]["enum"] == ["desk", "room"]


@pytest.mark.parametrize(
    "arguments,fits",
    [
        ({"place": {"site": "n"}, "day": "2030-01-01"}, True),
        ({"place": {"site": "n", "floor": 2}, "day": "2030-01-01", "colours": ["red"], "note": None}, True),
        ({"place": {"site": "n"}}, False),
        ({"place": {"floor": 2}, "day": "2030-01-01"}, False),
        ({"place": {"site": "n"}, "day": "2030-01-01", "seats": 10}, False),
        ({"place": {"site": "n"}, "day": "2030-01-01", "kind": "sofa"}, False),
        ({"place": {"site": "n"}, "day": "2030-01-01", "colours": ["green"]}, False),
        ({"place": {"site": "n"}, "day": "2030-01-01", "ctx": {}}, False),
    ],
)
def test_the_schema_admits_what_the_function_takes(arguments: dict[str, Any], fits: bool) -> None:
    assert (InputValidator(book.spec).problem(arguments) is None) == fits


async def test_arguments_arrive_as_the_annotations_have_them() -> None:
    arguments = {"place": {"site": "n", "floor": 2}, "day": "2030-01-02", "colours": ["red"], "seats": 3}
    result = await book.run(CONTEXT, arguments)
    assert result.structured == {"site": "n", "floor": 2, "day": "2030-01-02", "colours": ["red", "blue"], "seats": 3}
    assert result.content == '{"site":"n","floor":2,"day":"2030-01-02","colours":["red","blue"],"seats":3}'
    assert arguments["colours"] == ["red"], "the arguments belong to the log"


async def test_a_default_is_fresh_for_each_call() -> None:
    for _ in range(2):
        result = await book.run(CONTEXT, {"place": {"site": "n"}, "day": "2030-01-02"})
        assert result.structured["colours"] == ["blue"]


async def test_the_context_is_handed_over_and_hidden_from_the_model() -> None:
    @reading
    async def who(name: str, ctx: ToolContext) -> str:
        """Say who asks."""
        return f"{name} in {ctx.session_id} under {ctx.idempotency_key}"

    assert list(who.spec.input_schema["properties"]) == ["name"]
    assert (await who.run(CONTEXT, {"name": "ann"})).content == "ann in one under key"


async def test_a_synchronous_function_runs_in_a_worker_thread() -> None:
    gate = threading.Event()

    @reading
    def where() -> str:
        """Say where it runs."""
        assert gate.wait(5), "the loop was blocked"
        return threading.current_thread().name

    running = asyncio.create_task(where.run(CONTEXT, {}))
    await asyncio.sleep(0)
    gate.set()
    assert (await running).content != threading.current_thread().name


async def test_an_asynchronous_function_runs_on_the_loop() -> None:
    @reading
    async def where() -> str:
        """Say where it runs."""
        return threading.current_thread().name

    assert (await where.run(CONTEXT, {})).content == threading.current_thread().name


@pytest.mark.parametrize(
    "value,content,structured",
    [
        ("text", "text", None),
        ("", "", None),
        (None, "", None),
        (True, "true", True),
        (7, "7", 7),
        ([1, "é"], '[1,"é"]', [1, "é"]),
        ((1, 2), "[1,2]", [1, 2]),
        ({"a": None}, '{"a":null}', {"a": None}),
        (Place(site="n"), '{"site":"n","floor":0}', {"site": "n", "floor": 0}),
        ([Place(site="n")], '[{"site":"n","floor":0}]', [{"site": "n", "floor": 0}]),
        ({"at": Place(site="n")}, '{"at":{"site":"n","floor":0}}', {"at": {"site": "n", "floor": 0}}),
    ],
    ids=str,
)
async def test_return_values_become_results(value: Any, content: str, structured: Any) -> None:
    @reading
    async def give() -> Any:
        """Give a value."""
        return value

    assert await give.run(CONTEXT, {}) == ToolResult(content=content, structured=structured)


async def test_a_result_is_passed_on_as_it_is() -> None:
    given = ToolResult(content="no", structured={"a": 1}, is_error=True)

    @reading
    async def give() -> ToolResult:
        """Give a result."""
        return given

    assert await give.run(CONTEXT, {}) is given


async def test_an_exception_leaves_the_tool() -> None:
    @reading
    def fail() -> str:
        """Fail."""
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        await fail.run(CONTEXT, {})


@dataclass
class Odd:
    n: int = 1


@pytest.mark.parametrize(
    "value", [Odd(), {1, 2}, float("nan"), 10**30, {"a": object()}], ids=lambda v: type(v).__name__
)
async def test_a_value_that_cannot_be_kept_does_not_undo_the_call(value: Any) -> None:
    """The effect has happened by then: the call is completed, with an error for its result."""
    acted = []

    @tool(version="1", effect=ToolEffect.EXTERNAL)
    async def act() -> Any:
        """Act, and give something odd."""
        acted.append(1)
        return value

    app = CayuApp()
    app.register_provider(ScriptedModelProvider([[ModelStreamEvent.tool_call("act")], "done"]))
    app.register_agent(AgentSpec(name="ann", model="m"), tools=[act])
    request = RunRequest(agent_name="ann", messages=(Message.text("user", "go"),))
    outcome = await run_to_completion(app, request)
    call = outcome.tool_calls[0]
    assert (len(acted), call.state, call.is_error, call.code) == (1, "completed", True, "unstorable")
    assert outcome.final_text == "done"


# Identity


@pytest.mark.requirement("A006")
def test_the_identity_is_declared_from_module_name_and_version() -> None:
    identity = book.spec.execution_profile_identity
    assert identity is not None
    assert identity.name.endswith("test_functions.book")
    assert (identity.behavior_version, identity.implementation_version) == ("3", "3")


def test_name_and_description_may_be_given() -> None:
    @tool(version="1", effect=ToolEffect.NONE, name="other", description="Does other things.")
    def own(x: int) -> int:
        return x

    assert (own.spec.name, own.spec.description) == ("other", "Does other things.")


def test_a_function_without_a_docstring_is_described_by_its_name() -> None:
    @reading
    def bare(x: int) -> int:
        return x

    assert bare.spec.description == "bare"


def test_version_and_effect_are_asked_for() -> None:
    for known in ({"version": "1"}, {"effect": ToolEffect.NONE}, {}):
        with pytest.raises(TypeError):
            tool(**known)  # type: ignore[call-overload,arg-type]


# Functions that make no tool


def unannotated(x) -> str:  # type: ignore[no-untyped-def]
    return str(x)


def many(*xs: int) -> str:
    return str(xs)


def named(**xs: int) -> str:
    return str(xs)


def positional(x: int, /) -> str:
    return str(x)


def hidden(_x: int) -> str:
    return str(_x)


def unknown(x: "Missing") -> str:  # type: ignore[name-defined]  # noqa: F821
    return str(x)


def shapeless(x: threading.Lock) -> str:
    return str(x)


def maybe(ctx: ToolContext | None = None) -> str:
    return str(ctx)


@pytest.mark.parametrize(
    "function", [unannotated, many, named, positional, unknown, shapeless], ids=lambda f: f.__name__
)
def test_a_function_that_makes_no_tool_is_refused_by_name(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInput, match=function.__name__):
        reading(function)


@pytest.mark.parametrize("function", [hidden, maybe], ids=lambda f: f.__name__)
async def test_what_is_neither_plain_nor_wrong_works_or_is_refused(function: Callable[..., Any]) -> None:
    made = None
    with contextlib.suppress(InvalidInput):
        made = reading(function)
    if made is not None:
        assert (await made.run(CONTEXT, {"_x": 1} if function is hidden else {})).is_error is False


async def test_any_name_will_do_for_a_parameter() -> None:
    @reading
    def odd(json: str, copy: int, schema: str, model_dump: int, model_config: str) -> list[Any]:
        """Take names that a model has for itself."""
        return [json, copy, schema, model_dump, model_config]

    names = ["json", "copy", "schema", "model_dump", "model_config"]
    assert list(odd.spec.input_schema["properties"]) == names
    arguments = {"json": "a", "copy": 1, "schema": "b", "model_dump": 2, "model_config": "c"}
    assert (await odd.run(CONTEXT, arguments)).structured == ["a", 1, "b", 2, "c"]
