"""The browser: pages by key, filters, selection, and what a page costs on ten thousand sessions."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from widgets.support import AGENT, buttons, html, letters, settle, until

from cayu.notebook import Lab
from cayu.sessions.streams import HeadQuery
from cayu_widgets import SessionBrowser
from cayu_widgets.browser import PAGE_ROWS

if TYPE_CHECKING:
    from widgets.conftest import OpenLab

PAGES = ["Refresh", "Previous", "Next"]
COPIES = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
INSERT INTO streams ({names}) SELECT {values} FROM streams, n WHERE key = 1
"""


def copy_sessions(path: Path, count: int) -> None:
    """Multiply the first session of a store."""
    database = sqlite3.connect(path)
    with database:
        names = [row[1] for row in database.execute("PRAGMA table_info(streams)") if row[1] != "key"]
        replaced = {"id": "'copy-' || i", "instance_id": "'instance-' || i", "title": "'Copy ' || i"}
        values = ", ".join(replaced.get(name, name) for name in names)
        database.execute(COPIES.format(names=", ".join(names), values=values), {"count": count})
    database.close()


def rows(browser: SessionBrowser) -> list[str]:
    return [label for label in buttons(browser) if label not in PAGES]


def page(browser: SessionBrowser, text: str) -> None:
    until(lambda: text in html(browser), f"{text} in {html(browser)}")


def spread(number: str) -> str:
    return number.replace(" ", "\u202f")


@pytest.fixture
def crowd(open_lab: OpenLab, tmp_path: Path) -> Lab:
    """A lab with 10 001 sessions."""
    lab = open_lab()
    lab.run(AGENT, "go", title="The first")
    copy_sessions(tmp_path / "runs.db", 10_000)
    return lab


def test_an_empty_store_says_so(open_lab: OpenLab) -> None:
    browser = SessionBrowser(open_lab())
    page(browser, "0 of 0")
    assert "This store has no sessions yet." in html(browser)
    assert list(buttons(browser)) == PAGES
    assert buttons(browser)["Next"].disabled
    assert buttons(browser)["Previous"].disabled


def test_a_page_costs_one_query_on_ten_thousand_sessions(crowd: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[HeadQuery] = []
    others: list[str] = []
    store = crowd.app.session_store
    heads = store.heads

    async def counted(query: HeadQuery) -> Any:
        asked.append(query)
        return await heads(query)

    async def other(*_: Any, **__: Any) -> Any:
        others.append("read")
        raise AssertionError

    monkeypatch.setattr(store, "heads", counted)
    for name in ("records", "load", "items"):
        monkeypatch.setattr(store, name, other)
    browser = SessionBrowser(crowd)
    page(browser, "1-50 of " + spread("10 001"))
    assert [(query.limit, query.after) for query in asked] == [(PAGE_ROWS, None)]
    assert len(rows(browser)) == PAGE_ROWS

    buttons(browser)["Next"].click()
    page(browser, "51-100 of " + spread("10 001"))
    assert len(asked) == 2
    assert asked[1].after is not None
    assert others == []
    assert len(browser.rows) == PAGE_ROWS


def test_next_and_previous(crowd: Lab) -> None:
    browser = SessionBrowser(crowd)
    page(browser, "1-50 of")
    first = rows(browser)
    assert "Copy\xa010000" in first[0]
    buttons(browser)["Next"].click()
    page(browser, "51-100 of")
    second = rows(browser)
    assert not set(first) & set(second)
    buttons(browser)["Next"].click()
    page(browser, "101-150 of")
    buttons(browser)["Previous"].click()
    page(browser, "51-100 of")
    assert rows(browser) == second
    buttons(browser)["Previous"].click()
    page(browser, "1-50 of")
    assert rows(browser) == first
    assert buttons(browser)["Previous"].disabled


def test_filters_go_back_to_the_first_page(crowd: Lab) -> None:
    browser = SessionBrowser(crowd)
    page(browser, "1-50 of")
    buttons(browser)["Next"].click()
    page(browser, "51-100 of")
    browser.filter.value = "COPY 999"
    page(browser, "1-11 of 11")
    assert len(rows(browser)) == 11
    assert buttons(browser)["Next"].disabled
    browser.status.value = "completed"
    page(browser, "0 of 0")
    assert "No session matches." in html(browser)
    assert rows(browser) == []
    browser.filter.value, browser.status.value = "the first", "interrupted"
    page(browser, "1-1 of 1")


def test_a_last_page_that_is_full_has_no_next(open_lab: OpenLab, tmp_path: Path) -> None:
    lab = open_lab()
    lab.run(AGENT, "go")
    copy_sessions(tmp_path / "runs.db", 2 * PAGE_ROWS - 1)
    browser = SessionBrowser(lab)
    page(browser, "1-50 of 100")
    buttons(browser)["Next"].click()
    page(browser, "51-100 of 100")
    assert buttons(browser)["Next"].disabled


def test_a_row_opens_its_session_below(open_lab: OpenLab) -> None:
    lab = open_lab()
    old, new = lab.run(AGENT, "go", title="Old"), lab.run(AGENT, "go", title="New")
    browser = SessionBrowser(lab)
    page(browser, "1-2 of 2")
    assert ["Old" in each for each in rows(browser)] == [False, True]
    assert "1\xa0pending" in rows(browser)[0]
    assert all(each.tooltip for each in buttons(browser).values())
    browser.rows[1].click()
    until(lambda: browser.opened is not None and browser.opened.state == "paused")
    first = browser.opened
    assert first is not None
    assert first.session_id == old.id
    assert browser.rows[1].description.startswith(">")
    browser.rows[1].click()
    settle(lab)
    assert browser.opened is first
    browser.rows[0].click()
    until(lambda: browser.opened is not first)
    assert browser.opened is not None
    assert browser.opened.session_id == new.id
    until(lambda: first.comm is None)
    assert [each.description[0] for each in browser.rows] == [">", "\xa0"]


def test_a_decision_below_changes_the_row(open_lab: OpenLab) -> None:
    lab = open_lab(batches=(letters("ann"), "done"))
    lab.run(AGENT, "go")
    browser = SessionBrowser(lab)
    page(browser, "1-1 of 1")
    browser.rows[0].click()
    until(lambda: "Deny" in buttons(browser))
    buttons(browser)["Deny"].click()
    until(lambda: browser.rows[0].description.startswith(">\xa0completed"))
    lab.check_quiet()


def test_markup_in_titles_stays_text(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.run(AGENT, "go", title="<script>x</script>")
    browser = SessionBrowser(lab)
    page(browser, "1-1 of 1")
    assert "<script>" not in html(browser)
    assert "<script>" not in browser.static_html()
    assert "&lt;script&gt;" in browser.static_html()


def test_errors_are_shown_and_kept(open_lab: OpenLab) -> None:
    lab = open_lab()
    browser = SessionBrowser(lab)
    page(browser, "0 of 0")
    lab.call(lab.app.session_store.aclose())
    buttons(browser)["Refresh"].click()
    page(browser, "StoreClosed")
    assert lab.errors_df()["source"].tolist() == ["SessionBrowser"]
