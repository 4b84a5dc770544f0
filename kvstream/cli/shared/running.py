"""A reading command from settings to exit: sources, model, events, reporters, output."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kvstream.api.answer import Answer
from kvstream.api.memory import Memory, checkpoint_tokens
from kvstream.api.methods import plugins
from kvstream.api.options import AUTO, Intervals, refuse_beside_skimming, refuse_small
from kvstream.api.options import with_method as settled_request
from kvstream.api.source_objects import identity
from kvstream.cli.options.command import effective
from kvstream.cli.options.option import given_options, key_of
from kvstream.cli.options.table import Options
from kvstream.cli.options.types import NONE
from kvstream.cli.shared import reports
from kvstream.cli.shared.inputs import check_shards, open_sources, tell_pages
from kvstream.cli.shared.interrupts import Interrupts
from kvstream.cli.shared.model_choice import open_model, settled
from kvstream.cli.shared.output import OutputFile, refuse_clashes, refuse_closed
from kvstream.cli.shared.saying import quiet
from kvstream.cli.shared.watching import SECONDS, UNMATCHED, UNMET, Watch
from kvstream.errors import SourceError
from kvstream.events import (
    Answered,
    AnswerStarted,
    Event,
    PartRead,
    Result,
    Started,
    StepDone,
    Value,
    returned,
)
from kvstream.reporters import plain
from kvstream.reporters.answer_writer import AnswerWriter
from kvstream.reporters.citation_lines import match_places
from kvstream.reporters.format import Sink, counted, entries, json_text
from kvstream.reporters.plain import Recorder, Teller
from kvstream.reporters.stats import Stats
from kvstream.settings import jsonable
from kvstream.streams import apart, printing_to_stderr
from kvstream.version import __version__

WITHHELD = 6
"""Exit code if --strict withheld an answer."""
SOME_FAILED = 7
"""Exit code if some documents failed and others have results."""


def prepared(
    stack: ExitStack, options: Options, *, answers: bool = False, ends_early: bool = False
) -> tuple[Sink, Teller, Interrupts]:
    """Open the output, the reporter and the handler of Ctrl-C. Raises KvstreamError.

    `answers`: answers are written, so stdout must be open if it is the output. If they go to a
    file, a terminal shows their passages. `ends_early`: see `OutputFile.finish`.
    """
    if answers:
        refuse_closed(options.output)
    quiet_libraries(options)
    may_print = bool(plugins()[0])
    if may_print:
        sys.stdout = apart(sys.stdout)
    output = opened_output(stack, options, ends_early=ends_early)
    if may_print:
        stack.enter_context(printing_to_stderr())
    reporter = _progress(options, answer_on_terminal=output.isatty())
    reporter.verbose = options.verbose
    in_file = isinstance(output, OutputFile) and not options.json
    reporter.cites = answers and in_file and not options.quiet and sys.stderr.isatty()
    recorders: list[Recorder] = []
    if options.report is not None:
        recorders.append(stack.enter_context(reports.report(options)))
    if options.stats is not None:
        stats = OutputFile(options.stats, "--stats", in_place=True)
        stack.callback(stats.close)
        recorders.append(Stats(stats, origin()))
    reporter.recorders = recorders
    stack.callback(reporter.close)
    return output, reporter, stack.enter_context(Interrupts(reporter.tell, stack.close))


def check_files(options: Options, sources: Sequence[str] = (), memory: Path | None = None) -> None:
    """Raise UsageError for outputs that would destroy each other or an input."""
    outputs = {
        "--output": options.output, "--checkpoint": options.request.checkpoint,
        "--stats": options.stats, "--report": options.report,
    }  # fmt: skip
    inputs = {"--memory": memory, "--model": Path(options.model), "--skim": Path(options.skim)}
    refuse_clashes(outputs, inputs, sources)


def read(paths: Sequence[str], options: Options) -> int:
    """Read the sources, answer or summarize, report progress, and return the exit code."""
    if options.request.follow and options.request.every is None:
        options = options.asking(every=Intervals(seconds=SECONDS))
    request = options.request
    if request.shards is not None:
        check_shards(paths)
    check_early(options)
    check_files(options, paths)
    on_the_way = request.follow or request.every is not None
    with ExitStack() as stack:
        spread = request.shards is not None and request.workers is not None
        output, reporter, interrupts = prepared(
            stack, plainly(options) if on_the_way or spread else options, answers=True
        )
        interrupts.gentle = request.follow
        sources = open_sources(paths, options, interrupts, tell=reporter.tell)
        pages = sources.check()
        check_checkpoint(options, reporter)
        if options.skim not in (AUTO, NONE):
            refuse_beside_skimming(request)
        if not request.questions:  # only one model summarizes
            options = replace(options, skim=NONE)
        options = settled(options)
        model = open_model(options, reporter)
        request = replace(request, interrupted=interrupts)
        if options.dry_run:
            plan = model.plan_of(sources, request)
            reporter.close()
            show_plan(plan, options, output)
            return 0
        tell_pages(reporter, pages)
        events = answer_events(model.events(sources, request), interrupts, on_the_way=on_the_way)
        writer = answer_writer(stack, output, options)
        apart = request.every is not None and not options.json and not writer.labels
        watch = Watch(options.until_answer, request.every.seconds if request.every else None)
        if request.follow:
            events = watch.news(events)
        code = _show(events, writer, output, reporter, options, apart=apart)
        if not request.follow:
            return code
        if watch.changed_at and not watch.is_news and not options.quiet:
            reporter.tell(f"Stopped following. The last change was at {watch.changed_at}.")
        if options.until_answer is not None and not watch.met:
            reporter.tell(UNMATCHED)
            return UNMET
        return code


def _show(
    events: Iterator[Event], writer: AnswerWriter, output: Sink, reporter: Teller,
    options: Options, *, apart: bool,
) -> int:  # fmt: skip
    """Show the events, write the answers (`apart`: by empty lines), and return the exit code."""
    code = answers = 0
    for event in events:
        if isinstance(event, AnswerStarted) and apart:
            output.write("\n" if answers else "")
        code = show(event, writer, reporter) or code
        if isinstance(event, Answered):
            answers += 1
            if not (options.json or output.isatty() or reporter.cites):
                tell_matches(event.result, reporter)
    return code


def answer_writer(stack: ExitStack, output: Sink, options: Options) -> AnswerWriter:
    """Return what writes the answers of a command until `stack` closes."""
    labels = len(options.request.questions) > 1 or options.one_of_several
    writer = AnswerWriter(output, as_json=options.json, labels=labels, origin=origin())
    stack.callback(writer.close)
    return writer


def show(event: Event, writer: AnswerWriter, reporter: Teller) -> int:
    """Write and show an event; return the exit code of an answer."""
    if not isinstance(event, Answered):
        reporter.show(event)  # the panel ends before the first token is written
        writer.show(event)
        return 0
    reporter.make_way()
    writer.show(event)  # ends its line before messages about it
    reporter.show(event)
    return 0 if event.result.withheld is None else WITHHELD


def tell_matches(result: Result, reporter: Teller) -> None:
    """After a refusal, report the log lines with the question's words, as a terminal does."""
    places = match_places(result.lines)
    if places and Answer(result).abstained:
        reporter.tell(f"Lines with the words of the question: {', '.join(places)}")


