"""`cayu guide`: the guides of the package, whole or by section, as the Markdown that they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.support import cayu

from cayu.cli import guide as guides
from cayu.cli.guide import excerpt, sections, slug, summary, topics

TEXT = """# A guide: `first` *steps*

<a id="early"></a>
The first *sentence*, with a [link](other.md). Another one.

## Set up

Some text.

```python
# not a heading
## nor this
<a id="nor-this"></a>
```

### Deeper, still!

Below.

<a id="own"></a>

## Set up

Again.

<a name='inside'></a>Some more text.

## Last <a id="end"></a> part

The end.
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two guides in place of the package's."""
    (tmp_path / "steps.md").write_text(TEXT, encoding="utf-8")
    (tmp_path / "bare.md").write_text("# Only a title\n", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("no guide")
    monkeypatch.setattr(guides, "home", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Set up", "set-up"),
        ("A guide: `first` *steps*", "a-guide-first-steps"),
        ("What's *that*? (1/2)", "whats-that-12"),
        ("A [link](http://x) here", "a-link-here"),
        ("snake_case - and dashes", "snake_case---and-dashes"),
        ('Last <a id="end"></a> part', "last--part"),
        ("Über uns", "über-uns"),
    ],
)
def test_anchors_are_those_of_markdown_readers(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_the_sections_of_a_guide() -> None:
    found = [(each.anchors, each.title) for each in sections(TEXT)]
    assert found == [
        (("a-guide-first-steps",), "A guide: `first` *steps*"),
        (("early",), ""),
        (("set-up",), "Set up"),
        (("deeper-still",), "Deeper, still!"),
        (("set-up-1", "own"), "Set up"),
        (("inside",), ""),
        (("last--part", "end"), "Last  part"),
    ]


@pytest.mark.parametrize(
    ("section", "begins", "ends"),
    [
        ("set-up", "## Set up\n\nSome text.", "Below.\n"),
        ("deeper-still", "### Deeper, still!", "Below.\n"),
        ("own", '<a id="own"></a>\n\n## Set up\n\nAgain.', "Some more text.\n"),
        ("set-up-1", '<a id="own"></a>\n\n## Set up\n\nAgain.', "Some more text.\n"),
        ("early", '<a id="early"></a>\nThe first', "Another one.\n"),
        ("inside", "<a name='inside'></a>Some", "Some more text.\n"),
        ("end", "## Last", "The end.\n"),
        ("a-guide-first-steps", "# A guide", "The end.\n"),
    ],
)
def test_a_section_reaches_to_the_next_of_its_level(shelf: Path, section: str, begins: str, ends: str) -> None:
    text = excerpt("steps", section)
    assert text.startswith(begins)
    assert text.endswith(ends)
    assert cayu("guide", f"steps#{section}").out == text


def test_the_guides_are_listed_with_a_line_each(shelf: Path) -> None:
    assert summary(TEXT) == "The first *sentence*, with a link."
    done = cayu("guide")
    assert done.code == 0
    assert "Only a title" in done.out
    assert "notes" not in done.out
    listed = cayu("guide", "--json").json["guides"]
    assert [each["topic"] for each in listed] == ["bare", "steps"]


def test_a_whole_guide_is_printed_as_it_is(shelf: Path) -> None:
    assert cayu("guide", "steps").out == TEXT
    assert cayu("guide", "steps#own", "--json").json == {
        "topic": "steps",
        "section": "own",
        "markdown": excerpt("steps", "own"),
    }


def test_a_guide_is_printed_as_it_is_on_a_narrow_terminal_as_well(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert cayu("guide", "steps", width=20).out == TEXT


@pytest.mark.parametrize("topic", ["none", "../steps", "notes", "notes.txt", "steps.md", ""])
def test_a_guide_that_is_not_there_says_which_are(shelf: Path, topic: str) -> None:
    error = cayu("guide", topic, "--json").error
    assert error["message"] == f"There is no guide {topic!r}; there are: bare, steps."


def test_a_section_that_is_not_there_says_which_are(shelf: Path) -> None:
    message = cayu("guide", "steps#none", "--json").error["message"]
    assert message.startswith("Guide 'steps' has no section 'none'; it has: #a-guide-first-steps, ")
    assert "#own" in message
    assert "nor-this" not in message


def test_without_guides_nothing_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guides, "home", lambda: tmp_path / "none")
    assert cayu("guide", "--json").json == {"guides": []}
    assert "there are: none" in cayu("guide", "x").err


@pytest.mark.requirement("A001")
@pytest.mark.parametrize(
    "place",
    ["durable-service-tools", "durable-operations", "tool-effects", "anatomy", "references#sessions",
     "references#knowledge"],
)  # fmt: skip
def test_the_guides_of_the_package_are_there(place: str) -> None:
    done = cayu("guide", place)
    assert done.code == 0, done.err
    assert len(done.out) > 200


@pytest.mark.parametrize("topic", sorted(topics()))
def test_every_section_of_every_guide_is_found(topic: str) -> None:
    text = topics()[topic].read_text(encoding="utf-8")
    names = [anchor for each in sections(text) for anchor in each.anchors]
    assert len(set(names)) == len(names)
    assert summary(text)
    for name in names:
        assert excerpt(topic, name).strip()
