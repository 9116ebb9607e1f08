"""Tests what a tool is: its specification, its argument checks, and which objects pass for one."""

from typing import Any

import pytest
from pydantic import ValidationError

from cayu import ExecutionProfileBehaviorIdentity, Tool, ToolContext, ToolEffect, ToolResult, ToolSpec
from cayu.errors import InvalidInput
from cayu.tools.spec import NO_ARGUMENTS, InputValidator, check_tools

OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "minimum": 1},
        "where": {"type": "object", "properties": {"site": {"enum": ["north", "south"]}}, "required": ["site"]},
    },
    "required": ["query"],
    "additionalProperties": False,
}


class Named(Tool):
    def __init__(self, name: str) -> None:
        self.spec = ToolSpec(name=name, description="Does nothing.", effect=ToolEffect.NONE)

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        return ToolResult(content=f"{self.spec.name} for {ctx.session_id}")


def spec(**more: Any) -> ToolSpec:
    return ToolSpec(**{"name": "look", "description": "Looks.", **more})


def test_name_and_description_are_all_that_a_spec_needs() -> None:
    made = spec()
    assert made.input_schema == NO_ARGUMENTS
    assert made.effect is ToolEffect.EXTERNAL, "a tool that says nothing is taken to act on the world"
    assert made.parallel_safe is True
    assert made.max_terminal_payload_bytes is None
    assert made.execution_profile_identity is None


@pytest.mark.parametrize("name", ["a", "_a", "a-b_c9", "A" * 64])
def test_names_that_every_provider_takes(name: str) -> None:
    assert spec(name=name).name == name


@pytest.mark.parametrize("name", ["", "9a", "-a", "a b", "a.b", "é", "A" * 65, "a\n"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        spec(name=name)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {},
        {"properties": {}},
        {"type": "object", "properties": {"a": {"type": "text"}}},
        {"type": "object", "required": "a"},
        {"type": "object", "default": float("nan")},
        {"type": "object", "default": object()},
    ],
)
def test_a_schema_that_is_none_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="input_schema"):
        spec(input_schema=schema)


def test_a_schema_that_points_nowhere_is_refused() -> None:
    with pytest.raises(ValidationError):
        spec(input_schema={"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}})


@pytest.mark.parametrize("more", [{"max_terminal_payload_bytes": 0}, {"effect": "maybe"}, {"timeout": 3}])
def test_other_fields_and_values_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        spec(**more)


def test_a_schema_is_a_copy() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
    made = spec(input_schema=schema)
    schema["properties"]["b"] = {"type": "string"}
    assert list(made.input_schema["properties"]) == ["a"]
    assert "a" not in spec().input_schema["properties"]


@pytest.mark.requirement("A006")
def test_a_spec_carries_its_declaration() -> None:
    identity = ExecutionProfileBehaviorIdentity(name="look", behavior_version="1", implementation_version="2")
    assert spec(execution_profile_identity=identity).execution_profile_identity == identity


@pytest.mark.parametrize(
    "arguments",
    [{"query": "x"}, {"query": "x", "limit": 3, "where": {"site": "north", "floor": 2}}],
)
def test_arguments_that_fit(arguments: dict[str, Any]) -> None:
    assert InputValidator(spec(input_schema=OBJECT)).problem(arguments) is None


@pytest.mark.parametrize(
    "arguments,places",
    [
        ({}, ["$ breaks 'required': \"query\" is a required property"]),
        ({"query": ""}, ["$.query breaks 'minLength'"]),
        ({"query": 5}, ["$.query breaks 'type'"]),
        (
            {"query": "x", "tenant": "acme"},
            ["$ breaks 'additionalProperties': Additional properties are not allowed ('tenant' was unexpected)"],
        ),
        ({"query": "x", "where": {"site": "east"}}, ["$.where.site breaks 'enum'"]),
        ({"query": 5, "limit": 0}, ["$.limit breaks 'minimum'", "$.query breaks 'type'"]),
        ([], ["$ breaks 'type'"]),
        (None, ["$ breaks 'type'"]),
    ],
)
def test_arguments_that_miss_are_told_by_place_and_rule(arguments: object, places: list[str]) -> None:
    assert InputValidator(spec(input_schema=OBJECT)).problem(arguments) == "; ".join(places)


def test_a_problem_never_quotes_a_value() -> None:
    problem = InputValidator(spec(input_schema=OBJECT)).problem({"query": ["secret"], "where": {"site": "secret"}})
    assert problem
    assert "secret" not in problem


def test_many_problems_are_cut() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20)}}
    problem = InputValidator(spec(input_schema=schema)).problem({f"p{n}": n for n in range(20)})
    assert problem is not None
    assert problem.count("breaks") == 5


def test_tools_with_different_names_are_taken() -> None:
    check_tools((Named("a"), Named("b")))
    check_tools(())


def test_a_name_that_occurs_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Two tools are named 'a'"):
        check_tools((Named("a"), Named("b"), Named("a")))


class Ready(Named):
    spec = ToolSpec(name="ready", description="Has its spec on the class.")


def plain(query: str) -> str:
    """A function that nobody has decorated."""
    return query


@pytest.mark.parametrize(
    "thing",
    [plain, "look", None, object(), spec(), Ready],
    ids=["function", "text", "nothing", "object", "spec", "class"],
)
def test_things_that_are_no_tools_are_refused(thing: Any) -> None:
    with pytest.raises(InvalidInput, match="not a Tool"):
        check_tools((thing,))


async def test_a_result_needs_its_content_only() -> None:
    result = await Named("a").run(ToolContext(session_id="s", agent_name="ann"), {})
    assert result == ToolResult(content="a for s")
    assert (result.structured, result.artifacts, result.is_error) == (None, (), False)
    with pytest.raises(ValidationError):
        ToolResult(content=5)  # type: ignore[arg-type]


def test_a_context_has_nothing_that_nobody_bound() -> None:
    context = ToolContext(session_id="s", agent_name="ann")
    assert (context.knowledge_store, context.knowledge_access_scope, context.environment_name) == (None, None, None)
    assert context.metadata == {}
