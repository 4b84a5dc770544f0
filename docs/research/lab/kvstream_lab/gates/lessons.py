"""Training data of a learned gate: attention to evicted entries, on texts with questions.

The model reads a text with planted facts, with the questions known, as in use. The entries that
would go into compressive memory are stored unchanged. Then the model runs the questions with their
answers. For every query, a lesson records the shares of attention of the remaining entries, as one
sum, and of each stored entry. The gate must reproduce these shares from compressive memory, layer
by layer, so no gradients pass through the model. Some texts have no questions; then the model runs
the tokens that follow. Unlike in use, the model reads the text without the evicted entries.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Reader
from kvstream.evaluation.harness import IdFeed
from kvstream.methods.base import CompressiveMemory, ModelFacts, Step
from kvstream.methods.edgeinfinite import EdgeInfinite
from kvstream.methods.tools.gates import TINY, LearnedGate
from kvstream.methods.tools.scoring import grouped, ungrouped
from kvstream.model.attention import Shape
from kvstream.model.bounded import BoundedModel
from kvstream.run.prompt import build_prompt
from kvstream.settings import RunSettings
from kvstream.store.writing import replace
from kvstream.tokenization.tokenizer import Tokenizer
from kvstream_lab.gates.peek import peek
from kvstream_lab.synthetic import questions, training_facts
from kvstream_lab.synthetic.corpus import QuestionAnswer, split_sentences
from kvstream_lab.synthetic.mixture import planted

PLANTED = (1, 1, 2, 3, 5)
"""Numbers of facts in a text. They are small, so that some questions are about the text itself."""
PASSKEYS = 0.15
"""Share of passkeys among the facts."""
FOLLOWING = 200
"""Tokens to run after a text without questions."""
ANSWER = 16
"""Entries reserved for an answer, which is run separately."""
ROWS = 256
"""Maximum number of queries per head whose attention is recorded."""


Entries = tuple[Tensor, Tensor, Tensor]
"""Keys [K, m, D], values [K, m, E] and the logarithms of the entries' weights [K, m]."""


@dataclass(frozen=True)
class Lesson:
    """A text, and the tokens to run after it."""

    ids: list[int]
    questions: list[list[int]]
    """Questions that are known while the text is read, as they will be asked. May be empty."""
    words: list[int]
    """The questions with their answers, or the continuation of the text."""


@dataclass(frozen=True)
class Noted:
    """The attention of a layer's queries; K heads, n queries, m evicted entries.

    The tensors are float32 in RAM; all layers of a text together take some MiB.
    """

    queries: Tensor
    """[K, n, D]."""
    keys: Tensor
    """[K, m, D]."""
    counts: Tensor
    """[K, m], logarithms of the entries' weights."""
    lse: Tensor
    """[K, n], log-sum-exp of the attention to the remaining entries."""
    wanted: Tensor
    """[K, n, 1 + m], logarithms of the shares of the remaining entries, as one sum, and of each
    evicted entry."""


class LessonFiles:
    """Files with the recorded attention, one per lesson: for large models it would fill RAM.

    Args:
        folder: folder of the files, made when needed.
        of: everything that lessons depend on. Files written for another value are not read, and
            are removed at the next write.
    """

    def __init__(self, folder: Path, of: str) -> None:
        self.folder, self.of = folder, of

    def read(self, number: int) -> dict[int, Noted] | None:
        """Return a lesson's attention by layer, empty if nothing was evicted; None if no file."""
        if number not in self:
            return None
        stored = torch.load(self._path(number), weights_only=True)
        return {layer: Noted(*parts) for layer, parts in stored.items()}

    def __contains__(self, number: int) -> bool:
        return self._are_ours and self._path(number).is_file()

    def write(self, number: int, met: Mapping[int, Noted]) -> None:
        if not self._are_ours:
            self.remove()
            self.folder.mkdir(parents=True)
            self._label.write_text(self.of, encoding="utf-8")
        names = [field.name for field in fields(Noted)]
        layers = {layer: tuple(getattr(one, n) for n in names) for layer, one in met.items()}
        replace(self._path(number), lambda file: torch.save(layers, file))

    @property
    def _label(self) -> Path:
        """The file that says what the files of the folder depend on."""
        return self.folder / "of.json"

    @property
    def _are_ours(self) -> bool:
        return self._label.is_file() and self._label.read_text(encoding="utf-8") == self.of

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.pt"


