"""Join two memories under one budget: concatenate their entries and assign new positions.

Both must have the same model, method and prompt. The method first reduces each to its share, with
the questions if they are known, so no head ever holds more than the budget.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Reader
from kvstream.engine.schedule import Schedule
from kvstream.errors import BudgetError, UsageError
from kvstream.memory.contents import Memory, Trace
from kvstream.model.bounded import BoundedModel
from kvstream.model.layer_store import PROMPT, LayerStore
from kvstream.run.plan import RunPlan
from kvstream.settings import Budget
from kvstream.tokenization.loading import WordForms
from kvstream.tokenization.passages import Passages, TokenOrigins

NAMES = ("the first memory", "the second one")
"""Names in errors for two memories that have no file."""


def check_joinable(first: Memory, second: Memory, names: tuple[str, str] = NAMES) -> None:
    """Raise UsageError if two memories cannot be joined; `names` are their names in the error."""
    name, other = first.run.method, second.run.method
    one, two = names
    if first.reader.model.fingerprint != second.reader.model.fingerprint:
        raise UsageError(
            f"Memories of different models cannot be joined: {one} was made by {first.model}, and "
            f"{two} by {second.model}. Read the sources again with one model."
        )
    if first.plan.method != second.plan.method:
        remedy = _one_method(first, second, names)
        if name == other:
            raise UsageError(
                f"Memories with different settings of {name} cannot be joined: {one} and {two} "
                f"differ in them. {remedy}"
            )
        raise UsageError(
            f"Memories of different methods cannot be joined: {one} was made by {name}, and {two} "
            f"by {other}. {remedy}"
        )
    if first.plan.prompt.head != second.plan.prompt.head:
        raise UsageError(
            f"Memories with different prompts cannot be joined: {one} and {two} differ in --system "
            "(or one is of a summary). Read the sources again with one prompt."
        )
    if sorted(first.plan.questions) != sorted(second.plan.questions):
        raise UsageError(
            f"Memories for different questions cannot be joined: {one} and {two} differ in -Q. "
            "Read the sources again with the same questions, or with none."
        )
    check_can_be_joined(first.plan, first.reader.model, name)
    if not (first.reader.begun and second.reader.begun):
        raise UsageError("A memory that has read nothing cannot be joined.")


def _one_method(first: Memory, second: Memory, names: tuple[str, str]) -> str:
    """Return the remedy for two methods. The usual cause is that only one text had questions."""
    asked, later = (bool(memory.plan.questions) for memory in (first, second))
    if asked == later:
        return "Read the sources again with one method and the same settings of it."
    name = names[0] if asked else names[1]
    return (
        f"Only {name} was made for questions (-Q), and without --method that decides the method. "
        "Read the sources again, all with the same -Q or all without."
    )


def check_can_be_joined(plan: RunPlan, model: BoundedModel, name: str) -> None:
    """Raise UsageError if memories of a plan can never be joined; `name` is that of its method."""
    method = plan.method
    if not method.evicts or plan.shortens:
        raise UsageError(f"Memories of {name} cannot be joined: it does not choose what to evict.")
    recurrent = bool(model.new_cache(1, method.tensors(), method.head_tensors()).recurrent)
    if method.head_tensors() or recurrent:
        what = "the method" if method.head_tensors() else "the model"
        raise UsageError(
            f"Memories of {name} with {model.name} cannot be joined: {what} keeps a state of each "
            "head as a whole, and two states have no sum."
        )


def join(
    first: Memory,
    second: Memory,
    budget: int,
    *,
    one_text: bool = False,
    names: tuple[str, str] = NAMES,
) -> Memory:
    """Join two memories into one, with `first` in front. Do not use the two afterwards.

    Leaves out what is kept `beside` them for an answering model. `budget` is in entries per head.
    `one_text`: both are parts of the same text (`PartOfText`) and already have its names, offsets
    and lines. `names` are their names in errors. Raises UsageError if they cannot be joined,
    BudgetError if the budget cannot hold the prompt, the questions and something of each.
    """
    check_joinable(first, second, names)
    sizes = _sizes(first.reader.sizes, second.reader.sizes, budget)
    plan = replace(first.plan, sizes=sizes, extract=True)
    run = replace(first.run, budget=Budget(tokens=budget), keep=None, start=None, chunk_size=None)
    total = first.trace.read + second.trace.read
    most = min(sizes.final, sizes.free - max(64, sizes.free // 8))
    for memory, share in zip((first, second), _shares(first, second, most), strict=True):
        _shrink(memory.reader, share)
    reader = plan.reader(first.reader.model, run, total)
    _join_into(reader, first.reader, second.reader)
    trace = _joined_trace(first.trace, second.trace, one_text=one_text)
    return Memory(
        first.model, first.tokenizer, reader, plan, run, trace, first.command,
        load_s=first.load_s, prefill_s=first.prefill_s + second.prefill_s,
        loaded_s=first.loaded_s + second.loaded_s,
        warnings=list(dict.fromkeys((*first.warnings, *second.warnings))),
    )  # fmt: skip


def _sizes(first: BudgetSplit, second: BudgetSplit, budget: int) -> BudgetSplit:
    return BudgetSplit(
        budget,
        first.prompt,
        max(first.catalyst, second.catalyst),
        max(first.question, second.question),
        min(max(first.answer, second.answer), max(8, budget // 8)),
    )


def _shares(first: Memory, second: Memory, most: int) -> tuple[int, int]:
    """Return how many source entries each memory may keep.

    That is all of them, or a share in proportion to the tokens read, but more than the sinks, which
    stay. Raises BudgetError if there is no room.
    """
    sizes = [max(m.reader.schedule.held) for m in (first, second)]
    if sum(sizes) <= most:
        return sizes[0], sizes[1]
    sinks = [m.reader.evictor.sinks or 0 for m in (first, second)]
    least = [min(h, s + 1) for h, s in zip(sizes, sinks, strict=True)]
    if sum(least) > most:
        raise BudgetError(
            f"The budget leaves {most:,} entries for both memories, which take at least "
            f"{sum(least):,} with their sinks; use a larger --budget."
        )
    read = [m.trace.read for m in (first, second)]
    share = min(sizes[0], max(most - sizes[1], round(most * read[0] / sum(read))))
    share = max(least[0], min(share, most - least[1]))
    return share, most - share


def _shrink(reader: Reader, share: int) -> None:
    """Let the method reduce every layer to `share` source entries. Raises BudgetError."""
    prefill, evictor, cache = reader.prefill, reader.evictor, reader.cache
    targets = {store: min(store.used - evictor.prompt, share) for store in evictor.layers}
    if all(store.used - evictor.prompt == size for store, size in targets.items()):
        return
    catalyst = prefill.catalyst
    if cache.size + len(catalyst) > cache.capacity:
        raise BudgetError(
            f"A memory of {cache.size} entries leaves no room for a question of {len(catalyst)} "
            f"under its budget of {cache.capacity}; read its sources again with `remember`."
        )
    if catalyst:
        prefill.measure_catalysts()
    evictor.evict(targets, 0, None)


def _join_into(reader: Reader, first: Reader, second: Reader) -> None:
    """Put the entries of both into the empty cache of `reader`, and advance its schedule."""
    for source in (first, second):
        source.cache.settle()
    stores = zip(reader.cache.stores, first.cache.stores, second.cache.stores, strict=True)
    for store, before, behind in stores:
        _join_layer(store, before, behind, first.seen)
    reader.cache.rebase()
    reader.cache.note_peak()
    # Ignore the peaks of readings with a larger budget.
    for source in (first, second):
        if source.cache.peak.tokens <= reader.sizes.budget:
            reader.cache.peak.include(source.cache.peak)
    reader.prefill.due = []
    reader.prefill.before = second.prefill.before
    reader.steps = first.steps + second.steps
    reader.select_seconds = first.select_seconds + second.select_seconds
    evictor = reader.evictor
    evictor.seen = first.seen + second.seen
    evictor.sinks = first.evictor.sinks
    evictor.generator.set_state(first.generator.get_state())
    sizes = tuple(store.used - evictor.prompt for store in evictor.layers)
    assert isinstance(reader.schedule, Schedule)  # the method evicts
    reader.schedule.take_over(sizes, evictor.seen, reader.steps)


def _join_layer(store: LayerStore, first: LayerStore, second: LayerStore, seen: int) -> None:
    """Concatenate unrotated layers without the second prompt; sliding ones keep the second."""
    before = 0 if store.spec.window is not None else first.used
    prompt = int((second.origin[0, : second.used] == PROMPT).sum()) if before else 0
    part = slice(prompt, second.used)
    end = before + second.used - prompt

    def put(into: Tensor, old: Tensor, new: Tensor) -> None:
        into[:, :before] = old[:, :before]
        into[:, before:end] = new[:, part]

    for name in ("keys", "values", "origin"):
        put(*(getattr(each, name) for each in (store, first, second)))
    origin = store.origin[:, before:end]
    origin[origin != PROMPT] += seen
    for name, tensor in store.state.items():
        put(tensor, first.state[name], second.state[name])
    for name in ("window_attention", "accumulated_attention"):
        attention, more = (getattr(each, name) for each in (first, second))
        known = attention is not None and attention.shape[-1] >= first.used
        if before and known and more is not None and more.shape[-1] >= second.used:
            setattr(store, name, torch.cat((attention[:, :before], more[:, part]), dim=-1))
    store.used = store.unrotated = end


def _joined_trace(first: Trace, second: Trace, *, one_text: bool) -> Trace:
    """Join two traces as if the sources of the second followed those of the first."""
    names, bases, records = second.names, second.bases, second.records
    if not one_text:
        names = (*first.names, *names)
        bases = (*first.bases, *(base + first.source_end for base in bases))
        records = (*first.records, *records)
    sources, bytes_before = (0, 0) if one_text else (len(first.names), first.source_end)
    origins = TokenOrigins()
    parts = [first.origins.known(), second.origins.known()]
    origins.restore(
        np.concatenate((parts[0][0], parts[1][0] + first.read)),
        np.concatenate((parts[0][1], parts[1][1] + bytes_before)),
        first.read + second.read,
    )
    passages = None
    if first.passages is not None and second.passages is not None:
        before, passages = first.passages.all(), Passages()
        # White space belongs to the passage after it, also across parts of one text, but not
        # across texts.
        least = bytes_before or (before[-1].end if before else 0)
        more = (p.moved(sources, bytes_before) for p in second.passages.all())
        passages.restore([*before, *(replace(p, reach=max(p.reach, least)) for p in more)])
    words = None
    if first.words is not None and second.words is not None:
        words = WordForms.of_both(first.words, second.words)
    counts = first.line_counts or second.line_counts
    if first.line_counts is not None and second.line_counts is not None:
        counts = first.line_counts + second.line_counts
    return Trace(
        names, bases, origins, passages, words,
        read=first.read + second.read,
        end=second.end + bytes_before,
        records=records,
        line_counts=counts,
        ended_line=second.ended_line,
    )  # fmt: skip


class Joiner:
    """Joins parts of one text in pairs, so that of N it holds one memory for each 1 in binary N."""

    def __init__(self, budget: int) -> None:
        """`budget`: entries per head of every joined memory."""
        self.budget = budget
        self.most = 0
        """Maximum number of memories held at a time, including the one that a join creates."""
        self._row: list[tuple[int, Memory]] = []  # number of parts in a memory, and the memory

    def __len__(self) -> int:
        return len(self._row)

    def add(self, memory: Memory) -> None:
        """Add the memory of the next part. Raise the errors of `join`."""
        self._row.append((1, memory))
        self.most = max(self.most, len(self._row))
        while len(self._row) > 1 and self._row[-1][0] == self._row[-2][0]:
            self._join_last()

    def finish(self) -> Memory:
        """Return the memory of all parts. Raise the errors of `join`."""
        while len(self._row) > 1:
            self._join_last()
        return self._row.pop()[1]

    def _join_last(self) -> None:
        (before, first), (more, second) = self._row[-2:]
        self.most = max(self.most, len(self._row) + 1)
        joined = join(first, second, self.budget, one_text=True)
        self._row[-2:] = [(before + more, joined)]
