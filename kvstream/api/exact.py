"""Exact answers without a model: counts of words and of units such as rows or messages, and figures
of the rows of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from kvstream.errors import SourceError
from kvstream.exact.plain_queries import asks_figure
from kvstream.exact.plain_queries import may_ask as asks_of_rows
from kvstream.exact.routing import FILE, HEADINGS, OF_LOG, PART, UNITS, Aim, route
from kvstream.input.folders import is_own
from kvstream.reporters.citation_lines import place_of
from kvstream.reporters.format import counted as amount

if TYPE_CHECKING:
    from kvstream.api.model import Model
    from kvstream.exact.counting import Tally
    from kvstream.exact.outline import Part
    from kvstream.exact.table_answers import TableQuestions
    from kvstream.input.sources import SourceSet
    from kvstream.settings import RunSettings

__all__ = ["PART", "UNITS", "Aim", "asks_figure", "asks_of_rows", "count_of", "has_times",
           "is_own", "parts", "route", "row_questions"]  # fmt: skip


def count_of(
    sources: SourceSet,
    aim: Aim,
    *,
    inflected: bool = False,
    cased: bool = False,
    stop: Callable[[], bool] = lambda: False,
    so_far: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any] | None:
    """Count what a question asks for; return its JSON object, or None for a text without such
    units. `inflected`, `cased`: see `Words`. `stop` ends the count early. `so_far` gets the object
    at each pause of the text, if words or lines with words are counted. Raises SourceError.
    """
    from kvstream.exact.counting import PLACES, Tally, count_words  # numpy is not for the help
    from kvstream.exact.words import Words

    listed = aim.place != "" and not aim.words
    if listed and (not aim.unit or aim.unit in HEADINGS):
        return _outline(sources, aim.unit)
    unit = "" if aim.place and aim.words else aim.unit
    parts = _parts(sources, aim) if aim.words else ()
    if sources.scope is not None:
        sources.scope.headed = unit in ("row", "record")
    lines, how = unit == "line", f"whole words, in {'this' if cased else 'any'} case"
    words = [
        Words(each, inflected=inflected, cased=cased, in_line=lines)
        for each in filter(None, (aim.words, *aim.each))
    ]
    record = partial(_record, sources=sources, aim=aim, unit=unit, parts=parts, how=how, stop=stop)
    blocks = takewhile(lambda _: not stop(), sources)
    if words and (lines or not unit):
        edges = sorted({edge for part in parts for edge in (part.begin, part.end)})
        edges = sources.bases if aim.unit == FILE else edges  # which get there while it is read
        most = PLACES if aim.place == "all" and not parts and aim.unit != FILE else 1
        tell = None if so_far is None else lambda tally: so_far(record(tally))
        tally: Tally | None = count_words(
            blocks, *words, lines=lines, tally=Tally(most, edges), so_far=tell
        )
    else:
        from kvstream.exact.units import count_units  # a large log needs no structure

        most = PLACES if aim.place == "all" else 1
        tally = count_units(sources, blocks, unit, words[0] if words else None, most)
    return None if tally is None else record(tally)


def _record(
    tally: Tally, *, sources: SourceSet, aim: Aim, unit: str, parts: Sequence[Part], how: str,
    stop: Callable[[], bool],
) -> dict[str, Any]:  # fmt: skip
    """Return the JSON object of a count."""
    parts = _files(sources, tally.end) if aim.unit == FILE else parts
    places = [*tally.places, tally.last][: tally.count]
    citations = [at.to_json(sources.names, sources.bases) for at in places if at]
    if unit:
        how = f"{_plural(unit)} with {how}" if aim.words else _plural(unit)
    if unit in OF_LOG:
        how += f" by the level of their lines ({' or '.join(OF_LOG[unit])})"
    if unit in HEADINGS:
        ends = [] if aim.words else [each["text"] for each in citations]
        how += f" by their headings{', ' * bool(ends)}{' to '.join(ends)}"
    for each in citations if parts and aim.unit != FILE else ():
        byte = each["byte_start"] + sources.bases[sources.names.index(each["source"])]
        inside = [part.title for part in parts if part.begin <= byte < part.end]
        each["chapter"] = each["chapter"] or (inside[-1] if inside else None)
    nexts = [*(part.begin for part in parts[1:]), *[part.end for part in parts[-1:]]]
    shares = [  # a part without those inside it, as it is counted
        tally.within(part.begin, min(part.end, behind))
        for part, behind in zip(parts, nexts, strict=True)
        if aim.place == "all"
    ]
    early = f"The count was stopped after {sources.bytes_read:,} bytes."
    rest = f'Not answered: "{aim.rest}"; ask it alone.'
    plain, files = tally.sources[False], amount(tally.sources.total(), "file")
    without = f"Left out: {plain:,} of {files}, without {_plural(unit)} that kvstream recognizes."
    neutral = f"Not judged: {amount(tally.plain, 'line')} without a level."
    uneven = f"{amount(tally.uneven, 'row')} with another number of cells than the first."
    return {
        "words": aim.words,
        "unit": unit or "mention",
        "count": tally.count,
        **({"counts": dict(zip(aim.each, tally.counts[1:], strict=True))} if aim.each else {}),
        "answer": "\n".join(_sentences(aim, tally, citations, parts, shares)),
        "counted": how,
        "forms": dict(tally.forms.most_common()),
        "citations": citations,
        "spread": tally.spread,
        **({"parts": [{"title": part.title, "place": part.place, "count": own}
                      for part, own in zip(parts, shares, strict=True)]} if shares else {}),
        "bytes": sources.bytes_read,
        "warnings": [
            *sources.warnings, *[without] * (plain > 0), *[neutral] * (tally.plain > 0),
            *[uneven] * (tally.uneven > 0), *[early] * stop(), *[rest] * bool(aim.rest),
        ],
    }  # fmt: skip


def _files(sources: SourceSet, end: int) -> list[Part]:
    """Return the sources that were read as parts of a text."""
    from kvstream.exact.outline import Part

    ends = [*sources.bases[1:], end]
    every = enumerate(zip(sources.names, sources.bases, ends, strict=False))
    return [Part(name, FILE, "", 0, n, begin, last, "") for n, (name, begin, last) in every]


def _parts(sources: SourceSet, aim: Aim) -> Sequence[Part]:
    """Return the parts in which a question asks for places; none of a pipe, which is read once."""
    from kvstream.exact.outline import outline
    from kvstream.exact.units import headings

    with suppress(SourceError):
        if aim.place and aim.unit in HEADINGS:
            return headings(outline(sources.again()), aim.unit)
    return ()


def _outline(sources: SourceSet, unit: str) -> dict[str, Any] | None:
    """Return the headings of a unit, or all instead of chapters and sections; None if the text has
    none of the others, such as scenes: words like parts may mean something else.
    """
    from kvstream.exact.outline import outline
    from kvstream.exact.units import headings

    noun = unit or "heading"
    every = headings(outline(sources), "heading")
    parts = headings(every, noun)
    if not parts and noun not in ("heading", "chapter", "section"):
        return None
    if not parts:
        parts, noun = every, "heading"
    base = min((part.level for part in parts), default=0)
    lines = [f"{'  ' * (part.level - base)}{_heading(part)}" for part in parts]
    head = f"There {'is' if len(parts) == 1 else 'are'} {amount(len(parts), noun)}:"
    head = head if parts else "The text has no headings that kvstream recognizes."
    return {
        "words": "",
        "unit": noun,
        "count": len(parts),
        "answer": "\n".join([head, *_some(lines)]),
        "counted": f"{_plural(noun)} of the outline",
        "parts": [{"title": part.title, "place": part.place} for part in parts],
        "citations": [],
        "bytes": sources.bytes_read,
        "warnings": sources.warnings,
    }


def _heading(part: Part) -> str:
    """Return the title of a part with its place, because another may have the same title."""
    return f"{part.title} ({part.place})" if part.place else part.title


def _some(lines: Sequence[str]) -> list[str]:
    """Return as many lines as an answer lists, and how many others there are."""
    from kvstream.exact.counting import PLACES

    more = len(lines) - PLACES
    return [*lines[:PLACES], *[f"and {more:,} more"] * (more > 0)]


def has_times(sources: SourceSet, *, one_day: bool = False) -> bool:
    """Return whether a text begins as one with times; `one_day`: whether all are of one day.

    Raises SourceError.
    """
    from kvstream.exact import scopes

    return scopes.one_day(sources) if one_day else scopes.has_times(sources)


def parts(path: str) -> dict[str, Any]:
    """Return the outline of a text, with the tokens of each part, as a JSON object.

    The tokens are those of `pocket`. Raises SourceError.
    """
    import numpy as np

    from kvstream.exact.outline import outline
    from kvstream.input.sources import open_sources
    from kvstream.tokenization.loading import TokenStream, load_tokenizer

    every = outline(open_sources([path]))
    edges = np.unique([edge for part in every for edge in (part.begin, part.end)])
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
            for part in every
        ],
        "warnings": sources.warnings,
    }


def _plural(unit: str) -> str:
    return f"{unit}{'es' if unit.endswith('s') else 's'}"


def _sentences(
    aim: Aim, tally: Tally, citations: Sequence[Mapping[str, Any]], parts: Sequence[Part],
    shares: Sequence[int],
) -> Iterator[str]:  # fmt: skip
    """Yield the answer in words, with the parts or places that the question asks for."""
    count = tally.count
    if aim.unit and not (aim.place and aim.words):
        noun = aim.unit if count == 1 else _plural(aim.unit)
        end = ":" if aim.place and count else "."
        by = [f"{name}: {own:,}" for name, own in tally.forms.most_common()]
        end = f" from {amount(len(by), 'sender')}:" if aim.place == "senders" else end
        yield (
            f'{count:,} {noun} contain{"s" * (count == 1)} "{aim.words}".'
            if aim.words
            else f"There {'is' if count == 1 else 'are'} {count:,} {noun}{end}"
        )
        if aim.place == "senders":
            yield from _some(by)
        if aim.place in ("", "senders"):
            return
    several = [*zip((aim.words, *aim.each), tally.counts, strict=True)] if aim.words else []
    for words, own in [*several[1:], *[each for each in several[:1] if each[1] or not aim.each]]:
        times = {0: "does not occur", 1: "occurs once"}.get(own, f"occurs {own:,} times")
        yield f'"{words}" {times}.'
    if shares and count:
        inside = [f"{_heading(p)}: {own:,}" for p, own in zip(parts, shares, strict=True) if own]
        note = ", summed up" if aim.each else ""
        yield f"In {len(inside):,} of {amount(len(parts), aim.unit)}{note}:"
        yield from _some(inside)
        if (rest := count - sum(shares)) > 0:
            yield f"outside of them: {rest:,}"
        return
    every = aim.place == "all"
    names = ("",) * len(citations) if every else ("first: ", "last: ")
    for name, citation in zip(names, citations, strict=False):
        if every or aim.place == "ends" or (aim.place and (aim.place in name or count == 1)):
            if every and citation is citations[-1] and count > len(citations):
                yield f"and {count - len(citations):,} more; the last:"
            yield f"{name}{citation['source']}{place_of(citation)}: {citation['text']}"


def row_questions(
    sources: SourceSet | str,
    questions: Sequence[str],
    load: Callable[[], Model] | None,
    run: RunSettings,
    old: TableQuestions | None = None,
) -> TableQuestions:
    """Return the questions that the rows of sources, or of the beginning of a text, answer.

    `load` is called if a model must write a query, within the budget of `run`; `old` has those
    of the beginning. Raises SourceError for what is no table, and BudgetError for one whose columns
    the budget cannot hold.
    """
    from kvstream.exact.table_answers import TableQuestions
    from kvstream.exact.written_queries import MOST_TOKENS
    from kvstream.input.blocks import TextBlock

    def write(system: str, text: str) -> tuple[str, float]:
        assert load
        return load().session.write(replace(run, max_tokens=MOST_TOKENS), system, text)

    make = partial(TableQuestions, questions=questions, write=write if load else None, old=old)
    if isinstance(sources, str):
        return make([TextBlock(sources, 0, 0)], ["-"], whole=False)
    return make(sources, sources.names)
