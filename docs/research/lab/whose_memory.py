"""Measure whether it is the text's own memory that helps `edgeinfinite` to answer.

See docs/research/papers.md.

    python docs/research/lab/whose_memory.py --kind fact --text ../shared/data/books/*.gz

The script plants needles in each document, outside of what sinks and window hold, and asks for
them. It prints how likely the right answer is, how often it is the likeliest of four of its kind,
and how often it is what the model says. `--kind question` plants passages of `--qa` about which
people asked; the other answers are those of three other questions. The cases are: with the memory,
with that of the document before (written for another question), with the entries themselves in
place of the memory that they are written to, and without. Intervals are of differences from the
same needles without memory; needles of one document form a group.

`--gates` measures several gates on the same documents, each FORM=FILE, and reads without memory
once for all of them. With `--save FILE` the same command resumes a stopped run.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from kvstream.engine.reader import Reader
from kvstream.evaluation.datasets import Item, load
from kvstream.evaluation.filler import Filler, insert
from kvstream.evaluation.harness import IdFeed, open_reader
from kvstream.evaluation.intervals import difference_interval, wilson
from kvstream.evaluation.synthetic.splits import is_heldout
from kvstream.methods.base import CompressiveMemory, ModelFacts
from kvstream.methods.edgeinfinite import EdgeInfinite
from kvstream.model.attention import Shape
from kvstream.run.prompt import Prompt
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream_lab.gates.lessons import Keeping, attended
from likelihood import Document, document

LONGEST = 1500
"""Maximum number of characters of a passage."""
OWN, OTHER, ENTRIES, WITHOUT = (
    "with the memory",
    "another document's",
    "entries as they are",
    "without",
)


def of_people(
    session: Session, filler: Filler, qa: Sequence[str], tokens: int, depth: float, trial: int
) -> Document:
    """Return a passage among other text, with one question that it answers."""
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
    """Loss of the right answer, in nats per token."""
    likeliest: bool
    said: bool


class Entries(Keeping):
    """Keeps the entries that would be written to memory, and attends to them."""

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


def ask(
    session: Session, reader: Reader, prompt: Prompt, doc: Document, *, writes: bool
) -> list[Asked]:
    """Return the results of each needle; with `writes` the model also writes an answer."""
    stop = frozenset(session.tokenizer.eos_ids)
    decode = session.tokenizer.decode
    found = []
    for question, answer, others in zip(doc.questions, doc.said, doc.others, strict=True):
        tail = prompt.tail(question)
        right, *wrong = (float(reader.score(tail, words).mean()) for words in (answer, *others))
        said = False
        if writes:
            words = list(reader.answer(tail, lambda logits: int(logits.argmax()), stop, 24))
            said = decode(words).strip(" .") == decode(answer).strip(" .")
        found.append(Asked(right, all(right < loss for loss in wrong), said))
    return found


class Measurement:
    """The cases of one document after another."""

    def __init__(self, session: Session, asked: argparse.Namespace) -> None:
        self.session, self.asked = session, asked
        self.filler = Filler.of(
            [t for t in asked.text if is_heldout(Path(t).name.partition(".")[0])]
        )
        self.lent: dict[str, tuple[int, list[dict[str, Tensor]]]] = {}
        """By gate: the number of a document, and its memory."""

    def document(self, trial: int) -> Document:
        asked, rng = self.asked, random.Random(trial)
        among = [float(d) for d in asked.depths.split(",")]
        if asked.kind == "question":
            depth = rng.choice(among)
            return of_people(self.session, self.filler, asked.qa, asked.tokens, depth, trial)
        count = asked.needles * len(asked.kind.split("+"))
        depths = rng.sample(among, count) if count > 1 else [rng.choice(among)]
        return document(self.session, self.filler, asked.kind, asked.tokens, depths, 1, 4, trial)

    def run(self, gate: str, *, memory: bool = True) -> RunSettings:
        form, _, file = gate.rpartition("=")
        settings = {"gate": file, "features": str(self.asked.features), "form": form or "learned"}
        settings["memory"] = str(memory).lower()
        return RunSettings(
            Budget(tokens=self.asked.budget), "edgeinfinite", settings, max_tokens=64
        )

    def with_memory(self, gate: str, trial: int, doc: Document) -> dict[str, list[Asked]]:
        """Return the cases of a gate."""
        session, writes = self.session, not self.asked.likeliest
        if self.lent.get(gate, (None,))[0] != trial - 1:
            self.remember(gate, trial - 1, read(session, self.document(trial - 1), self.run(gate)))
        lent = self.lent[gate][1]
        reader, prompt = read(session, doc, self.run(gate))
        self.remember(gate, trial, (reader, prompt))
        found = {OWN: ask(session, reader, prompt, doc, writes=writes)}
        for store, other in zip(reader.compressible, lent, strict=True):
            for name, tensor in store.head_state.items():
                tensor.copy_(other[name])
        found[OTHER] = ask(session, reader, prompt, doc, writes=writes)
        if self.asked.entries:
            with kept_as_they_are():
                reader, prompt = read(session, doc, self.run(gate))
                found[ENTRIES] = ask(session, reader, prompt, doc, writes=writes)
        return found

    def remember(self, gate: str, trial: int, reading: tuple[Reader, Prompt]) -> None:
        heads = [store.head_state for store in reading[0].compressible]
        copies = [{name: tensor.clone() for name, tensor in each.items()} for each in heads]
        self.lent[gate] = trial, copies

    def without(self, doc: Document) -> list[Asked]:
        reader, prompt = read(self.session, doc, self.run("", memory=False))
        return ask(self.session, reader, prompt, doc, writes=not self.asked.likeliest)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--kind", choices=("fact", "passkey", "fact+passkey", "question"), default="fact"
    )
    parser.add_argument("--qa", nargs="*", default=[], help="files of questions, as bench qa reads")
    parser.add_argument("-m", "--model", default="pocket")
    parser.add_argument("--quantize", choices=("int8",))
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--depths", default="0.1,0.3,0.5", help="a needle is at one of them")
    parser.add_argument("--needles", type=int, default=1, help="of each kind in a document")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument(
        "--gates", nargs="+", default=["learned="], metavar="FORM=FILE",
        help="learned=FILE or paper=FILE [default: the learned one in the package]",
    )  # fmt: skip
    parser.add_argument("--features", type=int, default=EdgeInfinite().features)
    parser.add_argument("--likeliest", action="store_true", help="the model writes no answers")
    parser.add_argument(
        "--no-entries", dest="entries", action="store_false", help="leave out that case"
    )
    parser.add_argument("--save", type=Path, help="a file of results, to go on from")
    parser.add_argument("--text", nargs="+", required=True)
    asked = parser.parse_args()
    if asked.kind != "question":
        count = asked.needles * len(asked.kind.split("+"))
        if count > len(asked.depths.split(",")):
            parser.error(f"{count} needles need as many --depths.")
    torch.set_num_threads(1)
    session = Session.open(ModelSettings(model=asked.model, quantize=asked.quantize, threads=1))
    measurement = Measurement(session, asked)
    settled = [
        asked.model, asked.quantize, asked.kind, asked.qa, asked.tokens, asked.budget,
        asked.depths, asked.needles, asked.likeliest,
    ]  # fmt: skip
    saved: dict[str, dict[str, list[Asked]]] = {}
    if asked.save and asked.save.exists():
        for key, cases in map(json.loads, asked.save.read_text().splitlines()):
            saved[json.dumps(key)] = {c: [Asked(**one) for one in r] for c, r in cases.items()}
    found: dict[tuple[str, str], list[tuple[int, str, Asked]]] = {}
    for trial in range(asked.trials):
        doc = measurement.document(trial)
        for gate in ("", *asked.gates):
            key = [trial, gate, bool(gate) and [asked.features, asked.entries], *settled]
            cases = saved.get(json.dumps(key))
            if cases is None:
                if gate:
                    cases = measurement.with_memory(gate, trial, doc)
                else:
                    cases = {WITHOUT: measurement.without(doc)}
                if asked.save:
                    rows = {c: [asdict(one) for one in r] for c, r in cases.items()}
                    with asked.save.open("a") as file:
                        file.write(json.dumps([key, rows]) + "\n")
            for case, results in cases.items():
                kinds = doc.kinds or ("question",) * len(results)
                found.setdefault((gate, case), []).extend(
                    (trial, kind, one) for kind, one in zip(kinds, results, strict=True)
                )
    print(f"{asked.kind}, {asked.trials} documents of {asked.tokens:,} tokens, {asked.budget:,}")
    for kind in asked.kind.split("+"):
        if "+" in asked.kind:
            print(f"{kind}:")
        for (gate, case), all_results in found.items():
            results = [(t, r) for t, k, r in all_results if k == kind]
            base = [r for _, k, r in found["", WITHOUT] if k == kind]
            told(gate, case, results, base, writes=not asked.likeliest)
            if case == OTHER:
                own = [r for _, k, r in found[gate, OWN] if k == kind]
                pairs = list(zip(own, (r for _, r in results), strict=True))
                groups = [t for t, _ in results]
                loss = difference_interval([a.loss - b.loss for a, b in pairs], groups)
                share = difference_interval([a.likeliest - b.likeliest for a, b in pairs], groups)
                print(
                    "{:25} own minus other's {:+.2f} ({:+.2f} to {:+.2f})".format("", *loss), end=""
                )
                print("; likeliest {:+.0%} ({:+.0%} to {:+.0%})".format(*share))


def told(
    gate: str,
    case: str,
    results: Sequence[tuple[int, Asked]],
    base: Sequence[Asked],
    *,
    writes: bool,
) -> None:
    """Print a row."""
    change = [r.loss - w.loss for (_, r), w in zip(results, base, strict=True)]
    loss, low, high = difference_interval(change, [trial for trial, _ in results])
    mean = sum(r.loss for _, r in results) / len(results)
    form = gate.rpartition("=")[0]
    print(
        f"{form:8} {case:20} {mean:.2f}, {loss:+.2f} ({low:+.2f} to {high:+.2f}) nats a token",
        end="",
    )
    for what in ("likeliest", "said") if writes else ("likeliest",):
        count = sum(getattr(r, what) for _, r in results)
        low, high = wilson(count, len(results))
        print(f"; {what} {count} of {len(results)} ({low:.0%} to {high:.0%})", end="")
    print()


if __name__ == "__main__":
    main()
