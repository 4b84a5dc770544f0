"""``kvstream count``: count words, or units such as rows and messages, without a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from kvstream.api.exact import UNITS, Aim
from kvstream.api.options import Request
from kvstream.cli.app import INTERRUPTED
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.option import option
from kvstream.cli.options.table import ROWS, Options, added
from kvstream.cli.shared.exact_answers import STOPPED, count, for_each, show
from kvstream.cli.shared.inputs import refuse_words, sources_or_usage
from kvstream.cli.shared.interrupts import Interrupts
from kvstream.cli.shared.running import SOME_FAILED
from kvstream.cli.shared.saying import say
from kvstream.errors import SourceError
from kvstream.reporters.format import in_line, json_line
from kvstream.settings import ModelSettings

OFFERED = tuple(unit for unit in UNITS if unit not in ("word", "heading"))
"""Units of --unit; words are what is counted in them, and headings are of all its levels."""
SHARED = ("plain", "max_unpacked", "only", "since", "until", "each", "json", "quiet")
"""Options of the table."""


@click.command("count", cls=SectionedCommand, common=("since", "until"))
@click.argument("arguments", nargs=-1, metavar="[SOURCE]... WORDS", type=str)
@option(
    "--unit", type=click.Choice(OFFERED), metavar="UNIT", envvar=(),
    help=f"Count the units with the words: {', '.join(OFFERED)}. Without words ('') count all "
    "units.",
)  # fmt: skip
@option("--inflections", is_flag=True, envvar=(),
        help="Also count regular English forms of the last word: cry, cries, cried.")  # fmt: skip
@option("--case", is_flag=True, envvar=(), help="Count the words only in this case.")
@partial(added, rows=[ROWS[name] for name in SHARED], name="count")
def command(
    arguments: tuple[str, ...], unit: str | None, inflections: bool, case: bool, **values: Any
) -> int:
    """Count words in texts of any length, in one pass and without a model.

    A match is whole words in any case; in scripts without spaces, such as Chinese, also a part of a
    word. A terminal also shows the spellings, the first and the last place, and how the words
    spread over the text.

    \b
      kvstream count book.txt Anna
      kvstream count server.log "connection refused" --unit line
      zcat server.log.gz | kvstream count timeout
      kvstream count letters/ harbor --each
      kvstream count table.csv "" --unit row
    """
    if not arguments:
        raise click.UsageError("No words: give them as the last argument.")
    *paths, words = arguments
    if not paths and os.path.exists(words):
        raise click.UsageError(f"{words!r} is a file; add the words as the last argument.")
    if os.path.isfile(words) and not any(map(os.path.exists, paths)) and paths != ["-"]:
        raise click.UsageError(f"{words!r} is a file; the words come last, after the files.")
    refuse_words(paths, words)
    if not words.strip() and unit is None:
        raise click.UsageError("No words to count; give some, or a --unit.")
    options = Options(
        Request(**{n: values[ROWS[n].key] for n in SHARED[:5]}), ModelSettings(), (),
        **{n: values[n] for n in SHARED[5:]},
    )  # fmt: skip
    aim = Aim("count", words.strip(), unit or "")
    how = {"inflected": inflections, "cased": case}
    sources = sources_or_usage(paths)
    unit_of = words.strip().casefold().removesuffix("s")
    if unit is None and unit_of in OFFERED and not options.quiet:
        say(f"This counts the word {words!r}; {command.name} FILE '' --unit {unit_of} counts "
            f"the {unit_of}s.")  # fmt: skip
    failures: dict[str, str] = {}
    with Interrupts(say) as interrupts:
        interrupts.then = STOPPED

        def read(some: Sequence[str]) -> dict[str, Any]:
            if (record := count(some, options, aim, interrupts, **how)) is None:
                raise SourceError(
                    f"{', '.join(some)} has no {unit}s that kvstream recognizes; leave --unit "
                    "out, or choose another one."
                )
            return record

        for name, record in for_each(sources, options, failures, read, interrupts):
            head = {"command": "count", **({"source": name} if name else {})}
            labels = [in_line(name)] if name else []
            show({**head, **record}, sys.stdout, as_json=options.json, labels=labels)
        for name, reason in failures.items() if options.json else ():
            line = {"command": "count", "source": name, "error": reason}
            sys.stdout.write(json_line(line, sys.stdout))
    if interrupts.pressed and options.each:
        return INTERRUPTED
    return SOME_FAILED if failures else 0
