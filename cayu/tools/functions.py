"""Tools made from typed functions: the schema comes from the signature, the identity from module, name and version."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from cayu.canonical import dumps, normalise
from cayu.effects import ToolEffect
from cayu.errors import InvalidInput
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.shielding import outlast
from cayu.tools.spec import Tool, ToolContext, ToolResult, ToolSpec


class FunctionTool(Tool):
    """A tool whose work is a function; synchronous ones run in a worker thread."""

    def __init__(self, function: Callable[..., Any], spec: ToolSpec, model: type[BaseModel], context: str | None):
        self.spec = spec
        self._function = function
        self._model = model
        self._context = context

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Call the function with the arguments as its annotations have them."""
        parsed = self._model.model_validate(args)
        values = {str(spec.alias): getattr(parsed, name) for name, spec in type(parsed).model_fields.items()}
        if self._context is not None:
            values[self._context] = ctx
        if inspect.iscoroutinefunction(self._function):
            value = await self._function(**values)
        else:
            # A thread cannot be stopped: an interruption waits for its result, as long as the runtime's grace allows.
            value = await outlast(asyncio.to_thread(self._function, **values))
        return as_result(value)


def as_result(value: Any) -> ToolResult:
    """Return a function's value as a result: text as it is, models and other data as JSON in both forms."""
    if isinstance(value, ToolResult):
        return value
    if value is None or isinstance(value, str):
        return ToolResult(content=value or "")
    try:
        structured = normalise(_dumped(value))
    except ValueError:
        return ToolResult(content="", structured=value)  # the runtime says why it cannot be kept
    return ToolResult(content=dumps(structured).decode(), structured=structured)


def _dumped(value: Any) -> Any:
    """Return models, wherever they stand in lists and objects, as JSON values."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [_dumped(item) for item in value]
    if isinstance(value, dict):
        return {key: _dumped(item) for key, item in value.items()}
    return value


def tool(
    *,
    version: str,
    effect: ToolEffect,
    name: str | None = None,
    description: str | None = None,
    parallel_safe: bool = True,
    max_terminal_payload_bytes: int | None = None,
) -> Callable[[Callable[..., Any]], FunctionTool]:
    """Turn a typed function into a tool.

    `version` declares its behaviour: change it with what the function does. A parameter annotated `ToolContext`
    receives the call's context and is not shown to the model. The description is the docstring unless given.
    Raises `InvalidInput` for a function whose parameters are not all annotated.
    """

    def decorate(function: Callable[..., Any]) -> FunctionTool:
        model, context = _arguments(function)
        identity = ExecutionProfileBehaviorIdentity(
            name=f"{_module_of(function)}.{function.__qualname__}"[:256],
            behavior_version=version,
            implementation_version=version,
        )
        spec = ToolSpec(
            name=name or function.__name__,
            description=description or inspect.getdoc(function) or function.__name__,
            input_schema=_schema(function.__name__, model),
            effect=effect,
            parallel_safe=parallel_safe,
            max_terminal_payload_bytes=max_terminal_payload_bytes,
            execution_profile_identity=identity,
        )
        return FunctionTool(function, spec, model, context)

    return decorate


def _module_of(function: Callable[..., Any]) -> str:
    """Return the module's name as an importer sees it: a script is `__main__` only to itself."""
    if function.__module__ != "__main__":
        return function.__module__
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    return str(spec.name) if spec is not None else Path(file).stem if file else "__main__"


def _arguments(function: Callable[..., Any]) -> tuple[type[BaseModel], str | None]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise InvalidInput(f"{function.__name__}: an annotation names {error.name!r}, which is not there.") from None
    fields: dict[str, Any] = {}
    context = None
    for index, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidInput(f"{function.__name__}: parameter {parameter.name!r} cannot be filled by name.")
        if parameter.name not in hints:
            raise InvalidInput(f"{function.__name__}: parameter {parameter.name!r} needs a type annotation.")
        hint = hints[parameter.name]
        if ToolContext in (hint, *get_args(hint)):
            context = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"argument_{index}"] = (hint, Field(default, alias=parameter.name))
    try:
        return create_model(f"{function.__name__}_arguments", __config__=_CLOSED, **fields), context
    except PydanticSchemaGenerationError:
        raise InvalidInput(f"{function.__name__}: a parameter has a type that JSON Schema cannot describe.") from None


def _schema(name: str, model: type[BaseModel]) -> dict[str, Any]:
    try:
        schema = model.model_json_schema()
    except PydanticInvalidForJsonSchema:
        raise InvalidInput(f"{name}: a parameter has a type that JSON Schema cannot describe.") from None
    schema.pop("title", None)
    for declared in schema.get("properties", {}).values():
        declared.pop("title", None)
    return schema


_CLOSED = ConfigDict(extra="forbid")
