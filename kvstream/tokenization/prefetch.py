"""Read and encode in parallel to the model: a thread keeps a few blocks of tokens ready.

This is only for sources of known size. The writer of a pipe runs in parallel anyway, and a pipe may
send nothing for hours, while a waiting thread cannot be interrupted.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvstream.input.blocks import TextBlock
from kvstream.input.source import Source
from kvstream.tokenization.stream import TokenBatch, TokenStream
from kvstream.tokenization.tokenizer import Tokenizer

AHEAD = 2
"""Maximum number of encoded blocks that wait; each has about 64k characters."""
LOOK_SECONDS = 0.1
"""Interval in seconds at which a blocked thread checks whether it is still needed."""


@dataclass
class _Block:
    """The tokens of one block of text, and the state of the stream after it."""

    chunk: TokenBatch
    estimate: int | None
    broken: int
    shown: list[TextBlock]


_Queue = queue.Queue[_Block | BaseException]


def _run(
    stream: TokenStream, shown: list[TextBlock], blocks: _Queue, closed: threading.Event
) -> None:
    """Run the thread: put blocks of tokens into the queue."""
    try:
        while not closed.is_set():
            chunk = stream.block()
            if stream.paused and not len(chunk):
                continue  # a long log in which no line passes lets others act; nobody waits here
            block = _Block(chunk, stream.estimate(), stream.broken, shown[:])
            shown.clear()
            _put(block, blocks, closed)
            if not len(chunk):
                return
    except BaseException as error:
        _put(error, blocks, closed)


def _put(item: _Block | BaseException, blocks: _Queue, closed: threading.Event) -> None:
    while not closed.is_set():
        try:
            blocks.put(item, timeout=LOOK_SECONDS)
            return
        except queue.Full:
            continue


class ReadAhead:
    """A `TokenStream` that reads ahead in a thread, with the same tokens and the same estimates.

    `on_block` is called in the caller's thread, when the tokens of a block are first requested. An
    error of the background thread is raised there too. The background thread ends with the sources,
    or when this object is closed or garbage-collected.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sources: Source,
        on_block: Callable[[TextBlock], None] | None = None,
    ) -> None:
        shown: list[TextBlock] = []
        stream = TokenStream(tokenizer, sources, None if on_block is None else shown.append)
        self.seen = stream.seen
        """Number of tokens returned so far."""
        self.paused = False
        """Always False: the thread waits instead."""
        self.broken = 0
        self._on_block = on_block
        self._queue: _Queue = queue.Queue(AHEAD)
        self._closed = threading.Event()
        # The thread must not refer to this object, which would then never be garbage-collected.
        arguments = (stream, shown, self._queue, self._closed)
        self._thread = threading.Thread(target=_run, args=arguments, name="reading", daemon=True)
        weakref.finalize(self, self._closed.set)
        self._ready: deque[TokenBatch] = deque()
        self._ready_tokens = 0
        self._end = 0
        self._estimate: int | None = None
        self._begun = self._ended = False

    def close(self) -> None:
        """End the thread. Only tokens already taken from it can still be read."""
        self._closed.set()
        self._ended = True
        if self._begun:
            self._thread.join()

    def read(self, n: int) -> TokenBatch:
        """Return the next ``n`` tokens; fewer at the end. Raises SourceError."""
        while self._ready_tokens < n and not self._ended:
            self._take()
        taken = [TokenBatch(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64), 0)]
        missing = min(n, self._ready_tokens)
        while missing:
            first = self._ready.popleft()
            if len(first) > missing:
                rest = TokenBatch(first.ids[missing:], first.starts[missing:], first.end)
                self._ready.appendleft(rest)
                first = TokenBatch(first.ids[:missing], first.starts[:missing], int(rest.starts[0]))
            taken.append(first)
            missing -= len(first)
            self._ready_tokens -= len(first)
            self.seen += len(first)
        end = int(self._ready[0].starts[0]) if self._ready else self._end
        ids, starts = (np.concatenate([getattr(c, k) for c in taken]) for k in ("ids", "starts"))
        return TokenBatch(ids, starts, end)

    @property
    def at_end(self) -> bool:
        """Whether ``read`` has no more tokens, as far as is known."""
        return self._ended and not self._ready_tokens

    def estimate(self) -> int | None:
        """Return the stream's estimate of all tokens of the source, made after the last block."""
        if self._estimate is None and not self._ended:
            self._take()
        return self._estimate

    def _take(self) -> None:
        """Take one more block from the thread."""
        if not self._begun:
            self._begun = True
            self._thread.start()
        item = self._queue.get()
        if isinstance(item, BaseException):
            self._ended = True
            raise item
        if self._on_block is not None:
            for block in item.shown:
                self._on_block(block)
        self._estimate, self.broken = item.estimate, item.broken
        self._end = item.chunk.end
        self._ended = not len(item.chunk)
        if not self._ended:
            self._ready.append(item.chunk)
            self._ready_tokens += len(item.chunk)