def plainly(options: Options) -> Options:
    """Replace the panel by lines, for answers during the reading or without reading."""
    return replace(options, progress="none" if options.progress == "none" else "plain")


def check_checkpoint(options: Options, reporter: Teller) -> None:
    """Check the file of --checkpoint, and report its position. Raises KvstreamError."""
    if options.request.checkpoint is None:
        return
    tokens = checkpoint_tokens(options.request.checkpoint)
    if tokens is not None and not options.quiet:
        reporter.tell(f"Going on from {options.request.checkpoint}, {tokens:,} tokens in.")


def answer_events(
    events: Iterator[Event], interrupts: Interrupts, *, on_the_way: bool = False
) -> Iterator[Event]:
    """Yield the events, and tell the Ctrl-C handler while reading can be stopped: with answers
    `on_the_way` also after an answer.
    """
    interrupts.begun = False
    with reading(interrupts):
        for event in events:
            interrupts.begun |= isinstance(event, StepDone | PartRead)
            if isinstance(event, AnswerStarted):
                interrupts.reading = on_the_way and not interrupts.pressed
            yield event


def read_to_end(
    events: Generator[Event, None, Value], reporter: Teller, interrupts: Interrupts
) -> Value:
    """Show the events of a reading that Ctrl-C can stop, and return its value."""
    interrupts.begun = False

    def show(event: Event) -> None:
        interrupts.begun |= isinstance(event, StepDone | PartRead)
        reporter.show(event)

    with reading(interrupts):
        return returned(events, show)


