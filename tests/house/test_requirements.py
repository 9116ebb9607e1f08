"""Holds that the table of requirements is sound and that every row of a finished area has a test."""

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import require_tool
from house.traceability import (
    AREAS,
    IDS,
    TABLE,
    TESTS,
    Coverage,
    Requirement,
    is_whole,
    mark_faults,
    read_rows,
    table_faults,
)

ROW = Requirement("A001", "recovery", "It works.", "Try it.")


def test_the_table_is_well_formed() -> None:
    data = TABLE.read_bytes()
    rows = read_rows(data.decode("utf-8"))
    assert data.endswith(b"\n")
    assert b"\r" not in data
    assert len(rows) == len(IDS) == 241
    assert table_faults(rows) == []
    assert {row.area for row in rows} == AREAS


def test_every_row_of_a_finished_area_has_a_test(requirement_coverage: Coverage) -> None:
    assert requirement_coverage.due(), "no area is finished"
    missing = requirement_coverage.missing()
    assert not missing, f"no test carries {', '.join(missing)}"


def test_faults_of_the_table_are_caught() -> None:
    rows = read_rows(TABLE.read_text(encoding="utf-8"))
    assert table_faults(rows[1:]) == ["A001 is not in the table"]
    assert table_faults([*rows, ROW]) == ["A001 is unknown or repeated"] * 2
    assert table_faults([*rows, replace(ROW, id="C001")]) == ["C001 is unknown or repeated"]
    assert table_faults([replace(ROW, area="attic"), *rows[1:]]) == ["A001 has the unknown area 'attic'"]
    assert table_faults([replace(ROW, check=" "), *rows[1:]]) == ["A001 has an empty cell"]
    with pytest.raises(ValueError, match="columns id, area, requirement, check"):
        read_rows("id,area,requirement,check\nA001,core,short\n")
    with pytest.raises(ValueError, match="columns id, area, requirement, check"):
        read_rows("id,area\nA001,core\n")


def test_a_wrong_mark_is_refused() -> None:
    assert mark_faults("t.py::t", ["A001"], {"A001"}) == []
    assert mark_faults("t.py::t", ["A001", "A999"], {"A001"}) == ["t.py::t: there is no requirement 'A999'"]
    assert mark_faults("t.py::t", [], {"A001"}) == ["t.py::t: the requirement mark names no row"]


def test_a_row_without_a_test_is_missed_only_when_everything_was_collected() -> None:
    rows = (ROW, replace(ROW, id="A002"), replace(ROW, id="A003", area="scale"))
    coverage = Coverage(rows, ("recovery",), {"A001": ("t.py::t",)}, whole=True)
    assert coverage.missing() == ["A002"]
    assert coverage.summary() == "requirements: 1 rows of finished areas held by tests; missing: A002"
    assert replace(coverage, whole=False).missing() == []
    assert (
        replace(coverage, held={"A001": (), "A002": ()})
        .summary()
        .endswith("2 rows of finished areas held by tests; missing: none")
    )
    assert replace(coverage, finished=("recovery", "scale")).missing() == ["A002", "A003"]


@pytest.mark.parametrize(
    "arguments, whole",
    [
        (["tests"], True),
        (["."], True),
        ([str(TESTS)], True),
        (["tests/house", "tests"], True),
        (["tests/house"], False),
        (["tests/house/test_layers.py::test_x"], False),
        (["tests::x"], False),
        (["notebooks"], False),
        ([], False),
    ],
)
def test_a_part_of_the_tree_is_not_the_whole(arguments: list[str], whole: bool) -> None:
    assert is_whole(arguments, TESTS.parent) is whole
    assert not is_whole(arguments, Path("/elsewhere")) or arguments == [str(TESTS)]


def test_an_absent_tool_skips_here_and_fails_where_all_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAYU_REQUIRE_ALL", raising=False)
    require_tool("a browser", "/usr/bin/browser")
    with pytest.raises(pytest.skip.Exception, match="a browser is missing"):
        require_tool("a browser", None)
    monkeypatch.setenv("CAYU_REQUIRE_ALL", "1")
    require_tool("a browser", True)
    with pytest.raises(pytest.fail.Exception, match="a browser is missing, and CAYU_REQUIRE_ALL=1"):
        require_tool("a browser", None)
