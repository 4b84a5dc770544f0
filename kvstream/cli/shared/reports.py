"""``--report``: the page of a run, written if the run succeeds."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from kvstream.api.html_report import Report
from kvstream.api.options import TABLE, require
from kvstream.cli.options.table import Options
from kvstream.cli.shared.output import OutputFile
from kvstream.cli.shared.saying import say
from kvstream.reporters.format import size
from kvstream.reporters.html.page import Page
from kvstream.reporters.plain import Teller
from kvstream.version import __version__

SHOWN_ELSEWHERE = (
    "budget", "method", "set", "schedule", "chunk", "checkpoint", "checkpoint_every", "plain",
    "max_unpacked", "follow", "every", "shards", "workers", "worker_memory",
)  # fmt: skip


def rendered(title: str, **parts: Any) -> str:
    """Return a page as HTML, with the command line; `parts` are the other fields of `Page`."""
    from kvstream.reporters.html.render import render

    version = f"{__version__} · {time.strftime('%Y-%m-%d %H:%M')}"
    return render(Page(title, command_line(), version, **parts))


def command_line() -> str:
    """Return the typed command line, quoted for a shell."""
    arguments = click.get_current_context().find_root().obj
    return "" if arguments is None else shlex.join(["kvstream", *arguments])


class PageFile(OutputFile):
    """The file of a page: checked before the work, and written when there is a page."""

    def __init__(self, path: Path, *, quiet: bool) -> None:
        require("jinja2", "report", "--report")
        super().__init__(path, "--report")
        self.quiet = quiet

    def write_page(self, text: str) -> None:
        """Write the page, give it its name, and report it on stderr."""
        self.write(text)
        self.close()
        if not self.quiet:
            say(f"Wrote {self.path} ({size(len(text.encode('utf-8', 'replace')))}).")


@contextmanager
def report(options: Options) -> Iterator[Report]:
    """Yield what collects the events of a run; write its page if the run succeeds."""
    assert options.report is not None
    file = PageFile(options.report, quiet=options.quiet)
    page = Report(command=command_line(), settings=_settings(options))
    try:
        yield page
        if page.complete:
            file.write_page(page.html())
    finally:
        file.discard()  # unless it was written


def of(reporter: Teller) -> Report | None:
    """Return what makes the page of a run, if any."""
    return next((r for r in reporter.recorders if isinstance(r, Report)), None)


def _settings(options: Options) -> dict[str, object]:
    """Return the given settings that the events do not have."""
    values: dict[str, object] = {
        name.replace("_", "-"): options.value(name)
        for name in TABLE
        if name in options.request.choices and name not in SHOWN_ELSEWHERE
    }
    for method, settings in options.settings.items():
        values |= {f"{method}.{name}": value for name, value in settings.items()}
    for name in ("device", "dtype", "attn", "quantize", "revision", "threads"):
        values[name] = getattr(options.loading, name)
    return {name: value for name, value in values.items() if value not in (None, "auto")}
