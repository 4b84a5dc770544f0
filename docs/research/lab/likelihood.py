"""Measure how likely memory makes the right words, where exact answers are all wrong.

See docs/research/methods.md.

    python docs/research/lab/likelihood.py streaming cascade:cascades=2 cascade:cascades=4 \\
        --text ../shared/data/books/*.gz --heldout --kind passage --depths 0.7,0.75

A document is read as in ``kvstream bench needle``. Then the script takes the loss of the right
words; the model is given each word before it has to predict the next (nats per token, lower is
better). Kinds: ``passkey`` and ``fact`` take the answer of a planted needle after its question;
methods that use questions know them while they read. ``passage`` takes 64 tokens of the text itself
after the 32 in front of them; nobody knew them while reading. A document holds one for each depth.
Every case reads the same documents. For cases after the first, the script also prints the
difference from the first, with the 95% interval of the paired differences. The row "-" is the model
with nothing read. With --choices N the right answer of a needle is compared with N - 1 others of
its kind, and the script prints how often it is the likeliest (1/N is chance), with Wilson's 95%
interval.

With --write N the model also writes at most N tokens after each question, and the script prints how
many answers hold the right words, and of the first case's answers how many each other case loses
and gains, with the p-value of McNemar's exact test.

A case is METHOD or METHOD:SETTING=VALUE+SETTING=VALUE; @SCHEDULE and ^BUDGET may follow. `full`
holds the whole text. With --save FILE the same command resumes a stopped run, and may add cases.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from dataclasses import dataclass
from operator import gt
from pathlib import Path

import torch

from kvstream.engine.reader import Reader
from kvstream.evaluation.confidence import difference_interval, wilson
from kvstream.evaluation.filler import Filler, insert
from kvstream.evaluation.harness import IdFeed, open_reader, room_for
from kvstream.evaluation.metrics import contains
from kvstream.evaluation.needle import Plan, make_needles
from kvstream.evaluation.splits import is_heldout
from kvstream.run.prompt import Prompt
from kvstream.run.request import Request
from kvstream.sample.document import make_facts
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

ASKED, SAID = 32, 64
"""Tokens of a passage that the model is shown, and that it has to predict."""


@dataclass(frozen=True)
class Document:
    """What is read, and for each depth a question and the right words."""

    ids: list[int]
    questions: list[str]
    """Questions about needles."""
    asked: list[list[int]]
    """Ids of each passage that the model is shown."""
    said: list[list[int]]
    others: list[list[list[int]]]
    """Wrong answers of the same kind."""


def document(
    session: Session, filler: Filler, kind: str, tokens: int, depths: list[float], choices: int,
    trial: int,
) -> Document:  # fmt: skip
    rng = random.Random(f"{kind} {tokens} {depths} {trial}")
    encode = session.tokenizer.encode
    if kind == "passage":
        ids = encode(filler.cut(session.tokenizer, tokens, rng))
        starts = [round(depth * len(ids)) for depth in depths]
        said = [ids[at + ASKED : at + ASKED + SAID] for at in starts]
        return Document(ids, [], [ids[at : at + ASKED] for at in starts], said, [[] for _ in said])
    needles = make_needles(Plan(kind, (tokens,), (), needles=len(depths)), rng, trial)
    taken = sum(len(encode(n.sentence)) for n in needles)
    text = filler.cut(session.tokenizer, tokens - taken, rng)
    places = [(depth, n.sentence) for depth, n in zip(depths, needles, strict=True)]
    ids = encode(insert(text, session.tokenizer, places))
    said = [encode(f" {n.answers[0]}", continuing=True) for n in needles]
    wrong = make_facts(60 * choices, rng.randrange(2**31))
    others = [
        [
            encode(f" {f.answers[0]}", continuing=True)
            for f in wrong
            if f.kind == n.kind and f.answers != n.answers
        ][: choices - 1]
        for n in needles
    ]
    assert all(len(o) == choices - 1 for o in others)
    return Document(ids, [n.question for n in needles], [], said, others)


def reading(
    session: Session, doc: Document, run: RunSettings, *, read: bool
) -> tuple[Reader, Prompt]:
    """Return a reader that has read the document, or nothing, and its prompt."""
    ids = doc.ids
    if run.method == "truncate":  # as in the program: the beginning and the end
        half = session.settle(Request(tuple(doc.questions), run)).sizes.final // 2
        ids = [*ids[:half], *ids[-half:]]
    reader, prompt = open_reader(session, doc.questions, run, len(ids))
    if read:
        for _ in reader.read(IdFeed(ids)):
            pass
    return reader, prompt


def losses(
    session: Session, doc: Document, run: RunSettings, *, read: bool = True, write: int = 0
) -> list[tuple[float, bool, bool]]:
    """Return the mean loss of the right words of each depth after the document was read.

    Each comes with whether it is lower than the losses of the other answers, and whether an answer
    of at most `write` tokens holds the right words.
    """
    if run.method == "full":
        run = room_for(session, run, len(doc.ids))
    reader, prompt = reading(session, doc, run, read=read)
    asked = doc.asked or [prompt.tail(question) for question in doc.questions]
    stop, found = frozenset(prompt.stop_ids), []
    for question, said, others in zip(asked, doc.said, doc.others, strict=True):
        right, *wrong = (float(reader.score(question, w).mean()) for w in (said, *others))
        written = [*reader.answer(question, lambda row: int(row.argmax()), stop, write)]
        exact = contains(session.tokenizer.decode(written), session.tokenizer.decode(said).strip())
        found.append((right, all(right < loss for loss in wrong), exact))
    return found


def mcnemar(lost: int, gained: int) -> float:
    """Return the two-sided p-value that `lost` and `gained` differ by chance."""
    both = lost + gained
    tail = sum(math.comb(both, k) for k in range(min(lost, gained) + 1)) / 2**both
    return min(1.0, 2 * tail)


def case_of(text: str, asked: argparse.Namespace) -> RunSettings:
    text, _, budget = text.partition("^")
    text, _, schedule = text.partition("@")
    method, _, settings = text.partition(":")
    pairs = (s.partition("=") for s in settings.split("+") if s)
    return RunSettings(
        Budget(tokens=int(budget or asked.budget)), method,
        {name: value for name, _, value in pairs},
        keep=asked.keep, start=asked.start, schedule=schedule or asked.schedule, chunk=asked.chunk,
        chunk_size=asked.chunk_size, max_tokens=ASKED + SAID,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--depths", default="0.5,0.75")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--text", nargs="*", default=[])
    parser.add_argument("--heldout", action="store_true")
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--quantize", choices=("int8",))
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--keep", type=int)
    parser.add_argument("--start", type=int)
    parser.add_argument("--schedule", default="fixed")
    parser.add_argument("--chunk", default="fixed")
    parser.add_argument("--chunk-size", type=int)
    parser.add_argument("--kind", choices=("passkey", "fact", "passage"), default="passage")
    parser.add_argument("--choices", type=int, default=1, help="answers to choose from")
    parser.add_argument("--write", type=int, default=0, help="tokens of each answer")
    parser.add_argument("--save", type=Path, help="a file of what was measured, to go on from")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    session = Session.open(ModelSettings(model=asked.model, quantize=asked.quantize, threads=1))
    filler = Filler.of(
        [t for t in asked.text if not asked.heldout or is_heldout(Path(t).name.partition(".")[0])]
    )
    cases = {text: case_of(text, asked) for text in asked.cases}
    depths = [float(d) for d in asked.depths.split(",")]
    # Settings that all cases share. The list of cases may grow later.
    settled = [
        asked.model, asked.quantize, asked.kind, asked.tokens, asked.budget, asked.keep,
        asked.schedule, asked.chunk, asked.chunk_size, asked.choices, asked.depths, asked.write,
    ]  # fmt: skip
    saved = {}
    if asked.save and asked.save.exists():
        rows = map(json.loads, asked.save.read_text().splitlines())
        saved = {json.dumps(key): value for key, value in rows}
    found: dict[tuple[str, str], list[float]] = {}
    chosen: dict[tuple[str, str], list[bool]] = {}
    written: dict[tuple[str, str], list[bool]] = {}
    for trial in range(asked.trials):
        doc = document(session, filler, asked.kind, asked.tokens, depths, asked.choices, trial)
        for text, run in {"-": next(iter(cases.values())), **cases}.items():
            key = [trial, text, *settled]
            pairs = saved.get(json.dumps(key))
            if pairs is None:
                pairs = losses(session, doc, run, read=text != "-", write=asked.write)
                if asked.save:
                    with asked.save.open("a") as file:
                        file.write(json.dumps([key, pairs]) + "\n")
            labeled = zip(asked.depths.split(","), pairs, strict=True)
            for depth, (value, likeliest, exact) in labeled:
                found.setdefault((depth, text), []).append(value)
                for where in (depth, "all"):
                    chosen.setdefault((where, text), []).append(likeliest)
                    written.setdefault((where, text), []).append(exact)
            found.setdefault(("all", text), []).append(statistics.fmean(v for v, *_ in pairs))
    print(f"{asked.kind}, {asked.tokens:,} tokens, {asked.trials} documents, nats a token")
    base = next(iter(cases))
    for depth in (*asked.depths.split(","), "all"):
        for text in ("-", *cases):
            values = found[depth, text]
            line = f"depth {depth:4}  {text:45} {statistics.fmean(values):6.3f}"
            if text != base:
                change = [a - b for a, b in zip(values, found[depth, base], strict=True)]
                line += "  {:+.3f} ({:+.3f} to {:+.3f})".format(*difference_interval(change))
            if asked.choices > 1:
                right = chosen[depth, text]
                low, high = wilson(sum(right), len(right))
                line += f"   chosen {sum(right)} of {len(right)} ({low:.0%} to {high:.0%})"
            if asked.write:
                right, first = written[depth, text], written[depth, base]
                lost, gained = (sum(map(gt, *pair)) for pair in ((first, right), (right, first)))
                line += f"   written {sum(right)}, {lost} lost, {gained} gained"
                line += f", p {mcnemar(lost, gained):.3f}"
            print(line)


if __name__ == "__main__":
    main()
