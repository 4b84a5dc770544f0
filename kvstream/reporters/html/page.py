"""The contents of a page as plain data. None of it is trusted to be safe in HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvstream.events import Result, Started


@dataclass(frozen=True)
class Text:
    """A stretch of the text that is shown."""

    text: str
    label: str = ""
    """The place where it begins: a line, a page or a heading."""


@dataclass(frozen=True)
class Fold:
    """A stretch of the text without retained tokens."""

    tokens: int | None
    """None if unknown."""
    about: bool = False
    """Whether `tokens` is rounded."""
    size: int = 0
    """Bytes of the source."""
    text: str | None = None
    """None if the page does not contain the text."""


@dataclass(frozen=True)
class Section:
    """Consecutive stretches of one source."""

    source: str | None
    """Name of the source, if its text begins here."""
    items: Sequence[Text | Fold]


@dataclass(frozen=True)
class Span:
    """A place in the shown text."""

    text: int
    """Index among all shown `Text`s."""
    start: int
    """Characters (UTF-16 code units) before the place in that text."""
    length: int


@dataclass(frozen=True)
class Shading:
    """The tokens that one reading retained."""

    name: str
    layers: Sequence[int]
    """Index of each layer in the model."""
    heads: Sequence[Sequence[Any]]
    """For each layer and head, the sorted indices of the tokens that it holds."""
    counts: Any
    """int64 [U]: number of heads that hold each token."""
    retained: int
    """Number of tokens that at least one head holds."""


@dataclass(frozen=True)
class Document:
    """The text and the tokens that each head retained."""

    sections: Sequence[Section]
    spans: Any
    """int64 [U, 3]: text, start and length of each retained token, as in `Span`. The length is 0
    if the token is not shown."""
    ordinals: Any
    """int64 [U]: ordinal of each token in the text, from 0."""
    read: int
    """Number of tokens that were read."""
    shadings: Sequence[Shading]
    places: Sequence[Span | None] = ()
    """Place of each citation of all answers, in order."""
    notes: Sequence[str] = ()
    """Remarks on the text for the person who reads the page."""
    lines: bool = False
    """Whether lines are independent: a log, a table, code."""


@dataclass(frozen=True)
class Chart:
    """Lines over a shared axis."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    lines: Sequence[tuple[str, Sequence[float | None]]]
    note: str = ""
    log: bool = False
    """Make both axes logarithmic."""


@dataclass(frozen=True)
class Bars:
    """Values with intervals, one bar each."""

    title: str
    rows: Sequence[tuple[str, float, float | None, float | None]]
    """Label, value, low and high end of the interval, as shares from 0 to 1."""


Bar = tuple[float, float, float]
"""Start and end as shares of the axis, and a height from 0 to 1."""
TimelineRow = tuple[str, str, Sequence[Bar]]
"""Label, words beside it, and bars for its amount over time."""


@dataclass(frozen=True)
class Timeline:
    """Presence and amount of several things along an axis."""

    title: str
    ends: tuple[str, str]
    """Labels of the beginning and the end of the axis."""
    rows: Sequence[TimelineRow]


@dataclass(frozen=True)
class Table:
    """A table of text. A cell may have a share from 0 to 1, which colors it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[bool] = ()
    """Whether each column is right-aligned."""
    shares: Sequence[Sequence[float | None]] = ()


@dataclass
class Run:
    """One reading and its answers."""

    name: str
    started: Started | None = None
    results: list[Result] = field(default_factory=list)
    problem: str = ""
    """The reason why the run failed."""


@dataclass(frozen=True)
class Page:
    """All contents of a page; empty parts are left out."""

    title: str
    command: str
    """Command line that repeats the run."""
    version: str
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
    facts: Sequence[tuple[str, str, str]] = ()
    """Figures under an answer: name, value, and explanation of the value."""
