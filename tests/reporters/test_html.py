"""Rendering a page from plain data: packed numbers, and text that stays text."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.reporters.format import visible
from kvstream.reporters.html.page import (
    Bars,
    Chart,
    Document,
    Fold,
    Page,
    Section,
    Shading,
    Span,
    Table,
    Text,
)
from kvstream.reporters.html.render import html as written
from kvstream.reporters.html.render import packed, packed_sorted, render, script_json

ATTACKS = (
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 2</script>",
    "<!--<script>",
    "<img src=x onerror='window.pwned = 3'>",
    '" onmouseover="window.pwned = 4" x="',
    "' autofocus onfocus='window.pwned = 5'",
    "{{ 7 * 7 }}{% for x in y %}{{ config }}",
    "${window.pwned = 6}`",
    "javascript:window.pwned=7",
    "</title></style></textarea></p><base href='https://example.invalid/'>",
    "&lt;b&gt; &amp; &#x3c;script&#x3e;",
    "\u202egnp.exe\u202c \u2066x\u2069",
    "a\x00b\x1b[31mc\x7f\x85\ud800",
    "one\r\ntwo\rthree",
    "]]><![CDATA[",
)


def unpack(text: str) -> list[int]:
    """Unpack numbers with a slow loop."""
    numbers, value, shift = [], 0, 0
    for byte in base64.b64decode(text):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(value)
            value = shift = 0
    return numbers


@given(st.lists(st.integers(0, 2**45)))
def test_numbers_come_back(numbers: list[int]) -> None:
    assert unpack(packed(numbers)) == numbers
    ordered = sorted(numbers)
    assert np.cumsum(unpack(packed_sorted(ordered))).tolist() == ordered


@given(st.text())
def test_visible_text_has_no_controls(text: str) -> None:
    shown = visible(text)
    assert len(shown) == len(text.replace("\r\n", "\n"))
    assert not set(shown) & set(
        "\x00\x1b\x7f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )


@given(st.text())
def test_written_text_is_text(text: str) -> None:
    shown = str(written(text))
    assert not set(shown) & set("<>\"'")
    assert html.unescape(shown) == visible(text)


@given(st.text())
def test_json_cannot_end_its_element(text: str) -> None:
    shown = str(script_json({"text": text}))
    assert not set(shown) & set("<>&'")
    assert json.loads(shown) == {"text": text}


def page_of(text: str) -> Page:
    """Return a page with the same text everywhere."""
    document = Document(
        [Section(text, [Text(text, text), Fold(5, text=text), Fold(None, size=9), Text("end")])],
        np.array([[0, 0, 1], [1, 0, 3]]),
        np.array([0, 9]),
        10,
        [Shading(text, [0], [[np.array([0, 1])]], np.array([1, 1]), 2)],
        [Span(0, 0, 1)],
        [text],
    )
    return Page(
        title=text, command=text, version=text, document=document,
        charts=[Chart(text, text, text, [1, 2], [(text, [1, None])], note=text)],
        bars=[Bars(text, [(text, 0.5, 0.4, 0.6)])],
        tables=[Table(text, [text], [[text]], [True], [[0.5]])],
        settings=[(text, text)], times=[(text, text)], warnings=[text],
        facts=[(text, text, text)],
    )  # fmt: skip


class Elements(HTMLParser):
    """Names and attributes of all elements, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


def elements(page: str) -> list[tuple[str, tuple[str, ...]]]:
    parser = Elements()
    parser.feed(page)
    return parser.found


@pytest.mark.parametrize("attack", ATTACKS)
def test_text_adds_no_element_and_no_attribute(attack: str) -> None:
    plain, attacked = render(page_of("plain text")), render(page_of(attack))
    assert elements(attacked) == elements(plain)
    scripts = re.compile(r"<script>.*?</script>", re.DOTALL)
    assert scripts.findall(attacked) == scripts.findall(plain)


def test_the_policy_has_the_digest_of_all_that_runs() -> None:
    page = render(page_of("text"))
    policy = html.unescape(re.search(r'Policy" content="([^"]*)"', page)[1])  # type: ignore[index]
    for kind in ("script", "style"):
        found = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        assert found
        for text in found:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"<[^>]+\s(style|on\w+)=", page.split("<script")[0])


def test_nothing_is_fetched() -> None:
    page = render(page_of("text"))
    assert not re.search(r"<(link|img|iframe|object|embed|base|form|audio|video)\b", page)
    assert "@import" not in page
    assert "url(" not in page
