"""Training rows in files, made ahead of the training.

Making rows is slow. The training must never wait for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvstream_lab.synthetic.corpus import Corpus
from kvstream_lab.training.rows import USUAL, Mixture, RowMaker


def write_shards(
    corpus: Corpus,
    folder: Path,
    seed: int,
    lengths: tuple[int, ...],
    mixture: Mixture = USUAL,
    ahead: int = 3,
    tokens: int = 131_072,
    forever: bool = True,
) -> None:
    """Keep ``ahead`` unread shards of every length in ``folder`` (``<length>-<number>.npz``)."""
    folder.mkdir(parents=True, exist_ok=True)
    maker = RowMaker(corpus, seed, mixture)
    while True:
        short = {t: len(list(folder.glob(f"{t:05d}-*.npz"))) for t in lengths}
        length = min(lengths, key=lambda t: short[t])
        if short[length] >= ahead:
            if not forever:
                return
            time.sleep(1.0)
            continue
        rows = [maker.row(length) for _ in range(tokens // length)]
        name = folder / f"{length:05d}-{time.time_ns():020d}-{seed}.npz"
        part = name.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, ids=np.stack([r[0] for r in rows]), codes=np.stack([r[1] for r in rows]))
        os.replace(part, name)


def make_shards(
    data: Path, folder: Path, seed: int, lengths: tuple[int, ...], mixture: Mixture
) -> None:
    """Call `write_shards` for a data folder; a new process can get these arguments."""
    write_shards(Corpus(data), folder, seed, lengths, mixture)


def read_shards(folder: Path, length: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows of one length, oldest shard first, and delete each shard when it is loaded.

    If no new shard is ready, read the last one again instead of waiting.
    """
    last: tuple[np.ndarray, np.ndarray] | None = None
    order = np.random.default_rng(seed)
    while True:
        files = sorted(folder.glob(f"{length:05d}-*.npz"))
        if files:
            with np.load(files[0]) as shard:
                last = shard["ids"], shard["codes"]
            files[0].unlink()
        elif last is None:
            time.sleep(1.0)
            continue
        for index in order.permutation(len(last[0])):
            yield last[0][index], last[1][index]
