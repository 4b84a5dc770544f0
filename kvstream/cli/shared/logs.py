"""``summarize`` on logs: what is a log, in which order it is read, when it is reported."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvstream.api.logs import ROWS, LineParser, LogSummary, looks_like_log, page, record
from kvstream.cli.shared.interrupts import InterruptibleInput, Interrupts
from kvstream.cli.shared.options import ReadingOptions, option, typed
from kvstream.cli.shared.output import OutputFile
from kvstream.cli.shared.running import open_sources as open_for_reading
from kvstream.errors import KvstreamError, UsageError
from kvstream.reporters.format import json_text
from kvstream.reporters.plain import Teller

if TYPE_CHECKING:
    from kvstream.api.sources import Source

HEAD = 64 * 1024
"""Characters (bytes, of standard input) by which a log is recognized."""
ENOUGH = 4
"""Lines of a slow pipe by which it is recognized."""
_OF_MODEL = frozenset(
    (
        "model",
        "method",
        "budget",
        "extract",
        "checkpoint",
        "stats",
        "dry_run",
        "system",
        "max_tokens",
    )
)
"""Options of a reading by a model: with one of them ``auto`` leaves the text to the model."""

as_option = option(
    "--as", "kind", type=click.Choice(["auto", "prose", "log"]), default="auto", show_default=True,
    section="Answer",
    help="prose: the model reads. log: a table of templates with counts, times, bursts and "
    "silences, without the model. auto: log, where lines begin with times or levels and no option "
    "of the model is given.",
)  # fmt: skip


def open_sources(paths: Sequence[str | Source], *, text: bool = False) -> Any:
    """The sources. Imported here, because that takes a while."""
    from kvstream.api.sources import open_sources

    return open_sources(list(paths), plain=text)


def is_log(ctx: click.Context, paths: Sequence[str], kind: str, *, text: bool) -> bool:
    """Whether the sources are to be summarized as logs."""
    if kind != "auto":
        return kind == "log"
    if any(typed(ctx, name) for name in _OF_MODEL):
        return False
    if paths[0] == "-":
        return looks_like_log(_head_of_stdin(text=text).splitlines())
    if not (os.path.isfile(paths[0]) or os.path.isdir(paths[0])):
        return False  # a pipe by its name can be read only once
    return looks_like_log(_head(open_sources(paths[:1], text=text)).splitlines())


def summarize(
    paths: Sequence[str],
    options: ReadingOptions,
    *,
    rows: int | None = None,
    seconds: float | None = None,
    follow: bool = False,
) -> int:
    """Read logs and print their page; with ``seconds`` also what is new, that often."""
    as_json, output = options.as_json, options.output
    with ExitStack() as stack:
        out: Any = sys.stdout
        if output is not None and output != Path("-"):
            out = OutputFile(output)
            stack.callback(out.close)
        teller = Teller(sys.stderr)
        stack.callback(teller.close)
        interrupts = stack.enter_context(Interrupts(teller.tell))
        interrupts.gentle = interrupts.reading = True
        timer = _Timer(seconds)
        paths = [*in_order(paths[:-1]), paths[-1]] if follow else in_order(paths)
        sources = open_for_reading(paths, options, interrupts, follow=follow, due=timer.due)
        log = LogSummary()
        reported = 0
        for source, text_piece in _pieces(sources):
            if interrupts():
                break
            if len(log.sources) <= source:
                log.begin(sources.names[source])
            log.feed(text_piece)
            if timer.due():
                reported = _report(log, reported, out, rows or ROWS, as_json=as_json)
                timer.restart()
        log.close()
        _report(log, reported, out, rows or ROWS, as_json=as_json, last=True)
        if not options.quiet:
            for warning in sources.warnings:
                teller.tell(warning)
    return 0


class _Timer:
    """When the next report is due."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.restart()

    def restart(self) -> None:
        self.next = None if self.seconds is None else time.monotonic() + self.seconds

    def due(self) -> bool:
        return self.next is not None and time.monotonic() >= self.next


def _report(
    log: LogSummary, reported: int, out: Any, rows: int, *, as_json: bool, last: bool = False
) -> int:
    """Print the page, or what is new since the last one; returns the lines told of by now."""
    if log.lines == reported and (reported or not last):
        return reported
    news = reported > 0
    if as_json:
        made = record(log, rows, news=news)
        out.write(json_text({**made, "new_lines": log.lines - reported}) + "\n")
    else:
        if news:
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            out.write(f"\n--- {now}: {log.lines - reported:,} new lines ---\n")
        out.write(page(log, rows, news=news))
    out.flush()
    log.mark()
    return log.lines


def _pieces(sources: Any) -> Iterator[tuple[int, str]]:
    for block in sources:
        yield block.source, block.text


def in_order(paths: Sequence[str]) -> list[str]:
    """Several logs by the time of their first lines: a rotated log runs on from file to file.

    By the time of their last change where stamps name no year. Unchanged where a file has no time.
    """
    if "-" in paths or not all(os.path.isfile(p) or os.path.isdir(p) for p in paths):
        return list(paths)
    if len(paths) == 1 and os.path.isfile(paths[0]):
        return list(paths)
    names = list(open_sources(paths).names) if paths else []
    keys: list[tuple[float, float]] = []
    dated = True
    for name in names:
        parser = LineParser()
        with suppress(KvstreamError):
            stamps = (parser.parse(line)[0] for line in _head(open_sources([name])).splitlines())
            first = next((stamp for stamp in stamps if stamp is not None), None)
            if first is not None:
                keys.append((first, os.stat(name).st_mtime))
                dated = dated and parser.dated
    if len(keys) < len(names):
        return list(paths)
    order = sorted(range(len(names)), key=lambda i: keys[i] if dated else keys[i][::-1])
    return [names[i] for i in order]


def _head(sources: Any) -> str:
    """The first characters of what there is to read."""
    held = ""
    for block in sources:
        held += block.text
        if len(held) >= HEAD:
            break
    return held[:HEAD]


def _head_of_stdin(*, text: bool) -> str:
    """The first characters of standard input, which stays as it was for whoever reads it next."""
    source = InterruptibleInput(lambda: False)
    data = b""
    while len(data) < HEAD and data.count(b"\n") < ENOUGH:
        piece = source.read(HEAD - len(data))
        if not piece:
            break
        data += piece
    from kvstream.api.sources import Source

    InterruptibleInput.returned = sys.stdin, data
    with suppress(KvstreamError):  # of half a packed file
        return _head(open_sources([Source(io.BytesIO(data), "-")], text=text))
    return ""


def seconds_of(every: Any) -> float | None:
    """The seconds of --every. Raises UsageError for an interval in tokens."""
    if every is None:
        return None
    if every.seconds is None:
        raise UsageError(
            "A log is not cut into tokens, so --every N has no effect on it; give a time, such as "
            "--every 30s, or read it with the model: --as prose."
        )
    return float(every.seconds)
