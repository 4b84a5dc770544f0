"""The texts of a memory file without its keys and values: enough to rank many files by words.

This reads only the header, the passages and the words, and checks no digest. Use the result only to
choose files; `saving.look` checks the files that answer.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kvstream.memory import file, header
from kvstream.memory.packing import LARGEST_TEXT
from kvstream.tokenization.loading import WordForms

_DAMAGE = (
    json.JSONDecodeError, UnicodeDecodeError, LookupError, TypeError, zlib.error,
    RecursionError,  # JSON that is nested too deep
)  # fmt: skip


@dataclass(frozen=True)
class Glance:
    """The parts of a memory file that ranking needs."""

    path: Path
    names: tuple[str, ...]
    text: str
    """The passages with retained tokens, one per line."""
    words: WordForms | None
    """The words of the whole text, including passages that were evicted."""
    questions: tuple[str, ...] = ()


def glance(path: Path) -> Glance:
    """Read the texts of a memory file. Raise SourceError if it is none."""
    with _opened(path) as stream:
        head = file.head_of(stream)
        table, state = json.loads(head), json.loads(header.metadata_of(head)["state"])
        tensors = stream.tell()
        room = stream.seek(0, os.SEEK_END) - tensors

        def part(name: str) -> bytes | None:
            if name not in table:
                return None
            begin, end = table[name]["data_offsets"]
            # Keys and values are in front of it, so that it may begin anywhere in the file.
            if not 0 <= begin <= end <= room or end - begin > LARGEST_TEXT:
                raise ValueError("it is damaged")
            stream.seek(tensors + begin)
            return stream.read(end - begin)

        text, data, words = "", part("trace.passages"), part("trace.words")
        if data is not None:
            unpacked = zlib.decompressobj().decompress(data, LARGEST_TEXT)
            text = "\n".join(str(row[6]) for row in json.loads(unpacked))
        names = tuple(str(source["name"]) for source in state["trace"]["sources"])
        forms = None if words is None else WordForms.unpacked(words)
        return Glance(path, names, text, forms, tuple(map(str, state["questions"])))


def state_in(path: Path) -> header.State:
    """Read the state of a memory file from its header. Raise SourceError if it is none."""
    with _opened(path) as stream:
        metadata = header.metadata_of(file.head_of(stream))
        return header.decoded(metadata["state"], header.State, "state is")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file; errors inside this context become SourceErrors."""
    try:
        with path.open("rb") as stream:
            yield stream
    except OSError as error:
        raise file.unusable(path, error.strerror or str(error)) from error
    except _DAMAGE as error:
        raise file.unusable(path, "it is damaged") from error
    except ValueError as error:
        raise file.unusable(path, error) from error
