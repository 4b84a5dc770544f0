"""How many digits of a passkey come back, where the model has to say a number (docs/methods.md).

    python docs/ablations/digits.py streaming cascade cascade:run=1+contest=attention \\
        --text ../shared/data/books/*.gz --heldout --depths 0.5,0.6,0.7,0.75,0.8

As in the Cascading KV cache's section 4.4: the model says five digits, whatever else it would say,
and those in their places count, so a tenth is chance. A document holds a passkey at each depth;
every case reads the same documents. Told are the share of digits with its 95% interval (over
documents), how often the first to the fifth was right, and how many keys came back whole. The row
"-" is what the model says with nothing read. Cases are written as for likelihood.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from likelihood import case_of, document

from kvstream.evaluation.filler import Filler
from kvstream.evaluation.intervals import mean_interval
from kvstream.evaluation.reading import IdFeed, open_reader
from kvstream.session import Session
from kvstream.settings import ModelSettings, RunSettings
from kvstream.training.splits import is_heldout

PLACES = 5
"""Digits of a passkey."""


def places(
    session: Session, ids: list[int], questions: list[str], said: list[list[int]], run: RunSettings
) -> list[list[bool]]:
    """For each question which digits are right after `ids` were read."""
    reader, prompt = open_reader(session, questions, run, len(ids))
    if ids:
        for _ in reader.read(IdFeed(ids)):
            pass
    tokens = [session.tokenizer.encode(f" {n}", continuing=True)[-1] for n in range(10)]
    found = []
    for question, answer in zip(questions, said, strict=True):
        before, right = answer[:-PLACES], answer[-PLACES:]
        assert set(right) <= set(tokens), "digits are no tokens of their own here"
        said_now = reader.answer(
            [*prompt.tail(question), *before],
            lambda logits: tokens[int(logits[tokens].argmax())],
            frozenset(),
            PLACES,
        )
        found.append([a == b for a, b in zip(said_now, right, strict=True)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--depths", default="0.5,0.75")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--text", nargs="*", default=[])
    parser.add_argument("--heldout", action="store_true")
    parser.add_argument("--words", action="store_true", help="random words around, as in the paper")
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--keep", type=int, default=640)
    parser.add_argument("--start", type=int)
    parser.add_argument("--schedule", default="fixed")
    parser.add_argument("--chunk", default="fixed")
    parser.add_argument("--chunk-size", type=int, default=256)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    session = Session.open(ModelSettings(name=asked.model, threads=1))
    texts = [
        t for t in asked.text if not asked.heldout or is_heldout(Path(t).name.partition(".")[0])
    ]
    filler = Filler.of(texts, words=asked.words)
    depths = [float(d) for d in asked.depths.split(",")]
    found: dict[str, list[list[list[bool]]]] = {}
    for trial in range(asked.trials):
        doc = document(session, filler, "passkey", asked.tokens, depths, 1, 1, trial)
        for case in ("-", *asked.cases):
            run = case_of(asked.cases[0] if case == "-" else case, asked)
            ids = [] if case == "-" else doc.ids
            found.setdefault(case, []).append(places(session, ids, doc.questions, doc.said, run))
    keys = asked.trials * len(depths)
    print(f"{keys} passkeys, {asked.trials} documents of {asked.tokens:,} tokens")
    for case, documents in found.items():
        shares = [sum(map(sum, d)) / (PLACES * len(d)) for d in documents]
        mean, low, high = mean_interval(shares)
        answers = [answer for d in documents for answer in d]
        by_place = " ".join(f"{sum(a[i] for a in answers):3}" for i in range(PLACES))
        whole = sum(all(a) for a in answers)
        print(f"{case:45} {mean:4.0%} ({low:.0%} to {high:.0%})  {by_place}  whole {whole}")


if __name__ == "__main__":
    main()
