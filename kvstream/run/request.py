"""The request for a reading: one object, passed from the command line to the code that uses it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kvstream import settings
from kvstream.errors import UsageError
from kvstream.settings import IN_FILES, OF_ANSWERS, READS, RunSettings, row, size_of, stated

if TYPE_CHECKING:
    from kvstream.run.prompt import Layout

OF_READING = {"merge": READS, "serve": "each request brings its own."}
NO_CHECKPOINT = {
    "merge": READS, "compare": settings.BESIDE,
    "chat": "read with kvstream remember --checkpoint, then chat --memory FILE.",
    "serve": "readings that are stopped are saved in --cache-dir.",
}  # fmt: skip
WRITES = {"serve": "the model writes answers."}
ON_THE_WAY = ("ask", "summarize")
IN_PARTS = ("ask", "summarize", "remember")
LEAST = 64
"""Minimum number of tokens between two answers. Reading fewer is much faster than answering."""
_SECONDS = {"s": 1, "min": 60, "h": 3600}


def never() -> bool:
    """For readings that nobody interrupts; unlike a lambda it can be sent to a worker."""
    return False


class Intervals:
    """An answer every `tokens` tokens, or every `seconds` seconds if new text was read."""

    def __init__(self, tokens: int | None = None, seconds: float | None = None) -> None:
        self.tokens, self.seconds = tokens, seconds
        self.latest = 0
        """Number of tokens read before the latest answer."""
        self._next = None if seconds is None else time.monotonic() + seconds

    def __str__(self) -> str:
        return f"{self.seconds:g}s" if self.tokens is None else str(self.tokens)

    @classmethod
    def of(cls, every: int | str | Intervals | None) -> Intervals | None:
        """Return intervals: ``4096`` and ``10k`` are tokens, ``30s``, ``5min`` and ``1h`` time.

        Raises UsageError.
        """
        if every is None or isinstance(every, Intervals):
            return every
        text = str(every)
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)\s*", text)
        if match is None:
            try:
                tokens = settings.count_of(text)
            except UsageError:
                raise UsageError(
                    f"{text!r} is not an interval; write tokens as 4096 or 10k, time as 30s or "
                    "5min."
                ) from None
            if tokens < LEAST:
                raise UsageError(
                    f"An answer every {tokens} tokens takes far longer than reading them; "
                    f"use --every {LEAST} or more."
                )
            return cls(tokens=tokens)
        seconds = float(match[1]) * _SECONDS[match[2]]
        if seconds <= 0:
            raise UsageError(f"{text!r} must be longer than zero.")
        return cls(seconds=seconds)

    def time_is_up(self) -> bool:
        """Return whether the interval in seconds is over; then a reader stops waiting for text."""
        return self._next is not None and time.monotonic() >= self._next

    def room(self, read: int) -> int | None:
        """Return how many tokens to read before the next answer after `read`; None for seconds."""
        return None if self.tokens is None else self.tokens - read % self.tokens

    def due(self, read: int) -> bool:
        """Return whether an answer is due after `read` tokens; if so, begin the next interval."""
        if self.tokens is not None:
            due = read > self.latest and read % self.tokens == 0
        else:
            due = self.time_is_up()
            if due and self.seconds is not None:
                self._next = time.monotonic() + self.seconds
                due = read > self.latest  # no answer without new text
        if due:
            self.latest = read
        return due


@dataclass(frozen=True)
class Request:
    """All options of a reading except those of loading; they have the command line's names."""

    questions: tuple[str, ...] = ()
    """Questions known before the reading; memory is chosen for them."""
    run: RunSettings = field(default_factory=RunSettings)
    """Budget, method, schedule and sampling."""
    command: settings.CommandName = "ask"
    """``summarize`` asks for a summary; ``remember`` and ``chat`` expect later questions."""
    _: KW_ONLY
    preset: str | None = row(
        None, "Memory",
        "Use the settings and schedule of the method's paper (see kvstream methods NAME); options "
        "that you give take precedence.",
        choices=(settings.PAPER,), advanced=True, of_memory=True, without=IN_FILES,
    )  # fmt: skip
    system: str | None = row(
        None, "Answer", "System prompt.",
        spelling=("-s", "--system"), metavar="TEXT", advanced=True, without=IN_FILES,
    )  # fmt: skip
    layout: Layout | None = None
    """Words around the text and the questions that replace those of kvstream."""
    extract: bool | None = row(
        None, "Answer",
        "Print the passages that memory retains best, instead of a written answer.",
        spelling=("--extract/--no-extract",), per_answer=True, one_model=True,
        without={**OF_ANSWERS, **WRITES},
    )  # fmt: skip
    """None: as the model does it; only `pocket` extracts its summaries."""
    strict: bool = row(
        False, "Answer", "Withhold weakly supported answers (exit code 6).",
        per_answer=True, advanced=True,
        excludes={"extract": "--strict checks written answers, and --extract writes none; leave "
                  "one of them out."},
        without={**OF_ANSWERS,
                 "summarize": "kvstream checks answers, not summaries. Leave it out."},
        helps={"serve": "Withhold weakly supported answers; the reply then states this instead of "
               "an answer."},
    )  # fmt: skip
    passages: int = row(
        10, "Answer", "Number of passages that --extract prints.",
        least=1, metavar="N", advanced=True, per_answer=True, without={**OF_ANSWERS, **WRITES},
        needs={"extract": "--passages has no effect without --extract; add it, or leave --passages "
               "out."},
        helps={"summarize": "Number of passages that --extract prints, or of rows on the page of a "
               "log. [default: 10 passages; 16 rows, or as many as fit the screen]"},
    )  # fmt: skip
    follow: bool = row(
        False, "Following",
        "Wait for more text at the end of the last file, like tail -F, and print answers that "
        "change (see --every; default 10s); Ctrl-C ends it, or --until-answer.",
        helps={"summarize": "Wait for more text at the end of the last file, like tail -F, and "
               "print what is new (see --every; default 10s; the page of a log without --every "
               "only at the end); Ctrl-C ends it."},
        only=ON_THE_WAY, one_model=True, one_reading=True, of_results=False,
        one_text="--follow waits for more of one text",
    )  # fmt: skip
    every: Intervals | None = row(
        None, "Following",
        "Also answer periodically while reading: every N tokens (10k), or every 30s, 5min, 1h.",
        parse=Intervals.of, metavar="N|30s", advanced=True, variable=False, only=ON_THE_WAY,
        one_model=True, one_reading=True, of_results=False,
        one_text="--every answers while it reads one text",
    )  # fmt: skip
    shards: int | None = row(
        None, "Many documents",
        "Read one long text in N parts, each under the budget, and join their memories; with "
        "--workers several parts at once.",
        least=1, most=4096, metavar="N", advanced=True, variable=False, only=IN_PARTS,
        of_results=False,
    )  # fmt: skip
    workers: int | None = row(
        None, "Many documents",
        "Read N documents (or --shards) in parallel, each in a process with --threads threads "
        "(default 1; extra ray).",
        least=1, most=4096, metavar="N", advanced=True, only=(*IN_PARTS, "compare"),
        of_results=False,
    )  # fmt: skip
    worker_memory: int | None = row(
        None, "Many documents",
        "RAM that Ray reserves per worker. [default: estimated from the model's files]",
        parse=size_of, metavar="SIZE", advanced=True, only=(*IN_PARTS, "compare"),
        of_results=False,
    )  # fmt: skip
    plain: bool = row(
        False, "Input and output",
        "Read every file as plain UTF-8 text, including HTML and binary files; replace invalid "
        "bytes.",
        spelling=("--text",), advanced=True, without=OF_READING,
    )  # fmt: skip
    max_unpacked: int = row(
        settings.MOST_UNPACKED, "Input and output",
        "Refuse a compressed source that unpacks to more than this.",
        users="16GB", parse=size_of, metavar="SIZE", advanced=True, without=OF_READING,
        of_results=False,
    )  # fmt: skip
    only: str | None = row(
        None, "Input and output",
        'Read only a part of the text: "chapter 3", "pages 200-230", "section Methods", "lines '
        '100-200", "messages from Greta", or another heading; --since and --until name times. Not '
        "with --follow, --shards and --checkpoint.",
        parse=stated, metavar="PART", variable=False, without=OF_READING,
        once='--only names one part: two in a row as "chapters 2-3", others in a run for each.',
    )  # fmt: skip
    since: str | None = row(
        None, "Input and output",
        "Read only lines or messages from this time on: 2024-05-01, '2024-05-01 10:30', 'Tuesday 3 "
        "pm', or 10:30 on the first day.",
        parse=stated, metavar="TIME", advanced=True, variable=False, without=OF_READING,
    )  # fmt: skip
    until: str | None = row(
        None, "Input and output", "Read only lines or messages up to this time.",
        parse=stated, metavar="TIME", advanced=True, variable=False, without=OF_READING,
    )  # fmt: skip
    checkpoint: Path | None = row(
        None, "Input and output",
        "Save progress to this file; after a crash the same command resumes from it.",
        parse=Path, metavar="FILE", advanced=True, one_model=True, one_reading=True,
        without=NO_CHECKPOINT, of_results=False,
        one_text="--checkpoint saves the reading of one text (with -o FOLDER the same command "
        "resumes a stopped run)",
    )  # fmt: skip
    checkpoint_every: int = row(
        32768, "Input and output", "Tokens between two checkpoints.",
        parse=settings.count_of, least=1, metavar="N", advanced=True, without=NO_CHECKPOINT,
        of_results=False,
        needs={"checkpoint": "--checkpoint-every has no effect without --checkpoint FILE; add it."},
    )  # fmt: skip
    interrupted: Callable[[], bool] = never
    """Return whether to stop reading and answer from what was read."""
    choices: frozenset[str] = field(default=frozenset(), compare=False)
    """Names of the options that the user chose; a preset does not change them."""

    def __post_init__(self) -> None:
        settings.check(self)
        if self.only or self.since or self.until:
            for name in ("follow", "shards", "checkpoint"):
                if getattr(self, name):
                    raise UsageError(
                        f"--{name} reads all of a text, and --only, --since and --until a part; "
                        "use one of them."
                    )
        if not callable(self.interrupted):
            raise UsageError(
                f"interrupted= takes a function, not {type(self.interrupted).__name__}."
            )

    def due(self) -> bool:
        """Return whether an answer during the reading is due by time."""
        return self.every is not None and self.every.time_is_up()

    @property
    def open_ended(self) -> bool:
        """Whether questions will come later that are not known yet."""
        return self.command in ("remember", "chat")
