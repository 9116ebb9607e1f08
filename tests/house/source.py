"""The source trees as parsed modules, and what each of them imports; the tests here hold the rules."""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"cayu": ROOT / "cayu", "cayu_widgets": ROOT / "widgets" / "cayu_widgets"}
# Beside the floors: public test tools, examples and benchmarks.
ASIDES = ("cayu.testing", "cayu.examples", "cayu.benchmarks")
# Modules that only gather names for readers outside.
FACES = ("cayu", "cayu.approvals")

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """One parsed file: its dotted name, its path from the root of the project, its text and its tree."""

    name: str
    path: str
    text: str
    tree: ast.Module
    is_package: bool = False

    def line(self, number: int, message: str) -> str:
        """A finding in the form that editors and terminals can jump to."""
        return f"{self.path}:{number}: {message}"

    def below(self, *prefixes: str) -> bool:
        """Whether this module is one of the named modules or lies in one of the named packages."""
        return is_below(self.name, *prefixes)


@dataclass(frozen=True, order=True)
class Import:
    """One imported module, where it stands, and whether only a function call would run it."""

    line: int
    target: str
    in_function: bool


def is_below(name: str, *prefixes: str) -> bool:
    """Whether a dotted name equals one of the prefixes or continues it after a dot."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def sample(name: str, text: str, *, is_package: bool = False) -> Module:
    """A module made of a string, for showing that a rule bites."""
    path = name.replace(".", "/") + ("/__init__.py" if is_package else ".py")
    return Module(name, path, text, ast.parse(text), is_package)


@cache
def modules() -> tuple[Module, ...]:
    """Every module of the library and of the widgets, in the order of their names."""
    found = [_read(package, path) for package, top in PACKAGES.items() for path in top.rglob("*.py")]
    assert {module.name for module in found} >= set(PACKAGES), f"no sources below {ROOT}"
    return tuple(sorted(found, key=lambda module: module.name))


def _read(package: str, path: Path) -> Module:
    parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    name = ".".join((package, *(parts[:-1] if is_package else parts)))
    text = path.read_text(encoding="utf-8")
    return Module(name, path.relative_to(ROOT).as_posix(), text, ast.parse(text, filename=str(path)), is_package)


def imports_of(module: Module, known: Collection[str]) -> list[Import]:
    """All imports at any depth, `TYPE_CHECKING` blocks and literal dynamic imports included.

    `from a import b` counts as `a.b` when that is one of the `known` modules, otherwise as `a`.
    """
    found: set[Import] = set()
    for node, in_function in _nodes(module.tree, in_function=False):
        for target in _targets(node, module, known):
            found.add(Import(getattr(node, "lineno", 0), target, in_function))
    return sorted(found)


def _nodes(node: ast.AST, *, in_function: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        yield child, in_function
        yield from _nodes(child, in_function=in_function or isinstance(child, FUNCTIONS))


def _targets(node: ast.AST, module: Module, known: Collection[str]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=stem, names=names, level=level):
            base = _absolute(module, stem or "", level)
            for alias in names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            stem = name.lstrip(".")
            yield _absolute(module, stem, len(name) - len(stem))


def _absolute(module: Module, stem: str, level: int) -> str:
    if not level:
        return stem
    parts = module.name.split(".")
    kept = parts[: len(parts) - level + module.is_package]
    return ".".join([*kept, stem] if stem else kept)


def own_imports(module: Module) -> list[Import]:
    """The imports of a real module, resolved against the real tree."""
    return imports_of(module, {other.name for other in modules()})
