"""Train the two models that read the wording of a question, and write their weights.

    python docs/research/lab/wording.py [--others FOLDER]
    python docs/research/lab/wording.py --check docs/research/lab/questions/held-out.txt

Learns from the labeled questions ``questions/?.txt`` (README.md says what the labels mean), and
from people's questions of `--others` (the shared data), which are all about something else. With
`--check`, prints how many questions of a file go the right way, and writes nothing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from kvstream.exact.routing import route
from kvstream.exact.wording import KINDS, MARKS, STEP, WEIGHTS, Tokens, Weights

QUESTIONS = Path(__file__).parent / "questions"
LETTERS = {"w": 1, "u": 2, "s": 3, "n": 4}
"""Letters of the labels, and the marks of MARKS that they stand for."""
EPOCHS, BATCH, RATE, DECAY = 14, 32, 0.15, 1e-3
KIND_RATE = 0.05
DROPPED = 0.3
"""Share of the features that a step of training leaves out."""
FOLDS = 4
"""Parts of the questions; the kinds are learned from marks of models that did not see them."""
COUNTS = KINDS[:4]
WAYS = {"counts and places": COUNTS, "parts": ("scope",), "others": KINDS[5:]}


@dataclass(frozen=True)
class Labeled:
    kind: str
    text: str
    spans: tuple[tuple[int, int, int], ...] = ()
    """Mark, begin and end of each."""

    def marks(self, tokens: Tokens) -> list[int]:
        marks = [0] * len(tokens.spans)
        for mark, begin, end in self.spans:
            for at, (a, b) in enumerate(tokens.spans):
                if a < end and b > begin:
                    marks[at] = mark
        return marks


def labeled(line: str) -> Labeled:
    """Parse a line such as ``count | How often is {w:Ada} mentioned?``"""
    kind, _, rest = (part.strip() for part in line.partition("|"))
    text, spans, at = "", [], 0
    for found in re.finditer(r"\{([wusn]):([^{}]*)\}", rest):
        text += rest[at : found.start()]
        spans.append((LETTERS[found[1]], len(text), len(text) + len(found[2])))
        text, at = text + found[2], found.end()
    assert kind in KINDS, line
    return Labeled(kind, text + rest[at:], tuple(spans))


def questions_of(file: Path) -> Iterator[Labeled]:
    for line in file.read_text().splitlines():
        if line and not line.startswith("#"):
            yield labeled(line)


def others(folder: Path, seed: int = 7) -> list[Labeled]:
    """Return people's questions about paragraphs: all that ask how many, and some of the rest."""
    found = set()
    for file in sorted(folder.glob("*train*.jsonl.gz")):
        with gzip.open(file, "rt") as lines:
            for line in lines:
                found |= {q for q in _strings(json.loads(line)) if q.endswith("?") and len(q) < 200}
    asked = sorted(found)
    random.Random(seed).shuffle(asked)
    counts = [q for q in asked if re.search(r"\bhow (?:many|often)\b|number of", q, re.IGNORECASE)]
    return [Labeled("other", q) for q in dict.fromkeys([*counts[:2000], *asked[:2000]])]


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def summed(table: nn.EmbeddingBag, rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sums of the weights of some features each: count x columns.

    In training, some features are left out at random, so that no weight relies on others.
    """
    starts = torch.tensor([0, *map(len, rows[:-1])]).cumsum(0)
    flat = torch.cat([*rows]) % table.num_embeddings
    kept = (torch.rand(len(flat)) > DROPPED).float() if table.training else None
    return table(flat, starts, per_sample_weights=kept)


def zeros(columns: int, rows: int) -> nn.EmbeddingBag:
    table = nn.EmbeddingBag(rows, columns, mode="sum", sparse=True)
    nn.init.zeros_(table.weight)
    return table


class Mean:
    """The mean of weights over the second half of the epochs, which is steadier than the last."""

    def __init__(self, *weights: torch.Tensor) -> None:
        self.weights, self.sums, self.count = weights, [0 * each.detach() for each in weights], 0

    def add(self, epoch: int) -> None:
        if 2 * epoch >= EPOCHS:
            self.count += 1
            for total, each in zip(self.sums, self.weights, strict=True):
                total += each.detach()

    def use(self) -> None:
        for total, each in zip(self.sums, self.weights, strict=True):
            each.data = total / self.count


class Marker(nn.Module):
    """The conditional random field."""

    def __init__(self, marks: int, rows: int) -> None:
        super().__init__()
        self.table = zeros(marks, rows)
        self.steps = nn.Parameter(torch.zeros(marks, marks))

    def loss(self, rows: list[list[torch.Tensor]], marks: list[list[int]]) -> torch.Tensor:
        """Return the negative log-likelihood of the marks of some questions."""
        flat = summed(self.table, [row for some in rows for row in some])
        pad = torch.nn.utils.rnn.pad_sequence
        own = pad([*torch.split(flat, [*map(len, marks)])], batch_first=True)
        right = pad([torch.tensor(some) for some in marks], batch_first=True)
        there = pad([torch.ones(len(some)) for some in marks], batch_first=True)
        score = (own.gather(2, right[..., None])[..., 0] * there).sum()
        score = score + (self.steps[right[:, :-1], right[:, 1:]] * there[:, 1:]).sum()
        total = own[:, 0]
        for at in range(1, own.shape[1]):
            following = torch.logsumexp(total[:, :, None] + self.steps, 1) + own[:, at]
            total = torch.where(there[:, at, None] > 0, following, total)
        return torch.logsumexp(total, 1).sum() - score + DECAY * (flat**2).sum()


def train_marker(
    rows: Sequence[tuple[list[list[int]], list[int]]], weights: Weights, seed: int
) -> Marker:
    torch.manual_seed(seed)
    model, order = Marker(weights.marks, weights.rows), random.Random(seed)
    optimizer, mean = torch.optim.Adagrad(model.parameters(), RATE), Mean(*model.parameters())
    some = [([*map(torch.tensor, own)], right) for own, right in rows if any(right)]
    for epoch in range(EPOCHS):
        order.shuffle(some)
        for at in range(0, len(some), BATCH):
            features, right = zip(*some[at : at + BATCH], strict=True)
            optimizer.zero_grad()
            model.loss([*features], [*right]).backward()
            optimizer.step()
        mean.add(epoch)
    mean.use()
    return model


def train_classes(
    rows: list[tuple[list[int], int]], classes: int, weights: Weights, seed: int
) -> nn.EmbeddingBag:
    torch.manual_seed(seed)
    table, order = zeros(classes, weights.rows), random.Random(seed)
    optimizer, mean = torch.optim.Adagrad(table.parameters(), KIND_RATE), Mean(table.weight)
    some = [(torch.tensor(own), right) for own, right in rows]
    for epoch in range(EPOCHS):
        order.shuffle(some)
        for at in range(0, len(some), BATCH):
            features, kinds = zip(*some[at : at + BATCH], strict=True)
            sums = summed(table, features)
            loss = nn.functional.cross_entropy(sums, torch.tensor(kinds), reduction="sum")
            optimizer.zero_grad()
            (loss + DECAY * (sums**2).sum()).backward()
            optimizer.step()
        mean.add(epoch)
    mean.use()
    return table


def use(weights: Weights, marker: Marker, *others: nn.EmbeddingBag) -> bytes:
    """Let questions be read with these weights; return them as their file has them.

    `others`: the tables of the columns behind the marks.
    """
    table = torch.zeros(weights.rows, weights.columns)
    known = torch.cat([marker.table.weight, *(each.weight for each in others)], 1).detach()
    table[:, : known.shape[1]] = known
    whole = torch.cat((marker.steps.detach().flatten(), table.flatten()))
    data: bytes = (whole / STEP).round().clamp(-128, 127).to(torch.int8).numpy().tobytes()
    weights.data = memoryview(data).cast("b")
    return data


def train(questions: Sequence[Labeled], seed: int = 3) -> bytes:
    """Return the weights of both models."""
    every = [*questions]
    random.Random(seed).shuffle(every)
    tokens = [Tokens(each.text) for each in every]
    right = [each.marks(own) for each, own in zip(every, tokens, strict=True)]
    rows = [(own.features(), marks) for own, marks in zip(tokens, right, strict=True)]
    kinds = [
        (own.kind_features(marks), KINDS.index(each.kind))
        for each, own, marks in zip(every, tokens, right, strict=True)
        if any(marks)
    ]
    for fold in range(FOLDS):
        some = [row for at, row in enumerate(rows) if at % FOLDS != fold]
        use(WEIGHTS, train_marker(some, WEIGHTS, seed))
        kinds += [
            (own.kind_features(WEIGHTS.marks_of(own.features())), KINDS.index(each.kind))
            for each, own in zip(every[fold::FOLDS], tokens[fold::FOLDS], strict=True)
        ]
    marker = train_marker(rows, WEIGHTS, seed)
    return use(WEIGHTS, marker, train_classes(kinds, len(KINDS), WEIGHTS, seed))


def is_right(each: Labeled) -> bool:
    """Return whether a question goes the right way, with the right words, unit and part."""
    asked = route(each.text)
    kind = asked.place.replace("all", "both") or asked.kind
    if each.kind not in (*COUNTS, "scope"):
        return kind == "other"
    marks = {MARKS[mark]: each.text[begin:end] for mark, begin, end in each.spans}
    parts = not {"part", "sender"}.isdisjoint(marks)
    words = marks.get("words", "")
    if f'"{words}"' not in each.text:
        words = re.sub("^(?:the|an?) ", "", words, flags=re.IGNORECASE)
    unit = each.kind != "count" or bool(asked.unit) == ("unit" in marks or "sender" in marks)
    right = asked.words == words * (kind != "scope") and unit and bool(asked.scope) == parts
    return kind == each.kind and right


def check(file: Path) -> None:
    """Print how many questions of a file go the right way, and those that do not."""
    some = [*questions_of(file)]
    for way, kinds in WAYS.items():
        own = [each for each in some if each.kind in kinds]
        wrong = [each for each in own if not is_right(each)]
        print(f"{way}: {len(own) - len(wrong)} of {len(own)}")
        for each in wrong:
            print(f"  {each.kind}: {each.text} -> {route(each.text)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--others", type=Path, default=Path("../shared/data/qa"))
    options = parser.parse_args()
    if options.check is not None:
        check(options.check)
        return
    known = [each for file in sorted(QUESTIONS.glob("?.txt")) for each in questions_of(file)]
    known += [*questions_of(QUESTIONS / "z.txt")] * 2  # tests have them
    known += others(options.others)
    print(len(known), "questions", dict(Counter(each.kind for each in known)))
    WEIGHTS.file.write_bytes(train(known))


if __name__ == "__main__":
    main()
