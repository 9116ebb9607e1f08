"""The guides tell the truth: their programs run, and what they name, show and point at is there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from guides.names import REQUIRED, call_of, has_member, is_there, parameters, public_names, written
from guides.reading import TOPICS, Guide, guide, slug

from cayu import CayuApp, KnowledgeStore, errors
from cayu.crashpoints import CRASH_POINTS
from cayu.events import EventType
from cayu.notebook import Lab
from cayu.sessions import BlockerCode, RecoveryAction
from cayu.testing import RestartHarness

GUIDES = [guide(topic) for topic in TOPICS]
BY_TOPIC = pytest.mark.parametrize("each", GUIDES, ids=lambda each: each.topic)
TAKES_LONG = ("run_child(", "run_experiment(")
PROGRAMS = [
    pytest.param(
        each, id=each.topic, marks=[pytest.mark.slow] if any(each.text.count(word) for word in TAKES_LONG) else []
    )
    for each in GUIDES
]
SECTIONS = (
    *("sessions", "knowledge", "recall", "evaluations", "snapshots", "memory-interventions", "experiments"),
    *("approvals-and-questions", "recovery", "limits-and-budgets"),
    *("tools", "events", "timing", "errors", "command-line", "server"),
)
CLASS_NAME = re.compile(r"[A-Z][a-z0-9]*[A-Za-z0-9]*[a-z][A-Za-z0-9]*")
DOTTED = re.compile(r"cayu(?:_widgets)?(?:\.\w+)+")
MEMBER = re.compile(r"\b(app|lab|harness|store|[A-Z]\w+)\.(\w+)\b")
EVENT = re.compile(r"(?:session|model|tool|budget|recovery|memory)\.[a-z_]+(?:\.[a-z_]+)*")
OWNERS = {"app": CayuApp, "lab": Lab, "harness": RestartHarness, "store": KnowledgeStore}
NOT_OURS = frozenset(("None", "True", "False", "TimeoutError", "ValidationError"))
"""Words of Python and of pydantic."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, from which modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module in which the blocks of one guide run."""
    module = ModuleType("guide_program")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def save_files(each: Guide, folder: Path) -> None:
    """Write the blocks that want to be files."""
    for block in each.blocks:
        if block.file_name:
            folder.joinpath(block.file_name).write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize("each", PROGRAMS)
def test_the_programs_run_as_they_stand(each: Guide, folder: Path, program: ModuleType) -> None:
    blocks = [block for block in each.blocks if block.language == "python"]
    save_files(each, folder)
    for block in blocks:
        if block.file_name is None:
            text = "\n" * (block.line - 1) + block.text
            exec(compile(text, f"{each.topic}.md", "exec"), vars(program))
    assert not blocks or "assert " in blocks[-1].text or blocks[-1].file_name, "the last program shows nothing"


@BY_TOPIC
def test_each_opens_with_a_title_and_one_line(each: Guide) -> None:
    title, blank, summary, after = each.text.splitlines()[:4]
    assert title.startswith("# ")
    assert blank == after == ""
    assert summary.endswith(".")
    assert [level for level, _ in each.headings].count(1) == 1
    assert len(set(each.slugs)) == len(each.slugs)


def test_there_are_exactly_these_guides() -> None:
    folder = Path(sys.modules["cayu"].__path__[0], "guides")
    assert {path.stem for path in folder.glob("*.md")} >= set(TOPICS)
    assert tuple(guide("references").slugs[1:]) == SECTIONS


def lost_pointers(each: Guide) -> list[str]:
    """Pointers of a guide, at others or within itself, that lead nowhere."""
    lost = [f"{topic}#{name}" for topic, name in each.pointers if topic not in TOPICS or _misses(topic, name)]
    return lost + [f"#{name}" for name in re.findall(r"\]\(#([\w-]+)\)", each.prose) if name not in each.slugs]


def _misses(topic: str, name: str | None) -> bool:
    return name is not None and name not in guide(topic).slugs


@BY_TOPIC
def test_every_pointer_leads_somewhere(each: Guide) -> None:
    assert each.topic == "references" or each.pointers
    assert lost_pointers(each) == []


def test_a_heading_is_addressed_as_on_github() -> None:
    assert slug("Approvals and questions") == "approvals-and-questions"
    assert slug("A stuck session, step by step") == "a-stuck-session-step-by-step"


def unknown_names(each: Guide) -> list[str]:
    """What a guide names in backticks and is not there: modules, classes, types of events."""
    unknown = []
    for span in each.spans:
        bare = re.sub(r'"[^"]*"', "", span)
        if DOTTED.fullmatch(span):
            unknown += [] if is_there(span) else [span]
        elif not span.startswith(("cayu", "[")):
            found = CLASS_NAME.findall(bare)
            unknown += [name for name in found if not (name in NOT_OURS or name in public_names())]
        if EVENT.fullmatch(span) and span not in set(EventType) and span not in CRASH_POINTS:
            unknown.append(span)
    return unknown


