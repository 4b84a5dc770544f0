"""``kvstream compare``: several methods on the same text under the same budget, side by side."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import click

from kvstream.cli.options.option import option
from kvstream.cli.options.table import Options, reading_command
from kvstream.cli.shared import inputs
from kvstream.cli.shared.comparison import Comparison, print_json
from kvstream.cli.shared.interrupts import Interrupts
from kvstream.cli.shared.model_choice import announce, open_model, settled
from kvstream.cli.shared.output import refuse_closed
from kvstream.cli.shared.running import check_early, check_files, prepared, show_plan, whole_or_none
from kvstream.cli.shared.side_by_side import Row
from kvstream.errors import BudgetError, SourceError, UsageError
from kvstream.reporters.format import Sink
from kvstream.reporters.plain import Teller

COPY = 1 << 20


@reading_command("compare")
@inputs.asking
@option(
    "--csv", "as_csv", is_flag=True, section="Input and output",
    help="Print CSV: a header, then one line per method and question.",
)  # fmt: skip
@click.pass_context
def command(
    ctx: click.Context,
    arguments: tuple[str, ...],
    question: tuple[str, ...],
    as_csv: bool,
    options: Options,
) -> int:
    """Answer the same questions with several methods under the same budget, side by side.

    kvstream loads the model once and reads the text once per method. Without --method, it compares
    infinipot (which auto chooses for a known question), keydiff (which needs no question) and the
    baseline streaming. It copies a pipe to a temporary file. "kept"
    counts the tokens of the text that at least one head still holds. "spread" is 1 if these tokens
    are spread evenly over the text, and 0 if all are in one place. ! marks an answer with a
    warning.

    \b
      kvstream compare book.txt "Who hid the letter?" --budget 1k
      kvstream compare book.txt "Who hid it?" --budget 1k \\
          --method infinipot,snapkv
    """
    paths, questions = inputs.split_arguments(ctx, arguments, question)
    options = options.asking(questions=questions, command="compare")
    if options.each:
        from kvstream.cli.shared.each import read_each

        if as_csv:
            raise click.UsageError("--csv is for one text; use --json with --each.", ctx)
        return read_each(ctx, "compare", paths, options)
    return compare(inputs.sources_or_usage(ctx, paths), options, as_csv=as_csv)


def compare(paths: Sequence[str], options: Options, *, as_csv: bool = False) -> int:
    """Run every method of `options.methods` on the same sources, and return the exit code."""
    _check(options, as_csv=as_csv)
    check_early(options)
    check_files(options, paths)
    options = settled(options, alone=True)
    with ExitStack() as stack:
        refuse_closed(options.output)
        output, reporter, interrupts = prepared(stack, options)
        stack.enter_context(whole_or_none(output))
        if options.dry_run:
            _plans(paths, options, output, reporter, interrupts)
            return 0
        several = len(options.methods) > 1
        once = [path for path in paths if several and not inputs.can_be_read_again(path)]
        copies = stack.enter_context(_copied(once, interrupts))
        sources = inputs.open_sources(paths, options, interrupts, copies=copies)
        pages = sources.check()
        announce(reporter, options)
        comparison = Comparison(
            open_model(options), paths, copies, options, as_csv, output, reporter,
            interrupts,
        )  # fmt: skip
        code = comparison.run(sources, pages)
    if comparison.stopped is not None:
        raise comparison.stopped
    return code


def _check(options: Options, *, as_csv: bool) -> None:
    """Raise UsageError if options contradict each other."""
    if as_csv and (options.json or options.dry_run):
        other = "--json" if options.json else "--dry-run"
        raise UsageError(f"--csv and {other} print two different things; use one.")
    if options.request.checkpoint is not None:
        raise UsageError("--checkpoint, --follow and --every are for one method, not for several.")


def _plans(
    paths: Sequence[str], options: Options, output: Sink, reporter: Teller, interrupts: Interrupts
) -> None:
    """Write a line of --dry-run for each method, or the reason why it cannot run."""
    sources = inputs.open_sources(paths, options, interrupts)
    sources.check()
    announce(reporter, options)
    model = open_model(options)
    reporter.close()
    for turn, name in enumerate(options.methods):
        if turn:
            sources = inputs.open_sources(paths, options, interrupts)
        try:
            show_plan(model.planned(sources, options.of_method(name)), options, output)
        except (BudgetError, UsageError) as error:
            if len(options.methods) == 1:
                raise
            if options.json:
                print_json(output, Row(name, None, 0.0, str(error)))
            else:
                output.write(f"{name}: {error}\n")


@contextmanager
def _copied(paths: Sequence[str], interrupts: Interrupts) -> Iterator[Mapping[str, str]]:
    """Copy sources that can be read only once; yield their temporary files by source name."""
    with ExitStack() as stack:
        copies = {}
        for path in paths:
            if path != "-" and not os.path.exists(path):
                continue  # opening the sources reports it
            if path == "-" and sys.stdin is None:
                raise SourceError("Standard input is closed; name a file instead.")
            spool = stack.enter_context(tempfile.NamedTemporaryFile(prefix="kvstream-"))
            source = sys.stdin.fileno() if path == "-" else os.open(path, os.O_RDONLY)
            try:
                while not interrupts() and (block := os.read(source, COPY)):
                    spool.write(block)
            finally:
                if path != "-":
                    os.close(source)
            spool.flush()
            copies[path] = spool.name
        yield copies
