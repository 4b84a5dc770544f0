"""Eviction: show the layers of a cache to a method, and remove the entries that it drops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvstream.errors import KvstreamError
from kvstream.methods.base import CompressiveMemory, Method, Step
from kvstream.methods.tools.scoring import together
from kvstream.model.cache import BoundedCache
from kvstream.model.layer_store import LayerStore

DECODING_SHARE = 16
"""Evicting while decoding frees the budget divided by this, or `NEWEST` entries if that is more."""
NEWEST = 32
"""Minimum number of candidates of memory, or newest answer tokens, that stay in a layer when it
evicts while decoding."""


class Evictor:
    """Evicts entries from the layers of `cache` as `method` selects.

    The order of entries is: `prompt` protected ones, the source's sinks, candidates.
    `compressive_memory` accumulates evicted entries, if the method has one. `learned` are the
    weights of the method that were trained for the model.
    """

    def __init__(
        self,
        cache: BoundedCache,
        method: Method,
        prompt: int,
        generator: torch.Generator,
        compressive_memory: CompressiveMemory | None = None,
        learned: nn.Module | None = None,
    ) -> None:
        self.cache, self.method, self.prompt = cache, method, prompt
        self.generator, self.learned = generator, learned
        self.compressive_memory = compressive_memory
        self.layers = [s for s in cache.stores if s.spec.window is None]
        """The compressed layers. Sliding-window layers keep their newest entries instead."""
        self.seen = 0
        """Number of source tokens read so far."""
        self.sinks: int | None = None
        """Number of protected sinks, fixed at the first eviction; None before."""
        self.ratios: list[float] | None = None
        """Share of each layer's memory that was there one step before (IMDC, eq. 2)."""

    @property
    def first_candidate(self) -> int:
        """Number of entries at the beginning that are never evicted: prompt and sinks."""
        return self.prompt + (
            min(self.method.sinks, self.seen) if self.sinks is None else self.sinks
        )

    def absorb_chunk(self, new: int, loss: Tensor | None) -> None:
        """Let the method absorb the evidence of a chunk of `new` source tokens."""
        self.seen += new
        with self._selecting():
            self.absorb(new, loss)

    def _selecting(self) -> AbstractContextManager[None]:
        """Meter the scratch memory that a method takes inside this context."""
        if self.method.needs_keys:  # it takes as much scratch memory as attention, but later
            self.cache.free_scratch()
        return self.cache.selecting()

    def absorb(self, new: int, loss: Tensor | None) -> None:
        """Let the method absorb the evidence of a pass that added the newest `new` entries."""
        if not (self.method.tensors() or self.method.head_tensors()):
            return
        for group in self.groups({s: s.used for s in self.layers}):
            # Include the sinks: a method may read what they accumulated.
            step = self.view(group, slice(self.prompt, group[0].used), new, loss)
            self.method.absorb(step)
            self._write_back(group, step, slice(self.prompt, group[0].used))

    def evict(self, targets: dict[LayerStore, int], new: int, loss: Tensor | None) -> None:
        """Reduce each layer to its target (source entries, including sinks).

        Raises KvstreamError if the method breaks the contract of `Method.select`.
        """
        with self._selecting():
            if self.sinks is None:  # set once: an evicted sink cannot come back
                self.sinks = min(self.method.sinks, self.seen, min(targets.values()) * 3 // 4)
            first = self.first_candidate
            protected = first - self.prompt
            self.cache.settle()
            ratios: list[Tensor] = []
            new = min(new, min(s.used for s in self.layers) - first)
            parts = [(group, slice(first, group[0].used)) for group in self.groups(targets)]
            for group, part, step in self.views(parts, new, loss):
                keep, candidates = targets[group[0]] - protected, part.stop - first
                if keep >= candidates:
                    share = (protected + candidates - new) / max(1, protected + candidates)
                    ratios.append(torch.full((len(group),), share, device=group[0].origin.device))
                    continue
                selection = self.select(step, keep)
                self._write_back(group, step, None)
                old = (selection < candidates - new).float().sum(2).mean(1)
                share = (protected + old) / max(1, protected + keep)
                ratios.append(share.where(_in_order(selection, candidates), torch.nan))
                for store, indices in zip(group, selection, strict=True):
                    self._fold(store, part, indices)
                    store.keep(first, indices.to(store.origin.device))
            # One transfer for all layers: reading a value waits for all queued work of the GPU.
            self.ratios = torch.cat([r.to(ratios[0].device) for r in ratios]).tolist()
            if any(map(math.isnan, self.ratios)):
                raise KvstreamError(
                    f"The method {self.method.name} selected entries out of order, twice, or that "
                    "are not there, so memory is lost."
                )
            self._slide()
            self.cache.rebase()

    def select(self, step: Step, keep: int) -> Tensor:
        """Return the indices [G, K, keep] of the candidates that the method selects.

        Raises KvstreamError if the method needs window attention that is lost because an answer
        evicted entries of memory.
        """
        if self.method.evidence().window_attention and step.window_attention is None:
            raise self._attention_lost()
        return self.method.select(step, keep)

    def _attention_lost(self) -> KvstreamError:
        return KvstreamError(
            f"{self.method.name} selects by attention that is no longer known: a long answer "
            "evicted entries of this memory. Read the sources again, or ask for a shorter answer."
        )

    def _fold(self, store: LayerStore, part: slice, indices: Tensor) -> None:
        """Fold evicted entries into compressive memory: all of `part` except `indices` [K, m]."""
        if self.compressive_memory is None:
            return
        step = self.view([store], part, 0, None)

        def as_read(first: int, end: int) -> tuple[Tensor, Tensor]:
            entries = slice(part.start + first, part.start + end)
            return self.cache.as_read(store, entries)[None], store.values[:, entries][None]

        step.as_read = as_read
        self.compressive_memory.fold(step, indices[None])
        self._write_back([store], step, None)
        self.cache.compressive_memory = self.compressive_memory

    def resume_compressive_memory(self) -> None:
        """Let attention read compressive memory if it is not empty, also after loading a memory."""
        if self.compressive_memory is not None and self.cache.compressive_memory is None:
            flags = [t.any() for s in self.layers for t in s.head_state.values()]
            if flags and bool(torch.stack([t.to(flags[0].device) for t in flags]).any()):
                self.cache.compressive_memory = self.compressive_memory

    def _slide(self) -> None:
        """Reduce sliding-window layers to their newest entries, at most as many as others hold."""
        most = max(s.used for s in self.layers)
        for store in self.cache.stores:
            if store.spec.window is not None:
                keep = min(store.used, store.spec.window - 1, most)
                newest = torch.arange(store.used - keep, store.used, device=store.origin.device)
                store.keep(0, newest.expand(store.spec.heads, -1))

    def groups(self, sizes: dict[LayerStore, int]) -> list[list[LayerStore]]:
        """Return groups of adjacent layers that share a step: same shape, same sizes, same device.

        A method that needs keys or values gets each layer alone.
        """

        def common(store: LayerStore) -> tuple[Any, ...]:
            spec = store.spec
            alone = spec.index if self.method.needs_keys else None
            return store.used, sizes[store], spec.heads, spec.device, alone

        return [list(group) for _, group in groupby(sizes, common)]

    def view(self, group: list[LayerStore], part: slice, new: int, loss: Tensor | None) -> Step:
        """Return the entries `part` of a group of layers as a method sees them."""

        def stacked(pick: Callable[[LayerStore], Tensor | None]) -> Tensor | None:
            tensors = [pick(s) for s in group]
            if tensors[0] is None:
                return None
            return torch.stack([t[:, part] for t in tensors if t is not None])

        origin = stacked(lambda s: s.origin)
        assert origin is not None
        return Step(
            layers=tuple(s.spec.index for s in group),
            origin=origin,
            new=new,
            seen=self.seen,
            state={
                t.name: stacked(lambda s, name=t.name: s.state[name])  # type: ignore[misc]
                for t in self.method.tensors()
            },
            head_state={
                t.name: torch.stack([s.head_state[t.name] for s in group])
                for t in self.method.head_tensors()
            },
            generator=self.generator,
            keys=lambda: _stacked([s.unrotated_keys(part, self.cache.base) for s in group]),
            values=lambda: _stacked([s.values[:, part] for s in group]),
            window_attention=stacked(lambda s: s.window_attention),
            accumulated_attention=stacked(lambda s: s.accumulated_attention),
            # The sinks of a first chunk are not candidates.
            loss=None if loss is None else loss[len(loss) - new :],
            learned=self.learned,
        )

    def views(
        self, parts: Sequence[tuple[list[LayerStore], slice]], new: int, loss: Tensor | None
    ) -> Iterator[tuple[list[LayerStore], slice, Step]]:
        """Yield each group of layers with its candidates and the step that the method sees.

        If layers have to agree on a selection, all of them vote before the first is yielded. Raises
        KvstreamError if one cannot, because the attention to its entries is lost.
        """
        views = ((group, part, self.view(group, part, new, loss)) for group, part in parts)
        if (first := next(views, None)) is None:
            return
        first[2].votes = self.method.votes(first[2])
        if first[2].votes is None:  # one view at a time: each is a copy
            yield first
            yield from views
            return
        every = [first, *views]
        for _, _, step in every[1:]:
            step.votes = self.method.votes(step)
        votes = [step.votes for _, _, step in every if step.votes is not None]
        if len(votes) < len(every):
            raise self._attention_lost()
        agreed = together(votes, [step.origin for _, _, step in every])
        for view, sums in zip(every, agreed, strict=True):
            view[2].agreed = sums
            yield view

    def _write_back(self, group: list[LayerStore], step: Step, part: slice | None) -> None:
        for i, store in enumerate(group):
            for name, value in step.head_state.items():
                store.head_state[name].copy_(value[i])
            if part is not None:
                for name, value in step.state.items():
                    store.state[name][:, part] = value[i]

    # Evicting while decoding

    def evict_while_decoding(self, memory_end: list[int], question: int) -> bool:
        """Make room for more of the answer. Return False, unchanged, if a layer cannot shrink.

        The method evicts from memory. If too little of it is left, the oldest tokens of the answer
        leave instead. Updates `memory_end`, the end of memory in each layer.
        """
        level = self.cache.capacity - max(NEWEST, self.cache.capacity // DECODING_SHARE)
        ends = dict(zip(self.cache.stores, memory_end, strict=True))
        for store in self.layers:
            memory, answer = ends[store] - self.first_candidate, store.used - ends[store] - question
            if store.size - level > max(0, memory - NEWEST, answer - NEWEST):
                return False
        with self.cache.momentary.metered():
            self.cache.settle()
            stay = self._to_keep(ends, level)
            with self.cache.moving():
                for store in self.cache.stores:
                    if store.size > level:
                        ends[store] = self._shrink(store, ends[store], question, level, stay)
        memory_end[:] = ends.values()
        return True

    def _to_keep(self, ends: Mapping[LayerStore, int], level: int) -> dict[LayerStore, Tensor]:
        """Return which entries of memory [K, m] stay, so that a layer holds `level` entries in all.

        Layers that hold no more than `level`, or whose memory has too little to evict, are left
        out.
        """
        first, stay = self.first_candidate, {}
        parts = [([s], slice(first, ends[s])) for s in self.layers if ends[s] > first]
        for (store,), part, step in self.views(parts, 0, None):
            excess, candidates = store.size - level, part.stop - first
            if 0 < excess <= candidates - NEWEST:
                stay[store] = self.select(step, candidates - excess)[0]
                self._write_back([store], step, None)
        return stay

    def _shrink(
        self, store: LayerStore, end: int, question: int, level: int, stay: dict[LayerStore, Tensor]
    ) -> int:
        """Reduce a layer to `level` entries, and return where memory ends then.

        The entries of memory in `stay` remain. Without any, the oldest tokens of the answer leave.
        """
        first, device, heads = self.first_candidate, store.origin.device, store.spec.heads
        excess = store.size - level
        if store.spec.window is not None:
            store.keep(0, torch.arange(excess, store.used, device=device).expand(heads, -1))
            return max(0, end - excess)
        tail = torch.arange(end - first, store.used - first, device=device)
        if store in stay:
            indices = stay[store]
            self._fold(store, slice(first, end), indices)
            end -= excess
        else:
            answer = end + question
            indices = torch.arange(end - first, device=device).expand(heads, -1)
            tail = torch.cat((tail[:question], tail[question + excess :]))
            if self.compressive_memory is not None:
                store.set_head_state_aside()
            self._fold(store, slice(answer, answer + excess), indices[:, :0])
        store.keep(first, torch.cat((indices.to(device), tail.expand(heads, -1)), dim=-1))
        return end

    def forget_answer(self) -> None:
        """Restore compressive memory from before tokens of the answer were folded into it."""
        stores = [store for store in self.cache.stores if store.head_aside]
        for store in stores:
            store.restore_head_state()
        if stores:  # it may be empty again
            self.cache.compressive_memory = None
            self.resume_compressive_memory()


def _in_order(indices: Tensor, candidates: int) -> Tensor:
    """Return for each layer whether all rows of `indices` [G, K, m] are candidates, sorted and
    distinct: bool [G]."""
    bounded = F.pad(F.pad(indices, (1, 0), value=-1), (0, 1), value=candidates)
    return (bounded.diff(dim=-1) > 0).flatten(1).all(1)


def _stacked(tensors: list[Tensor]) -> Tensor:
    """Stack tensors to [G, ...]. A single one is not copied: do not write into the result."""
    return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)
