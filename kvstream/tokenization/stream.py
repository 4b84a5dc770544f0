"""Encode sources of any length to the same tokens as if the whole text were encoded at once.

Text is encoded in blocks. A block ends at a cut: encoding both sides of it separately gives the
same tokens as encoding them together. A cut is between two tokens, with enough text after it that
later text cannot move it. It is proven by encoding the text around it. Cuts before a space between
two words are tried first, because they hardly ever fail. Text without spaces needs other cuts
between tokens.

There are two exceptions. A unigram model chooses between two segmentations of equal score by the
rounding of a sum over the whole word, so in a "word" longer than a block either may result. And if
a normalizer removes so much text within a control sequence that its end is not in sight, the
sequence is broken apart only at the cut, not at every character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from kvstream.input.blocks import TextBlock, utf8_starts
from kvstream.input.source import Source
from kvstream.tokenization.tokenizer import Tokenizer

BLOCK = 64 * 1024
"""Characters to encode at a time, if there are that many."""
MOST = 4 * BLOCK
"""Maximum characters that wait for a proven cut. Then an unproven cut is made."""
STEP = 1024
"""Minimum characters for another attempt, if a slow writer sends them one by one."""
OTHER_ENDS = (1, 2, 3, 5, 8, 13, 21)
"""A doubtful cut must stay the same with this many characters removed from the end."""
NEXT = ("\n", "\r\n", " ", "  ", "a", "A", "1", ".", "é")
"""Text that may follow the last line that has arrived: one of each kind."""
REPEATED = 4
"""Text is repetitive if each token occurs at least this often, on average, before a cut."""
CONTEXT = 256
"""Bytes before a cut that are encoded again to prove it."""


@dataclass(frozen=True)
class TokenBatch:
    """Consecutive tokens of the source."""

    ids: np.ndarray
    """int32 [n]."""
    starts: np.ndarray
    """int64 [n]: global byte offset at which each token begins, never decreasing."""
    end: int
    """Global byte offset after the last token; after the whole source if it has ended."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class _Encoded:
    text: str
    utf8: np.ndarray
    """Byte offset of each character."""
    ids: np.ndarray
    starts: np.ndarray
    """Byte offset of each token."""


