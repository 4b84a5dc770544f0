"""``kvstream inspect``: the contents of memory files, without a model."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from kvstream.api.exact import is_own, parts
from kvstream.api.memory import inspect
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.types import FileType, complete_files
from kvstream.cli.shared.saying import columns, say
from kvstream.errors import SourceError
from kvstream.reporters import format as f
from kvstream.reporters.format import cut, padded

WIDTH = 12
"""Width of the names on the left, in columns."""
MOST = 100
"""Columns of an outline in a pipe."""
SOURCES = 10
"""Maximum number of sources that are named per file."""


@click.command("inspect", cls=SectionedCommand)
@click.argument("files", nargs=-1, metavar="FILE...", type=FileType(folder=True),
                shell_complete=complete_files)  # fmt: skip
@click.option("--json", is_flag=True, help="Print one JSON object per file.")
def command(files: tuple[Path, ...], json: bool) -> int:
    """Show what memory files hold: sources, questions, tokens, budget, model, method and warnings.
    Of a text, show the outline: its headings, with the tokens of their parts (those of pocket).

    For a folder, the command shows its memory files (*.kvs). A checkpoint is a memory file, too.
    This command verifies the digests of a file, and loads no model. The exit code is 3 if a file is
    damaged.

    \b
      kvstream inspect book.kvs
      kvstream inspect memories/ --json
      kvstream inspect book.txt
    """
    if not files:
        raise click.UsageError("No memory file: name one, or a folder of memory files.")
    code, count = 0, 0
    for path in _files(files):
        try:
            if isinstance(path, SourceError):
                raise path
            named = path.suffix == ".kvs" or not os.path.isfile(path)
            record = inspect(path).record() if named or is_own(path) else parts(str(path))
        except SourceError as error:
            say(f"Error: {error}")
            code = SourceError.exit_code
            continue
        if json:
            click.echo(f.json_line(record, sys.stdout), nl=False)
            continue
        if count:
            click.echo()
        count += 1
        shows = _outline if "parts" in record else _lines
        for line in shows(path, record):
            click.echo(line)
        for warning in record["warnings"] if "parts" in record else ():
            say(f"Warning: {warning}")
    return code


def _outline(path: Path, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of a text and its parts, of which the lower ones are indented."""
    yield f.in_line(str(path))
    yield f"  {f.number(record['tokens'])} tokens, {f.number(record['bytes'])} bytes of text"
    parts = record["parts"]
    levels = sorted({part["level"] for part in parts})
    room = min(columns(), MOST) - max((len(p["place"]) for p in parts), default=0) - 14
    for part in parts:
        title = "  " * (1 + levels.index(part["level"])) + f.visible(part["title"])
        tokens = f.number(part["tokens"])
        yield f"{padded(cut(title, room), room)} {tokens:>10}  {part['place']}".rstrip()
    if not parts:
        yield "  no headings"


def _files(paths: tuple[Path, ...]) -> Iterator[Path | SourceError]:
    """Yield the files, and the error of a folder without any."""
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        from kvstream.api.memories import memory_files  # imports torch

        try:
            yield from memory_files(path)
        except SourceError as error:
            yield error


def _lines(path: Path, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of the file and its rows, wrapped to the width of a terminal."""
    yield f.in_line(str(path))
    for name, text in _rows(record):
        yield f.hanging(f"  {name:{WIDTH}}", f.visible(text), columns())


def _rows(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    memory, tokens, peak = record["memory"], record["tokens"], record["peak"]
    moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(record["written"]))
    yield "file", f"{f.size(memory['bytes'])}, written {moment} by kvstream {record['version']}"
    for source in memory["sources"][:SOURCES]:
        part = f"{f.number(source['part'])} of " if "part" in source else ""
        yield "source", f"{source['name']} ({part}{f.number(source['bytes'])} bytes)"
    if (more := len(memory["sources"]) - SOURCES) > 0:
        yield "", f"and {f.number(more)} more, which --json names"
    for question in memory["questions"] or ["(none: made without a question)"]:
        yield "question", question
    counts = (f.number(tokens[key]) for key in ("read", "retained", "evicted"))
    yield "tokens", "read {} · kept {} · evicted {}".format(*counts)
    prompt = f"{f.number(tokens['prompt'])} of the prompt"
    use = f"{f.entries(tokens['entries'])} ({prompt}) of {f.number(record['budget']['tokens'])}"
    yield "KV cache", f"{use} · peak {f.number(peak['kv_tokens'])} ({f.size(peak['kv_bytes'])})"
    types = f"weights in {record['dtype']}, KV cache in {record['kv_dtype']}"
    yield "model", f"{record['model']}, {types}"
    values = {name: value for name, value in record["settings"].items() if value not in ("", None)}
    settings = ", ".join(f"{name}={value}" for name, value in values.items())
    yield "method", record["method"] + (f" ({settings})" if settings else "")
    schedule, seconds = record["schedule"], memory["read_s"]
    how = f"memory {schedule['memory']}, chunks {schedule['chunk']}"
    took = f" in {f.duration(seconds)}" if seconds else ""
    yield "schedule", f"{how}, {f.counted(schedule['steps'], 'step')}{took}"
    if record["answering"] is not None:
        yield "passages", _passages(record["answering"])
    if (checkpoint := record["checkpoint"]) is not None:
        ended = "complete" if checkpoint["complete"] else "the reading has not ended"
        yield "checkpoint", f"{f.counted(checkpoint['tokens'], 'token')}; {ended}"
    for warning in record["warnings"]:
        yield "warning", warning
    yield "sha256", memory["sha256"]


def _passages(row: Mapping[str, Any]) -> str:
    text = f"{f.number(row['passages'])} for {row['model']} (budget {f.number(row['budget'])}): "
    text += f"{f.number(row['bytes'])} of {f.number(row['room_bytes'])} bytes"
    return f"{text} · {f.number(row['dropped_bytes'])} bytes dropped"
