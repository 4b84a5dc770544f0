"""``kvstream sample``: a long text with known facts, and questions about them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from kvstream.api.source_objects import Source, open_sources
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.option import option, typed
from kvstream.cli.options.types import COUNT, SEED, FileType
from kvstream.cli.shared.interrupts import InterruptibleInput, Interrupts
from kvstream.cli.shared.output import OutputFile, refuse_clashes, refuse_closed
from kvstream.errors import UsageError
from kvstream.reporters.format import Sink, json_text, visible
from kvstream.reporters.plain import Teller

BUFFER = 64 * 1024
STDOUT = Path("-")
STDOUTS = (STDOUT, Path("/dev/stdout"), Path("/dev/fd/1"), Path("/proc/self/fd/1"))
SPOOLED_BYTES = 16 * 1024**2
"""Maximum bytes of standard input in RAM; more goes to a temporary file."""


@click.command("sample", cls=SectionedCommand)
@option(
    "--tokens", type=COUNT, default=128 * 1024, metavar="N", section="Text",
    help="Approximate length of the made-up text. [default: 128k]",
)  # fmt: skip
@option(
    "--into", metavar="FILE", section="Text",
    once="--into names one text: join several into a file first, or run the command for each.",
    help="Plant the facts in this text (- is standard input) instead of a made-up one.",
)  # fmt: skip
@option(
    "--facts", type=click.IntRange(min=1), metavar="N", section="Text",
    help="Number of facts. [default: one per 2,000 tokens, 6 to 600]",
)  # fmt: skip
@option(
    "--seed", type=SEED, default=0, section="Text",
    help="The same seed makes the same text.",
)  # fmt: skip
@option(
    "-o", "--output", type=FileType(streams=True), metavar="FILE", section="Output",
    help="Write the text to this file instead of stdout.",
)  # fmt: skip
@option(
    "--questions", type=FileType(streams=True), metavar="FILE", section="Output",
    help="Write questions and answers to this file, one JSON object per line.",
)  # fmt: skip
def command(
    tokens: int,
    into: str | None,
    facts: int | None,
    seed: int,
    output: Path | None,
    questions: Path | None,
) -> None:
    """Write a long text with made-up facts in it, and the questions that ask for them.

    The facts name people, places and things that do not exist, so a right answer can only come
    from the text. They are spread over the whole text. --into plants them in your own text,
    between paragraphs.

    \b
      kvstream sample --tokens 1M -o long.txt --questions long.jsonl
      kvstream sample --into book.txt --facts 20 -o out.txt --questions out.jsonl
    """
    from kvstream.sample import document as sample

    if into is not None and typed("tokens"):
        raise click.UsageError(
            "--tokens has no effect with --into, which keeps the whole text; leave one out."
        )
    if questions in STDOUTS and output in (None, *STDOUTS):
        raise UsageError("Text and questions would both go to standard output; name a file.")
    outputs = {"--output": output, "--questions": questions}
    refuse_clashes(outputs, {}, [] if into is None else [into])
    refuse_closed(output)
    # SIGTERM and SIGHUP raise, so that temporary files are removed.
    with Interrupts(Teller(sys.stderr).tell), _file(questions, "--questions") as stream:
        with _file(output, "--output") as text:
            if into is None:
                count = facts or sample.default_facts(tokens)
                pieces = sample.generate(tokens=tokens, seed=seed, facts=count)
            else:
                characters, blocks = _text_of(into)
                count = facts or sample.default_facts(int(characters / sample.CHARS_PER_TOKEN))
                pieces = sample.plant(blocks, characters, facts=count, seed=seed)
            _write(pieces, text or sys.stdout)
        if questions is not None:
            records = sample.questions(facts=count, seed=seed)
            lines = (json_text(record, ascii=False) + "\n" for record in records)
            _write(lines, stream or sys.stdout)


def _text_of(name: str) -> tuple[int, Iterator[str]]:
    """Return the characters of a text, and its blocks: it is read twice, and never held."""
    spool = None
    if name == "-":
        spool = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115  as long as the blocks
        shutil.copyfileobj(InterruptibleInput(lambda: False), spool, BUFFER)

    def blocks() -> Iterator[str]:
        if spool is not None:
            spool.seek(0)
        for block in open_sources(name if spool is None else Source(spool, name)):
            yield block.text

    return sum(map(len, blocks())), blocks()


def _write(pieces: Iterable[str], sink: Sink) -> None:
    """Write the pieces in large parts: each write is flushed, and a piece is only a sentence."""
    clean = visible if sink.isatty() else str
    waiting, size = [], 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= BUFFER:
            sink.write(clean("".join(waiting)))
            waiting, size = [], 0
    sink.write(clean("".join(waiting)))
    sink.flush()


@contextmanager
def _file(path: Path | None, option: str) -> Iterator[OutputFile | None]:
    """Yield a file that gets its name when it is complete, and is removed if the work fails."""
    if path is None or path == STDOUT:
        yield None
        return
    file = OutputFile(path, option)
    try:
        yield file
    except BaseException:
        file.discard()
        raise
    file.finish(quiet=False)
