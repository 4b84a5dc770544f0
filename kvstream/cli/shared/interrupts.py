"""Signals: the first Ctrl-C ends the reading, the second one ends the program."""

from __future__ import annotations

import _weakrefset
import io
import os
import select
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, ClassVar

from kvstream.errors import SourceError

POLL_SECONDS = 0.2
WEAK = (_weakrefset.__file__, weakref.__file__)
"""Modules with callbacks that Python calls as it frees an object."""


@dataclass(eq=False)
class Interrupts:
    """While entered, the first SIGINT during the reading only sets a flag. Any other ends the run,
    because nothing can be finished early.
    """

    tell: Callable[[str], None]
    leave: Callable[[], None] | None = None
    """Closes what is open, for a signal during the import of libraries."""
    reading: bool = False
    pressed: bool = False
    gentle: bool = False
    """Whether SIGTERM acts like the first Ctrl-C: it stops a service that follows a log."""
    then: str = "answering from what was read so far"
    """What a command does after its reading is interrupted; empty if the command says it."""
    begun: bool = True
    """Whether something was read; a command that knows sets False before."""
    _before: dict[int, Any] = field(default_factory=dict)

    def __call__(self) -> bool:
        return self.pressed

    def __enter__(self) -> Interrupts:
        with suppress(ValueError):  # not in the main thread: the host program handles signals
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._handle)
            # Restore the cursor of the terminal and remove temporary files.
            self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._handle)
            if sys.platform == "win32":
                return self
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
                self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        word, again = "Terminated", ""
        if pressed := number == signal.SIGINT:
            word, again = "Interrupted", " Press Ctrl-C again to stop."
        if (pressed or self.gentle) and self.reading and not self.pressed:
            self.pressed = True
            if self.then:
                what = f": {self.then}" if self.begun else " before a chunk was read"
                self.tell(f"{word}{what}.{again}")
            return
        code = [each.f_code for each, _ in walk_stack(frame)]
        if any(each.co_filename.startswith("<frozen importlib") for each in code):
            # A module is being imported. An exception here would pass through the C++ code of
            # torch, which aborts. Waiting for the end of the import can take long.
            if self.leave is not None:
                with suppress(Exception):
                    self.tell(f"{word}.")
                    self.leave()
                os._exit(128 + number)
        elif not any(each.co_name == "__del__" or each.co_filename in WEAK for each in code):
            # As an object is freed, Python would print and drop an exception.
            if pressed:
                raise KeyboardInterrupt
            self.tell("Terminated.")
            raise SystemExit(128 + number)
        again_later = threading.Timer(POLL_SECONDS, os.kill, (os.getpid(), number))
        again_later.daemon = True
        again_later.start()


class InterruptibleInput(io.RawIOBase):
    """Standard input, or a pipe or device by its path, that ends when the user interrupts: a normal
    read is restarted after a signal. While ``due`` returns true, it returns None for an idle pipe.
    """

    begun: ClassVar[dict[object, tuple[int, memoryview]]] = {}
    """Descriptor and data of `put_back`, by path, or by the object of standard input."""

    ends_on_interrupt = True

    def __init__(
        self,
        interrupted: Callable[[], bool],
        due: Callable[[], bool] = lambda: False,
        path: Path | None = None,
    ) -> None:
        if path is None and sys.stdin is None:
            raise SourceError("Standard input is closed; name a file instead.")
        # Open without blocking: the writer of a named pipe may never come.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
        self._place = sys.stdin if path is None else str(path)
        self._ahead: bytes | memoryview = b""
        if self._place in self.begun:
            self.descriptor, self._ahead = self.begun.pop(self._place)
        elif path is None:
            self.descriptor = sys.stdin.fileno()
        else:
            self.descriptor = os.open(path, flags)
        self._own = path is not None
        self.interrupted, self.due = interrupted, due

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def readinto(self, buffer: Any) -> int | None:
        if self._ahead:
            size = min(len(self._ahead), len(buffer))
            buffer[:size], self._ahead = self._ahead[:size], self._ahead[size:]
            return size
        while not self.interrupted():
            if self._ready():
                try:
                    data = os.read(self.descriptor, len(buffer))
                except BlockingIOError:  # another process took the data
                    continue
                buffer[: len(data)] = data
                return len(data)
            if self.due():
                return None
        return 0

    def put_back(self, data: bytes | bytearray) -> None:
        """Leave the input to the next reader, who begins with `data`, which was read here."""
        # If a named pipe is closed before that, its writer fails.
        descriptor = os.dup(self.descriptor) if self._own else self.descriptor
        self.begun[self._place] = descriptor, memoryview(data)  # taken away piece by piece

    def close(self) -> None:
        if self._own and not self.closed:
            os.close(self.descriptor)
        super().close()

    def _ready(self) -> bool:
        try:
            return bool(select.select([self.descriptor], [], [], POLL_SECONDS)[0])
        except (OSError, ValueError):  # select does not support every system and file
            return True
