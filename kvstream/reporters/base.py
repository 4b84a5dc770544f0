"""The shape of a reporter, and several of them as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvstream.events import Event


class Sink(Protocol):
    """What a reporter needs of a stream."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class Reporter:
    """Shows nothing: the base of the others, and what ``--progress none`` uses."""

    def loading(self, model: str) -> None:
        """The model is about to be loaded, which may take long."""

    def converting(self, what: str) -> None:
        """A document is about to be converted, which may take long before the first event."""

    def show(self, event: Event) -> None:
        """One event of the run, in order."""

    def make_way(self) -> None:
        """A whole answer is about to be written, which may end on the same terminal."""

    def tell(self, message: str) -> None:
        """Something to say now that is no event, such as what Ctrl-C does."""

    def close(self) -> None:
        """The run is over or has failed; leave the terminal as it was. May be called twice."""


class Reporters(Reporter):
    """Passes everything on to several reporters, in their order."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self.reporters = list(reporters)

    def loading(self, model: str) -> None:
        for reporter in self.reporters:
            reporter.loading(model)

    def converting(self, what: str) -> None:
        for reporter in self.reporters:
            reporter.converting(what)

    def show(self, event: Event) -> None:
        for reporter in self.reporters:
            reporter.show(event)

    def make_way(self) -> None:
        for reporter in self.reporters:
            reporter.make_way()

    def tell(self, message: str) -> None:
        for reporter in self.reporters:
            reporter.tell(message)

    def close(self) -> None:
        for reporter in self.reporters:
            reporter.close()
