"""The interface of a reporter, and a reporter that combines several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvstream.events import Event


class Sink(Protocol):
    """The methods of a stream that a reporter uses."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class Reporter:
    """Base class of the reporters. It shows nothing; ``--progress none`` uses it."""

    def loading(self, model: str) -> None:
        """Announce that the model is about to be loaded, which may take long."""

    def converting(self, what: str) -> None:
        """Announce that a document is about to be converted.

        This may take long and comes before the first event.
        """

    def show(self, event: Event) -> None:
        """Show one event of the run. Events arrive in order."""

    def make_way(self) -> None:
        """Prepare for a whole answer, which may be written to the same terminal."""

    def tell(self, message: str) -> None:
        """Show a message that is no event, such as what Ctrl-C does."""

    def close(self) -> None:
        """End the report and leave the terminal as it was.

        Called when the run is over or has failed. May be called twice.
        """


class Reporters(Reporter):
    """Passes every call to several reporters, in their order."""

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
