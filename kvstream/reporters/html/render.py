"""A page as one HTML file: styles, scripts, data, and a policy that allows nothing else."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from kvstream.reporters.format import counted, duration, json_text, number, share, size, visible
from kvstream.reporters.html.page import Chart, Document, Fold, Page, Shading, Text

STYLES = ("uPlot.css", "page.css")
SCRIPTS = ("uPlot.js", "data.js", "document.js", "charts.js")
"""In the order of execution. uPlot: Leon Sorokin, MIT license (uPlot.LICENSE)."""
MOST_ENTRIES = 1_500_000
"""Maximum number of entries of all heads that a page lists one by one.

With more, the page only has the number of heads that hold each token.
"""
TABLE_ROWS = 24
"""Maximum number of rows of the table beside a chart."""
_IN_JSON = {ord(char): f"\\u{ord(char):04x}" for char in "<>&'"}


def render(page: Page) -> str:
    """Return the whole HTML file."""
    styles, scripts = ([_static(name) for name in names] for names in (STYLES, SCRIPTS))
    citations = [c for run in page.runs for result in run.results for c in result.citations]
    places = () if page.document is None else page.document.places
    template = _environment().get_template("page.html")
    return template.render(
        page=page,
        policy=policy(styles, scripts),
        styles=map(Markup, styles),
        scripts=map(Markup, scripts),
        data=script_json(_data(page)),
        questions=_questions(page),
        numbers={id(c): i for i, c in enumerate(citations)},
        places=places,
    )


def policy(styles: Any, scripts: Any) -> str:
    """Return a policy of only these styles and scripts: no requests, forms, or scripts of text."""
    return (
        f"default-src 'none'; style-src {' '.join(map(_source, styles))}; "
        f"script-src {' '.join(map(_source, scripts))}; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _source(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _static(name: str) -> str:
    return files(__package__).joinpath("static", name).read_text("utf-8").strip()


@cache
def _environment() -> Environment:
    """Return an environment in which `html` escapes everything that a template writes."""
    environment = Environment(
        loader=PackageLoader(__package__), autoescape=True, finalize=html,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "number": number, "size": size, "duration": duration, "rounded": _rounded,
        "folded": folded, "place": place, "rows": chart_rows,
    }  # fmt: skip
    environment.globals |= {
        "share": share, "key": id, "is_text": lambda item: isinstance(item, Text),
    }  # fmt: skip
    return environment


def _questions(page: Page) -> list[tuple[str, list[tuple[Any, Any]]]]:
    questions: dict[str, list[tuple[Any, Any]]] = {}
    for run in page.runs:
        for result in run.results:
            questions.setdefault(result.question, []).append((run, result))
    return list(questions.items())


def folded(fold: Fold) -> str:
    """Describe a folded stretch in its place."""
    if fold.tokens is None:
        return f"{number(fold.size)} bytes between these passages are not held"
    about = "about " if fold.about else ""
    what = f"{about}{counted(fold.tokens, 'token')}"
    return f"{what}, none kept{'' if fold.text is not None else '; not in this file'}"


def place(citation: dict[str, Any]) -> str:
    """Return the place of a citation in its source."""
    if citation.get("page") is not None:
        first, last = citation["page"], citation.get("page_end")
        return f"page {first}" if last in (None, first) else f"pages {first} to {last}"
    if citation.get("chapter") is not None:
        return str(citation["chapter"])
    first, last = citation["line_start"], citation["line_end"]
    if first is None:
        return ""
    return f"line {first:,}" if first == last else f"lines {first:,} to {last:,}"


def _rounded(value: float | None) -> str:
    if value is None:
        return "–"
    return number(value) if value == round(value) or abs(value) >= 1000 else f"{value:.4g}"


def chart_rows(chart: Chart) -> list[list[str]]:
    """Return the values of a chart as table rows: all, or at most `TABLE_ROWS` of them."""
    count = len(chart.x)
    sample = sorted({round(i * (count - 1) / (TABLE_ROWS - 1)) for i in range(TABLE_ROWS)})
    indices = range(count) if count <= TABLE_ROWS else sample
    return [
        [_rounded(chart.x[i]), *(_rounded(values[i]) for _, values in chart.lines)] for i in indices
    ]


def _data(page: Page) -> dict[str, Any]:
    return {
        "document": None if page.document is None else _document(page.document),
        "charts": [{**asdict(chart), "x": list(chart.x)} for chart in page.charts],
    }


def _document(document: Document) -> dict[str, Any]:
    texts, starts, lengths = np.asarray(document.spans, dtype=np.int64).reshape(-1, 3).T
    # A token that is not shown takes the text of the token before it: texts must not decrease.
    texts = np.maximum.accumulate(np.where(lengths > 0, texts, 0)) if len(texts) else texts
    return {
        "read": document.read,
        "texts": packed_sorted(texts),
        "starts": packed(starts),
        "lengths": packed(lengths),
        "ordinals": packed_sorted(document.ordinals),
        "shadings": [_shading(shading) for shading in document.shadings],
        "cited": [None if s is None else [s.text, s.start, s.length] for s in document.places],
    }


def _shading(shading: Shading) -> dict[str, Any]:
    entries = sum(len(head) for layer in shading.heads for head in layer)
    single = entries <= MOST_ENTRIES
    return {
        "name": shading.name,
        "layers": list(shading.layers),
        "sizes": [len(layer) for layer in shading.heads],
        "heads": [[packed_sorted(h) for h in layer] for layer in shading.heads] if single else None,
        "counts": packed(shading.counts),
        "retained": shading.retained,
    }


def html(value: Any) -> Any:
    """Return what a template writes for a value: text with all special characters escaped."""
    if value is None:
        return ""
    if isinstance(value, Markup):
        return value
    return escape(visible(str(value)))


def script_json(value: Any) -> Markup:
    """Return JSON for a script element that no browser runs. No text can end the element."""
    return Markup(json_text(value).translate(_IN_JSON))


def packed(numbers: Sequence[int] | Any) -> str:
    """Encode numbers >= 0 as LEB128 in base64: 7 bits per byte, low bits first, 128 marks more."""
    values = np.asarray(numbers, dtype=np.uint64)
    if not len(values):
        return ""
    columns = [values & 127]
    rest = values >> np.uint64(7)
    while rest.any():
        columns.append(rest & 127)
        rest = rest >> np.uint64(7)
    table = np.stack(columns, axis=1).astype(np.uint8)
    places = np.arange(table.shape[1])
    length = np.where(table > 0, places, 0).max(axis=1)
    table[places < length[:, None]] |= 128
    return b64encode(table[places <= length[:, None]].tobytes()).decode()


def packed_sorted(numbers: Sequence[int] | Any) -> str:
    """Encode numbers that never decrease as the first number and the differences."""
    return packed(np.diff(np.asarray(numbers, dtype=np.int64), prepend=0))
