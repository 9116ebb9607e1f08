"""Tests the data files: their digests, their counts, and that each question is answered where it says."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cayu.canonical import file_digest
from cayu.errors import DatasetError
from cayu.knowledge.ranking import content_tokens, text_score
from cayu.storage import (
    Control,
    datasets,
    handbook_controls,
    handbook_entries,
    handbook_questions,
    manifest,
    python_topics,
)

KINDS = ("irrelevant", "stale", "conflicting", "adversarial")
READERS = {
    "controls.jsonl": handbook_controls,
    "handbook.jsonl": handbook_entries,
    "questions.jsonl": handbook_questions,
}


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the data files that a test may damage."""
    place = tmp_path / "datasets"
    shutil.copytree(datasets.folder(), place)
    datasets.folder.cache_clear()
    monkeypatch.setattr(datasets, "_PLACES", (tmp_path / "nowhere", place))
    yield place
    datasets.folder.cache_clear()


def test_the_manifest_describes_every_data_file() -> None:
    listed = manifest()
    assert set(listed) == {path.name for path in datasets.folder().glob("*.jsonl")}
    for name, sheet in listed.items():
        data = (datasets.folder() / name).read_bytes()
        assert sheet["sha256"] == file_digest(data)
        assert sheet["bytes"] == len(data)
        assert sheet["rows"] == data.count(b"\n")
        assert data.endswith(b"\n")
        assert b"\r" not in data
        assert sheet["licence"]
        assert sheet["provenance"]
        assert sheet["description"]


def test_the_handbook_is_what_its_readme_says() -> None:
    entries = handbook_entries()
    assert len(entries) == len({entry.id for entry in entries}) == 122
    assert [(entry.namespace, entry.id) for entry in entries] == sorted((e.namespace, e.id) for e in entries)
    assert Counter(entry.namespace for entry in entries) == {
        "handbook": 43,
        "safety": 24,
        "equipment": 19,
        "ordering": 13,
        "people": 13,
        "records": 10,
    }
    assert Counter(entry.visibility for entry in entries) == {"public": 88, "internal": 23, "restricted": 11}
    assert Counter(entry.status for entry in entries) == {"active": 114, "archived": 8}
    assert {entry.kind for entry in entries} == {"fact", "procedure", "policy"}
    assert all(entry.title and entry.source_type == "handbook" and "topic" in entry.labels for entry in entries)
    archived = {entry.labels["superseded_by"] for entry in entries if entry.status == "archived"}
    assert archived <= {entry.id for entry in entries if entry.status == "active"}


def test_each_question_is_answered_by_its_entries() -> None:
    entries = {entry.id: entry for entry in handbook_entries()}
    questions = handbook_questions()
    assert [question.id for question in questions] == [f"q{number:03}" for number in range(1, 61)]
    assert set(Counter(question.topic for question in questions).values()) == {5}
    for question in questions:
        assert 1 <= len(question.expected_entries) <= 2
        assert 1 <= len(question.answer.split()) <= 6
        for id in question.expected_entries:
            entry = entries[id]
            assert (entry.namespace, entry.visibility, entry.status) == (question.namespace, "public", "active")
            assert question.answer.lower() in entry.text.lower()
        assert entries[question.expected_entries[0]].labels["topic"] == question.topic


def test_an_answer_stands_nowhere_else() -> None:
    public = [entry for entry in handbook_entries() if entry.visibility == "public" and entry.status == "active"]
    doubled = []
    for question in handbook_questions():
        holders = {
            entry.id
            for entry in public
            if entry.namespace == question.namespace and question.answer.lower() in entry.text.lower()
        }
        if holders != set(question.expected_entries):
            doubled.append(question.id)
    assert doubled == []