class TokenStream:
    """Reads sources as tokens. ``on_block`` is called with every block of text when it is read.

    If the sources continue others, ``after`` is the number of tokens and bytes of those. `estimate`
    depends only on the sources and the tokens returned so far, not on the sizes of the requests. So
    a resumed reading gets the same estimates.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sources: Source,
        on_block: Callable[[TextBlock], None] | None = None,
        after: tuple[int, int] = (0, 0),
    ) -> None:
        self.seen = after[0]
        """Number of tokens returned so far, including those of `after`."""
        self.paused = False
        """Whether the last read returned less because the sources have no data at the moment."""
        self.forced_cuts = 0
        """Number of cuts that could not be proven; 0 except for artificial text."""
        self.broken = 0
        """Number of control sequences of the template that were broken apart."""
        self._latest: list[int] = []  # ids before the waiting text
        self._tokenizer = tokenizer
        self._sources = sources
        self._blocks: Iterator[TextBlock] | None = iter(sources)
        self._on_block = on_block
        self._waiting: list[TextBlock] = []
        self._waiting_chars = 0
        self._tried = 0  # characters that waited at the last attempt, if it found no cut
        self._ready: list[tuple[np.ndarray, np.ndarray]] = []
        self._ready_tokens = 0
        self._encoded_tokens, self._encoded_to = after  # tokens, bytes
        self._from = 0  # first byte of those tokens; above 0 if only a part of a text is read
        self._begun = after[0] > 0
        self._sized = sources.size_hint() is not None
        self._ended = False
        self._look_ahead = max(CONTEXT, 2 * tokenizer.longest)

    def read(self, n: int) -> TokenBatch:
        """Return the next ``n`` tokens; fewer at the end or at a pause. Raises SourceError."""
        self.paused = False
        while self._ready_tokens < n and self._blocks is not None and not self.paused:
            self._fill(n - self._ready_tokens)
        self._ended = self._ended or (self._blocks is None and self._ready_tokens < n)
        ids: list[np.ndarray] = [np.empty(0, dtype=np.int32)]
        starts: list[np.ndarray] = [np.empty(0, dtype=np.int64)]
        missing = min(n, self._ready_tokens)
        while missing:
            first_ids, first_starts = self._ready[0]
            count = min(missing, len(first_ids))
            ids.append(first_ids[:count])
            starts.append(first_starts[:count])
            if count == len(first_ids):
                self._ready.pop(0)
            else:
                self._ready[0] = first_ids[count:], first_starts[count:]
            missing -= count
            self._ready_tokens -= count
            self.seen += count
        end = int(self._ready[0][1][0]) if self._ready else self._encoded_to
        return TokenBatch(np.concatenate(ids), np.concatenate(starts), end)

    def block(self) -> TokenBatch:
        """Return the tokens of the next block; empty at the end or a pause. Raises SourceError."""
        first = self.read(1)  # encodes one block and no more, as for a reader of single tokens
        if not len(first):
            return first
        rest = self.read(self._ready_tokens)
        ids = np.concatenate([first.ids, rest.ids])
        return TokenBatch(ids, np.concatenate([first.starts, rest.starts]), rest.end)

    @property
    def at_end(self) -> bool:
        """Whether ``read`` has no more tokens, as far as is known."""
        return self._blocks is None and not self._ready_tokens

    def estimate(self) -> int | None:
        """Estimate the tokens of the whole source: exact at the end, None for a pipe before it."""
        if not self._sized:
            return self._encoded_tokens if self._ended else None
        if self._blocks is not None and not self._encoded_tokens:
            self._fill(BLOCK)
        if self._blocks is None:
            return self._encoded_tokens
        size = max(self._sources.size_hint() or 0, self._sources.bytes_read)
        rest = max(size - self._encoded_to, 0)
        done = max(self._encoded_to - self._from, 1)
        return self._encoded_tokens + round(rest * self._encoded_tokens / done)

    def _fill(self, missing: int) -> None:
        assert self._blocks is not None
        # Do not wait for a pipe to send much more than is missing. But add at least half of the
        # waiting text, because every attempt encodes all of it again.
        more = BLOCK if self._sized else max(STEP, min(BLOCK, 3 * missing))
        more = max(more, self._waiting_chars // 2)
        target = self._waiting_chars + more
        target = max(target, self._look_ahead + STEP)
        line_ends = False
        while self._waiting_chars < target:
            block = next(self._blocks, None)
            if block is None:
                self._blocks = None
                break
            if not block.text:
                self.paused = True
                break
            if self._on_block is not None:
                self._on_block(block)
            if not self._encoded_tokens and not self._waiting:
                self._from = block.start
            self._waiting.append(block)
            self._waiting_chars += len(block.text)
            line_ends = line_ends or "\n" in block.text
        # A writer that pauses after each character must not cost an attempt each time.
        if self.paused and not line_ends and 8 * self._waiting_chars < 9 * self._tried:
            return
        if self._waiting:
            self._encode(final=self._blocks is None)

    def _encode(self, *, final: bool) -> None:
        text, places = joined(self._waiting)
        utf8 = utf8_starts(text)
        ids, starts, broken = self._tokenizer.spans(text, continuing=self._begun)
        tokens, chars = len(ids), len(text)
        if not final:
            cut = self._cut(_Encoded(text, utf8, ids, starts))
            self._tried = chars if cut is None else 0
            if cut is None:
                return
            tokens, chars = cut
        ids, starts = ids[:tokens], starts[:tokens]
        if np.array_equal(places - places[0], utf8):
            starts = starts + places[0]
        else:  # replaced bytes, or a border between two sources
            char = np.searchsorted(utf8, starts, side="right") - 1
            char = np.clip(char, 0, len(text) - 1)
            room = np.maximum(places[char + 1] - places[char] - 1, 0)
            starts = places[char] + np.minimum(starts - utf8[char], room)
        self.broken += int((broken < tokens).sum())
        reach = self._tokenizer.reach
        if tokens and (between := self._tokenizer.between(self._latest, ids[:reach].tolist())):
            # A control sequence longer than the text looked ahead, or across an unproven cut.
            ids = np.concatenate([np.array(between, dtype=ids.dtype), ids])
            starts = np.concatenate([np.repeat(starts[:1], len(between)), starts])
            tokens += len(between)
            self.broken += 1
        if tokens:
            self._ready.append((ids, starts))
            if reach:
                self._latest = [*self._latest, *ids[-reach:].tolist()][-reach:]
        self._ready_tokens += tokens
        self._encoded_tokens += tokens
        self._encoded_to = int(places[chars])
        self._begun = True
        self._keep(chars)

    def _keep(self, chars: int) -> None:
        self._waiting_chars -= chars
        while self._waiting and chars >= len(self._waiting[0].text):
            chars -= len(self._waiting.pop(0).text)
        if chars:
            self._waiting[0] = self._waiting[0].part(chars)

    def _cut(self, of: _Encoded) -> tuple[int, int] | None:
        """Return where to end the block: (tokens, characters), or None to wait for more text."""
        if self.paused and (cut := self._line_end(of)) is not None:
            return cut
        text, utf8, starts = of.text, of.utf8, of.starts
        last = int(np.searchsorted(starts, int(utf8[-1]) - self._look_ahead, side="right")) - 1
        candidates = _between_tokens(starts, utf8, max(last - 2 * CONTEXT, 1), last)
        chars = np.searchsorted(utf8, starts[candidates])
        options = list(zip(candidates.tolist(), chars.tolist(), strict=True))[::-1]
        words = list(islice((o for o in options if _between_words(text, o[1])), 4))
        for token, char in [*words, *options[:8], *options[8::16]]:
            if self._proven(of, token, char):
                return token, char
        if len(text) < MOST or not options:
            return None
        self.forced_cuts += 1
        return (words or options)[0]

    def _line_end(self, of: _Encoded) -> tuple[int, int] | None:
        """Return a cut before the last line end, where other cuts cannot be proven."""
        text, utf8, starts = of.text, of.utf8, of.starts
        place = len(text[: text.rfind("\n") + 1].rstrip("\r\n"))
        token = int(np.searchsorted(starts, utf8[place], side="right")) - 1
        if place == len(text) or token < 1 or not len(_between_tokens(starts, utf8, token, token)):
            return None
        char = int(np.searchsorted(utf8, starts[token]))
        trial = self._alike(of, token, char)
        if trial is None or self._tokenizer.crosses_words:
            return None
        begin, continuing, expected = trial
        more = (self._tokenizer.encode(text[begin:] + each, continuing=continuing) for each in NEXT)
        same = all(tokens[: len(expected)] == expected for tokens in more)
        return (token, char) if same else None

    def _proven(self, of: _Encoded, token: int, char: int) -> bool:
        """Return whether a cut gives the same tokens, whatever text follows."""
        trial = self._alike(of, token, char)
        if trial is None:
            return False
        begin, continuing, expected = trial
        if _between_words(of.text, char) and not self._tokenizer.crosses_words:
            return True
        # A unigram model splits repetitive text depending on where the run ends. Another end then
        # moves the token borders, and the cut must wait for the real end. The change may be
        # anywhere in the run, so all of the waiting text is checked.
        repetitive = REPEATED * len(set(expected)) <= len(expected)
        if repetitive and not self._tokenizer.merges_from_left:
            begin, continuing, expected = 0, self._begun, of.ids[:token].tolist()
        encode = self._tokenizer.encode
        return all(
            encode(of.text[begin:-less], continuing=continuing)[: len(expected)] == expected
            for less in OTHER_ENDS
        )

    def _alike(self, of: _Encoded, token: int, char: int) -> tuple[int, bool, list[int]] | None:
        """Return None if both sides of a cut give other tokens separately than together.

        Else return the character at which the compared text before the cut begins, whether it
        continues other text, and its tokens.
        """
        text, utf8, ids, starts = of.text, of.utf8, of.ids, of.starts
        context = int(np.searchsorted(starts, starts[token] - CONTEXT))
        earlier = _between_tokens(starts, utf8, max(context - 64, 1), context)
        first = int(earlier[-1]) if len(earlier) else 0
        begin = int(np.searchsorted(utf8, starts[first])) if first else 0
        continuing = self._begun or begin > 0
        expected = ids[first:token].tolist()
        encode = self._tokenizer.encode
        before = encode(text[begin:char], continuing=continuing)
        if before != expected or encode(text[char:], continuing=True) != ids[token:].tolist():
            return None
        return begin, continuing, expected


def joined(blocks: Sequence[TextBlock]) -> tuple[str, np.ndarray]:
    """Return the text of blocks, and the byte offsets of its characters and its end."""
    parts = [block.offsets() for block in blocks]
    offsets = np.concatenate([*(part[:-1] for part in parts), parts[-1][-1:]])
    return "".join(block.text for block in blocks), offsets


def _between_tokens(starts: np.ndarray, utf8: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return tokens low..high that begin at a character: a cut before them splits no character."""
    tokens = np.arange(low, high + 1)
    if not len(tokens):
        return tokens
    begins = starts[tokens]
    whole = utf8[np.clip(np.searchsorted(utf8, begins), 0, len(utf8) - 1)] == begins
    return tokens[whole & (begins > starts[tokens - 1])]


def _between_words(text: str, char: int) -> bool:
    """Return whether there is a space at `char` with a letter or digit on both sides."""
    around = text[char - 1 : char + 2]
    return len(around) == 3 and around[1] == " " and around[0].isalnum() and around[2].isalnum()
