"""Exact answers without a model: counts of words and of units such as rows or messages, and figures
of the rows of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from kvstream.errors import SourceError
from kvstream.exact.routing import HEADINGS, PART, UNITS, Asked, route
from kvstream.exact.table_questions import may_ask as asks_of_rows
from kvstream.input.outputs import is_own

if TYPE_CHECKING:
    from kvstream.exact.counting import Tally
    from kvstream.exact.table_replies import RowQuestions
    from kvstream.input.sources import SourceSet

__all__ = ["PART", "UNITS", "Asked", "asks_of_rows", "counted", "has_times", "is_own", "one_day",
           "parts", "route", "row_questions"]  # fmt: skip


def counted(
    sources: SourceSet,
    asked: Asked,
    *,
    inflected: bool = False,
    cased: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Count what a question asks for; return its JSON object, or None for a text without such
    units. `inflected`, `cased`: see `Words`. `stop` ends the count early. Raises SourceError.
    """
    from kvstream.exact.counting import count_words  # numpy is not for the help
    from kvstream.exact.words import Words

    unit = "" if asked.place else asked.unit
    if sources.scope is not None:
        sources.scope.headed = unit in ("row", "record")
    lines, words, how = unit == "line", None, "whole words, in any case"
    if asked.words:
        words = Words(asked.words, inflected=inflected, cased=cased, in_line=lines)
        how = "whole words, in this case" if cased else how
    blocks = takewhile(lambda _: not stop(), sources)
    if words is not None and (lines or not unit):
        tally: Tally | None = count_words(blocks, words, lines=lines)
    else:
        from kvstream.exact.units import count_units  # a large log needs no structure

        tally = count_units(sources, blocks, unit, words)
    if tally is None:
        return None
    found = [tally.first, tally.last][: min(tally.count, 2)]
    citations = [at.to_json(sources.names, sources.bases) for at in found if at]
    if unit:
        how = f"{_plural(unit)} with {how}" if words else _plural(unit)
    if unit in HEADINGS:
        ends = [] if words else [each["text"] for each in citations]
        how += f" by their headings{', ' * bool(ends)}{' to '.join(ends)}"
    if asked.place and asked.unit == "chapter":
        _add_chapters(citations, sources)
    stopped = f"The count was stopped after {sources.bytes_read:,} bytes."
    return {
        "words": asked.words,
        "unit": unit or "mention",
        "count": tally.count,
        "answer": _sentence(asked, tally.count, citations),
        "counted": how,
        "forms": dict(tally.forms.most_common()),
        "citations": citations,
        "spread": tally.spread,
        "bytes": sources.bytes_read,
        "warnings": [*sources.warnings, *([stopped] if stop() else [])],
    }


def has_times(sources: SourceSet) -> bool:
    """Return whether a text begins as one with times. Raises SourceError."""
    from kvstream.exact.scopes import has_times

    return has_times(sources)


def one_day(sources: SourceSet) -> bool:
    """Return whether a text has times, all of one day. Raises SourceError."""
    from kvstream.exact.scopes import one_day

    return one_day(sources)


def parts(path: str) -> dict[str, Any]:
    """Return the outline of a text, with the tokens of each part, as a JSON object.

    The tokens are those of `pocket`. Raises SourceError.
    """
    import numpy as np

    from kvstream.exact.outline import outline
    from kvstream.input.sources import open_sources
    from kvstream.tokenization.loading import TokenStream, load_tokenizer

    found = outline(open_sources([path]))
    edges = np.unique([edge for part in found for edge in (part.begin, part.end)])
    sources = open_sources([path])
    stream, before = TokenStream(load_tokenizer("pocket"), sources), np.zeros(len(edges))
    while len(batch := stream.block()):
        before += np.searchsorted(batch.starts, edges)
    tokens = dict(zip(edges.tolist(), before.astype(int).tolist(), strict=True))
    return {
        "command": "inspect",
        "source": path,
        "bytes": sources.bytes_read,
        "tokens": stream.seen,
        "parts": [
            {
                "title": part.title,
                "level": part.level,
                "tokens": tokens[part.end] - tokens[part.begin],
                "byte_start": part.begin,
                "byte_end": part.end,
                "place": part.place,
            }
            for part in found
        ],
        "warnings": sources.warnings,
    }


def _plural(unit: str) -> str:
    return f"{unit}{'es' if unit.endswith('s') else 's'}"


def _add_chapters(citations: Sequence[dict[str, Any]], sources: SourceSet) -> None:
    """Name the chapters of places in plain text, if it can be read again."""
    from kvstream.exact.outline import outline

    with suppress(SourceError):
        parts = [part for part in outline(sources.again()) if part.kind in ("chapter", "numeral")]
        for each in citations:
            byte = each["byte_start"] + sources.bases[sources.names.index(each["source"])]
            inside = [part.title for part in parts if part.begin <= byte < part.end]
            each["chapter"] = each["chapter"] or (inside[-1] if inside else None)


def _sentence(asked: Asked, count: int, citations: Sequence[Mapping[str, Any]]) -> str:
    """Return the answer in words, with the places that the question asks for."""
    from kvstream.reporters.citation_lines import place_of

    if not asked.unit or asked.place:
        times = {0: "does not occur", 1: "occurs once"}.get(count, f"occurs {count:,} times")
        lines = [f'"{asked.words}" {times}.']
        for name, cited in zip(("first", "last"), citations, strict=False):
            if asked.place and (asked.place in (name, "both") or count == 1):
                lines.append(f"{name}: {cited['source']}{place_of(cited)}: {cited['text']}")
        return "\n".join(lines)
    noun = asked.unit if count == 1 else _plural(asked.unit)
    if not asked.words:
        return f"There {'is' if count == 1 else 'are'} {count:,} {noun}."
    return f'{count:,} {noun} contain{"s" * (count == 1)} "{asked.words}".'


def row_questions(sources: SourceSet | str, questions: Sequence[str]) -> RowQuestions:
    """Return the questions that the rows of sources, or of a text, answer.

    Raises SourceError for what is no table.
    """
    from kvstream.exact.table_replies import RowQuestions
    from kvstream.input.blocks import TextBlock

    if isinstance(sources, str):
        return RowQuestions([TextBlock(sources, 0, 0)], ["-"], questions, whole=False)
    return RowQuestions(sources, sources.names, questions)
