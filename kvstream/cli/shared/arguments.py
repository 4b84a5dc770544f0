"""Positional arguments: the sources, the question, and the use of standard input."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

import click

from kvstream.cli.options.option import option, stack
from kvstream.cli.options.types import complete_files

sources_argument = click.argument(
    "sources", nargs=-1, metavar="[SOURCE]...", type=str, shell_complete=complete_files
)
asking = stack(
    click.argument(
        "arguments", nargs=-1, metavar="[SOURCE]... QUESTION", type=str,
        shell_complete=complete_files,
    ),
    option(
        "-Q", "--question", multiple=True, metavar="TEXT", section="Questions", envvar=(),
        help="Ask this question; repeatable. All arguments are then sources.",
    ),
)  # fmt: skip
"""Sources and questions of the command line. `split_arguments` separates them."""


def sources_or_usage(ctx: click.Context, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the given sources, or standard input if it is piped. Raises click's UsageError."""
    if paths:
        return tuple(paths)
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError(
            "Nothing to read: name a file or a folder, or pipe text into standard input.", ctx
        )
    return ("-",)


def split_arguments(
    ctx: click.Context, arguments: tuple[str, ...], questions: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Separate the arguments into sources and questions. Raises click's UsageError."""
    if not questions:
        if not arguments:
            raise click.UsageError("No question: give it as the last argument or with -Q.", ctx)
        *paths, last = arguments
        _refuse_wrong_order(ctx, paths, last)
        if os.path.exists(last):
            kind = "folder" if os.path.isdir(last) else "file"
            raise click.UsageError(
                f"{last!r} is a {kind}, so there is no question: add it as the last argument "
                "(or give it with -Q, if this is the question).",
                ctx,
            )
        arguments, questions = tuple(paths), (last,)
    else:
        refuse_question(
            ctx, arguments,
            "give it with -Q, too: with -Q, all other arguments are sources.",
        )  # fmt: skip
    if any(not text.strip() for text in questions):
        raise click.UsageError("A question is empty.", ctx)
    return arguments, questions


def refuse_question(ctx: click.Context, paths: Sequence[str], advice: str) -> None:
    """Refuse an argument that looks like a question, where all arguments are sources.

    `advice`: what to do with a question instead. Raises click's UsageError.
    """
    for path in paths:
        asks = path.rstrip().endswith("?") or len(path.split()) > 1
        if asks and not os.path.exists(path):
            raise click.UsageError(f"{path!r} is not a file. If it is a question, {advice}", ctx)


def _refuse_wrong_order(ctx: click.Context, paths: Sequence[str], last: str) -> None:
    """Refuse a question before the sources, where it would be taken for a source."""
    missing = next((p for p in paths if p != "-" and not os.path.exists(p)), None)
    if missing is None:
        return
    asks = missing.rstrip().endswith("?")
    if asks and last.rstrip().endswith("?") and not os.path.exists(last):
        raise click.UsageError(
            f"{missing!r} is not a file. If it is a question, too, give each question with -Q: "
            "with -Q, all other arguments are sources.",
            ctx,
        )
    if asks or os.path.exists(last):
        before, rule = [*(p for p in paths if p != missing), last], "The question comes last"
        if ctx.params.get("memory") is not None:
            before, rule = ["--memory", str(ctx.params["memory"])], "--memory takes no sources"
        raise click.UsageError(
            f"{missing!r} is not a file. Is it the question? {rule}: {ctx.command_path} "
            f"{shlex.join([*before, missing])}",
            ctx,
        )