def test_each_question_has_one_control_of_each_kind() -> None:
    controls = handbook_controls()
    questions = {question.id: question for question in handbook_questions()}
    entries = {entry.id: entry for entry in handbook_entries()}
    assert [(control.question_id, control.kind) for control in controls] == [
        (q, kind) for q in questions for kind in KINDS
    ]
    assert [control.id for control in controls] == [f"{c.question_id}-{c.kind}" for c in controls]
    for control in controls:
        question = questions[control.question_id]
        expected = entries[question.expected_entries[0]]
        assert (control.namespace, expected.visibility) == (expected.namespace, "public")
        assert control.title.strip()
        assert 40 <= len(control.text.split()) <= 60
        if control.kind == "irrelevant":
            assert control.labels == {"site": expected.labels["site"]}
        else:
            assert control.labels == expected.labels
        assert (control.title == expected.title) == (control.kind == "stale")


def test_the_lines_of_the_controls_have_the_columns_of_their_record() -> None:
    lines = (datasets.folder() / "controls.jsonl").read_text(encoding="utf-8").splitlines()
    assert {tuple(json.loads(line)) for line in lines} == {tuple(Control.model_fields)}


def test_a_control_never_holds_the_answer() -> None:
    answers = {question.id: question.answer.lower() for question in handbook_questions()}
    holders = [
        control.id
        for control in handbook_controls()
        if answers[control.question_id] in control.title.lower() or answers[control.question_id] in control.text.lower()
    ]
    assert holders == []


def test_no_two_controls_are_alike() -> None:
    texts = [control.text for control in handbook_controls()] + [entry.text for entry in handbook_entries()]
    sentences = Counter(sentence for text in texts for sentence in re.split(r"(?<=[.!?])\s+", text.lower()))
    assert [sentence for sentence, times in sentences.items() if times > 1] == []
    titles = Counter(control.title for control in handbook_controls() if control.kind != "stale")
    titles.update({entry.title for entry in handbook_entries()})
    assert [title for title, times in titles.items() if times > 1] == []


@pytest.mark.parametrize(
    ("kind", "lowest", "highest"),
    [("irrelevant", 0.0, 0.1), ("stale", 0.3, 1.0), ("conflicting", 0.35, 1.0), ("adversarial", 0.35, 1.0)],
)
def test_a_control_is_found_as_its_kind_should_be(kind: str, lowest: float, highest: float) -> None:
    wanted = {question.id: content_tokens(question.question) for question in handbook_questions()}
    scores = {
        control.id: text_score(wanted[control.question_id], control.title, control.text)
        for control in handbook_controls()
        if control.kind == kind
    }
    assert len(scores) == 60
    assert {id: score for id, score in scores.items() if not lowest <= score <= highest} == {}


@pytest.mark.parametrize("name", sorted(READERS))
@pytest.mark.parametrize("damage", ["byte", "ending", "cut", "gone", "unlisted"])
def test_a_damaged_file_is_refused_by_name(copied: Path, name: str, damage: str) -> None:
    path = copied / name
    data = path.read_bytes()
    match damage:
        case "byte":
            path.write_bytes(data.replace(b"a", b"b", 1))
        case "ending":
            path.write_bytes(data.replace(b"\n", b"\r\n"))
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "gone":
            path.unlink()
        case "unlisted":
            (copied / "manifest.json").write_text(json.dumps({"files": []}))
    with pytest.raises(DatasetError) as caught:
        READERS[name]()
    assert caught.value.name == name
    assert name in str(caught.value)


@pytest.mark.parametrize("damage", ["gone", "not json", "empty object"])
def test_a_damaged_manifest_is_refused(copied: Path, damage: str) -> None:
    path = copied / "manifest.json"
    if damage == "gone":
        path.unlink()
    else:
        path.write_text("{" if damage == "not json" else "{}")
    with pytest.raises(DatasetError, match=r"manifest\.json"):
        handbook_entries()


def test_a_whole_copy_is_read(copied: Path) -> None:
    assert datasets.folder() == copied
    assert len(handbook_entries()) == 122


def test_the_language_reference_is_read_from_the_interpreter() -> None:
    topics = python_topics()
    assert len(topics) > 60
    assert len({topic.id for topic in topics}) == len(topics)
    assert {topic.namespace for topic in topics} == {"python"}
    assert all(topic.text.strip() for topic in topics)
    assert topics == python_topics()
