"""Reads HTML as a browser would: which elements it makes, and which text a reader sees."""

from __future__ import annotations

from html.parser import HTMLParser

OURS = {
    *("style", "div", "span", "h4", "code", "pre", "b", "i", "table", "tr", "th", "td", "details", "summary"),
}
"""The elements that the notebook side writes itself."""
HOSTILE = "<img src=x onerror=\"alert('1')\"><script>alert(2)</script></td></pre></style><b class='x'>&amp;&lt;"
"""What an attacker would like to see as markup."""


class Reader(HTMLParser):
    """Collects elements, attributes and text; the text of folded parts is kept apart too."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.folded = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            return
        self.text += data
        if "details" in self.open:
            self.folded += data


def read(html: str) -> Reader:
    """Read HTML, and fail unless it is well nested and made of our own elements only."""
    reader = Reader(html)
    assert reader.open == []
    assert reader.elements <= OURS
    assert reader.attributes <= {"class", "role", "scope"}
    return reader
