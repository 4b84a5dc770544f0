"""Whether it is the text's own memory that helps `edgeinfinite` to answer.

See docs/research/methods.md.

    python docs/research/scripts/whose_memory.py --kind fact --text ../shared/data/books/*.gz

Plants one needle in each document, behind what sinks and window hold, and asks for it: how likely
the right answer is, how often it is the likeliest of four of its kind, and how often it is what
the model says. `--kind question` plants passages of `--qa` about which people asked; the other
answers are those of three other questions. With the memory, with that of the document before
(which was written for another question), with the entries that were written as they are, and
without.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from likelihood import Document, document
from torch import Tensor

from kvstream.engine.reader import Reader
from kvstream.evaluation.datasets import Item, load
from kvstream.evaluation.filler import Filler, insert
from kvstream.evaluation.gates.lessons import Keeping, attended
from kvstream.evaluation.harness import IdFeed, open_reader
from kvstream.evaluation.intervals import mean_interval, wilson
from kvstream.evaluation.synthetic.splits import is_heldout
from kvstream.methods.base import CompressiveMemory, ModelFacts
from kvstream.methods.edgeinfinite import EdgeInfinite
from kvstream.model.attention import Shape
from kvstream.run.prompt import Prompt
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

LONGEST = 1500
"""Characters of a passage at most."""
OWN, OTHER, ENTRIES, WITHOUT = (
    "with the memory",
    "another document's",
    "entries as they are",
    "without",
)


def of_people(
    session: Session, filler: Filler, qa: Sequence[str], tokens: int, depth: float, trial: int
) -> Document:
    """A passage among other text, with one question that it answers."""
    rng, encode = random.Random(f"question {tokens} {trial}"), session.tokenizer.encode
    asked = [
        (item.context, question.text, question.answers[0])
        for item in items(tuple(qa))
        for question in item.questions
        if is_heldout(item.document) and question.answers and len(item.context) < LONGEST
    ]
    passage, question, answer = rng.choice(asked)
    others = [a for p, _, a in rng.sample(asked, 40) if p != passage and a != answer][:3]
    text = filler.cut(session.tokenizer, tokens - len(encode(passage)), rng)
    ids = encode(insert(text, session.tokenizer, [(depth, f"\n\n{passage.strip()}\n\n")]))
    right, *wrong = (encode(f" {a}", continuing=True) for a in (answer, *others))
    return Document(ids, [question], [], [right], [wrong])


@cache
def items(qa: tuple[str, ...]) -> list[Item]:
    return list(load(qa))


@dataclass(frozen=True)
class Asked:
    loss: float
    """Of the right answer, nats a token."""
    likeliest: bool
    said: bool


class Entries(Keeping):
    """Keeps what would be written, and attends to it."""

    def mix(
        self, layer: int, query: Tensor, out: Tensor, lse: Tensor, head_state: Mapping[str, Tensor]
    ) -> Tensor:
        shape = Shape(query.shape[-1] ** -0.5)
        return attended(query, out, lse, self.entries()[layer], shape)[1]


@contextmanager
def kept_as_they_are() -> Iterator[None]:
    folding = EdgeInfinite.compressive_memory

    def entries(self: EdgeInfinite, model: ModelFacts, *, asked: bool) -> CompressiveMemory | None:
        return Entries(self)

    EdgeInfinite.compressive_memory = entries  # type: ignore[method-assign]
    try:
        yield
    finally:
        EdgeInfinite.compressive_memory = folding  # type: ignore[method-assign]


def read(session: Session, doc: Document, run: RunSettings) -> tuple[Reader, Prompt]:
    reader, prompt = open_reader(session, doc.questions, run, len(doc.ids))
    for _ in reader.read(IdFeed(doc.ids)):
        pass
    return reader, prompt


def ask(session: Session, reader: Reader, prompt: Prompt, doc: Document) -> Asked:
    tail = prompt.tail(doc.questions[0])
    right, *wrong = (
        float(reader.score(tail, words).mean()) for words in (doc.said[0], *doc.others[0])
    )
    stop = frozenset(session.tokenizer.eos_ids)
    words = list(reader.answer(tail, lambda logits: int(logits.argmax()), stop, 24))
    decode = session.tokenizer.decode
    said = decode(words).strip(" .") == decode(doc.said[0]).strip(" .")
    return Asked(right, all(right < loss for loss in wrong), said)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=("fact", "passkey", "question"), default="fact")
    parser.add_argument("--qa", nargs="*", default=[], help="files of questions, as bench qa reads")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--depths", default="0.1,0.3,0.5", help="one of them for each document")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--gate", default="", help="[default: the one in the package]")
    parser.add_argument("--features", type=int, default=EdgeInfinite().features)
    parser.add_argument("--text", nargs="+", required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    session = Session.open(ModelSettings(name="pocket", threads=1))
    filler = Filler.of([t for t in asked.text if is_heldout(Path(t).name.partition(".")[0])])
    settings = {"gate": asked.gate, "features": str(asked.features)}
    run = RunSettings(Budget(tokens=asked.budget), "edgeinfinite", settings, max_tokens=64)
    alone = replace(run, method_settings={**settings, "memory": "false"})
    found: dict[str, list[Asked]] = {case: [] for case in (OWN, OTHER, ENTRIES, WITHOUT)}
    lent: list[dict[str, Tensor]] | None = None
    for trial in range(-1, asked.trials):  # the first only lends its memory
        depth = random.Random(trial).choice([float(d) for d in asked.depths.split(",")])
        if asked.kind == "question":
            doc = of_people(session, filler, asked.qa, asked.tokens, depth, trial)
        else:
            doc = document(session, filler, asked.kind, asked.tokens, [depth], 1, 4, trial)
        reader, prompt = read(session, doc, run)
        heads = [store.head_state for store in reader.compressible]
        mine = [{name: tensor.clone() for name, tensor in each.items()} for each in heads]
        if lent is not None:
            found[OWN].append(ask(session, reader, prompt, doc))
            for each, other in zip(heads, lent, strict=True):
                for name, tensor in each.items():
                    tensor.copy_(other[name])
            found[OTHER].append(ask(session, reader, prompt, doc))
            with kept_as_they_are():
                found[ENTRIES].append(ask(session, *read(session, doc, run), doc))
            found[WITHOUT].append(ask(session, *read(session, doc, alone), doc))
        lent = mine
    print(f"{asked.kind}, {asked.trials} documents of {asked.tokens:,} tokens, {asked.budget:,}")
    for case, results in found.items():
        pairs = zip(results, found[WITHOUT], strict=True)
        loss, low, high = mean_interval([r.loss - w.loss for r, w in pairs])
        print(f"{case:20} {loss:+.2f} ({low:+.2f} to {high:+.2f}) nats a token", end="")
        for what in ("likeliest", "said"):
            count = sum(getattr(r, what) for r in results)
            low, high = wilson(count, len(results))
            print(f"; {what} {count} of {len(results)} ({low:.0%} to {high:.0%})", end="")
        print()


if __name__ == "__main__":
    main()
