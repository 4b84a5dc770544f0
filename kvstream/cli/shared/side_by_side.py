"""Output of `compare`: the answers by question, then the figures of each method."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvstream.events import Result
from kvstream.reporters.citation_lines import wrapped
from kvstream.reporters.format import visible

FILE_WIDTH = 100
"""Columns of a table in a file."""
BESIDE = 24
"""Minimum columns of an answer beside its method; with fewer, the answer stands below."""
MARK = "!"
CSV = (
    "question", "method", "answer", "warnings", "withheld", "error", "read_s", "answer_s",
    "tokens_per_s", "budget", "peak_kv_tokens", "read", "retained", "spread",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Result of one method on one question; `result` is None if the method could not run."""

    method: str
    result: Result | None
    spread: float | None
    """None if memory is text without entries, or the method could not run."""
    problem: str = ""
    warned: tuple[str, ...] = ()
    """Warnings about this answer."""


def blocks(rows: Sequence[Row], questions: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines of at most `width` columns: a block per question, and one for the methods."""
    methods = list(dict.fromkeys(row.method for row in rows))
    for question in questions or [""]:
        if len(questions) > 1:
            yield from wrapped(_line(f"Question: {question}"), width)
        for method in methods:
            own = [row for row in rows if row.method == method]
            answers = [row for row in own if row.result and row.result.question == question]
            # A refused method has one row, for all questions that it did not answer.
            refused = [row for row in own if row.result is None]
            if shown := answers or refused:
                yield from _answer(shown[0], max(map(len, methods)), width)
        yield ""
    if any(row.warned for row in rows):
        yield from wrapped(f"{MARK} marks an answer with a warning (on stderr).", width)
        yield ""
    yield from _figures(rows, methods, width)


def _answer(row: Row, widest: int, width: int) -> Iterator[str]:
    text = "(refused)" if row.result is None else _line(row.result.answer) or "(nothing)"
    mark = MARK if row.warned else " "
    head = f"{row.method:{widest}} {mark} "
    if width - len(head) < BESIDE:
        yield f"{row.method} {mark}".rstrip()
        head = "  "
        yield from (head + line for line in wrapped(text, width - len(head)))
        return
    for number, line in enumerate(wrapped(text, width - len(head))):
        yield (" " * len(head) if number else head) + line


def _figures(rows: Sequence[Row], methods: Sequence[str], width: int) -> Iterator[str]:
    """Yield the figures of each method once, because one reading serves all questions."""
    heads = ("method", "read s", "answer s", "tokens/s", "peak KV", "kept", "spread")
    table = []
    for method in methods:
        own = [row for row in rows if row.method == method]
        results = [row.result for row in own if row.result is not None]
        if not results:
            table.append((method, *["-"] * 6))
            continue
        first, answer_s = results[0], sum(r.answer_s for r in results)
        peak = max(r.peak_kv_tokens for r in results)
        spread = "-" if own[0].spread is None else f"{own[0].spread:.2f}"
        table.append((
            method, f"{first.prefill_s:.1f}", f"{answer_s:.1f}", f"{first.tokens_per_s:,.0f}",
            f"{peak:,}", f"{first.retained:,}", spread,
        ))  # fmt: skip
    wide = [max(map(len, column)) for column in zip(heads, *table, strict=True)]
    if sum(wide) + 2 * len(wide) - 2 <= width:
        for line in (heads, *table):
            cells = (c.rjust(w) for c, w in zip(line[1:], wide[1:], strict=True))
            yield "  ".join([line[0].ljust(wide[0]), *cells])
        return
    for line in table:
        yield line[0]
        told = ", ".join(f"{h} {c}" for h, c in zip(heads[1:], line[1:], strict=True))
        yield from (f"  {part}" for part in wrapped(told, width - 2))


def _line(text: str) -> str:
    return visible(" ".join(text.split()))


def csv_line(values: Sequence[object]) -> str:
    """Return one line of CSV (RFC 4180)."""
    line = io.StringIO()
    csv.writer(line).writerow(values)
    return line.getvalue()


def csv_row(row: Row) -> str:
    """Return a row with the columns of `CSV`."""
    r = row.result
    if r is None:
        return csv_line(["", row.method, "", "", "", row.problem, *[""] * 8])
    return csv_line([
        r.question, row.method, r.answer, "; ".join(row.warned), r.withheld or "", "",
        f"{r.prefill_s:.3f}", f"{r.answer_s:.3f}", f"{r.tokens_per_s:.1f}", r.budget_tokens,
        r.peak_kv_tokens, r.read, r.retained, "" if row.spread is None else f"{row.spread:.4f}",
    ])  # fmt: skip
