"""Texts to train a gate on: files of a folder, and excerpts from random places in them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from kvstream.errors import SourceError
from kvstream.evaluation.splits import is_heldout
from kvstream.input.sources import open_sources
from kvstream.tokenization.loading import Tokenizer

BYTES_A_TOKEN = 6
"""Characters to read per token. Nearly all texts need fewer."""


def texts_in(folder: Path) -> tuple[list[str], list[str]]:
    """Return the files to train on, and the held-out ones (a tenth, by name). Raise SourceError."""
    names = sorted(open_sources([str(folder)]).names)
    learned = [n for n in names if not is_heldout(_stem(n))]
    held = [n for n in names if is_heldout(_stem(n))]
    if not learned:  # in a small folder, all names may be held-out ones
        learned, held = held, []
    if not learned:
        raise SourceError(f"{folder} has no text to learn from; name a folder with text files.")
    return learned, held


def _stem(name: str) -> str:
    return Path(name).name.split(".")[0]


def excerpt(name: str, tokenizer: Tokenizer, count: int, draw: random.Random) -> list[int]:
    """Return `count` tokens from a random place of a file; fewer if the file is shorter."""
    place, room = draw.random(), count * BYTES_A_TOKEN
    size = open_sources([name]).size_hint() or 0
    text, length = _stretch(name, int(place * max(0, size - room)), room)
    if length < size:  # the size of a packed file is an estimate, so the place may be past its end
        text, _ = _stretch(name, int(place * max(0, length - room)), room)
    return tokenizer.encode(text)[:count]


def excerpts(
    names: Sequence[str], tokenizer: Tokenizer, tokens: int, count: int, seed: int
) -> list[list[int]]:
    """Return excerpts of `count` of these texts, or of all if there are fewer."""
    draw = random.Random(seed)
    chosen = draw.sample(names, min(count, len(names)))
    return [excerpt(name, tokenizer, tokens, draw) for name in chosen]


def _stretch(name: str, start: int, count: int) -> tuple[str, int]:
    """Return at most `count` characters of a file from `start`, and how many were read in total."""
    text, length = "", 0
    for block in open_sources([name]):
        text += block.text[max(0, start - length) :]
        length += len(block.text)
        if len(text) >= count:
            break
    return text[:count], length
