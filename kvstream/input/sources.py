"""Read files, folders, compressed files and standard input as one stream of text blocks.

Never more than a block is in memory. Sources are concatenated as by ``cat``. If one does not end
in a newline, a newline of width 0 is inserted, so that the last line of one file and the first line
of the next stay two lines. All offsets count bytes of the concatenated sources after decompression
and before decoding.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import BinaryIO, Protocol

import numpy as np

from kvstream.errors import SourceError, UsageError
from kvstream.input import documents, encodings
from kvstream.input.blocks import BlockDecoder, Part, TextBlock
from kvstream.input.controls import without_controls
from kvstream.input.following import Follow
from kvstream.input.formats import WAIT_SECONDS
from kvstream.input.inspection import NamedPath, NamedStream, OneSource, sources_of
from kvstream.input.messages import Messages
from kvstream.input.pieces import BLOCK, SourcePieces
from kvstream.input.source import EmptyError, SourceRecord, not_read, nothing_in, shown_name
from kvstream.input.table_reader import NAMED
from kvstream.input.terminal import ControlFilter

EMPTY = "0 bytes of text"
# Expected text bytes per byte of a file, until some of it has been read.
EXPANSION = {"gzip": 3.0, "bz2": 4.0, "xz": 4.0, "zstd": 3.0}
SAMPLED = 100
"""Number of documents of one kind whose text is estimated individually. The others get the same
ratio."""


def open_sources(
    paths: Sequence[str | NamedPath | NamedStream],
    *,
    plain: bool = False,
    stdin: BinaryIO | io.RawIOBase | None = None,
    max_unpacked: int | None = None,
    follow: Follow | None = None,
) -> SourceSet:
    """Inspect every source and prepare to read them in order. ``-`` is standard input.

    ``plain`` reads binary files and HTML without conversion. ``max_unpacked`` limits decompressed
    data. ``follow`` waits for more data at the end of the last file. Raises UsageError for a source
    that cannot be followed, and SourceError for one that is missing, unreadable, binary, or empty.
    """
    if not paths:
        raise SourceError("Nothing to read: name a file or a folder, or - for standard input.")
    if list(paths).count("-") > 1:
        raise UsageError("Standard input (-) was named twice, but it can be read only once.")
    messages = Messages()
    general, notes = messages.general, messages.notes
    sources = [each for path in paths for each in sources_of(path, general, notes, plain=plain)]
    if len(paths) > 1:
        general += _named_again(sources)
    if follow is not None and paths[-1] != "-" and sources[-1].stream is None:
        last = sources[-1]
        pipe = last.path is not None and last.path.is_fifo()
        if last.name != paths[-1] or last.kind != "plain" or pipe:
            raise UsageError(
                f"{paths[-1]} cannot be followed: only a plain file can, the last one of several."
            )
        last.followed, last.size = True, None
    pieces = SourcePieces(messages, plain, stdin, max_unpacked, follow)
    again = partial(open_sources, paths, plain=plain, max_unpacked=max_unpacked)
    return SourceSet(sources, pieces, again)


class Scope(Protocol):
    """A part of a text."""

    name: str
    headed: bool
    """Whether the header of a table goes with its lines."""
    notes: list[str]
    ranges: tuple[tuple[int, int], ...]
    """Global byte offsets; empty if lines decide."""

    @property
    def end(self) -> int | None:
        """Global byte offset of its end, if it is known."""

    def select(self, blocks: Iterator[TextBlock]) -> Iterator[TextBlock]:
        """Yield the blocks of the part."""


def _named_again(sources: Sequence[OneSource]) -> list[str]:
    """Return a warning of files that are read more than once, because several names lead there."""
    names: dict[str, list[str]] = {}
    for each in sources:
        if each.path is not None:
            names.setdefault(os.path.realpath(each.path), []).append(each.name)
    again = [some for some in names.values() if len(some) > 1]
    if not again:
        return []
    first = f"{again[0][0]} and {again[0][1]} are one file, which is read {len(again[0])} times"
    more = f"; {len(again) - 1:,} other files are read again, too" if len(again) > 1 else ""
    return [f"{first}{more}."]


class SourceSet:
    """The sources of a run, read once, in order, as blocks of about 64 KiB."""

    def __init__(
        self, sources: list[OneSource], pieces: SourcePieces, again: partial[SourceSet]
    ) -> None:
        self._sources, self._pieces, self._again = sources, pieces, again
        self._messages, self._plain = pieces.messages, pieces.plain
        self.bases: list[int] = []
        """Global byte offset of the beginning of each source that was begun; grows with reading."""
        self._position = 0
        self._started = False
        self._earlier: list[SourceRecord] = []
        self.scope: Scope | None = None
        """Chooses the part of the text that is read."""
        self._parts: dict[int, tuple[int, int, int]] = {}
        """Size, first byte and end of this part, by source."""
        self._last = ""

    @property
    def warnings(self) -> list[str]:
        """Reasons why an answer may be wrong; complete when everything was read."""
        file, name = self._pieces.followed_file, self._sources[-1].name
        problem = "" if self.unread is None or file is None else file.problem
        end = [f"{name} could not be read at the end: {problem}."] if problem else []
        return self._messages.warnings + end

    @property
    def unread(self) -> int | None:
        """Bytes that a followed file had at the stop and that were not read; None if unknown."""
        file = self._pieces.followed_file
        return file.unread if file is not None and file.follow.stop() else None

    @property
    def unread_warnings(self) -> list[str]:
        """The warning about `unread`, for a caller that used all text that it got."""
        return [not_read(self._sources[-1].name, self.unread)] if self.unread else []

    @property
    def notes(self) -> list[str]:
        """Other messages for the user; complete when everything was read."""
        file, name = self._pieces.followed_file, self._sources[-1].name
        cuts = 0 if file is None else file.cuts
        what = "lines that were written just before that may be missing"
        cut = [f"{name} was cut while it was followed ({cuts:,} ×); {what}."] if cuts else []
        besides = [] if self.scope is None else self.scope.notes
        return self._messages.notes + self._messages.about_nuls() + cut + besides

    def again(self) -> SourceSet:
        """Open the same sources again. Raises SourceError for standard input and open files."""
        again = self.opening()()
        again.scope = self.scope
        return again

    def opening(self) -> partial[SourceSet]:
        """Return a function that opens them again and can be pickled. Raises as `again`."""
        for source in self._sources:
            if source.path is None and not isinstance(source.stream, bytes):
                raise SourceError(
                    f"The sources are read a second time, and {shown_name(source.name)} can be "
                    "read only once; write it to a file first, and name the file."
                )
        return self._again

    def without_digests(self) -> SourceSet:
        """Leave out the digests of the records, which take as long as all other reading, and read
        larger pieces."""
        self._pieces.large = True
        for source in self._sources:
            source.digest = SimpleNamespace(update=len, hexdigest=str)
            source.file_sha256 = ""
        return self

    def reorder(self, order: Sequence[int]) -> None:
        """Read the first sources in this order. Call it before reading; `again` forgets it.

        The bytes of a part count in the order that was given, so that one stays.
        """
        if self.scope is not None and self.scope.ranges:
            return
        first = [self._sources[place] for place in order]
        self._sources = first + self._sources[len(first) :]

    def follow_on(self, earlier: Sequence[SourceRecord], *, ended_line: bool) -> None:
        """Count from the end of texts read before; `ended_line`: they ended with a newline."""
        self._earlier = list(earlier)
        for record in earlier:
            self.bases.append(self._position)
            self._position += record.bytes
        self._last = ("\n" if ended_line else " ") if self._position else ""
        if self.scope is not None:  # it was chosen in the new sources alone
            base = self._position
            self.scope.ranges = tuple((a + base, b + base) for a, b in self.scope.ranges)

    @property
    def ended_line(self) -> bool:
        """Whether the text read so far ends with a newline."""
        return self._last == "\n"

    @property
    def records(self) -> list[SourceRecord]:
        """Records of all sources that were begun, including those of `follow_on`."""
        behind = [*self.bases[1:], self._position]
        sources = self._sources[: len(self.bases) - len(self._earlier)]
        records = []
        for i, source in enumerate(sources, len(self._earlier)):
            base, part = self.bases[i], self._parts.get(i)
            size = part[0] if part else None if self.scope is None else 0
            first, end = (part[1] - base, part[2] - base) if part else (None, None)
            length, digest = behind[i] - base, source.digest.hexdigest()
            whole = source.digest_of_file(), source.problem
            records.append(SourceRecord(source.name, length, digest, size, first, end, *whole))
        return self._earlier + records

    @property
    def names(self) -> list[str]:
        """Names of all sources, including those of `follow_on`; ``-`` for standard input."""
        return [r.name for r in self._earlier] + [source.name for source in self._sources]

    @property
    def bytes_read(self) -> int:
        """Number of decoded bytes of all sources so far."""
        return self._position

    def size_hint(self) -> int | None:
        """Return the decoded bytes, an estimate if packed or a document; None with a pipe."""
        if self.scope is not None:
            return self.scope.end
        total = sum(record.bytes for record in self._earlier)
        for index, source in enumerate(self._sources, len(self._earlier)):
            if source.length is not None:
                total += source.length
            elif source.size is None:
                return None
            elif source.kind in documents.LIBRARIES:
                total += self._document_size(source)
            elif index == len(self.bases) - 1:
                total += self._estimate(source)
            else:
                total += round(source.size * EXPANSION.get(source.kind, 1.0))
        return total

    @property
    def ends_on_interrupt(self) -> bool:
        """Whether the last source is being read and ends by itself when the run is interrupted."""
        if len(self.bases) - len(self._earlier) != len(self._sources):
            return False
        stream = self._sources[-1].stream
        return self._pieces.follow is not None or getattr(stream, "ends_on_interrupt", False)

    def _estimate(self, source: OneSource) -> int:
        """Estimate the decoded bytes of the current source from the part read so far."""
        assert source.size is not None
        size = self._position - self.bases[-1]
        if source.kind == "plain":
            return max(source.size, size)
        offset = self._pieces.offset  # of a compressed file
        ratio = size / offset if offset and size else EXPANSION[source.kind]
        return max(round(source.size * ratio), size)

    def _document_size(self, source: OneSource) -> int:
        """Estimate the bytes of text of a document: the converted bytes and the expected rest."""
        assert source.size is not None
        assert source.path is not None
        if source.estimate is None:
            alike = [s for s in self._sources if s.kind == source.kind and s.estimate is not None]
            if len(alike) < SAMPLED:
                source.estimate = documents.estimate(source.kind, source.path)
            else:
                sample = alike[:SAMPLED]
                ratio = sum(s.estimate or 0 for s in sample) / sum(s.size or 1 for s in sample)
                source.estimate = round(source.size * ratio)
        return source.text_bytes + round((1 - source.share) * source.estimate)

    def __iter__(self) -> Iterator[TextBlock]:
        if self._started:
            raise UsageError("A SourceSet can be read only once; open the sources again.")
        self._started = True
        return self._all() if self.scope is None else self._part_of(self.scope)

    def _part_of(self, scope: Scope) -> Iterator[TextBlock]:
        for block in scope.select(self._all()):
            end = int(block.offsets()[-1])
            if end > block.start:
                size, first, _ = self._parts.get(block.source, (0, block.start, 0))
                self._parts[block.source] = size + end - block.start, first, end
            yield block

    def _all(self) -> Iterator[TextBlock]:
        first = len(self._earlier)
        last, empty = max(first - 1, 0), True
        for index, source in enumerate(self._sources, first):
            self.bases.append(self._position)
            between = bool(self._last) and not self.ended_line
            for block in self._blocks(index, source):
                if between and block.text:
                    yield TextBlock("\n", block.start, last, np.zeros(1, dtype=np.int64))
                    between = False
                yield block
                if block.text:
                    self._last, last, empty = block.text[-1], index, False
                    source.gave_text = source.gave_text or not block.text.isspace()
            source.length = self._position - self.bases[-1]
        if empty:
            raise self.nothing()

    def bookmarks(self, index: int) -> list[tuple[str, int, int]]:
        """Return title, level (from 0) and page of the bookmarks of a PDF; of others none."""
        source = self._sources[index - len(self._earlier)]
        if source.kind != "pdf" or source.path is None:
            return []
        from kvstream.input.pdf import Pdf

        return Pdf(source.path, [], []).bookmarks()

    def check(self) -> dict[str, int]:
        """Raise SourceError for empty and damaged files; return the pages of named PDFs."""
        if all(s.size == 0 and s.kind == "plain" and not s.followed for s in self._sources):
            raise self.nothing()
        pages = {}
        for source in self._sources:
            if source.kind in documents.LIBRARIES and source.path is not None and not source.folder:
                count = documents.check(source.kind, source.path)
                if count is not None:
                    pages[source.name] = count
        return pages

    def nothing(self, content: str = EMPTY) -> SourceError:
        """Return the error for sources without any text; `content` is what they have."""
        for source in self._sources:
            if reason := getattr(source.stream, "reason", ""):
                return SourceError(f"Nothing to read: {reason}")
        why = "".join(f" {line}" for line in self._messages.about_damage())
        kind = EmptyError if content == EMPTY and not why else SourceError
        return kind(nothing_in(self.names[len(self._earlier) :], content) + why)

    def _blocks(self, index: int, source: OneSource) -> Iterator[TextBlock]:
        decoder: BlockDecoder | None = None
        guessing, rest = True, b""
        on_disk = source.path is not None and not source.followed and os.path.isfile(source.path)
        as_it_is = self._plain or source.plain
        controls = ControlFilter(table=NAMED.search(source.name) is not None)
        with closing(self._pieces.of(source)) as pieces:
            for piece in pieces:
                if isinstance(piece, Part):
                    yield from self._part(index, source, piece)
                    continue
                if not piece:  # no data yet, and the reader has something else to do
                    yield TextBlock("", self._position, index)
                    time.sleep(WAIT_SECONDS)
                    continue
                switches = guessing and (
                    encodings.of_seven_bits(piece) is not None
                    or (decoder is None and not as_it_is and encodings.by_mark(piece) is not None)
                )
                if guessing and (
                    switches or np.frombuffer(piece, np.uint8).max() > 127
                ):  # this is fast
                    if on_disk:
                        piece = _with_more(piece, pieces)
                    known = decoder is None or switches or _letters(piece) >= encodings.FEW
                    guessing = not known  # a few bytes, such as a cut character, allow no guess
                    if known:
                        rest, decoder = self._decoder(index, source, piece, before=decoder)
                decoder = decoder or BlockDecoder(index, self._position)
                self._position += len(piece)
                source.digest.update(piece)
                block = decoder.decode(rest + piece)
                rest = b""
                if block is None:  # the rest of a character is still to come
                    continue
                block = controls.filter(block)
                self._messages.nuls(source.name, controls, self.bases[index])
                if block is not None:
                    yield block
                elif not source.followed:  # a hole may be long: let the user stop the reading
                    yield TextBlock("", self._position, index)
        if decoder is None:
            return
        block = decoder.decode(b"", final=True) or TextBlock("", self._position, index)
        block = controls.filter(block, final=True)
        self._messages.nuls(source.name, controls, self.bases[index])
        if block is not None and block.text:
            yield block
        self._messages.replacements(source.name, decoder, self.bases[index])

    def _part(self, index: int, source: OneSource, part: Part) -> Iterator[TextBlock]:
        source.share = part.share
        text = without_controls(part.text)
        for begin in range(0, len(text), BLOCK):
            data = text[begin : begin + BLOCK].encode("utf-8", "replace")
            start = self._position
            self._position += len(data)
            source.text_bytes += len(data)
            source.digest.update(data)
            yield TextBlock(data.decode(), start, index, place=part.place)

    def _decoder(
        self, index: int, source: OneSource, piece: bytes, before: BlockDecoder | None
    ) -> tuple[bytes, BlockDecoder]:
        """Return a decoder from the first non-ASCII `piece` on, and the bytes it gets before."""
        plain = self._plain or source.plain
        encoding = "utf-8" if plain else encodings.encoding_of(piece, begins=before is None)
        if encoding == "utf-8":
            return b"", before or BlockDecoder(index, self._position)
        self._messages.encoding(source.name, encoding)
        rest = b""
        if before is not None:
            rest = before.rest
            self._messages.replacements(source.name, before, self.bases[index])
        return rest, encodings.OtherDecoder(index, self._position - len(rest), encoding)


def _with_more(piece: bytes, pieces: Iterator[bytes | Part]) -> bytes:
    """Join a piece with those after it, until they are enough to guess an encoding."""
    while _letters(piece) < encodings.ENOUGH and len(piece) < 4 * BLOCK:
        more = next(pieces, None)
        if not isinstance(more, bytes) or not more:
            break
        piece += more
    return piece


def _letters(piece: bytes) -> int:
    """Return the number of non-ASCII bytes."""
    return len(piece) - len(piece.translate(None, encodings.HIGH))
