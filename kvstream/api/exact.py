"""Exact answers without a model: counts of words and of units such as rows or messages, and figures
of the rows of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstream.exact.routing import UNITS, Asked, route
from kvstream.exact.table_questions import may_ask as asks_of_rows

if TYPE_CHECKING:
    from kvstream.exact.table_replies import RowQuestions
    from kvstream.input.sources import SourceSet

__all__ = [
    "UNITS",
    "Asked",
    "asks_of_rows",
    "counted",
    "is_text",
    "parts",
    "route",
    "row_questions",
]


def counted(
    sources: SourceSet, asked: Asked, *, inflected: bool = False, cased: bool = False
) -> dict[str, Any] | None:
    """Count what a question asks for; return its JSON object, or None for a text without such
    units. `inflected`, `cased`: see `Words`. Raises SourceError.
    """
    from kvstream.exact.counting import count_words  # numpy is not for the help
    from kvstream.exact.units import count_units
    from kvstream.exact.words import Words

    sources.undigested()
    lines, words = asked.unit == "line", None
    if asked.words:
        words = Words(asked.words, inflected=inflected, cased=cased, in_line=lines)
    if words is not None and (lines or not asked.unit):
        tally = count_words(sources, words, lines=lines)
    elif (found := count_units(sources, asked.unit, words)) is not None:
        tally = found
    else:
        return None
    cited = [tally.first, tally.last] if tally.count > 1 else [tally.first]
    return {
        "words": asked.words,
        "unit": asked.unit or "mention",
        "count": tally.count,
        "answer": _sentence(asked, tally.count),
        "forms": dict(tally.forms.most_common()),
        "citations": [at.to_json(sources.names, sources.bases) for at in cited if at],
        "spread": tally.spread,
        "bytes": sources.bytes_read,
        "warnings": list(sources.warnings),
    }


def is_text(path: Path) -> bool:
    """Return whether kvstream did not write the file."""
    from kvstream.input.outputs import is_own

    return not is_own(path)


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
    }


def _sentence(asked: Asked, count: int) -> str:
    """Return the answer in words."""
    noun = asked.unit if count == 1 else f"{asked.unit}{'es' if asked.unit == 'class' else 's'}"
    if not asked.unit:
        times = {0: "does not occur", 1: "occurs once"}.get(count, f"occurs {count:,} times")
        return f'"{asked.words}" {times}.'
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
        return RowQuestions([TextBlock(sources, 0, 0)], ["-"], questions)
    return RowQuestions(sources, sources.names, questions)
