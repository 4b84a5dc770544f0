"""Pack the trace of a memory for a file (passages as deflated JSON), and unpack it in bounds."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from kvstream.input.source import LineCounts, SourceRecord
from kvstream.memory.contents import Beside, Trace
from kvstream.memory.header import KeptRow, Row, decoded
from kvstream.tokenization.loading import WordForms
from kvstream.tokenization.passages import Passage, Passages, TokenOrigins
from kvstream.tokenization.sentences import MOST_CHARS

LARGEST_TEXT = 1 << 27
"""Maximum number of bytes of the unpacked passages of a file."""
LARGEST_ROW = 12 * MOST_CHARS + 256
"""Maximum number of bytes of a passage in JSON: at most 12 per character, and its numbers."""
_PLACE = ("source", "start", "end", "line_start", "line_end")
AnyRow = TypeVar("AnyRow", Row, KeptRow)


def packed_passages(passages: Passages, starts: np.ndarray, room: int) -> tuple[Tensor, int]:
    """Pack the passages of tokens that begin at `starts`; return them and how many did not fit."""
    weights = {(p.start, p.end): p.weight for p in passages.score(starts, np.ones(len(starts)))}
    rows = [(weights.get((p.start, p.end), 0.0), p) for p in passages.all()]
    rows = [row for row in rows if row[0] > 0]
    every = len(rows)
    while True:
        data = _deflated([*_place(p), p.reach, *_text(p)] for _, p in rows)
        if data.nbytes <= room or not rows:
            return data, every - len(rows)
        # Drop the passages of which memory holds least.
        fewer = int(len(rows) * min(0.95, 0.95 * max(room, 0) / data.nbytes))
        best = sorted(range(len(rows)), key=lambda i: (-rows[i][0], i))[:fewer]
        rows = [rows[i] for i in sorted(best)]


def trace_of(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Trace:
    """Return the trace of a file, checked. Raise ValueError if it is wrong."""
    read = state["read"]
    ordinals, starts = (tensors[f"trace.{n}"].numpy() for n in ("ordinals", "starts"))
    if not (ordinals.dtype == starts.dtype == np.int64 and ordinals.shape == starts.shape):
        raise ValueError("its tokens have no places")
    if len(ordinals) and not (
        (np.diff(ordinals) > 0).all() and ordinals[0] >= 0 and ordinals[-1] < read
    ):
        raise ValueError("its tokens are not in order")
    if len(starts) and not (
        (np.diff(starts) >= 0).all() and starts[0] >= 0 and starts[-1] <= state["end"]
    ):
        raise ValueError("its tokens are not where its text is")
    records = [SourceRecord(**record) for record in state["sources"]]
    bases = list(accumulate((r.bytes for r in records), initial=0))[:-1]
    lines = state.get("lines")
    if lines is not None and lines[0] < lines[1]:
        raise ValueError(f"of {lines[0]:,} lines it left out {lines[1]:,}")
    origins, passages = TokenOrigins(), None
    origins.restore(ordinals, starts, read)
    if "trace.passages" in tensors:
        most = min(LARGEST_TEXT, (len(ordinals) + 1) * LARGEST_ROW)
        rows = _inflated(tensors["trace.passages"], most, Row, "passages", len(records))
        if len(rows) > len(ordinals):  # each token lies in one
            raise ValueError(f"it has {len(rows):,} passages around {len(ordinals):,} tokens")
        passages = Passages()
        passages.restore(replace(_passage(row), reach=row.reach) for row in rows)
    words = None
    if "trace.words" in tensors:  # files of earlier versions have none
        words = WordForms.unpacked(tensors["trace.words"].numpy().tobytes())
    counts = None if lines is None else LineCounts(*lines)
    return Trace(
        [r.name for r in records], bases, origins, passages, words, read, state["end"],
        tuple(records), counts, ended_line=state["ended_line"], waiting=_waiting(state),
    )  # fmt: skip


def _waiting(state: Mapping[str, Any]) -> int:
    """Return the bytes that an interrupted reading had taken and not read; 0 if unknown."""
    if state.get("lines") or any("part" in source for source in state["sources"]):
        return 0
    return max(0, sum(source["bytes"] for source in state["sources"]) - int(state["end"]))


def packed_kept(beside: Beside) -> Tensor:
    """Pack the passages for an answering model, each with the number of its excerpt."""
    return _deflated(
        [number, *_place(p), *_text(p)]
        for number, excerpt in enumerate(beside.excerpts)
        for p in excerpt
    )


def beside_of(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Beside | None:
    """Return what was kept for an answering model, or None. Raise ValueError if it is wrong."""
    facts = state.get("answering")
    if facts is None:
        return None
    # Of a short line, the numbers take far more than the text.
    data, sources = tensors["trace.kept"], len(state["trace"]["sources"])
    excerpts: dict[int, list[Passage]] = {}
    for row in _inflated(data, LARGEST_TEXT, KeptRow, "kept passages", sources):
        excerpts.setdefault(row.excerpt, []).append(_passage(row))
    own = {name: value for name, value in facts.items() if name != "name"}
    return Beside(facts["name"], excerpts=[tuple(e) for e in excerpts.values()], **own)


def _deflated(rows: Iterable[list[Any]]) -> Tensor:
    data = zlib.compress(json.dumps([*rows], separators=(",", ":")).encode())
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _inflated(data: Tensor, most: int, kind: type[AnyRow], what: str, sources: int) -> list[AnyRow]:
    """Return the rows of packed passages, of at most so many bytes, from so many sources.

    Raises ValueError if there are more, or if passages overlap.
    """
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data.numpy().tobytes(), most)
    except zlib.error as error:
        raise ValueError(f"its {what} cannot be unpacked: {error}") from error
    if unpacking.unconsumed_tail:
        raise ValueError(f"its {what} unpack to more than {most:,} bytes")
    rows: list[AnyRow] = decoded(text, list[kind], f"{what} are")  # type: ignore[valid-type]
    end = 0
    for row in rows:
        if row.source >= sources:
            raise ValueError(f"there is no source {row.source}")
        if not end <= row.start <= row.end:
            raise ValueError(f"its {what} are not in order")
        end = row.end
    return rows


def _place(passage: Passage) -> list[int]:
    return [getattr(passage, name) for name in _PLACE]


def _text(passage: Passage) -> list[Any]:
    """Return the text of a passage, and its page or chapter, if it has one."""
    pages = [passage.place, passage.page_end]
    return [passage.text, *(each for each in pages if each is not None)]


def _passage(row: Row | KeptRow) -> Passage:
    names = (*_PLACE, "text", "place", "page_end")
    return Passage(**{name: getattr(row, name) for name in names})
