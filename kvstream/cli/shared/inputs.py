"""The sources and questions of a command line: which is which, and opening the sources."""

from __future__ import annotations

import os
import re
import select
import shlex
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from kvstream.api.source_objects import Source, sources_for
from kvstream.cli.options.option import option, stack
from kvstream.cli.options.table import Options
from kvstream.cli.options.types import complete_files
from kvstream.cli.shared.interrupts import InterruptibleInput
from kvstream.errors import SourceError, UsageError
from kvstream.reporters.format import counted
from kvstream.reporters.plain import Teller

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


def sources_or_usage(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the given sources, or standard input if it is piped. Raises click's UsageError."""
    if paths:
        return tuple(paths)
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError(
            "Nothing to read: name a file or a folder, or pipe text into standard input."
        )
    return ("-",)


def split_arguments(
    arguments: tuple[str, ...], questions: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Separate the arguments into sources and questions. Raises click's UsageError."""
    if not questions:
        if not arguments:
            raise click.UsageError("No question: give it as the last argument or with -Q.")
        *paths, last = arguments
        _refuse_wrong_order(paths, last)
        if os.path.exists(last):
            kind = "folder" if os.path.isdir(last) else "file"
            raise click.UsageError(
                f"{last!r} is a {kind}, so there is no question: add it as the last argument "
                "(or give it with -Q, if this is the question)."
            )
        if paths and re.fullmatch(r"\S*(?:/\S*|\w\.[A-Za-z]\w{0,4})(?<![?？])", last):
            raise click.UsageError(
                f"{last!r} looks like the name of a file, but there is none; check the path, or "
                "give it with -Q if it is the question."
            )
        refuse_words(paths, last)
        arguments, questions = tuple(paths), (last,)
    else:
        refuse_question(
            arguments,
            "give it with -Q, too: with -Q, all other arguments are sources.",
        )  # fmt: skip
    if any(not text.strip() for text in questions):
        raise click.UsageError("A question is empty.")
    return arguments, questions


def refuse_question(paths: Sequence[str], advice: str) -> None:
    """Refuse what looks like a question where arguments are sources; `advice` says what to do."""
    for path in paths:
        asks = path.rstrip().endswith("?") or len(path.split()) > 1
        if asks and not os.path.exists(path):
            raise click.UsageError(f"{path!r} is not a file. If it is a question, {advice}")


def refuse_words(paths: Sequence[str], last: str) -> None:
    """Raise SourceError if several words were given as several arguments, behind a source."""
    behind = [path for path in paths[1:] if not os.path.exists(path)]
    if behind and os.path.exists(paths[0]) and "-" not in paths:
        raise SourceError(
            f"{behind[0]!r} does not exist; check the path, or put several words in quotation "
            f'marks: "{" ".join([*behind, last])}".'
        )


def _refuse_wrong_order(paths: Sequence[str], last: str) -> None:
    """Refuse a question before the sources, where it would be taken for a source."""
    ctx = click.get_current_context()
    missing = next((p for p in paths if p != "-" and not os.path.exists(p)), None)
    if missing is None:
        return
    asks = missing.rstrip().endswith("?")
    if asks and last.rstrip().endswith("?") and not os.path.exists(last):
        raise click.UsageError(
            f"{missing!r} is not a file. If it is a question, too, give each question with -Q: "
            "with -Q, all other arguments are sources."
        )
    if asks or os.path.exists(last):
        before, rule = [*(p for p in paths if p != missing), last], "The question comes last"
        if ctx.params.get("memory") is not None:
            before, rule = ["--memory", str(ctx.params["memory"])], "--memory takes no sources"
        raise click.UsageError(
            f"{missing!r} is not a file. Is it the question? {rule}: {ctx.command_path} "
            f"{shlex.join([*before, missing])}"
        )


def check_shards(paths: Sequence[str]) -> None:
    """Raise UsageError if the sources cannot be split into parts."""
    for path in paths:
        if (os.path.exists(path) and not can_be_read_again(path)) or path == "-":
            name = "standard input" if path == "-" else path
            raise UsageError(
                f"--shards needs a text of known length, and {name} can be read only once; write "
                "it to a file first, and name the file."
            )


def open_sources(
    paths: Sequence[str],
    options: Options,
    stop: Callable[[], bool],
    *,
    due: Callable[[], bool] | None = None,
    tell: Callable[[str], None] = lambda _: None,
    copies: Mapping[str, str] | None = None,
) -> Any:
    """Open the sources. Standard input is used only if it is a source and was not copied."""
    request = options.request
    follow = request.follow
    due = due or request.due
    if follow and options.output is None:
        stop = partial(_ends_following, stop)
    if list(paths).count("-") > 1:
        raise UsageError("Standard input (-) was named twice, but it can be read only once.")
    if follow and paths[-1] == "-" and _stdin_is_file():
        raise UsageError(
            "- cannot be followed: standard input is a file here; name the file instead."
        )

    def source(path: str) -> str | Source:
        if copies and path in copies:
            return Source(copies[path], path)
        if path == "-":
            return Source(InterruptibleInput(stop, due), path)
        if follow or not os.path.exists(path) or can_be_read_again(path):
            return path
        try:
            return Source(InterruptibleInput(stop, due, Path(path)), path)
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from error

    empty = list(paths) == ["-"] and not copies and _ended_empty()
    request = replace(request, interrupted=stop)
    sources = sources_for(request, [source(path) for path in paths], due=due, tell=tell)
    if empty:
        raise sources.nothing()
    return sources


def _ended_empty() -> bool:
    """Return whether standard input is known to be empty by now. Reads nothing from it."""
    _, data = InterruptibleInput.begun.get(sys.stdin, (None, b""))
    if data:
        return False
    try:
        descriptor = sys.stdin.fileno()
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return status.st_size <= os.lseek(descriptor, 0, os.SEEK_CUR)
        if sys.platform == "win32":  # it cannot poll pipes
            return False
        if stat.S_ISCHR(status.st_mode):
            return status.st_rdev == os.stat(os.devnull).st_rdev
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        events = [event for _, event in waiting.poll(0)]
    except (AttributeError, OSError, ValueError):  # closed, or not a file
        return False
    return events == [select.POLLHUP]


def _ends_following(stop: Callable[[], bool]) -> bool:
    """Return whether to stop, or whether the reader of standard output has ended."""
    if stop():
        return True
    with suppress(AttributeError, OSError, ValueError):  # closed, not a file, or no poll
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    return False


def _stdin_is_file() -> bool:
    with suppress(AttributeError, OSError, ValueError):  # closed, or not a file
        return stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    return False


def tell_pages(reporter: Teller, pages: Mapping[str, int]) -> None:
    """Report the PDFs that are converted, before the first event of a reading."""
    if not pages:
        return
    total = sum(pages.values())
    what = next(iter(pages)) if len(pages) == 1 else f"{len(pages):,} PDFs"
    reporter.wait_for(f"Reading {what} ({counted(total, 'page')}) ...")


def can_be_read_again(path: str) -> bool:
    """Return False for standard input, named pipes and process substitutions of a shell."""
    return path != "-" and (os.path.isfile(path) or os.path.isdir(path))