def of_prose(ids: Sequence[int]) -> Lesson:
    """Make a lesson of a text whose end is to be predicted."""
    return Lesson(list(ids[:-FOLLOWING]), [], list(ids[-FOLLOWING:]))


def with_questions(
    ids: Sequence[int], tokenizer: Tokenizer, room: int, draw: random.Random
) -> Lesson | None:
    """Plant facts in a text and ask one to three questions about them or about its own sentences.

    Together the questions take at most `room` tokens. Return None if there is nothing to ask.
    """
    pieces: list[tuple[str, list[QuestionAnswer]]] = [
        (sentence, questions.from_sentence(sentence, draw))
        for sentence in split_sentences(tokenizer.decode(ids))
    ]
    said = [asked for _, asked in pieces if asked]
    facts = planted(draw, draw.choice(PLANTED), PASSKEYS, lambda _: training_facts.anything(draw))
    for fact in facts:
        between = "\n\n" if "\n" in fact.text else " "
        at = draw.randrange(len(pieces) + 1)
        pieces.insert(at, (f"{between}{fact.text}{between}", fact.questions))
    hidden = [fact.questions for fact in facts if fact.questions]
    prompt = build_prompt(tokenizer)
    asked: list[list[int]] = []
    words: list[int] = []
    for _ in range(draw.choice((1, 2, 3))):
        some = hidden if (hidden and draw.random() < 0.5) or not said else said
        if not some:
            break
        question, answer = draw.choice(some.pop(draw.randrange(len(some))))
        tail = prompt.tail(question)
        if sum(map(len, asked)) + len(tail) <= room:
            asked.append(tail)
            answered = tokenizer.encode(f" {answer}", continuing=True)
            words += [*tail, *answered, *prompt.stop_ids[:1]]
    if not asked:
        return None
    return Lesson(tokenizer.encode("".join(piece for piece, _ in pieces)), asked, words)


class Keeping:
    """A `CompressiveMemory` that stores the entries to be folded, and does not change attention."""

    def __init__(self, method: EdgeInfinite) -> None:
        self.method = method
        self.trained = nn.Module()
        self._parts: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}

    def fold(self, step: Step, chosen: Tensor) -> None:
        leave = step.origin.shape[-1] - chosen.shape[-1]
        kept = self._parts.setdefault(step.layers[0], [])
        kept.extend(self.method.blocks(step, leave))

    def mix(
        self, layer: int, query: Tensor, out: Tensor, lse: Tensor, head_state: Mapping[str, Tensor]
    ) -> Tensor:
        return out

    def entries(self) -> dict[int, Entries]:
        """Return the stored entries of each layer."""
        joined = {}
        for layer, parts in self._parts.items():
            keys, values, counts = (torch.cat(part, 1) for part in zip(*parts, strict=True))
            joined[layer] = keys, values, counts.log()
        return joined


