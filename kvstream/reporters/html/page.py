"""What a page shows, as plain data; nothing of it is trusted to be harmless in HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvstream.events import Result, Started


@dataclass(frozen=True)
class Text:
    """A stretch of the text that is shown."""

    text: str
    label: str = ""
    """Where it begins: a line, a page or a heading."""


@dataclass(frozen=True)
class Fold:
    """A stretch of the text of which nothing was kept."""

    tokens: int | None
    """None: not known."""
    about: bool = False
    """The number is rounded."""
    size: int = 0
    """Bytes of the source."""
    text: str | None = None
    """None: the page does not hold the text."""


@dataclass(frozen=True)
class Section:
    """Consecutive stretches of one source."""

    source: str | None
    """The name of the source, where its text begins."""
    items: Sequence[Text | Fold]


@dataclass(frozen=True)
class Span:
    """A place in the shown text."""

    text: int
    """Index among all shown `Text`s."""
    start: int
    """Characters (UTF-16 code units) from the beginning of that text."""
    length: int


@dataclass(frozen=True)
class Shading:
    """What one reading kept."""

    name: str
    layers: Sequence[int]
    """Index in the model of each layer."""
    heads: Sequence[Sequence[Any]]
    """For each layer and head: sorted indices of the tokens that it holds."""
    counts: Any
    """int64 [U]: how many heads hold each token."""
    retained: int
    """Tokens that some head holds."""


@dataclass(frozen=True)
class Document:
    """The text, and which of its tokens each head kept."""

    sections: Sequence[Section]
    spans: Any
    """int64 [U, 3]: text, start and length of each kept token, as in `Span`; length 0 where it is
    not shown."""
    ordinals: Any
    """int64 [U]: which token of the text each one is, counted from 0."""
    read: int
    """Tokens that were read."""
    shadings: Sequence[Shading]
    cited: Sequence[Span | None] = ()
    """The place of each citation of all answers, in order."""
    notes: Sequence[str] = ()
    """What the reader of the page should know of the text."""
    lines: bool = False
    """Its lines stand for themselves: a log, a table, code."""


@dataclass(frozen=True)
class Chart:
    """Lines over a common axis."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    lines: Sequence[tuple[str, Sequence[float | None]]]
    steps: bool = False
    """Straight from value to value, or in steps."""
    note: str = ""
    log: bool = False
    """Both axes are logarithmic."""


@dataclass(frozen=True)
class Bars:
    """Values with intervals, one bar each."""

    title: str
    rows: Sequence[tuple[str, float, float | None, float | None]]
    """Label, value, low and high end of the interval; shares from 0 to 1."""


Bar = tuple[float, float, float]
"""From where to where, as shares of the axis, and a height from 0 to 1."""
TimelineRow = tuple[str, str, Sequence[Bar]]
"""What it is, words beside it, and how much of it there was when."""


@dataclass(frozen=True)
class Timeline:
    """When each of several things was there, and how much of it."""

    title: str
    ends: tuple[str, str]
    """What stands at the beginning and the end of the axis."""
    rows: Sequence[TimelineRow]


@dataclass(frozen=True)
class Table:
    """A table as text; a cell may have a share from 0 to 1, which colors it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[bool] = ()
    """Which columns stand at the right."""
    shares: Sequence[Sequence[float | None]] = ()


@dataclass(frozen=True)
class Run:
    """One reading and its answers."""

    name: str
    started: Started | None
    results: Sequence[Result] = ()
    problem: str = ""
    """Why it could not run."""


@dataclass(frozen=True)
class Page:
    """All that a page shows; what is empty is left out."""

    title: str
    command: str
    """The command line that repeats the run."""
    made: str
    """Version and time."""
    runs: Sequence[Run] = ()
    document: Document | None = None
    charts: Sequence[Chart] = ()
    bars: Sequence[Bars] = ()
    timelines: Sequence[Timeline] = ()
    tables: Sequence[Table] = ()
    settings: Sequence[tuple[str, str]] = ()
    times: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    extra: Sequence[str] = ()
    """Paragraphs under the title."""
    facts: Sequence[tuple[str, str, str]] = ()
    """Figures under an answer: name, value, and what it is of."""
