"""Measure APE's corrections of attention on joined memories, compared with plain joining.

    python docs/research/lab/joining.py documents build/joining --budget 512 --texts 0 1
    python docs/research/lab/ape.py build/joining --texts 0 1

Adaptive parallel encoding (Yang et al. 2025, "APE: Faster and Longer Context-Augmented Generation
via Adaptive Parallel Encoding") divides the scores of attention to the contexts by a temperature T.
It multiplies the log-sum-exp of this attention by S T before it merges it with attention to
everything else (the prompt, the question, the answer). All contexts have the same positions,
directly after the prompt. Here each context is one document of the memories that the first command
makes and this script joins. The script prints the number of right answers for each T and S: with
all entries or one document in sight, and with the positions of memory or of APE ("reused"). It
replaces the attention of the package in its own process only.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import AttentionInterface

from joining import Bench, all_in_sight
from kvstream.answer import narrowing
from kvstream.memory.base import Memory
from kvstream.memory.joining import join
from kvstream.memory.saving import look
from kvstream.model import attention, hook
from kvstream.model.layer_store import LayerStore
from kvstream.sample.document import questions
from kvstream.settings import RunSettings

DOCUMENTS, FACTS = 8, 6
LAYER: list[int] = []
"""Index of the layer whose attention runs."""


def watching(module: Any, *arguments: Any, **more: Any) -> Any:
    LAYER[:] = [int(module.layer_idx)]
    return hook.bounded_attention(module, *arguments, **more)


class Ape:
    """APE's attention and positions for a joined memory."""

    def __init__(self, memory: Memory, temperature: float, scale: float, *, reused: bool) -> None:
        self.reader, self.temperature, self.scale = memory.reader, temperature, scale
        self.begins = torch.tensor(narrowing._begins(memory)[1:], dtype=torch.int32)
        self.prompt, self.reused = len(memory.reader.head), reused

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, shape: attention.Shape, *_: Any, **more: Any
    ) -> tuple[Tensor, Tensor]:
        """Merge attention to the prompt and the newest tokens with that to the documents."""
        store = self.reader.cache.store(LAYER[0])
        documents = slice(self.prompt, store.unrotated)
        scores = attention._scores(q, k, shape, slice(0, q.shape[1]))
        inside = torch.zeros(k.shape[1], dtype=torch.bool)
        inside[documents] = True
        near = scores.masked_fill(inside, -torch.inf)
        far = scores.masked_fill(~inside, -torch.inf) / self.temperature
        values = v.float().repeat_interleave(q.shape[0] // v.shape[0], 0)
        lse, past_lse = near.logsumexp(-1), far.logsumexp(-1)
        out, past = near.softmax(-1) @ values, far.softmax(-1) @ values
        past_lse = past_lse * (self.scale * self.temperature)
        share = torch.sigmoid(past_lse - lse)[..., None]
        return torch.lerp(out, past, share).to(q.dtype), torch.logaddexp(lse, past_lse)

    def rotated_keys(self, store: LayerStore, base: int, scratch: Tensor | None) -> Tensor:
        """Rotate each document's keys as if it alone followed the prompt.

        The longest document ends just before `base`.
        """
        assert scratch is not None
        assert store.spec.rotary is not None
        out, turned = scratch[: store.spec.heads, : store.used], store.unrotated
        places = self._places(store.origin[:, self.prompt : turned])
        places += base - int(places.max()) - 1
        cos, sin = store.spec.rotary.angles.at(0, base)
        for head, keys in enumerate(store.keys[:, :turned]):
            at = places[head]
            store.spec.rotary._turn(keys[None], cos[at], sin[at], out[head : head + 1, :turned])
        out[:, turned:] = store.keys[:, turned : store.used]
        return out

    def _places(self, origin: Tensor) -> Tensor:
        """Return the positions of the prompt and of the documents' entries [K, n]."""
        document = torch.bucketize(origin.contiguous(), self.begins, right=True)
        first = torch.searchsorted(document, document, right=False)
        within = torch.arange(origin.shape[1]) - first
        head = torch.arange(self.prompt).expand(len(origin), -1)
        return torch.cat((head, self.prompt + within), -1)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with patch.object(hook, "attend", self.attend):
            if not self.reused:
                yield
                return
            with patch.object(LayerStore, "rotated_keys", lambda *given: self.rotated_keys(*given)):
                yield


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--name", default="foresight-512", help="of the memories: method, budget")
    options = parser.parse_args()
    torch.set_num_threads(1)
    AttentionInterface.register(hook.NAME, watching)
    bench = Bench(options.folder, 1e9)
    right: dict[str, int] = {}
    asked = 0
    for group in options.texts:
        numbers = range(DOCUMENTS)
        paths = [options.folder / f"group{group}-{n}-{options.name}.kvs" for n in numbers]
        memories = [bench.session.recall(look(path), RunSettings(max_tokens=32)) for path in paths]
        memory = reduce(partial(join, budget=4096), memories)
        own = [
            q for n in numbers for q in questions(facts=FACTS, seed=1000 + DOCUMENTS * group + n)
        ]
        asked += len(own)
        for sight, reused in (("all", False), ("all", True), ("one", False)):
            for temperature, scale in ((1, 1), (0.9, 0.9), (0.8, 0.8), (0.8, 0.9), (0.9, 0.8)):
                name = f"{sight}{' reused' if reused else ''} T {temperature} S {scale}"
                ape = Ape(memory, temperature, scale, reused=reused)
                with ape.at_work(), all_in_sight() if sight == "all" else nullcontext():
                    file = f"group{group}-ape-{name}-{options.name}".replace(" ", "-")
                    right[name] = right.get(name, 0) + sum(bench.found(file, memory, own))
                print(f"{name:28} {right[name]} of {asked}", flush=True)


if __name__ == "__main__":
    main()
