"""An HTML page, read and checked."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Fails on unbalanced tags; keeps texts, attributes and the contents of each `pre`."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.pres: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]):
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "pre":
            self.pres.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]):
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str):
        assert self.open.pop() == tag

    def handle_data(self, data: str):
        if self.open and self.open[-1] in ("style", "script"):
            assert not re.search(r"https?:|//cdn|@import|url\(|fetch\(|import\(", data)
            return
        self.text += data
        if "pre" in self.open:
            self.pres[-1] += data


def read(text: str) -> Reader:
    """Parses a page or fragment, and checks that it needs nothing from outside."""
    reader = Reader(text)
    for name, value in reader.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
            assert value.startswith("#") or value == "data:,"
    return reader


EVIL = "</script><script>alert('x')</script><img src=http://x onerror=\"y\">&amp;"