def unknown_members(each: Guide) -> list[str]:
    """`owner.member` of a guide's spans that the owner does not have."""
    unknown = []
    for span in each.spans:
        for owner, name in MEMBER.findall("" if span.startswith("cayu") else re.sub(r'"[^"]*"', "", span)):
            kind = OWNERS.get(owner) or public_names().get(owner)
            unknown += [] if kind is not None and has_member(kind, name) else [f"{owner}.{name}"]
    return unknown


def unknown_arguments(each: Guide) -> list[str]:
    """Keywords of the calls in a guide's spans that the class or method does not take."""
    unknown = []
    for span in each.spans:
        call = call_of(re.sub(r"=(?=[,)])", "=0", span))
        name = ast_name(call.func) if call else ""
        kind = public_names().get(name) or getattr(CayuApp, name, None) or getattr(KnowledgeStore, name, None)
        if call is not None and kind is not None:
            unknown += [f"{name}({word.arg})" for word in call.keywords if word.arg not in parameters(kind)]
    return unknown


@BY_TOPIC
def test_every_name_is_there(each: Guide) -> None:
    assert unknown_names(each) + unknown_members(each) + unknown_arguments(each) == []


@pytest.mark.parametrize(
    "text, faults",
    [
        ("`cayu.no_module`", ["cayu.no_module"]),
        ("`cayu.sessions.NoRecord`", ["cayu.sessions.NoRecord"]),
        ("`NoSuchTool(name=...)`", ["NoSuchTool"]),
        ("`session.no_event`", ["session.no_event"]),
        ("`app.no_verb(x)` and `RunLimits.no_field`", ["app.no_verb", "RunLimits.no_field"]),
        ("`RunLimits(no_field=1)` and `app.run(no_field=1)`", ["RunLimits(no_field)", "run(no_field)"]),
        (
            "`cayu guide nothing`, `cayu guide anatomy#nothing`, [x](#nowhere)",
            ["nothing#None", "anatomy#nothing", "#nowhere"],
        ),
        ('`cayu.sessions.fold`, `RunLimits(scope="run")`, `app.run(request)`, `cayu guide anatomy#budgets`', []),
    ],
)
def test_what_is_not_there_is_noticed(text: str, faults: list[str]) -> None:
    false = Guide("false", text)
    found = unknown_names(false) + unknown_members(false) + unknown_arguments(false) + lost_pointers(false)
    assert found == faults


def ast_name(node: object) -> str:
    """Return the last word of a dotted name."""
    return str(getattr(node, "id", None) or getattr(node, "attr", ""))


def test_the_signatures_are_those_of_the_code() -> None:
    shown = "\n".join(block.text for block in guide("references").blocks if block.language == "text")
    lines = [line for line in re.sub(r"\n +", " ", shown).splitlines() if line]
    assert len(lines) > 40
    for line in lines:
        call = call_of(line)
        assert call is not None, line
        name = ast_name(call.func)
        wanted, found = written(call), parameters(public_names()[name])
        assert wanted.keys() == found.keys(), f"{name}: {wanted.keys() ^ found.keys()}"
        for field, default in found.items():
            assert wanted[field] == default, f"{name}.{field} is {default!r}"
            assert (wanted[field] is REQUIRED) == (default is REQUIRED), f"{name}.{field}"


def first_cells(text: str) -> list[str]:
    """What stands in backticks in the first cell of each row of a text's tables."""
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|", text, re.MULTILINE)
    return [name for cell in rows for name in re.findall(r"`([^`]+)`", cell)]


def section(each: Guide, title: str) -> str:
    """The text of one section of the second level."""
    return each.text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_blocker_code_is_explained_once() -> None:
    assert sorted(first_cells(section(guide("durable-operations"), "Blocker codes"))) == sorted(BlockerCode)


def test_every_error_is_listed_once() -> None:
    listed = first_cells(section(guide("references"), "Errors"))
    every = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    families = {kind.__mro__[1].__name__ for kind in vars(errors).values() if isinstance(kind, type)}
    assert len(listed) == len(set(listed))
    assert set(listed) <= every
    assert every - set(listed) <= families


def test_every_crash_point_named_is_one() -> None:
    named = first_cells(section(guide("tool-effects"), "Where the process may die"))
    assert len(named) == 6
    assert set(named) <= set(CRASH_POINTS)


def test_every_recovery_action_is_explained() -> None:
    spans = guide("durable-operations").spans
    assert {str(action) for action in RecoveryAction} <= set(spans)