def noted(
    model: BoundedModel,
    head: Sequence[int],
    method: EdgeInfinite,
    budget: int,
    lesson: Lesson,
    draw: random.Random,
) -> dict[int, Noted] | None:
    """Read a lesson and return the recorded attention of each layer; None if nothing was evicted.

    `head` are the ids of the prompt before a text.
    """
    keeping = Keeping(method)
    asked = lesson.questions
    longest, together = max(map(len, asked), default=0), sum(map(len, asked))
    sizes = BudgetSplit(budget, len(head), together, longest, ANSWER)
    through = with_compressive_memory(method, lambda *_: keeping)
    reader = Reader(model, through, RunSettings(), sizes, head, asked, len(lesson.ids))
    reader.begin()
    for _ in reader.read(IdFeed(lesson.ids)):
        pass
    entries = keeping.entries()
    if not entries:
        return None
    met: dict[int, Noted] = {}

    def mix(
        layer: int,
        query: Tensor,
        out: Tensor,
        lse: Tensor,
        head_state: Mapping[str, Tensor],
        shape: Shape,
    ) -> Tensor:
        keys, _, counts = entries[layer]
        shares, said = attended(query, out, lse, entries[layer], shape)
        asked, beside = grouped(query.float(), len(keys)), grouped(lse, len(keys))
        some = sorted(draw.sample(range(asked.shape[1]), min(ROWS, asked.shape[1])))
        kept = asked[:, some], keys, counts, beside[:, some], shares[:, some]
        met[layer] = Noted(*(tensor.cpu() for tensor in kept))
        return said

    with torch.no_grad():
        peek(model, reader.cache, lesson.words, mix, torch.tensor([0]))
    return met


def attended(
    query: Tensor, out: Tensor, lse: Tensor, entries: Entries, shape: Shape
) -> tuple[Tensor, Tensor]:
    """Combine attention to the remaining entries, which gave `out` and `lse`, with evicted entries.

    Return the logarithms of the shares [K, n, 1 + m] of the remaining entries, as one sum, and of
    each evicted entry; and the combined output [H, T, E].
    """
    keys, values, counts = entries
    scores = grouped(query.float(), len(keys)) @ keys.transpose(1, 2) * shape.scale
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    beside = grouped(lse, len(keys))[..., None]
    shares = torch.cat((beside, scores + counts[:, None]), -1).log_softmax(-1)
    there, left = shares[..., :1].exp(), shares[..., 1:].exp()
    mixed = grouped(out.float(), len(keys)) * there + left @ values
    return shares, ungrouped(mixed, len(query)).to(out.dtype)


def with_compressive_memory(
    method: EdgeInfinite, make: Callable[[EdgeInfinite, bool], CompressiveMemory]
) -> EdgeInfinite:
    """Return the method with the compressive memory that `make` returns.

    `make` gets the method and whether questions are known.
    """

    class Through(EdgeInfinite):
        def compressive_memory(self, model: ModelFacts, *, asked: bool) -> CompressiveMemory | None:
            return make(self, asked) if self.memory else None

    return Through(**method.settings())


def divergence(gates: Mapping[int, LearnedGate], met: Mapping[int, Noted]) -> Tensor:
    """Return the divergence of the gates from the recorded attention, in nats, summed over layers.

    Per layer it is the Kullback-Leibler divergence from the wanted shares, averaged over heads and
    queries.
    """
    total = []
    for layer, one in met.items():
        gate = gates[layer]
        queries, keys, counts, lse, wanted = (
            t.to(gate.w_key.device)
            for t in (one.queries, one.keys, one.counts, one.lse, one.wanted)
        )
        said = logs_between(gate, queries, keys) + counts[:, None]
        shares = torch.cat((lse[..., None], said), -1).log_softmax(-1)
        total.append((wanted.exp() * (wanted - shares)).sum(-1).mean())
    return torch.stack([t.to(total[0].device) for t in total]).sum()


def logs_between(gate: LearnedGate, queries: Tensor, keys: Tensor) -> Tensor:
    """Return log ``f(q) f(k)`` [K, n, m] for queries [K, n, D] and keys [K, m, D]."""
    asked, held = gate.logs_of_queries(queries), gate.logs_of_keys(keys)
    top, most = asked.amax(-1, keepdim=True), held.amax((-2, -1), keepdim=True)
    product = (asked - top).exp() @ (held - most).exp().transpose(-1, -2)
    return product.clamp_min(TINY).log() + top + most