@contextmanager
def reading(interrupts: Interrupts) -> Iterator[None]:
    """Tell the Ctrl-C handler that reading can be stopped."""
    interrupts.reading = True
    try:
        yield
    except SourceError:
        if interrupts.pressed:  # before there was any text to answer from
            raise KeyboardInterrupt from None
        raise


def kept_line(row: Mapping[str, Any]) -> str:
    """Describe what is kept for the answering model."""
    return (
        f"Kept for {row['model']}: {counted(row['passages'], 'passage')}, {row['bytes']:,} of "
        f"{row['room_bytes']:,} bytes · {row['dropped_bytes']:,} bytes dropped, which cannot be "
        "read again."
    )


def reading_line(memory: Memory) -> str:
    """Return cost and result of a reading, for runs without an answer."""
    read = memory.read_tokens
    return plain.cost_line(
        read, plain.kept_share(read, memory.retained, partial=memory.partial), memory.peak,
        memory.budget, memory.seconds, memory.lines, memory.shards, sizes_read=memory.bytes_read,
    )  # fmt: skip


def origin() -> dict[str, Any]:
    """Return the command line and the options that the user set anywhere, for a receipt."""
    ctx, given = click.get_current_context(), given_options()
    names = {str(o.name): key_of(o) for o in effective(ctx.command) if o.name in given}
    values = {key: jsonable(ctx.params[name]) for name, key in names.items()}
    line = reports.command_line()
    return {"kvstream": __version__, "command_line": line, "options": values}


def receipt(sources: Any) -> dict[str, Any]:
    """Return what repeats a run without a model."""
    return {**origin(), "input": identity(sources), "notes": list(sources.notes)}


def quiet_libraries(options: Options) -> None:
    """Silence the libraries' output on stderr unless -v was given."""
    bars = not (options.quiet or options.progress == "none") and sys.stderr.isatty()
    quiet(offline=options.loading.offline, verbose=options.verbose, bars=bars)


def opened_output(stack: ExitStack, options: Options, *, ends_early: bool = False) -> Sink:
    """Return stdout, or the file of -o."""
    if options.output is None or options.output == Path("-"):
        return sys.stdout
    output = OutputFile(options.output, rescued=True)
    stack.callback(output.finish, quiet=options.quiet, ends_early=ends_early)
    return output


@contextmanager
def whole_or_none(output: Sink) -> Iterator[None]:
    """Write a file of several results only if the run succeeds, else keep an earlier file."""
    try:
        yield
    except Exception:
        if isinstance(output, OutputFile):
            output.discard()
        raise


def _progress(options: Options, *, answer_on_terminal: bool) -> Teller:
    if options.quiet or options.progress == "none":
        return Teller(sys.stderr)
    if options.progress == "plain" or not can_be_live():
        return plain.Plain(sys.stderr)
    from kvstream.reporters.live import Live

    return Live(sys.stderr, stays=not answer_on_terminal)


def can_be_live() -> bool:
    """Return whether stderr is a terminal that can show a panel."""
    return (
        sys.stderr.isatty()
        and os.environ.get("TERM", "") not in ("dumb", "unknown", "")
        and sys.stderr.encoding.lower().replace("-", "") == "utf8"
    )


def show_plan(plan: Started, options: Options, output: Sink) -> None:
    """Write what --dry-run prints for a run."""
    unused = [plan.unused] if plan.unused else []
    if options.json:
        record = {"dry_run": True, **plan.to_json(), "warnings": unused}
        output.write(json_text(record) + "\n")
        return
    lines = [plain.plan_line(plan), _parts_line(plan)]
    if (answering := plan.answering) is not None:
        lines += [plain.answering_line(answering), _parts_line(answering)]
    output.write("".join(f"{line}\n" for line in [*lines, *unused]))
    output.flush()


def _parts_line(plan: Started) -> str:
    """Describe what of the budget is not for the text, and what a token takes."""
    fixed = f", states {plan.fixed_bytes:,}" if plan.fixed_bytes else ""
    return (
        f"prompt {entries(plan.prompt_tokens)}, question and answer "
        f"{plan.reserved_tokens:,}; a token takes {plan.entry_bytes:,.0f} bytes in all heads"
        f"{fixed}"
    )


def check_early(options: Options) -> None:
    """Check methods, settings, extras and a small budget. Raises UsageError and BudgetError."""
    refuse_small(options.request.run.budget)
    for method in options.methods:
        settled_request(options.of_method(method), known=True)
