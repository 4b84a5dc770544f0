"""``kvstream chat``: question after question about one reading or one memory file."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import click

from kvstream.api.options import refuse_later_questions
from kvstream.cli.options.option import memory_option
from kvstream.cli.options.table import Options, reading_command
from kvstream.cli.shared import inputs, running
from kvstream.cli.shared.exact_answers import note_estimates
from kvstream.cli.shared.model_choice import open_model, settled
from kvstream.cli.shared.recalling import open_memory, refuse_reading
from kvstream.cli.shared.running import check_early, plainly, prepared
from kvstream.errors import BudgetError, SourceError
from kvstream.events import Answered, Result
from kvstream.reporters.answer_writer import AnswerWriter
from kvstream.reporters.citation_lines import support_line
from kvstream.reporters.plain import Recorder, Teller, narrowed_line

HELP = """\
Type one question per line. The model also sees as many earlier questions and answers as fit.
/help   show this text
/quit   end the chat; also: /exit, quit, exit, Ctrl-D
Ctrl-C  stop an answer, or drop the line; twice at an empty prompt: end the chat"""
LONGEST = 16_000_000
"""Maximum number of characters of a line of standard input."""
LEAST_OF_TURN = 10
"""Entries that a question with its answer takes at least, about."""
AGAIN = "Press Ctrl-C again or type /quit to leave."
LEAVE = ("/quit", "/exit", "quit", "exit")


@reading_command("chat")
@inputs.sources_argument
@memory_option("Ask this memory file (from kvstream remember).", folder=True)
def command(sources: tuple[str, ...], memory: Path | None, options: Options) -> int:
    """Answer questions from standard input, one per line, about texts or a memory file.

    The model also sees earlier questions and answers: as many of the newest as fit the budget. They
    do not change the memory. /help lists the commands; /quit or Ctrl-D ends the chat.

    \b
      kvstream chat --memory book.kvs
      kvstream chat book.txt --budget 2k
    """
    _check(sources, memory, options)
    running.check_files(options, sources, memory)
    with ExitStack() as stack:
        output, reporter, interrupts = prepared(
            stack, plainly(options), answers=True, ends_early=True
        )
        if memory is not None:
            talk = open_memory(memory, options, reporter)
        else:
            interrupts.then = "the chat is about what was read so far"
            texts = inputs.open_sources(sources, options, interrupts)
            pages = texts.check()
            options = settled(options)
            model = open_model(options, reporter)
            request = replace(
                options.request, command="remember", extract=None, interrupted=interrupts
            )
            inputs.tell_pages(reporter, pages)
            talk = running.read_to_end(model.memory_of(texts, request), reporter, interrupts)
            interrupts.reading = False
        if not options.quiet:
            reporter.tell(running.reading_line(talk))
        writer = AnswerWriter(output, as_json=options.json, origin=running.origin())
        stack.callback(writer.close)
        # The chat itself shows the answers and their warnings.
        shows: list[Recorder] = [writer, *reporter.recorders]
        history: list[tuple[str, str]] = []
        # Warnings of the reading were shown; those of a memory file appear with the first answer.
        warnings = set(talk.warnings).difference(talk.file.warnings if talk.file else ())
        code = 0
        if sys.stdin.isatty() and not options.quiet:
            reporter.tell("Type one question per line. /help shows more; Ctrl-D ends the chat.")
        for question in questions(reporter.tell):
            note_estimates([question])
            answers = talk.stream(question, command="chat", earlier=history, **options.answers)
            try:
                for event in answers:
                    for each in shows:
                        each.show(event)
                    if isinstance(event, Answered):
                        history.append((question, event.result.answer))
                        if reporter.cites:
                            reporter.cite(event.result)
                        for line in () if options.quiet else _numbers(event.result, reporter):
                            reporter.tell(line)
                        for warning in event.result.warnings:
                            if warning not in warnings:
                                reporter.tell(f"Warning: {warning}")
                        warnings = set(talk.warnings)
                        code = code if event.result.withheld is None else running.WITHHELD
            except BudgetError as error:
                reporter.tell(f"Error: {error}")
                if not sys.stdin.isatty():  # without a terminal, only the exit code tells
                    code = error.exit_code
            except KeyboardInterrupt:  # end only this answer; the next Ctrl-C ends the chat
                writer.close()
                answers.close()
            # Older turns would never fit.
            del history[: -max(1, talk.budget[0] // LEAST_OF_TURN)]
    return code


def _numbers(result: Result, reporter: Teller) -> Iterator[str]:
    """Return what the answer saw of a memory of several sources, and with -v its support."""
    support = support_line(result) if reporter.verbose else None
    return filter(None, (narrowed_line(result), support))


def _check(sources: tuple[str, ...], memory: Path | None, options: Options) -> None:
    """Raise UsageError or BudgetError for what a chat cannot use, before anything is read."""
    if memory is not None and sources:
        raise click.UsageError(
            "Either name sources or give --memory; remember --memory reads sources into a memory."
        )
    inputs.refuse_question(sources, "ask it on standard input, where a chat reads its questions.")
    if "-" in sources or (memory is None and not sources):
        raise click.UsageError(
            "Standard input is for the questions: name a file to read, or --memory FILE."
        )
    if memory is not None:
        if os.path.isdir(memory):
            raise click.UsageError("A chat uses one memory file, not a folder; name one.")
        refuse_reading()
    else:
        refuse_later_questions(options.skim)
    check_early(options)
    if sys.stdin is None:
        raise click.UsageError(
            "Standard input is closed, and a chat reads its questions from there."
        )


def _read(prompt: bool) -> str:
    """Return the next line of standard input, empty at its end. Show a prompt if `prompt`."""
    if prompt:
        sys.stderr.write("> ")
        sys.stderr.flush()
    line = sys.stdin.readline(LONGEST)
    if len(line) == LONGEST:
        raise SourceError(f"Standard input has a line of {LONGEST:,} characters, not a question.")
    return line


def _edit() -> str:
    """Return a line that the user typed and edited, empty at the end of the input."""
    with suppress(ImportError):  # not on Windows, whose console edits lines itself
        import readline  # noqa: F401  # its import is what gives input() arrow keys and history
    try:
        return input("> ") + "\n"
    except EOFError:
        return ""


def _half_typed() -> bool:
    """Return whether the line that Ctrl-C interrupted has text, if this is known."""
    readline = sys.modules.get("readline")
    return readline is not None and readline.get_line_buffer() != ""


def questions(tell: Callable[[str], None]) -> Iterator[str]:
    """Yield the lines of standard input that are not empty, until a line ends the chat.

    A terminal has a prompt, where the first Ctrl-C only drops the line. `tell` answers help and
    unknown commands.
    """
    terminal = sys.stdin.isatty()
    if isinstance(sys.stdin, io.TextIOWrapper):  # invalid bytes must not end the chat
        sys.stdin.reconfigure(errors="surrogateescape")
    warned = pressed = False
    while True:
        try:
            line = _edit() if terminal and sys.stdout.isatty() else _read(terminal)
        except KeyboardInterrupt:
            if not terminal or (pressed and not _half_typed()):
                raise
            pressed = True
            sys.stderr.write("\n")
            tell(AGAIN)
            continue
        pressed = False
        if not line:
            if terminal:
                sys.stderr.write("\n")
            return
        encoding = sys.stdin.encoding
        text = line.encode(encoding, "surrogateescape").decode(encoding, "replace").strip()
        if not warned and text != line.strip():
            warned = True
            tell(f"A question has bytes that are not {encoding.upper()}; they were replaced by �.")
        if text.lower() in LEAVE:
            return
        if text.lower() == "/help":
            tell(HELP)
        elif command := re.match(r"/\w*(?!\S)", text):
            if command[0].lower() in ("/help", *LEAVE):
                tell(f"{command[0]} takes no argument.")
            else:
                tell(f"There is no {command[0]}; /help lists the commands.")
        elif text:
            yield text
