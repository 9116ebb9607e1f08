"""Holds the caps that keep every file readable: lines per module, class and function, and parameters per signature."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
from house.source import FUNCTIONS, Module, modules, sample

MODULE_LINES = 500
CLASS_LINES = 300
FUNCTION_LINES = 60
PARAMETERS = 8

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

# "path::qualname" (or "path" for a module) -> why it may pass a cap. An entry that nothing needs fails the test.
ALLOWED: dict[str, str] = {}


@dataclass(frozen=True)
class Excess:
    """One cap passed: by what (the key of the allow-list), where, and by how much."""

    key: str
    line: str


def excesses(module: Module) -> list[Excess]:
    """Every cap that one module passes."""
    found = []
    lines = len(module.text.splitlines())
    if lines > MODULE_LINES:
        found.append(Excess(module.path, module.line(1, f"the module has {lines} lines, over {MODULE_LINES}")))
    for qualname, node, in_class in _definitions(module.tree, ""):
        for told in _told(node, in_class=in_class):
            found.append(Excess(f"{module.path}::{qualname}", module.line(node.lineno, f"{qualname} has {told}")))
    return found


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Definition, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, *FUNCTIONS)):
            qualname = prefix + child.name
            yield qualname, child, isinstance(node, ast.ClassDef)
            yield from _definitions(child, qualname + ".")
        else:
            yield from _definitions(child, prefix)


def _told(node: Definition, *, in_class: bool) -> Iterator[str]:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    cap = CLASS_LINES if isinstance(node, ast.ClassDef) else FUNCTION_LINES
    if lines > cap:
        yield f"{lines} lines, over {cap}"
    if not isinstance(node, ast.ClassDef):
        count = parameters(node, in_class=in_class)
        if count > PARAMETERS:
            yield f"{count} parameters, over {PARAMETERS}: group them in a frozen value"


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, *, in_class: bool) -> int:
    """The parameters a caller sees: all kinds count, `self` and `cls` do not."""
    given = node.args
    count = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
    count += (given.vararg is not None) + (given.kwarg is not None)
    static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in node.decorator_list)
    bound = in_class and not static and bool(given.posonlyargs or given.args)
    return count - bound


def verdict(found: list[Excess], allowed: Mapping[str, str]) -> list[str]:
    """The lines to show: what passes a cap without leave, leave without a reason, and leave that nothing needs."""
    needed = {excess.key for excess in found}
    lines = [excess.line for excess in found if excess.key not in allowed]
    lines += [f"{key}: the allow-list gives no reason" for key, reason in allowed.items() if not reason.strip()]
    lines += [f"{key}: nothing passes a cap there; take it off the allow-list" for key in allowed if key not in needed]
    return lines


def test_everything_keeps_to_its_cap() -> None:
    broken = verdict([excess for module in modules() for excess in excesses(module)], ALLOWED)
    assert not broken, "\n" + "\n".join(broken)


def _body(lines: int, indent: str = "    ") -> str:
    return f"{indent}x = 1\n" * lines


@pytest.mark.parametrize(
    "text, key, told",
    [
        ("x = 1\n" * (MODULE_LINES + 1), "cayu/x.py", "501 lines"),
        ("class Big:\n" + _body(CLASS_LINES), "cayu/x.py::Big", "301 lines"),
        ("def long():\n" + _body(FUNCTION_LINES), "cayu/x.py::long", "61 lines"),
        ("class Held:\n    async def long(self):\n" + _body(60, " " * 8), "cayu/x.py::Held.long", "61 lines"),
        ("def host():\n    def wide(a, b, c, d, e, f, g, h, i): ...\n", "cayu/x.py::host.wide", "9 parameters"),
        ("def wide(a, b, /, c, d, *e, f, g, h, **i): ...\n", "cayu/x.py::wide", "9 parameters"),
        ("class H:\n    def __init__(self, *, a, b, c, d, e, f, g, h, i): ...\n", "cayu/x.py::H.__init__", "9 param"),
        ("class H:\n    @staticmethod\n    def wide(a, b, c, d, e, f, g, h, i): ...\n", "cayu/x.py::H.wide", "9 param"),
        ("if True:\n    def wide(a, b, c, d, e, f, g, h, i): ...\n", "cayu/x.py::wide", "9 parameters"),
    ],
)
def test_each_cap_bites(text: str, key: str, told: str) -> None:
    (excess,) = excesses(sample("cayu.x", text))
    assert excess.key == key
    assert told in excess.line


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n" * MODULE_LINES,
        "class Big:\n" + _body(CLASS_LINES - 1),
        "def long():\n" + _body(FUNCTION_LINES - 1),
        "class H:\n    def __init__(self, *, a, b, c, d, e, f, g, h): ...\n",
        "class H:\n    @classmethod\n    def of(cls, a, b, c, d, e, f, g, h): ...\n",
        "class Model(BaseModel):\n" + "".join(f"    field_{number}: int = 0\n" for number in range(20)),
    ],
)
def test_what_is_exactly_at_the_cap_passes(text: str) -> None:
    assert not excesses(sample("cayu.x", text))


def test_the_allow_list_needs_a_reason_and_a_need() -> None:
    found = [Excess("cayu/x.py::long", "cayu/x.py:1: long has 61 lines, over 60")]
    assert verdict(found, {"cayu/x.py::long": "one flat table"}) == []
    assert verdict(found, {}) == ["cayu/x.py:1: long has 61 lines, over 60"]
    assert verdict(found, {"cayu/x.py::long": " "}) == ["cayu/x.py::long: the allow-list gives no reason"]
    assert verdict([], {"cayu/x.py::long": "one flat table"}) == [
        "cayu/x.py::long: nothing passes a cap there; take it off the allow-list"
    ]
