"""What stays: the layers of a cache shown to a method, and what it decides carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from kvstream.errors import KvstreamError
from kvstream.methods.base import CompressiveMemory, Method, Step
from kvstream.methods.tools.scoring import together
from kvstream.model.cache import BoundedCache, LayerStore

DECODING_SHARE = 16
"""Share of the budget that compressing memory in the middle of an answer frees."""
NEWEST = 32
"""Newest answer tokens that stay when memory is compressed in the middle of an answer."""


class Evictor:
    """Cuts the layers of `cache` back as `method` chooses.

    Entries lie in order: `prompt` protected ones, the source's sinks, candidates.
    `compressive_memory` is what the method does with those that leave, `learned` what was trained
    of it for the model.
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
        """Those that are compressed; sliding-window layers keep their newest entries."""
        self.seen = 0
        """Source tokens so far."""
        self.sinks: int | None = None
        """Sinks that are protected, settled when entries leave for the first time."""
        self.ratios: list[float] | None = None
        """Share of each layer's memory that was there one step before (IMDC, eq. 2)."""

    @property
    def first_candidate(self) -> int:
        """Entries at the beginning that never leave: the prompt and the source's sinks."""
        return self.prompt + (
            min(self.method.sinks, self.seen) if self.sinks is None else self.sinks
        )

    def absorb_chunk(self, new: int, loss: Tensor | None) -> None:
        """Let the method take in the evidence of a chunk of `new` source tokens."""
        self.seen += new
        with self._selecting():
            self.absorb(new, loss)

    def _selecting(self) -> AbstractContextManager[None]:
        """What a method takes inside is metered."""
        if self.method.needs_keys:  # it takes as much as attention does, and comes after it
            self.cache.free_scratch()
        return self.cache.selecting()

    def absorb(self, new: int, loss: Tensor | None) -> None:
        """Let the method take in the evidence of a pass; the newest `new` entries came with it."""
        if not (self.method.tensors() or self.method.head_tensors()):
            return
        for group in self.groups({s: s.used for s in self.layers}):
            # All entries of the source take part: sinks may be asked for what they gathered.
            step = self.view(group, slice(self.prompt, group[0].used), new, loss)
            self.method.absorb(step)
            self._write_back(group, step, slice(self.prompt, group[0].used))

    def evict(self, targets: dict[LayerStore, int], new: int, loss: Tensor | None) -> None:
        """Cut each layer back to its target (source entries, sinks included)."""
        with self._selecting():
            self._evict(targets, new, loss)

    def _evict(self, targets: dict[LayerStore, int], new: int, loss: Tensor | None) -> None:
        if self.sinks is None:  # for good: a sink that has left cannot come back
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
            chosen = self.select(step, keep)
            self._write_back(group, step, None)
            old = (chosen < candidates - new).float().sum(2).mean(1)
            ratios.append((protected + old) / max(1, protected + keep))
            for store, indices in zip(group, chosen, strict=True):
                self._fold(store, part, indices)
                store.keep(first, indices.to(store.origin.device))
        # At once: each look at a value would wait for all that a GPU has yet to do.
        self.ratios = torch.cat([r.to(ratios[0].device) for r in ratios]).tolist()
        self._slide()
        self.cache.rebase()

    def select(self, step: Step, keep: int) -> Tensor:
        """What the method selects [G, K, keep].

        Raises KvstreamError for another shape, and where the attention that the method selects by
        was lost: entries left in the middle of an answer that saw a part of memory.
        """
        if self.method.evidence().window_attention and step.window_attention is None:
            raise KvstreamError(
                f"{self.method.name} selects by attention that is no longer known: a long answer "
                "evicted entries of this memory. Read the sources again, or ask for a shorter "
                "answer."
            )
        chosen = self.method.select(step, keep)
        expected = (*step.origin.shape[:-1], keep)
        if chosen.shape != expected:
            raise KvstreamError(
                f"The method {self.method.name} selected entries of shape "
                f"{list(chosen.shape)}; expected {list(expected)} (layers, KV heads, entries)."
            )
        return chosen

    def _fold(self, store: LayerStore, part: slice, chosen: Tensor) -> None:
        """Let compressive memory have what leaves: all of `part` but `chosen` [K, m]."""
        if self.compressive_memory is None:
            return
        step = self.view([store], part, 0, None)

        def as_read(first: int, end: int) -> tuple[Tensor, Tensor]:
            entries = slice(part.start + first, part.start + end)
            return self.cache.as_read(store, entries)[None], store.values[:, entries][None]

        step.as_read = as_read
        self.compressive_memory.fold(step, chosen[None])
        self._write_back([store], step, None)
        self.cache.compressive_memory = self.compressive_memory

    def resume_compressive_memory(self) -> None:
        """Let attention read compressive memory that is not empty, that of a loaded memory too."""
        if self.compressive_memory is not None and self.cache.compressive_memory is None:
            folded = [t.any() for s in self.layers for t in s.head_state.values()]
            if folded and bool(torch.stack([t.to(folded[0].device) for t in folded]).any()):
                self.cache.compressive_memory = self.compressive_memory

    def _slide(self) -> None:
        """Sliding-window layers keep their newest entries, no more than the others hold."""
        most = max(s.used for s in self.layers)
        for store in self.cache.stores:
            if store.spec.window is not None:
                keep = min(store.used, store.spec.window - 1, most)
                newest = torch.arange(store.used - keep, store.used, device=store.origin.device)
                store.keep(0, newest.expand(store.spec.heads, -1))

    def groups(self, sizes: dict[LayerStore, int]) -> Iterator[list[LayerStore]]:
        """Neighboring layers that can be handled together: same shape, same sizes, same place."""
        group: list[LayerStore] = []
        for store in sizes:
            if group and (
                self.method.needs_keys
                or (store.used, sizes[store]) != (group[0].used, sizes[group[0]])
                or (store.spec.heads, store.spec.device)
                != (group[0].spec.heads, group[0].spec.device)
            ):
                yield group
                group = []
            group.append(store)
        if group:
            yield group

    def view(self, group: list[LayerStore], part: slice, new: int, loss: Tensor | None) -> Step:
        """The entries `part` of some layers as a method sees them."""

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
            window_attention=stacked(lambda s: s.window_attention),
            accumulated_attention=stacked(lambda s: s.accumulated_attention),
            # Of a first chunk the sinks are no candidates.
            loss=None if loss is None else loss[len(loss) - new :],
            learned=self.learned,
        )

    def views(
        self, parts: Sequence[tuple[list[LayerStore], slice]], new: int, loss: Tensor | None
    ) -> Iterator[tuple[list[LayerStore], slice, Step]]:
        """Each group of layers with its entries to choose from and what the method sees of them.

        Where layers agree on something, all of them have voted before the first is handed out.
        """
        steps = (self.view(group, part, new, loss) for group, part in parts)
        held = zip(parts, steps, strict=True)
        first = next(held, None)
        if first is None:
            return
        (group, part), step = first
        step.votes = self.method.votes(step)
        if step.votes is None:  # one view at a time: each is a copy
            yield group, part, step
            for (group, part), step in held:
                yield group, part, step
            return
        every = [first, *held]
        for _, step in every[1:]:
            step.votes = self.method.votes(step)
        votes = [step.votes for _, step in every if step.votes is not None]
        agreed = together(votes, [step.origin for _, step in every])
        for ((group, part), step), sums in zip(every, agreed, strict=True):
            step.agreed = sums
            yield group, part, step

    def _write_back(self, group: list[LayerStore], step: Step, part: slice | None) -> None:
        for i, store in enumerate(group):
            for name, value in step.head_state.items():
                store.head_state[name].copy_(value[i])
            if part is not None:
                for name, value in step.state.items():
                    store.state[name][:, part] = value[i]

    # In the middle of an answer

    def evict_while_decoding(self, memory_end: list[int], question: int) -> bool:
        """Make room for more of the answer; False, and nothing changes, where a layer has none.

        The method evicts from memory; when little of it is left, the oldest tokens of the answer
        leave. Adjusts `memory_end`, the end of memory in each layer.
        """
        first = self.first_candidate
        level = self.cache.capacity - max(NEWEST, self.cache.capacity // DECODING_SHARE)
        if not all(self._can_shrink(s, memory_end, question, level) for s in self.layers):
            return False
        self.cache.settle()
        kept = self._to_keep(memory_end, level)
        for i, store in enumerate(self.cache.stores):
            end, used, device = memory_end[i], store.used, store.origin.device
            excess = store.held - level
            if excess <= 0:
                continue
            if store.spec.window is not None:
                newest = torch.arange(excess, used, device=device)
                store.keep(0, newest.expand(store.spec.heads, -1))
                memory_end[i] = max(0, end - excess)
                continue
            tail = torch.arange(end - first, used - first, device=device)
            if i in kept:
                chosen = kept[i]
                self._fold(store, slice(first, end), chosen)
                memory_end[i] = end - excess
            else:
                answer = end + question
                chosen = torch.arange(end - first, device=device).expand(store.spec.heads, -1)
                tail = torch.cat((tail[:question], tail[question + excess :]))
                if self.compressive_memory is not None:
                    store.set_head_state_aside()
                self._fold(store, slice(answer, answer + excess), chosen[:, :0])
            rest = tail.expand(store.spec.heads, -1)
            store.keep(first, torch.cat((chosen.to(device), rest), dim=-1))
        self.cache.rebase()
        return True

    def _can_shrink(
        self, store: LayerStore, memory_end: Sequence[int], question: int, level: int
    ) -> bool:
        """Whether a layer can shrink to `level` entries, by its memory or else by the answer."""
        end, excess = memory_end[self.cache.stores.index(store)], store.held - level
        memory, answer = end - self.first_candidate, store.used - end - question
        return excess <= max(0, memory - NEWEST, answer - NEWEST)

    def _to_keep(self, memory_end: Sequence[int], level: int) -> dict[int, Tensor]:
        """Entries of memory [K, m] that stay where a layer is to hold `level` entries in all.

        By the layer's place; without those that have little memory left to give, or need not.
        """
        first, kept = self.first_candidate, {}
        place = {store: i for i, store in enumerate(self.cache.stores)}
        ends = ((s, memory_end[place[s]]) for s in self.layers)
        parts = [([s], slice(first, end)) for s, end in ends if end > first]
        for (store,), part, step in self.views(parts, 0, None):
            excess, candidates = store.held - level, part.stop - first
            if 0 < excess <= candidates - NEWEST:
                kept[place[store]] = self.select(step, candidates - excess)[0]
                self._write_back([store], step, None)
        return kept

    def forget_answer(self) -> None:
        """Let heads forget what was folded of an answer's own tokens."""
        for store in self.cache.stores:
            store.restore_head_state()


def _stacked(tensors: list[Tensor]) -> Tensor:
    """[G, ...]; of one alone no copy is made, and nobody may write into it."""
    return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)
