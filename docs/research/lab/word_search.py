"""Measure how often a word search finds the answer to a person's question, without any model.

    python docs/research/lab/word_search.py --limit 45
    python docs/research/lab/word_search.py --stories --limit 120

The script inserts a paragraph of a held-out document at a random depth in text of held-out books;
with --stories it searches a whole held-out story. It prints how often the answer, in the right
paragraph, is among the best excerpts of 256 and 1,024 tokens: by plain BM25, by BM25 over the
beginnings of words that are not common ones, and by the latter with a part of the scores of the
neighboring excerpts (the one in use).
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np

from kvstream.answer.reread.excerpts import excerpts_of
from kvstream.answer.skim import words as search
from kvstream.evaluation.filler import Filler, insert
from kvstream.input.inspection import NamedStream
from kvstream.input.sources import open_sources
from kvstream.run.prompt import REFUSAL
from kvstream.tokenization.loading import load_tokenizer
from kvstream_lab.synthetic.corpus import Corpus

SETS = ("squadshifts_newwiki", "fairytaleqa_train", "nq_oracle_train")
ROOMS = (256, 1024)

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--data", type=Path, default=Path("../shared/data"))
parser.add_argument("--tokens", type=int, default=32768)
parser.add_argument("--stories", action="store_true")
parser.add_argument("--limit", type=int, default=45)
parser.add_argument("--seed", type=int, default=0)
given = parser.parse_args()

tokenizer = load_tokenizer("pocket")
corpus, rng = Corpus(given.data, heldout=True), random.Random(given.seed)
filler = Filler("\n\n".join(corpus.books), "books", given.seed)
beginnings = search.words_of


def plain(text: str) -> list[str]:
    """Return all words in lower case."""
    return re.findall(r"\w+", text.casefold())


found: Counter[tuple[str, int]] = Counter()
for number in range(given.limit):
    name = SETS[1] if given.stories else SETS[number % len(SETS)]
    contexts = corpus.human(name)
    asked: list[tuple[str, str]] = []
    while not asked:
        context = rng.choice(contexts)
        asked = [(q, a) for q, a in context.questions if a != REFUSAL and a in context.text]
    question, answer = rng.choice(asked)
    if given.stories:
        text = "\n\n".join(c.text for c in contexts if c.doc_id == context.doc_id)
    else:
        book = filler.cut(tokenizer, given.tokens, rng)
        text = insert(book, tokenizer, [(rng.random(), context.text)])
    start = len(text[: text.index(context.text[:200])].encode())
    end = start + len(context.text.encode())
    excerpts = list(excerpts_of(open_sources([NamedStream("text", text.encode(), plain=True)])))
    sizes = [len(tokenizer.encode("\n\n" + e.text)) for e in excerpts]
    for way in ("plain", "beginnings", "with those beside"):
        search.words_of = plain if way == "plain" else beginnings
        words = search.QuestionWords(question)
        scores = words.scores([words.count(e.text) for e in excerpts])
        if way == "with those beside":
            scores = search.with_neighbors(scores, excerpts)
        order = [int(i) for i in np.argsort(-scores, kind="stable")]
        for room in ROOMS:
            behind = int(np.searchsorted(np.cumsum([sizes[i] for i in order]), room)) + 1
            read = (excerpts[i] for i in sorted(order[:behind]))
            right = " ".join(e.text for e in read if e.start < end and e.end > start)
            found[way, room] += " ".join(answer.split()) in " ".join(right.split())
for (way, room), count in found.items():
    print(f"{way:18} {room:5} tokens: {count} of {given.limit}")
