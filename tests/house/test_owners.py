"""Holds that each concept has one owner: hashing, SQL, the event loop; and the plain habits of every file.

Each rule is a function from one module to the lines it finds, tried on bad and good samples before it is trusted.
"""

import ast
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import require_tool
from house.source import ASIDES, FACES, FUNCTIONS, PACKAGES, ROOT, Module, imports_of, modules, sample

Rule = Callable[[Module], Iterator[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef

HASHING = "cayu.canonical"
HASHING_LIBRARIES = {"hashlib", "hmac", "rfc8785"}
SQL_HOME = "cayu.storage.sql"
NESTED_LOOPS = "cayu.notebook.nested"
# Who may start an event loop: the bridge of the notebook, the command line, and the programs beside the house.
LOOP_STARTERS = ("cayu.notebook.bridge", "cayu.cli", *ASIDES)
# A public method up to this many statements may speak for itself.
PLAIN_METHOD_STATEMENTS = 3


# Hashing ------------------------------------------------------------------------------------------------------------


def hashing(module: Module) -> Iterator[str]:
    """Only the canonical module hashes, signs and compares in constant time."""
    if module.name == HASHING:
        return
    for used in imports_of(module, ()):
        library = used.target.partition(".")[0]
        if library in HASHING_LIBRARIES:
            yield module.line(used.line, f"only {HASHING} imports {library}")


# SQL ----------------------------------------------------------------------------------------------------------------

STATEMENT = re.compile(
    r"""SELECT\b.+\bFROM\b
        | WITH\s+(?:RECURSIVE\s+)?\w+\s*(?:\([^)]*\)\s*)?AS\s*\(
        | INSERT\s+(?:OR\s+\w+\s+)?INTO\b
        | UPDATE\s+[\w."]+\s+SET\b
        | DELETE\s+FROM\b
        | CREATE\s+(?:TABLE|INDEX|VIRTUAL|UNIQUE)\b
        | ALTER\s+TABLE\b
        | DROP\s+(?:TABLE|INDEX)\b""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
SESSION_COMMAND = re.compile(r"PRAGMA\s+\w+\b.*|BEGIN(?:\s+[A-Z]+)?;?|COMMIT;?|ROLLBACK;?", re.DOTALL)
LEADING_COMMENTS = re.compile(r"\A(?:\s|--[^\n]*\n)*")
HOLE = re.compile(r"\{[^{}]*\}|%s")


def sql(module: Module) -> Iterator[str]:
    """Statements live in .sql files; Python speaks only PRAGMA and transaction words, and only beside them."""
    for number, text in _literals(module.tree):
        plain = HOLE.sub("x", LEADING_COMMENTS.sub("", text))
        if STATEMENT.match(plain):
            yield module.line(number, "SQL text belongs in a named query below cayu/storage/sql/")
        elif SESSION_COMMAND.fullmatch(plain.strip()) and not module.below(SQL_HOME):
            yield module.line(number, "transactions and pragmas belong to cayu/storage/sql/")


def _literals(node: ast.AST) -> Iterator[tuple[int, str]]:
    """String literals as the reader sees them, joined where they are joined; bare strings are documentation."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        text = _text(child)
        if text is None:
            yield from _literals(child)
            continue
        yield getattr(child, "lineno", 0), text
        for inner in ast.walk(child):
            if isinstance(inner, ast.FormattedValue):
                yield from _literals(inner)


def _text(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value) or "x" for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            halves = (_text(left), _text(right))
            return None if halves == (None, None) else "".join("x" if half is None else half for half in halves)
    return None


# The event loop -----------------------------------------------------------------------------------------------------


def nested_loops(module: Module) -> Iterator[str]:
    """One module may nest event loops, and only because the user asked."""
    if module.name != NESTED_LOOPS:
        for used in imports_of(module, ()):
            if used.target.partition(".")[0] == "nest_asyncio":
                yield module.line(used.line, f"only {NESTED_LOOPS} imports nest_asyncio")


def loop_starts(module: Module) -> Iterator[str]:
    """Library code runs on the loop it is given; few modules may start one."""
    if module.below(*LOOP_STARTERS):
        return
    told = f"only {', '.join(LOOP_STARTERS)} may start an event loop"
    names = _asyncio_names(module.tree)
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(attr="run" | "Runner", value=ast.Name(id=name)) if name in names:
                yield module.line(node.lineno, told)
            case ast.Attribute(attr="run_until_complete"):
                yield module.line(node.lineno, told)
            case ast.ImportFrom(module="asyncio" | "asyncio.runners", names=aliases) if any(
                alias.name in ("run", "Runner") for alias in aliases
            ):
                yield module.line(node.lineno, told)


def asyncio_patches(module: Module) -> Iterator[str]:
    """Nothing sets or deletes an attribute anywhere below the asyncio module."""
    names = _asyncio_names(module.tree)
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()) if _root(node) in names:
                yield module.line(node.lineno, "asyncio is not ours to patch")
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[patched, *_]) if _root(patched) in names:
                yield module.line(node.lineno, "asyncio is not ours to patch")


def _asyncio_names(tree: ast.Module) -> set[str]:
    """The names that stand for asyncio or for a part of it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.partition(".")[0] == "asyncio"]
            names |= {alias.asname or "asyncio" for alias in ours}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "asyncio":
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _root(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


# Failures -----------------------------------------------------------------------------------------------------------


def swallowed_errors(module: Module) -> Iterator[str]:
    """No error disappears: no bare `except`, no broad `except` that only passes, no broad `suppress`."""
    for node in ast.walk(module.tree):
        match node:
            case ast.ExceptHandler(type=None):
                yield module.line(node.lineno, "name the errors that this except is for")
            case ast.ExceptHandler(type=caught, body=body) if _is_broad(caught) and all(map(_does_nothing, body)):
                yield module.line(node.lineno, "a broad except must do something with the error")
            case ast.Call(func=func, args=args) if _last_name(func) == "suppress" and any(map(_is_broad, args)):
                yield module.line(node.lineno, "suppress the errors you mean, not all of them")


def _is_broad(caught: ast.AST | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(map(_is_broad, caught.elts))
    return caught is not None and _last_name(caught) in ("Exception", "BaseException")


def _last_name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _does_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


# Documentation ------------------------------------------------------------------------------------------------------


def docstrings(module: Module) -> Iterator[str]:
    """Public modules, classes, functions and longer methods say what they are for."""
    if not module.below("cayu"):
        return
    if not any(map(_is_private, module.name.split("."))) and not ast.get_docstring(module.tree):
        yield module.line(1, "the module has no docstring")
    for name, node in _undocumented(module.tree, ""):
        yield module.line(node.lineno, f"{name} has no docstring")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _undocumented(scope: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef | Function]]:
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, (ast.ClassDef, *FUNCTIONS)):
            if isinstance(node, ast.stmt | ast.ExceptHandler):
                yield from _undocumented(node, prefix)
            continue
        if node.name.startswith("_"):
            continue
        plain = isinstance(node, FUNCTIONS) and (
            (bool(prefix) and len(node.body) <= PLAIN_METHOD_STATEMENTS)
            or any(_last_name(mark) == "overload" for mark in node.decorator_list)
        )
        if not plain and not ast.get_docstring(node):
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node, f"{prefix}{node.name}.")


# Faces --------------------------------------------------------------------------------------------------------------


def faces(module: Module) -> Iterator[str]:
    """A face only gathers names; what a reader imports from it is owned by another module."""
    if module.name in FACES:
        for number, name in _defined(module.tree.body):
            if not name.startswith("_"):
                yield module.line(number, f"a face may not define {name}")


def _defined(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.If() | ast.Try():
                yield from _defined([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])
            case ast.Assign() | ast.AnnAssign():
                stored = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
                yield from ((node.lineno, name.id) for name in stored if isinstance(name.ctx, ast.Store))


RULES: tuple[Rule, ...] = (
    hashing,
    sql,
    nested_loops,
    loop_starts,
    asyncio_patches,
    swallowed_errors,
    docstrings,
    faces,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_sources_keep_the_rule(rule: Rule) -> None:
    broken = [line for module in modules() for line in rule(module)]
    assert not broken, "\n" + "\n".join(broken)


BAD: tuple[tuple[Rule, str, str], ...] = (
    (hashing, "cayu.tools", "import hashlib"),
    (hashing, "cayu.tools", "from hmac import compare_digest"),
    (hashing, "cayu.testing.stores", "def late():\n    import rfc8785"),
    (hashing, "cayu_widgets.queue", "__import__('hashlib')"),
    (sql, "cayu.sessions", "q = 'SELECT id FROM sessions'"),
    (sql, "cayu.sessions", "q = 'select id\\n  from sessions'"),
    (sql, "cayu.sessions", "q = '''\n    -- newest first\n    SELECT id FROM sessions'''"),
    (sql, "cayu.sessions", "q = f'SELECT {columns} FROM {table}'"),
    (sql, "cayu.sessions", "q = 'SELECT id ' + 'FROM ' + table"),
    (sql, "cayu.sessions", "q = 'WITH due AS (SELECT 1) SELECT * FROM due'"),
    (sql, "cayu.sessions", "q = f'UPDATE {table} SET state = 1'"),
    (sql, "cayu.sessions", "q = 'UPDATE {} SET state = 1'.format(table)"),
    (sql, "cayu.sessions", "q = 'UPDATE %s SET state = 1' % table"),
    (sql, "cayu.storage.sql.sqlite", "run('INSERT OR IGNORE INTO events VALUES (1)')"),
    (sql, "cayu.benchmarks.phase", "run('DELETE FROM events')"),
    (sql, "cayu.testing.stores", "run('CREATE TABLE t (x)')"),
    (sql, "cayu.examples.demo", "run('ALTER TABLE t ADD y')"),
    (sql, "cayu_widgets.queue", "run('DROP INDEX i')"),
    (sql, "cayu.runtime", "run('PRAGMA journal_mode=WAL')"),
    (sql, "cayu.storage.sessions", "run('BEGIN IMMEDIATE')"),
    (sql, "cayu.runtime", "run('COMMIT')"),
    (nested_loops, "cayu.notebook.bridge", "import nest_asyncio"),
    (nested_loops, "cayu.cli", "def late():\n    from nest_asyncio import apply"),
    (loop_starts, "cayu.runtime", "import asyncio\nasyncio.run(main())"),
    (loop_starts, "cayu.runtime", "import asyncio as aio\naio.run(main())"),
    (loop_starts, "cayu.runtime", "from asyncio import run"),
    (loop_starts, "cayu.notebook.lab", "import asyncio\nwith asyncio.Runner() as runner: ..."),
    (loop_starts, "cayu.experiments", "loop.run_until_complete(main())"),
    (asyncio_patches, "cayu.notebook.nested", "import asyncio\nasyncio.run = mine"),
    (asyncio_patches, "cayu.notebook.bridge", "import asyncio as aio\naio.events.get_event_loop = mine"),
    (asyncio_patches, "cayu.runtime", "from asyncio import events\nevents.get_event_loop = mine"),
    (asyncio_patches, "cayu.runtime", "import asyncio\nsetattr(asyncio, 'run', mine)"),
    (asyncio_patches, "cayu.runtime", "import asyncio\ndel asyncio.run"),
    (swallowed_errors, "cayu.runtime", "try:\n    x\nexcept:\n    raise"),
    (swallowed_errors, "cayu.runtime", "try:\n    x\nexcept Exception:\n    pass"),
    (swallowed_errors, "cayu.runtime", "try:\n    x\nexcept (OSError, BaseException) as error:\n    ..."),
    (swallowed_errors, "cayu.runtime", "with contextlib.suppress(Exception):\n    x"),
    (docstrings, "cayu.runtime", "x = 1"),
    (docstrings, "cayu.runtime", "'''Doc.'''\nclass Loop: ..."),
    (docstrings, "cayu.runtime", "'''Doc.'''\nasync def run(): ..."),
    (docstrings, "cayu.runtime", "'''Doc.'''\nif x:\n    def run(): ..."),
    (
        docstrings,
        "cayu._inner",
        "class Loop:\n    '''Doc.'''\n    def run(self):\n        a\n        b\n        c\n        d",
    ),
    (docstrings, "cayu._inner", "class Loop:\n    '''Doc.'''\n    class Step: ..."),
    (faces, "cayu.approvals", "class Gate: ..."),
    (faces, "cayu", "def gate(): ..."),
    (faces, "cayu", "LIMIT = 3"),
    (faces, "cayu", "if x:\n    limit: int = 3"),
)

GOOD: tuple[tuple[Rule, str, str], ...] = (
    (hashing, "cayu.canonical", "import hashlib, hmac, rfc8785"),
    (hashing, "cayu.tools", "import secrets"),
    (sql, "cayu.sessions", "'''SELECT id FROM sessions'''\ndef f():\n    '''DELETE FROM it.'''"),
    (sql, "cayu.sessions", "class A:\n    x: int\n    '''Update x set by the store.'''"),
    (sql, "cayu.sessions", "phase = 'commit'; verb = 'selection from a list'; word = 'begin'"),
    (sql, "cayu.storage.sql.sqlite", "run('PRAGMA journal_mode=WAL'); run('BEGIN IMMEDIATE'); run('ROLLBACK')"),
    (nested_loops, "cayu.notebook.nested", "import nest_asyncio"),
    (loop_starts, "cayu.notebook.bridge", "import asyncio\nasyncio.run(main())"),
    (loop_starts, "cayu.examples.demo", "import asyncio\nasyncio.run(main())"),
    (loop_starts, "cayu.tools", "import asyncio\nawait_(asyncio.timeout(1)); subprocess.run(x); tool.run(x)"),
    (asyncio_patches, "cayu.runtime", "import asyncio\nself.lock = asyncio.Lock()"),
    (swallowed_errors, "cayu.runtime", "try:\n    x\nexcept KeyError:\n    pass"),
    (swallowed_errors, "cayu.runtime", "try:\n    x\nexcept Exception:\n    record()"),
    (docstrings, "cayu.runtime", "'''Doc.'''\ndef _step(): ...\nclass _Loop: ..."),
    (docstrings, "cayu.runtime", "'''Doc.'''\nclass Loop:\n    '''Doc.'''\n    def run(self):\n        a\n        b"),
    (docstrings, "cayu_widgets.queue", "class Queue: ..."),
    (faces, "cayu", "from cayu.tools import Tool\n__all__ = ['Tool']\n_OWNERS = {}\ndef __getattr__(name): ..."),
    (faces, "cayu.tools", "LIMIT = 3"),
)


@pytest.mark.parametrize("rule, name, text", BAD)
def test_the_rule_bites(rule: Rule, name: str, text: str) -> None:
    (line,) = rule(sample(name, text))
    assert line.startswith(name.replace(".", "/") + ".py:")


@pytest.mark.parametrize("rule, name, text", GOOD)
def test_the_rule_leaves_good_code_alone(rule: Rule, name: str, text: str) -> None:
    assert not list(rule(sample(name, text)))


def test_every_rule_is_tried_on_both_kinds() -> None:
    assert {rule for rule, _, _ in BAD} == {rule for rule, _, _ in GOOD} == set(RULES)


# Text that no file may hold -----------------------------------------------------------------------------------------
# The words are put together here, so that this file does not find itself.

UNFINISHED = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
FOREIGN = tuple(
    (head + tail).encode()
    for head, tail in (
        ("/wo", "rk/"),
        ("pypi", ".org"),
        ("python", "hosted"),
        ("registry", ".npmjs"),
        ("deb", ".debian"),
    )
)


def unfinished(path: str, text: str) -> list[str]:
    """Lines that hold a note to come back later."""
    return [
        f"{path}:{number}: finish it, or leave the note out: {found.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for found in UNFINISHED.finditer(line)
    ]


def foreign(path: str, data: bytes) -> list[str]:
    """Lines that hold a path of one machine or the host of a package registry."""
    return [
        f"{path}:{number}: {word.decode()} belongs to one machine or network"
        for number, line in enumerate(data.split(b"\n"), 1)
        for word in FOREIGN
        if word in line
    ]


def sql_strays(paths: list[str]) -> list[str]:
    """SQL files outside their home; the asides may keep their own."""
    homes = tuple(home.replace(".", "/") + "/" for home in (SQL_HOME, *ASIDES))
    return [f"{path}: SQL files live below cayu/storage/sql/" for path in paths if not path.startswith(homes)]


def _sources(*suffixes: str) -> list[Path]:
    trees = (*PACKAGES.values(), ROOT / "tests")
    return sorted(path for tree in trees for path in tree.rglob("*") if path.suffix in suffixes)


def test_nothing_is_left_unfinished() -> None:
    files = _sources(".py", ".sql", ".md")
    broken = [line for path in files for line in unfinished(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))]
    assert not broken, "\n" + "\n".join(broken)


def test_sql_files_are_at_home() -> None:
    broken = sql_strays([path.relative_to(ROOT).as_posix() for path in _sources(".sql")])
    assert not broken, "\n" + "\n".join(broken)


def test_no_file_names_a_machine_or_a_registry() -> None:
    git = shutil.which("git")
    require_tool("a git checkout", git and (ROOT / ".git").exists())
    # What is not ignored would be added next, so it is read as well.
    command = [git or "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = sorted({name for name in listed.split("\0") if (ROOT / name).is_file()})
    assert "pyproject.toml" in files
    broken = [line for name in files for line in foreign(name, (ROOT / name).read_bytes())]
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"])
def test_notes_to_come_back_are_caught(word: str) -> None:
    assert unfinished("x.py", f"a = 1\nb = 2  # {word}: later\n") == [
        f"x.py:2: finish it, or leave the note out: {word}"
    ]
    assert not unfinished("x.py", f"a{word}b\n{word.lower()}\n")


@pytest.mark.parametrize("word", FOREIGN)
def test_foreign_words_are_caught(word: bytes) -> None:
    assert len(foreign("x.md", b"fine\n\x00see " + word + b" for more\n")) == 1
    assert not foreign("x.md", b"a framework for notebooks\n/lab-work/\n")


def test_stray_sql_files_are_caught() -> None:
    kept = ["cayu/storage/sql/sqlite/events.sql", "cayu/benchmarks/probe.sql"]
    assert sql_strays([*kept, "cayu/runtime/events.sql"]) == [
        "cayu/runtime/events.sql: SQL files live below cayu/storage/sql/"
    ]
