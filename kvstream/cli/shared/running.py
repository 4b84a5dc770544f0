"""One reading command from settings to exit: sources, model, events, reporters, output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from kvstream.cli.shared import early
from kvstream.cli.shared.interrupts import InterruptibleInput, Interrupts
from kvstream.cli.shared.options import ReadingOptions
from kvstream.cli.shared.output import OutputFile, refuse_clashes
from kvstream.errors import KvstreamError, SourceError, UsageError
from kvstream.events import Answered, AnswerStarted, Event, Result, Started
from kvstream.reporters import Reporter, Reporters
from kvstream.reporters.answer import AnswerWriter
from kvstream.reporters.format import json_text
from kvstream.reporters.plain import Plain, Teller, cost_line, plan_line
from kvstream.reporters.stats import Stats
from kvstream.session.intervals import Intervals
from kvstream.settings import ModelSettings

if TYPE_CHECKING:
    from kvstream.memory.base import Memory
    from kvstream.memory.checkpoint import Checkpoint
    from kvstream.session.session import Session
    from kvstream.settings import RunSettings


DEMONSTRATION = (
    "pocket is a small model for demonstration; for better answers choose another with -m, such as "
    "-m Qwen/Qwen3-0.6B."
)
WITHHELD = 6
"""Exit code where --strict withheld an answer."""


@dataclass(frozen=True)
class Reading:
    """What a command asks of a run, next to the shared options."""

    command: str
    paths: tuple[str, ...]
    questions: tuple[str, ...]
    extract_by_default: bool = False
    """Extract where the model is one that does better so."""
    follow: bool = False
    every: str | None = None
    copies: Mapping[str, str] = field(default_factory=dict)
    """Files to read in place of paths that can be read only once."""


def prepared(
    stack: ExitStack, options: ReadingOptions
) -> tuple[TextIO | OutputFile, Reporters, Interrupts]:
    """Where the answer goes, who is told of progress, and the watch for Ctrl-C."""
    quiet_libraries(options)
    output = _output(stack, options)
    progress = _progress(options, answer_on_terminal=output.isatty())
    progress.verbose = options.verbose
    reporters: list[Reporter] = [progress]
    if options.stats is not None:
        stats = OutputFile(options.stats, "--stats", in_place=True)
        stack.callback(stats.close)
        reporters.append(Stats(stats))
    reporter = Reporters(reporters)
    stack.callback(reporter.close)
    return output, reporter, stack.enter_context(Interrupts(progress.tell))


def check_files(
    options: ReadingOptions, sources: Sequence[str] = (), memory: Path | None = None
) -> None:
    """Refuse outputs that would destroy each other or what is read. Raises UsageError."""
    outputs = {
        "--output": options.output, "--checkpoint": options.checkpoint, "--stats": options.stats,
    }  # fmt: skip
    refuse_clashes(outputs, {"--memory": memory}, sources, replaced=("--output",))


def read(reading: Reading, options: ReadingOptions) -> int:
    """Read the sources, answer the questions, report on the way; returns the exit code."""
    code = 0
    rolling = None if reading.every is None else Intervals.parse(reading.every)
    on_the_way = reading.follow or rolling is not None
    if on_the_way and options.reread is not None:
        raise UsageError("--reread needs a text that is there; --follow and --every read on.")
    early.check(options)
    check_files(options, reading.paths)
    with ExitStack() as stack:
        output, reporter, interrupts = prepared(stack, plainly(options) if on_the_way else options)
        interrupts.gentle = reading.follow
        asked = second_thoughts(reading, options, interrupts)
        if rolling is not None:
            asked["rolling"] = rolling
        sources = open_sources(
            reading.paths,
            options,
            interrupts,
            follow=reading.follow,
            due=(lambda: False) if rolling is None else rolling.time_is_up,
        )
        checkpoint = open_checkpoint(options, reporter)
        if checkpoint is not None:
            asked["checkpoint"] = checkpoint
        announce(reporter, options)
        session = open_session(options)
        extract = _extract(reading, options, session)
        if options.dry_run:
            started = session.plan(
                sources,
                list(reading.questions),
                options.run,
                command=reading.command,
                system=options.system,
                extract=bool(extract),
                whole_answers=rolling is not None,
            )
            reporter.close()
            show_plan(started, options.run, output, as_json=options.as_json)
            return code
        events = session.ask(
            sources,
            list(reading.questions),
            options.run,
            command=reading.command,
            system=options.system,
            extract=extract,
            interrupted=interrupts,
            **asked,
        )
        labels = len(reading.questions) > 1
        writer = AnswerWriter(output, as_json=options.as_json, labels=labels)
        stack.callback(writer.close)
        answers = 0
        for event in answer_events(events, interrupts, on_the_way=on_the_way):
            on_its_own = rolling is not None and not options.as_json and not labels
            if isinstance(event, AnswerStarted) and on_its_own:
                output.write("\n" if answers else "")
            if isinstance(event, Answered):
                answers += 1
                if checkpoint is not None and checkpoint.digest is not None:
                    told = {"sha256": checkpoint.digest}
                    event = Answered(replace(event.result, memory=told))
                reporter.make_way()
                with _rescued(event.result, output):
                    writer.show(event)
                reporter.show(event)
                if event.result.withheld is not None:
                    code = WITHHELD
            else:
                # The panel makes room before the first token is written.
                reporter.show(event)
                writer.show(event)
        if checkpoint is not None and checkpoint.digest is not None:
            checkpoint.remove()
    return code


def plainly(options: ReadingOptions) -> ReadingOptions:
    """The same options without a panel, where answers come in between or there is no reading."""
    return replace(options, progress="none" if options.progress == "none" else "plain")


def announce(reporter: Reporter, options: ReadingOptions) -> None:
    """Say that the model is loaded now, and of pocket what it is."""
    if options.model.name == ModelSettings.name and not options.quiet:
        reporter.tell(DEMONSTRATION)
    reporter.loading(options.model.name)


def open_checkpoint(
    options: ReadingOptions, reporter: Reporter, base: str | None = None
) -> Checkpoint | None:
    """The file of --checkpoint; says so if there is something to go on from."""
    if options.checkpoint is None:
        return None
    from kvstream.memory.checkpoint import Checkpoint

    checkpoint = Checkpoint(options.checkpoint, options.checkpoint_every, base)
    if checkpoint.kind is not None and not options.quiet:
        reporter.tell(f"Going on from {options.checkpoint}, {checkpoint.tokens:,} tokens in.")
    return checkpoint


def second_thoughts(
    reading: Reading, options: ReadingOptions, stop: Callable[[], bool]
) -> dict[str, Any]:
    """What --strict and --reread ask of a session. Raises UsageError, SourceError."""
    asked: dict[str, Any] = {"strict": True} if options.strict else {}
    if options.reread is None:
        return asked
    if reading.command == "summarize" or options.extract:
        raise UsageError("--reread looks again at what an answer rests on; use it with a question.")
    for path in reading.paths:
        if path not in reading.copies and not can_be_read_again(path):
            name = "standard input" if path == "-" else path
            raise UsageError(
                f"--reread reads the sources a second time, and {name} can be read only once; "
                "write it to a file first, and name that."
            )
    from kvstream.rereading.look import Reread

    def again() -> Any:
        return open_sources(reading.paths, options, stop, copies=reading.copies)

    asked["reread"] = Reread(options.reread, again)
    return asked


def answer_events(
    events: Iterator[Event], interrupts: Interrupts, *, on_the_way: bool = False
) -> Iterator[Event]:
    """The same events; tells the Ctrl-C handler when there is reading to be stopped.

    With answers `on_the_way` the reading goes on behind one, until it was interrupted.
    """
    interrupts.reading = True
    try:
        for event in events:
            if isinstance(event, AnswerStarted):
                interrupts.reading = on_the_way and not interrupts.pressed
            yield event
    except SourceError:
        if interrupts.pressed:  # before there was anything to answer from
            raise KeyboardInterrupt from None
        raise


def drained(
    events: Generator[Event, None, Memory], interrupts: Interrupts, reporter: Reporter
) -> Memory:
    """Show the events of a reading; returns what it leaves."""
    left: list[Memory] = []

    def through() -> Iterator[Event]:
        left.append((yield from events))

    for event in answer_events(through(), interrupts):
        reporter.show(event)
    return left[0]


def reading_line(memory: Memory) -> str:
    """What reading cost and what it left, where no answer tells it."""
    reader, peak = memory.reader, memory.reader.cache.peak
    return cost_line(
        memory.trace.read,
        memory.retained,
        (peak.tokens, peak.bytes),
        (reader.sizes.budget, reader.cache.capacity_bytes),
        memory.prefill_s,
        memory.tokens_per_s,
    )


def open_session(options: ReadingOptions) -> Session:
    """Load the model. Here and not above, because torch takes seconds to import."""
    from kvstream.session.session import Session

    return Session.open(options.model)


def open_sources(
    paths: Sequence[str],
    options: ReadingOptions,
    stop: Callable[[], bool],
    *,
    follow: bool = False,
    due: Callable[[], bool] = lambda: False,
    copies: Mapping[str, str] | None = None,
) -> Any:
    """The sources; standard input is touched only if it is one of them, and was not copied."""
    from kvstream.input.following import Follow
    from kvstream.input.sources import open_sources

    copies = copies or {}
    stdin = InterruptibleInput(stop, due) if "-" in paths and "-" not in copies else None
    following = Follow(stop, due) if follow else None
    return open_sources(
        paths,
        text=options.text,
        stdin=stdin,
        max_bytes=options.max_unpacked,
        follow=following,
        copies=copies,
        opener=lambda path: InterruptibleInput(stop, due, path),
    )


def can_be_read_again(path: str) -> bool:
    """Not so standard input, named pipes, and what a shell puts in the place of a command."""
    return path != "-" and (os.path.isfile(path) or os.path.isdir(path))


def quiet_libraries(options: ReadingOptions) -> None:
    """Libraries write to stderr on their own; only -v wants to hear them."""
    if options.model.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    if options.verbose:
        return
    import warnings

    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if options.quiet or options.progress == "none" or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _output(stack: ExitStack, options: ReadingOptions) -> TextIO | OutputFile:
    if options.output is None or options.output == Path("-"):
        return sys.stdout
    output = OutputFile(options.output)
    stack.callback(output.close)
    return output


@contextmanager
def _rescued(result: Result, output: TextIO | OutputFile) -> Iterator[None]:
    """An answer that took an hour is not lost because the disk is full: it goes to stdout."""
    try:
        yield
    except KvstreamError:
        if isinstance(output, OutputFile):
            output.discard()
            AnswerWriter(sys.stdout, as_json=False).show(Answered(result))
        raise


def _progress(options: ReadingOptions, *, answer_on_terminal: bool) -> Teller | Any:
    if options.quiet or options.progress == "none":
        return Teller(sys.stderr)
    can_be_live = (
        sys.stderr.isatty()
        and os.environ.get("TERM", "") not in ("dumb", "unknown", "")
        and sys.stderr.encoding.lower().replace("-", "") == "utf8"
    )
    if options.progress == "plain" or not can_be_live:
        return Plain(sys.stderr)
    from kvstream.reporters.live import Live

    return Live(sys.stderr, stays=not answer_on_terminal)


def _extract(reading: Reading, options: ReadingOptions, session: Session) -> int:
    wanted = options.extract
    if wanted is None:
        wanted = reading.extract_by_default and session.default_extract
    return options.passages if wanted else 0


def show_plan(
    started: Started, run: RunSettings, output: TextIO | OutputFile, *, as_json: bool
) -> None:
    """What --dry-run prints of a run."""
    unused = started.unused(run.budget.bytes if run.budget else None)
    if as_json:
        warnings = [unused] if unused else []
        record = {"dry_run": True, **vars(started), "warnings": warnings}
        output.write(json_text(record) + "\n")
        return
    fixed = f", states {started.fixed_bytes:,}" if started.fixed_bytes else ""
    output.write(
        f"{plan_line(started)}\n"
        f"prompt {started.prompt_tokens:,} entries, question and answer "
        f"{started.reserved_tokens:,}, an entry {started.entry_bytes:,.0f} bytes{fixed}\n"
        + (f"{unused}\n" if unused else "")
    )
    output.flush()
