"""The panel on a terminal: use of the budget, growth of memory, and coverage of the text."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live as RichLive
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kvstream.events import Answered, AnswerStarted, AnswerToken, Event, Started, StepDone
from kvstream.reporters import format as f
from kvstream.reporters.plain import Teller
from kvstream.reporters.stats import device_bytes, resident_bytes

REFRESHES_PER_SECOND = 4
WIDEST = 100
HISTORY = 2048
"""Number of steps that the sparklines keep: a text may have no end."""


class History:
    """Sizes of steps in bounded space. When it is full, every second one goes."""

    def __init__(self, most: int = HISTORY) -> None:
        self.most = most
        self.values: list[float] = []
        self._steps, self._stride = 0, 1

    def add(self, value: float) -> None:
        """Add the size of one step."""
        if self._steps % self._stride == 0:
            self.values.append(value)
        self._steps += 1
        if len(self.values) >= self.most:
            self.values = self.values[::2]
            self._stride *= 2


class Speed:
    """Tokens per second over the last seconds, for an ETA that follows the present speed."""

    def __init__(self, window: float = 8.0) -> None:
        self.window = window
        self.points: list[tuple[float, int]] = [(0.0, 0)]

    def add(self, seconds: float, seen: int) -> float:
        """Add an observation and return the speed."""
        self.points.append((seconds, seen))
        while len(self.points) > 2 and seconds - self.points[1][0] > self.window:
            self.points.pop(0)
        elapsed = seconds - self.points[0][0]
        return (seen - self.points[0][1]) / elapsed if elapsed > 0 else 0.0


class PanelTeller(Teller):
    """Writes messages above a panel of rich while one is drawn."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self.panel: RichLive | None = None

    def start_panel(self, draw: Callable[[], RenderableType], *, transient: bool = False) -> None:
        self.panel = RichLive(
            get_renderable=draw, console=self.console, transient=transient,
            refresh_per_second=REFRESHES_PER_SECOND, redirect_stdout=False, redirect_stderr=False,
            vertical_overflow="crop",
        )  # fmt: skip
        self.panel.start()

    def stop_panel(self) -> None:
        panel, self.panel = self.panel, None
        if panel is not None:
            with suppress(OSError):  # the terminal is gone
                panel.stop()

    def tell(self, message: str) -> None:
        if self.panel is None:
            self.write(message)
            return
        try:
            self.console.print(Text(f.visible(message)))
        except RuntimeError:  # a signal interrupts the drawing: streams refuse a second write
            self.waiting.append(message)

    def close(self) -> None:
        self.stop_panel()
        super().close()


