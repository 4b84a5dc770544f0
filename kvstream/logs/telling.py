"""Check the paragraph that a model writes about the page of a log against the page."""

from __future__ import annotations

import re

QUESTION = (
    "This is a table of the lines of a log. L is the number of a line. In three sentences: what "
    "went wrong, when, and what happened just before? Give a line number in each sentence, such "
    "as L12."
)
NOTHING_LEFT = "The paragraph is left out: no sentence cites a line and agrees with its row."
MOST_TOKENS = 200
ROWS_READ = 6
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(L])")
_ROW = re.compile(r" {0,8}[\d,]+ |\[line \d")
_INDENTED = " "
_PLACE = re.compile(
    r"(?:(?:^|\s\s)(?:L|[^\s:]+(?: [^\s:]+)*:)|^\[line )(\d+)(?=\s\s|$|\])", re.MULTILINE
)
_CITATION = re.compile(
    r"\bL\d[\d,]*|\b[Ll]ines? \d[\d,]*(?:(?:, | and |, and )\d+)*|[A-Za-z][\w./-]*:\d+\b"
)
_DIGITS = re.compile(r"(?:(?<=:)|(?<=L)|(?<=\s)|^)\d[\d,]*")
_TERM = re.compile(r"\d+(?:[.,:/-]\d+)*|[A-Za-z_][\w.$/@-]*[\w$]|[A-Z]")
_PARTS = re.compile(r"[:/.$@-]")


def check(paragraph: str, page: str) -> tuple[str, list[str]]:
    """Return the sentences of a model that cite rows of a page and agree with them, and the others.

    A sentence cites a row by its line number (``L12``, ``line 12``, ``server.log:12``). All of its
    numbers and names must be in these rows. A name is a word that contains a digit, a capital (not
    that of a sentence), or a sign such as ``_`` or ``.``. The page has at least 120 columns, or its
    lines begin with ``[line 12]``.
    """
    rows = _rows(page)
    sentences: list[str] = []
    others: list[str] = []
    for sentence in filter(None, map(str.strip, _SENTENCE.split(" ".join(paragraph.split())))):
        (sentences if _stands(sentence, rows) else others).append(sentence)
    return " ".join(sentences), others


def _rows(page: str) -> dict[str, set[str]]:
    """Return the terms of each row by line number; equal numbers of two sources are joined."""
    texts: list[str] = []
    inside = False
    for line in page.split("\n"):
        if _ROW.match(line):
            texts.append(line)
            inside = True
        elif inside and line.startswith(_INDENTED):
            texts[-1] += f"\n{line}"
        else:
            inside = False
    rows: dict[str, set[str]] = {}
    for text in texts:
        if place := _PLACE.search(text):
            rows.setdefault(place.group(1), set()).update(_terms(text))
    return rows


def _terms(text: str) -> set[str]:
    """Return numbers and names of a row, parts of names, times without seconds, hosts."""
    terms: set[str] = set()
    for match in _TERM.finditer(text):
        term = _plain(match.group())
        terms.add(term)
        terms.update([term.rpartition(":")[0]] if term[0].isdigit() else _PARTS.split(term))
    return terms


def _stands(sentence: str, rows: dict[str, set[str]]) -> bool:
    places = [
        number.replace(",", "")
        for citation in _CITATION.findall(sentence)
        for number in _DIGITS.findall(citation)
    ]
    if not places or any(place not in rows for place in places):
        return False
    terms = set().union(*(rows[place] for place in places)) | {f"l{p}" for p in places}
    terms |= set(places)
    for match in _TERM.finditer(sentence):
        term = match.group()
        inner = term[1:] if not sentence[: match.start()].strip("\"'( ") else term
        named = any(c.isupper() or c.isdigit() or c in "_./$@" for c in inner)
        if named and _plain(term) not in terms:
            return False
    return True


def _plain(term: str) -> str:
    """Return a term in the form for comparison: without case, and without commas in numbers."""
    return (term.replace(",", "") if term[0].isdigit() else term).casefold()
