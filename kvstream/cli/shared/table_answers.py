"""Questions about a table that ``ask`` answers from its rows, without a model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click

from kvstream.api.exact import asks_of_rows, row_questions
from kvstream.cli.options.table import Options
from kvstream.cli.shared.arguments import sources_or_usage
from kvstream.cli.shared.log_summaries import head_of_pipe
from kvstream.cli.shared.running import check_files, origin, prepared
from kvstream.cli.shared.source_paths import can_be_read_again, open_sources
from kvstream.errors import SourceError
from kvstream.reporters.citation_lines import wrapped
from kvstream.reporters.format import json_line, visible


def answer_tables(ctx: click.Context, paths: Sequence[str], options: Options) -> Options | None:
    """Answer the questions that rows answer; return the options with the others, or None.

    A text that is no table, and a table whose rows cannot be told apart, are left to the model.
    """
    asked = options.request.questions
    if options.each or not any(map(asks_of_rows, asked)):
        return options
    paths = sources_or_usage(ctx, paths)
    piped = list(paths) == ["-"]
    if not (piped or all(map(can_be_read_again, paths))):
        return options
    with ExitStack() as stack:
        reporter: Any = None
        try:
            if piped:  # a pipe is read once, so its beginning must decide
                head = head_of_pipe(None, plain=options.request.plain)
                if len(row_questions(head, asked)) < len(asked):
                    return options
            sources = open_sources(paths, options, lambda: False)
            questions = row_questions(sources, asked)
            if not questions:
                return options
            check_files(options, paths)
            quietly = replace(options, progress="none")
            output, reporter, _ = prepared(stack, quietly, answers=True)
            answers = questions.answers()
        except SourceError as error:
            if reporter is None:
                return options  # no table; or the reading by a model reports it
            if piped:
                raise
            reporter.tell(f"The model answers, because the table cannot be computed: {error}")
            return options
        receipt = {**origin(options), "input": identity(sources)}
        for question in asked:
            if question in answers:
                about = {"command": "ask", "question": question, "model": None}
                record = {**about, **answers[question], "receipt": receipt}
                title = question if len(asked) > 1 else ""
                _show(record, output, options, reporter, title=title)
        if answers and not options.quiet:
            name = "standard input" if piped else ", ".join(paths)
            reporter.tell(f"Computed from the rows of {name}, without a model.")
    rest = tuple(question for question in asked if question not in answers)
    return options.asking(questions=rest) if rest else None


def identity(sources: Any) -> dict[str, Any]:
    """Return what identifies the sources."""
    from kvstream.api.source_objects import identity

    return identity(sources)


def _show(
    record: Mapping[str, Any], output: Any, options: Options, reporter: Any, *, title: str
) -> None:
    """Write an answer; a terminal also gets the rows."""
    if options.json:
        output.write(json_line(record, output))
        output.flush()
        return
    lines = [*([f"Question: {title}"] if title else []), *record["answer"].split("\n")]
    cited = record["citations"]
    listed = len(lines) > 2 or record["answer"].endswith(cited[0]["text"] if cited else "")
    if output.isatty() and not listed:
        width = shutil.get_terminal_size().columns
        lines += [""]
        for each in cited:
            lines.append(f"{each['source']}:{each['line_start']}")
            lines += [f"    {line}" for line in wrapped(each["text"], width - 4, 2)]
    output.write("".join(f"{visible(line)}\n" for line in lines))
    output.flush()
    for warning in record["warnings"]:
        reporter.tell(f"Warning: {warning}")