class Live(PanelTeller):
    """Draws a panel on stderr while the run goes on.

    ``stays``: keep the panel during the answer, because the answer is written whole. Otherwise the
    panel stops before the first token, and the answer follows below it.
    """

    notes = True

    def __init__(
        self, stream: TextIO, *, stays: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(stream)
        self.stays = stays
        self.clock = clock
        self.lock = threading.Lock()
        self.line_open = False
        self._begin(None)

    def wait_for(self, work: str) -> None:
        # A line that is erased later, and no panel: a download has its own progress bar. It is cut,
        # because only one line can be erased.
        self.stop_panel()
        self._clear_line()
        self.stream.write(f.visible(f.shortened(work, self.console.width - 1)))
        self.stream.flush()
        self.line_open = True

    def show(self, event: Event) -> None:
        if isinstance(event, Started):
            self._begin(event)
        elif isinstance(event, StepDone):
            self._step(event)
        elif isinstance(event, AnswerStarted):
            self._answer(event)
        elif isinstance(event, AnswerToken):
            self.view.answer_tokens += 1
        elif isinstance(event, Answered):
            self.view.answering = None
        super().show(event)

    def tell(self, message: str) -> None:
        self._clear_line()
        super().tell(message)

    def make_way(self) -> None:
        # A pipe may lead to this terminal: `kvstream ask ... | tee answer.txt`.
        self.stop_panel()

    def close(self) -> None:
        self._clear_line()
        super().close()

    def _clear_line(self) -> None:
        if self.line_open:
            self.line_open = False
            with suppress(OSError, RuntimeError):  # a signal handler may call this
                self.stream.write("\r\x1b[2K")
                self.stream.flush()

    def _begin(self, started: Started | None) -> None:
        """Begin a new run. A comparison of methods has several runs, each with a panel."""
        self.stop_panel()
        with self.lock:
            self.view = PanelView(started)
            self.speed = Speed()
            self.began = self.clock()
            self.asked_engine = float("-inf")
        if started is not None:
            self._clear_line()
            self.start_panel(self._draw)

    def stop_panel(self) -> None:
        if self.panel is not None:
            self.view.done = True
            # Erase the panel of a run that failed before its first chunk.
            self.panel.transient = self.view.step is None
        super().stop_panel()

    def _step(self, event: StepDone) -> None:
        speed = self.speed.add(event.seconds, event.seen - event.loaded)
        now = self.clock()
        with self.lock:
            self.view.step, self.view.speed = event, speed
            self.view.memory.add(max(event.memory, default=0))
            self.view.chunks.add(event.chunk)
        if now - self.asked_engine >= 1 / REFRESHES_PER_SECOND:
            self._ask_engine(event)
            self.asked_engine = self.clock()

    def _ask_engine(self, event: StepDone) -> None:
        width = _inner_width(self.console.width)
        coverage, retained = event.coverage(_so_far(width, event)), event.retained()
        with self.lock:
            self.view.coverage, self.view.retained = coverage, retained

    def _answer(self, event: AnswerStarted) -> None:
        if self.view.step is not None:
            self._ask_engine(self.view.step)
        self.view.answering, self.view.answer_tokens = event.question, 0
        if not self.stays:
            self.stop_panel()

    def _draw(self) -> PanelView:
        with self.lock:
            return replace(self.view, elapsed=self.clock() - self.began)


def framed(
    content: RenderableType, title: Text, console: Console, subtitle: Text | None = None
) -> Panel:
    """Return a panel of the width of a console."""
    return Panel(
        content, title=title, title_align="left", subtitle=subtitle, subtitle_align="right",
        border_style="blue", width=panel_width(console.width), padding=(0, 1),
    )  # fmt: skip


def panel_width(console_width: int) -> int:
    """Return the columns of a panel. The terminal writes ^C behind the last line; without room for
    it, a new line would begin, and the panel would be drawn again one line too low."""
    return min(console_width - len("^C"), WIDEST)


def _inner_width(console_width: int) -> int:
    """Return the columns of a sparkline: without border, padding and label of the panel."""
    return max(10, panel_width(console_width) - 4 - LABEL)


LABEL = 8
PROGRAM = "kvstream · "
"""Stands before the title of the panel if there is room."""


def _so_far(width: int, step: StepDone) -> int:
    total = max(step.estimated_tokens or 0, step.seen, 1)
    return max(1, round(width * step.seen / total))


@dataclass
class PanelView:
    """The panel at one moment. rich calls it to draw at the current width.

    The thread of the run fills it, also with the expensive values (coverage, retained), so that the
    display thread never calls the engine.
    """

    started: Started | None
    step: StepDone | None = None
    elapsed: float = 0.0
    coverage: list[float] = field(default_factory=list)
    retained: int = 0
    memory: History = field(default_factory=History)
    chunks: History = field(default_factory=History)
    speed: float = 0.0
    answering: str | None = None
    answer_tokens: int = 0
    done: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.width = _inner_width(console.width)
        if (started := self.started) is None:
            return
        rows = Table.grid(padding=0)
        rows.add_column(width=LABEL, style="dim", no_wrap=True)
        rows.add_column(width=self.width, no_wrap=True, overflow="ellipsis")
        for label, content in self._rows(started, self.step):
            rows.add_row(label, content)
        most = panel_width(console.width) - 6
        name = f"{started.model} · {started.method} · "
        budget = f"budget {f.number(started.budget_tokens)} entries"
        whole = f"{name}{budget}, {f.size(started.budget_bytes)}"
        title = Text(f.visible(_fitting(most, PROGRAM + whole, whole, name + budget)), style="bold")
        # A longer title would make the panel wider than the given width.
        title.truncate(most, overflow="ellipsis")
        sizes = Text(f"--schedule {started.schedule} · --chunk {started.chunk}", style="dim")
        yield framed(rows, title, console, sizes if started.schedule else None)

    def _rows(self, started: Started, step: StepDone | None) -> list[tuple[str, Text]]:
        if step is None:
            empty = [("budget", self._bar([], started.budget_tokens))] if started.schedule else []
            return [*empty, ("read", Text(f"nothing yet · {f.duration(self.elapsed)}"))]
        entries, chunk, _ = _use(step)
        parts = [(entries, "█", "cyan"), (chunk, "▓", "yellow")]
        memory = [
            ("budget", self._bar(parts, started.budget_tokens)),
            ("", self._legend(started, step)),
            ("memory", self._spark(self.memory.values, started.budget_tokens, "cyan")),
            ("", Text(self._memory_words(started, step), style="cyan")),
            ("chunk", self._spark(self.chunks.values, started.budget_tokens, "yellow")),
            ("", Text(self._chunk_words(started, step), style="yellow")),
            ("kept", Text(f.strip(self.coverage, empty="·")[: self.width], style="green")),
            ("", Text(self._kept_words(step), style="green")),
        ]
        return [
            *(memory if started.schedule else []),  # a word search keeps no memory
            ("read", self._progress(step)),
            ("", Text(self._read_words(step))),
            ("", Text(self._process_words(), style="dim")),
            *([("numbers", Text(started.precision, style="dim"))] if started.precision else []),
        ]

    def _bar(self, parts: list[tuple[int, str, str]], total: int) -> Text:
        """Return a bar with each part in its character and style; the rest is shown as free."""
        bar, used, begin = Text(), 0, 0
        for amount, character, style in parts:
            used += amount
            end = min(self.width, round(self.width * used / total))
            if amount and end == begin and begin < self.width:
                end += 1
            bar.append(character * (end - begin), style=style)
            begin = end
        bar.append("░" * (self.width - begin), style="dim")
        return bar

    def _legend(self, started: Started, step: StepDone) -> Text:
        entry = started.entry_bytes
        entries, chunk, free = _use(step)
        words, short = Text(), Text()
        for label, amount, style in (
            ("held", entries, "cyan"), ("chunk", chunk, "yellow"), ("free", free, "dim"),
        ):  # fmt: skip
            part = f"{' · ' if words else ''}{label} {f.number(amount)}"
            words.append(part, style=style)
            words.append(f" ({f.size(amount * entry)})", style="dim")
            short.append(part, style=style)
        return words if len(words) <= self.width else short

    def _spark(self, values: list[float], top: float, style: str) -> Text:
        """Return a sparkline over the text, if its length is known. Memory and chunk have the scale
        of the budget, to show how one makes room for the other."""
        step = self.step
        width = min(self.width, len(values))
        if step is not None and step.estimated_tokens:
            width = _so_far(self.width, step)
        return Text(f.sparkline(f.fit(values, width), top), style)

    def _memory_words(self, started: Started, step: StepDone) -> str:
        low, high = min(step.memory, default=0), max(step.memory, default=0)
        entries = f"{f.entries(high)} a head"
        if low != high:
            entries = f"{f.number(low)} to {entries}, by layer,"
        after = f"after step {f.number(step.step)}"
        prompt = f"{f.number(started.prompt_tokens)} of the prompt"
        return _fitting(self.width, f"{entries} and {prompt} {after}", f"{entries} {after}")

    def _chunk_words(self, started: Started, step: StepDone) -> str:
        expected = started.estimated_steps or 0  # can be exceeded: chunks are rounded down
        ended = step.seen >= (step.estimated_tokens or 0)
        of = f" of ~{f.number(expected)}" if expected >= step.step and not ended else ""
        return f"{f.counted(step.chunk, 'token')} · step {f.number(step.step)}{of}"

    def _kept_words(self, step: StepDone) -> str:
        retained = self.retained
        words = f"{f.number(retained)} of {f.counted(step.seen, 'token')} "
        words += f"({f.share(retained, step.seen)}) stay{'s'[: retained == 1]}"
        return _fitting(self.width, f"{words} in memory", words)

    def _progress(self, step: StepDone) -> Text:
        total = step.estimated_tokens
        if not total:
            return Text("length unknown", style="dim")
        full = min(self.width, round(self.width * step.seen / total))
        bar = Text("━" * full, style="magenta")
        return bar.append("─" * (self.width - full), style="dim")

    def _read_words(self, step: StepDone) -> str:
        words = f.counted(step.seen, "token")
        total = step.estimated_tokens
        if total and total <= step.seen:  # at the end, the speed of the summary
            return f"{words} · {f.number(step.speed or self.speed)} tokens/s"
        if total:
            words = f"{f.number(step.seen)} of ~{f.number(total)} ({f.share(step.seen, total)})"
        fast = f" · {f.number(self.speed)} tokens/s"
        if total and self.speed:
            rest = f" · {f.duration((total - step.seen) / self.speed)} left"
            return _fitting(self.width, words + fast + rest, words + rest)
        return words + fast

    def _process_words(self) -> str:
        words = [f.duration(self.elapsed), f"process {f.size(resident_bytes())}"]
        if (device := device_bytes()) is not None:
            words.append(f"device {f.size(device)}")
        if self.answering is not None and not self.done:
            words.append(f"answering, {f.counted(self.answer_tokens, 'token')}")
        elif self._chooses():
            words.append("reading passages, then answering")
        return " · ".join(words)

    def _chooses(self) -> bool:
        """Return whether a word search has read the text, so that the model reads passages."""
        words, step = self.started and not self.started.schedule, self.step
        read = step is not None and 0 < (step.estimated_tokens or 0) <= step.seen
        return bool(words and read and not self.done)


def _fitting(width: int, *forms: str) -> str:
    """Return the first form that fits, or else the last one, which is cut when drawn."""
    return next((form for form in forms if f.cells(form) <= width), forms[-1])


def _use(step: StepDone) -> tuple[int, int, int]:
    """Return entries at the peak of this step: held (prompt included), chunk, and free."""
    chunk = min(step.chunk, step.in_flight_tokens)
    return step.in_flight_tokens - chunk, chunk, max(0, step.budget_tokens - step.in_flight_tokens)
