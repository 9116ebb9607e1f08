"""Tests the data files: their digests, their counts, and that each question is answered where it says."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cayu.canonical import file_digest
from cayu.errors import DatasetError
from cayu.storage import datasets, handbook_entries, handbook_questions, manifest, python_topics


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


@pytest.mark.parametrize("name", ["handbook.jsonl", "questions.jsonl"])
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
        handbook_entries() if name == "handbook.jsonl" else handbook_questions()
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
