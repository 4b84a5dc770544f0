"""Counts without a model: what ``count`` prints, and what ``ask`` answers a question with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click

from kvstream.api.exact import Asked, counted, route
from kvstream.cli.options.table import Options
from kvstream.cli.shared.arguments import sources_or_usage
from kvstream.cli.shared.running import check_files, prepared, reading
from kvstream.cli.shared.saying import say
from kvstream.cli.shared.source_paths import can_be_read_again, open_sources
from kvstream.errors import SourceError
from kvstream.reporters.citation_lines import MAP, place_of, wrapped
from kvstream.reporters.format import fit, json_line, number, strip, visible

FORMS = 8
"""Spellings that are shown; the JSON has all."""
ESTIMATED = "Words alone do not count this, so the model estimates."


def answer_counts(ctx: click.Context, paths: Sequence[str], options: Options) -> Options | None:
    """Answer the questions that ask for a count; return the options with the others, or None.

    If one question is left that names a part of the text, only that part is read.
    """
    asked = {question: route(question) for question in options.request.questions}
    counts = {question: each for question, each in asked.items() if each.kind == "count"}
    if counts:
        paths = sources_or_usage(ctx, paths)
    if len(counts) < len(asked) and not all(map(can_be_read_again, paths)):
        counts = {}  # a pipe is read once, and the model has to read it
    with ExitStack() as stack:
        if counts:
            check_files(options, paths)
            into = None if options.each else options.output  # a folder is for answers of a model
            quietly = replace(options, progress="none", output=into)
            output, reporter, interrupts = prepared(stack, quietly, answers=True)
            interrupts.then = "showing the count of what was read so far"
        for question, each in list(counts.items()):
            head = {"command": "ask", "question": question, "model": None}
            here = _of_part(paths, options, each)
            if each.scope and here is options:  # the text has no such part
                del counts[question]
                continue
            for name, record in records(paths, here, each, interrupts):
                if record is None:
                    del counts[question]
                    break
                title = f"==> {name} <==" if options.each else question * (len(asked) > 1)
                show({**head, **record}, output, as_json=options.json, title=title)
        if counts and not options.quiet:
            reporter.tell("Counted without a model: whole words, in any case.")
    rest = tuple(question for question in asked if question not in counts)
    if any(asked[question].estimates or asked[question].kind == "count" for question in rest):
        say(ESTIMATED)
    if not rest:
        return None
    options = options.asking(questions=rest)
    if len(rest) == 1:
        return _of_part(paths, options, asked[rest[0]])
    if named := next((asked[question].scope for question in rest if asked[question].scope), ""):
        say(f'All of the text is read for several questions; --only "{named}" reads a part.')
    return options


def _of_part(paths: Sequence[str], options: Options, asked: Asked) -> Options:
    """Return options that read only the part that a question names, if the text has it."""
    again = bool(paths) and all(map(can_be_read_again, paths))
    if not asked.scope or options.request.only or options.each or not again:
        return options
    narrow = options.asking(only=asked.scope)
    try:
        sources = open_sources(paths, narrow, lambda: False)
        next(iter(sources))
    except SourceError as error:
        say(f"The question names {asked.scope}, but all of the text is read. {error}")
        return options
    if not options.quiet:
        say(f"Reads only {sources.scope.name}, which the question names.")
    return narrow


def records(
    paths: Sequence[str], options: Options, asked: Asked, interrupts: Any, **how: bool
) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield the JSON object of a count, with --each that of every source, with its name.

    None if the text has no such units. `how`: see `counted`. With --each, a source that cannot be
    read is named on stderr, and the others are counted.
    """
    names = open_sources(paths, options, interrupts).names if options.each else [""]
    failed = 0
    for name in names:
        try:
            sources = open_sources([name] if name else paths, options, interrupts)
            with reading(interrupts):
                record = counted(sources, asked, **how)
        except SourceError as error:
            failed += 1
            if not options.each or failed == len(names):
                raise
            say(f"{name}: {error}")
            continue
        yield name, record
    if failed:
        from kvstream.cli.shared.each import SOME_FAILED  # loads what a count does not need

        click.get_current_context().exit(SOME_FAILED)


def show(record: Mapping[str, Any], output: Any, *, as_json: bool, title: str = "") -> None:
    """Write a count; only a terminal gets more than the answer."""
    if as_json:
        output.write(json_line(record, output))
        output.flush()
        return
    lines = [*([title] if title else []), record["answer"]]
    if record["command"] == "count" and not output.isatty():  # for scripts, as grep -c
        lines = [f"{title}:{record['count']}" if title else str(record["count"])]
    if output.isatty():
        lines += _details(record, shutil.get_terminal_size().columns)
        lines = [visible(line) for line in lines]
    output.write("".join(f"{line}\n" for line in lines))
    output.flush()
    for warning in record["warnings"]:
        say(f"Warning: {warning}")


def _details(record: Mapping[str, Any], width: int) -> Iterator[str]:
    """Yield what was counted, the first and the last place, and the spread."""
    forms = [f"{form} {number(times)}" for form, times in record["forms"].items()]
    if forms:
        more = f" · {len(forms) - FORMS:,} more" if len(forms) > FORMS else ""
        yield ""
        yield from wrapped(f"counted: {' · '.join(forms[:FORMS])}{more}", width)
    for name, cited in zip(("first", "last"), record["citations"], strict=False):
        yield f"{name + ':':8} {cited['source']}{place_of(cited)}"
        yield from (f"    {line}" for line in wrapped(cited["text"], width - 4, 2))
    if record["count"] > 1:
        parts = fit([float(n) for n in record["spread"]], min(MAP, width - 9))
        yield f"{'spread:':8} {strip(parts, '·')}"
