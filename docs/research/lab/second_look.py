"""Compare excerpts by citation, by words and by both, and how many tokens of them to read again.

    python docs/research/lab/second_look.py --kind fact --tokens 32768 --documents 4 \\
        --text BOOKS
    python docs/research/lab/second_look.py --kind rule --tokens 16384 --documents 38 \\
        --text BOOKS

The script reads each document once under the budget for all of its questions (eight, so 38
documents have 304); every second pass starts from that same reading. For each way it prints how
many answers are right, and how often the excerpts contain the sentence that answers. ``bm25`` reads
only what BM25 finds, as much as the budget holds: it is the baseline of all others. See
docs/research/citations.md.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from typing import Any

import torch

from kvstream.answer.answering import answered
from kvstream.answer.reread.second_pass import choose
from kvstream.api.options import REREADS
from kvstream.cli.commands.bench.options import text_files
from kvstream.evaluation.filler import Filler, around
from kvstream.evaluation.harness import ask, document
from kvstream.evaluation.metrics import contains
from kvstream.evaluation.needle import NEAR_SHARE, Plan, haystack
from kvstream.evaluation.ordinary import has_rare_word
from kvstream.evaluation.synthetic.questions import from_sentence
from kvstream.events import returned
from kvstream.input.sources import open_sources
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kind", choices=["passkey", "fact", "rule"], default="fact")
parser.add_argument("--tokens", type=int, default=32768)
parser.add_argument("--documents", type=int, default=4)
parser.add_argument("--questions", type=int, default=8, help="in each document")
parser.add_argument("--budget", type=int, default=1024)
parser.add_argument("--most", type=int, nargs="+", default=[256], help="tokens to read again")
parser.add_argument("--text", nargs="+", default=[], help="files or directories")
parser.add_argument("--heldout", action="store_true", help="only what pocket has not been shown")
parser.add_argument("--model", default="pocket")
parser.add_argument("--seed", type=int, default=0)
given = parser.parse_args()

torch.set_num_threads(1)
session = Session.open(ModelSettings(model=given.model))
filler = Filler.of(text_files(given.text, heldout=given.heldout), seed=given.seed)
plan = Plan(
    given.kind, (given.tokens,), (0.5,), needles=given.questions, seed=given.seed,
    rule=from_sentence,
)  # fmt: skip
run = RunSettings(Budget(tokens=given.budget), max_tokens=24)
whole = RunSettings(Budget(tokens=given.budget), "full", max_tokens=24)
found: dict[tuple[str, str], list[bool]] = defaultdict(list)


def answer(memory: Any, question: str) -> Any:
    return answered(memory, question)[0]


def plain(text: str) -> str:
    return " ".join(text.split())


for number in range(given.documents):
    hay = haystack(session, filler, plan, given.tokens, random.Random(number).random(), number)
    facts = hay.needles
    with document(hay.text) as path:

        def again(path: str = path) -> Any:
            return open_sources([path], plain=True)

        questions = [fact.question for fact in facts]
        memory = returned(session.read(again(), Request(tuple(questions), run)))
        firsts = [answered(memory, q) for q in questions]
        memory.release()
        for fact, (first, basis) in zip(facts, firsts, strict=True):
            rare = "rare word" if has_rare_word(fact.question, hay.text) else "no rare word"

            def tell(what: str, text: str, fact: Any = fact, rare: str = rare) -> None:
                found[what, rare].append(any(contains(text, a) for a in fact.answers))

            tell("first answer", first.answer)
            near = around(
                hay.text, session.tokenizer, fact.sentence, int(NEAR_SHARE * given.budget)
            )
            tell("surroundings alone", ask(session, near, [fact.question], run)[0].answer)
            request = Request((fact.question,), whole)
            sizes = session.settle(request).sizes
            room = min(sizes.free, sizes.final)
            looks = [(f"{by} {most}", by, most) for by in REREADS for most in given.most]
            for name, by, most in [*looks, ("bm25", "words", given.budget)]:
                parts = choose(
                    again,
                    fact.question,
                    session.tokenizer,
                    (room, most),
                    by=by,
                    cited=basis.regions,
                )
                text = plain("".join(block.text for block in parts))
                found[f"{name}, has it", rare].append(plain(fact.sentence) in text)
                if not len(parts):
                    tell(name, "")
                    continue
                second = session.read_excerpts(parts, request, None)
                tell(name, answer(second, fact.question).answer)
    print(f"{number + 1} of {given.documents} documents", flush=True)

print(f"{'':28} {'all':>9} {'rare word':>12} {'no rare word':>14}")
for what in dict.fromkeys(what for what, _ in found):
    cells = [found.get((what, rare), []) for rare in ("rare word", "no rare word")]
    counts = [f"{sum(cell)}/{len(cell)}" for cell in [cells[0] + cells[1], *cells]]
    print(f"{what:28} {counts[0]:>9} {counts[1]:>12} {counts[2]:>14}")
