"""What the guides name, held against the code: public names, signatures, and the commands of `cayu`."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from functools import cache
from typing import Any

from pydantic import BaseModel

FACES = (
    *("cayu", "cayu.approvals", "cayu.budgets", "cayu.errors", "cayu.knowledge", "cayu.notebook", "cayu.observability"),
    *("cayu.evals", "cayu.experiments", "cayu.memory", "cayu.recall", "cayu.snapshots"),
    *(
        "cayu.observability.telemetry",
        "cayu.providers",
        "cayu.runtime",
        "cayu.server",
        "cayu.sessions",
        "cayu.storage",
        "cayu.testing",
        "cayu.tools",
    ),
    "cayu_widgets",
)
"""The modules in which a reader looks for a name."""
REQUIRED = object()
"""Stands for a parameter without a default."""


@cache
def public_names() -> dict[str, Any]:
    """Return every public name of the faces that can be loaded here."""
    found: dict[str, Any] = {}
    for face in FACES:
        module = importlib.import_module(face)
        listed = getattr(module, "__all__", None) or [name for name in vars(module) if name[0].isupper()]
        found |= {name: getattr(module, name) for name in listed}
    return found


def is_there(dotted: str) -> bool:
    """Whether a dotted name that begins with a package names something."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name, None)
        return found is not None
    return False


def has_member(kind: Any, name: str) -> bool:
    """Whether a class has an attribute, a field or an annotated slot of that name."""
    return hasattr(kind, name) or name in parameters(kind) or name in getattr(kind, "__annotations__", {})


def parameters(kind: Any) -> dict[str, Any]:
    """Return what a class or a function takes, with its defaults."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {
            name: REQUIRED if field.is_required() else field.get_default(call_default_factory=True)
            for name, field in kind.model_fields.items()
        }
    if dataclasses.is_dataclass(kind):
        return {field.name: _default(field) for field in dataclasses.fields(kind)}
    try:
        taken = inspect.signature(kind).parameters.values()
    except ValueError:
        return {}
    return {each.name: REQUIRED if each.default is each.empty else each.default for each in taken}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def call_of(text: str) -> ast.Call | None:
    """Return the call that a text is, None for anything else."""
    try:
        found = ast.parse(text.replace("...", "Ellipsis"), mode="eval").body
    except SyntaxError:
        return None
    return found if isinstance(found, ast.Call) else None


def written(call: ast.Call) -> dict[str, Any]:
    """Return a signature as it is written: names, and `name=default` as values."""
    required = {arg.id: REQUIRED for arg in call.args if isinstance(arg, ast.Name)}
    return required | {str(word.arg): _value(word.value) for word in call.keywords}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return {"frozenset": frozenset, **public_names()}[node.func.id]()
    return ast.literal_eval(node)
