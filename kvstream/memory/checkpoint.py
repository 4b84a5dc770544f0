"""Checkpoints of a reading: a memory file with the position that the reading had reached.

To resume, kvstream reads and encodes the sources again from the start, which is fast, and skips the
tokens that memory has seen. Their digest must be the same, so the sources must not have changed.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import asdict

from kvstream.engine.reader import Chunk
from kvstream.errors import SourceError, UsageError
from kvstream.memory import file
from kvstream.memory.contents import Memory
from kvstream.memory.header import STORED, Position
from kvstream.memory.memory_file import position_of
from kvstream.memory.saving import check_model, look, memory_state, restored, save
from kvstream.run.feed import DROP_BLOCK, TokenFeed
from kvstream.run.request import Request
from kvstream.store import writing

T = TypeVar("T")
REMEDY = (
    "It was cut short, altered, or not written by kvstream: name another file for the checkpoint, "
    "or remove this one to start again."
)
SAME = (
    "model", "method", "run", "system", "task", "questions", "sizes", "head", "catalysts",
    "measure_always",
)  # fmt: skip
"""Parts of the state that must be equal in a checkpoint and in the run that resumes it."""


class Checkpoint:
    """A file to which a reading is saved after every `every` tokens, and from which it resumes."""

    def __init__(
        self, path: Path, every: int = Request.checkpoint_every, base: str | None = None
    ) -> None:
        """Open a checkpoint. `base` is the digest of the memory that the reading continues, if any.

        Raises SourceError if the file is no memory file, UsageError if it is a memory but not a
        checkpoint, KvstreamError if it is not writable.
        """
        writing.check_writable(path)
        self.path, self.every, self.base = path, every, base
        self.saved = _read(path, look) if path.exists() else None
        self.position = None if self.saved is None else _position(path, self.saved.content.notes)
        self.digest: str | None = None
        """Digest of the complete memory; None before it is saved."""
        self._last = 0

    def take_up(
        self, memory: Memory, feed: TokenFeed, interrupted: Callable[[], bool],
        *, follow: bool = False,
    ) -> None:  # fmt: skip
        """Restore the saved state into a new memory, and skip the tokens that it has read. With
        `follow`, do not wait for a file that was replaced or cut to become as long as it was.

        Raises UsageError with the setting that differs from this run, SourceError if the sources
        have changed or the run is interrupted, ModelError if another model made the file.
        """
        if self.saved is None or self.position is None:
            return
        state = self.saved.content.state
        check_model(self.saved, memory.reader.model)
        fresh = json.loads(json.dumps(memory_state(memory, passages=False)[0]))
        for name in SAME:
            if fresh[name] != state[name]:
                raise UsageError(
                    f"{self.path} is the checkpoint of another run: "
                    f"{differs(name, state[name], fresh[name])}. Remove the file to start "
                    "again, or name another one."
                )
        position = self.position
        if position.base != self.base:
            raise UsageError(
                f"{self.path} is the checkpoint of a run that continued another memory, or of one "
                "that has written this memory. Remove the file to start again, or name another "
                "one."
            )
        restored(self.saved, memory)
        trace, reader = memory.trace, memory.reader
        ordinals = reader.retained()
        known = state["trace"]["sources"]

        def stop() -> bool:
            name = memory.trace.names[-1]
            shrunk = follow and os.path.isfile(name) and len(known) == len(memory.trace.names)
            return interrupted() or (shrunk and os.path.getsize(name) < known[-1]["bytes"])

        while feed.handed < position.tokens:
            count = min(DROP_BLOCK, position.tokens - feed.handed)
            if not _some(feed, count, stop).ids:
                break
            trace.read, trace.end = feed.read_tokens, feed.end
            if trace.passages is not None:
                trace.prune(ordinals[ordinals < trace.read])
        reached = (feed.handed, feed.sha256) == (position.tokens, position.sha256)
        if feed.handed < position.tokens and interrupted():
            raise SourceError(f"Reading was stopped before it came to the place of {self.path}.")
        if not reached or (position.complete and _some(feed, 1, interrupted).ids):
            pipe = "A pipe can resume only if it sends the same text from its start. "
            raise SourceError(
                f"The sources have changed since {self.path} was written, "
                f"{position.tokens:,} tokens into them. {pipe if '-' in trace.names else ''}"
                "Remove the file to start again, or read what is new into it with "
                f"`kvstream remember --memory {shlex.quote(str(self.path))} SOURCE -o FILE`."
            )
        self._last = feed.handed

    def note(self, memory: Memory, feed: TokenFeed) -> None:
        """Save if `every` tokens were read since the last time. Raise KvstreamError on failure."""
        if feed.handed - self._last >= self.every:
            self._save(memory, feed, complete=False)

    def leave(self, memory: Memory, feed: TokenFeed) -> None:
        """Save an interrupted reading, if it has read more. Raises KvstreamError on failure."""
        if feed.handed > self._last:
            self._save(memory, feed, complete=False)

    def finish(self, memory: Memory, feed: TokenFeed) -> None:
        """Save the memory of a complete reading. Raises KvstreamError on failure."""
        self._save(memory, feed, complete=True)

    def _save(self, memory: Memory, feed: TokenFeed, *, complete: bool) -> None:
        self._last = feed.handed  # after a failure, the next try is also `every` tokens later
        position = Position(feed.handed, feed.sha256, complete, self.base)
        # A resumed reading gets the text of citations from the sources again.
        digest = save(memory, self.path, passages=complete, position=asdict(position))
        self.digest = digest if complete else None


def _some(feed: TokenFeed, count: int, interrupted: Callable[[], bool]) -> Chunk:
    """Return at most `count` tokens, but at least one unless the sources end. Wait at a pause."""
    while not (piece := feed.read(count)).ids and feed.paused and not interrupted():
        pass
    return piece


def tokens_of(path: Path) -> int | None:
    """Return the tokens read, by the header; None without a file. Raises as `Checkpoint`."""
    writing.check_writable(path)
    if not path.exists():
        return None
    return _position(path, _read(path, file.read_notes)).tokens


def _read(path: Path, read: Callable[[Path], T]) -> T:
    """Read a checkpoint, whose remedy is another one than that of a memory file. SourceError."""
    try:
        return read(path)
    except SourceError as error:
        raise SourceError(str(error).replace(file.REMEDY, REMEDY)) from error


def _position(path: Path, notes: Mapping[str, Any]) -> Position:
    position = position_of(notes)
    if position is None:
        raise UsageError(
            f"{path} is a memory file, not a checkpoint; name another file, or continue it "
            f"with `kvstream remember --memory {shlex.quote(str(path))} SOURCE`."
        )
    return position


OPTIONS = {
    **{f"run.{name}": row.flag for name, row in STORED.items()},
    "method.name": "--method", "method.typed": "--set", "sizes.budget": "--budget",
    "system": "--system", "questions": "the question", "sizes.question": "the question's length",
    "sizes.answer": "the room for the answer (--max-tokens)",
    "measure_always": "reading for a memory file or --extract",
    "method.trained": "the fingerprint of the method's weights", "model.revision": "--revision",
    "model.name": "--model", "model.dtype": "--dtype", "model.kv_dtype": "--kv-dtype",
    "head": "the prompt before the text", "catalysts": "the question", "task": "the command",
}  # fmt: skip
"""Options and words by which users know the settings in a checkpoint."""
FIRST = ("name", "budget", "question")
"""Settings whose difference explains other differences; an error names them first."""


def differs(name: str, then: Any, now: Any) -> str:
    """Name the first setting under `name` that has changed, as in ``--budget was 300 ...``."""
    if isinstance(then, dict) and isinstance(now, dict) and not name.endswith(".typed"):
        keys = sorted({*then, *now}, key=lambda key: (key not in FIRST, key))
        for key in keys:
            if then.get(key) != now.get(key):
                return differs(f"{name}.{key}", then.get(key), now.get(key))
    label = OPTIONS.get(name, name.replace(".", " ").replace("_", " "))
    if name.startswith("method.settings."):
        label = f"the setting {name.removeprefix('method.settings.')} of the method (--set)"
    return f"{label} was {_short(then)}, and is {_short(now)} here"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        text = ", ".join(f"{key}={each}" for key, each in value.items())
    elif isinstance(value, list):
        text = ", ".join(_short(each) for each in value)
    else:
        text = "" if value is None else str(value)
    return (text if len(text) <= 80 else f"{text[:80]}...") or "not set"
