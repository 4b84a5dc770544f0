"""Measure the F1 of a model on people's questions about single paragraphs of held-out documents.

    python docs/research/scripts/reader_questions.py FOLDER --data ../shared/data --limit 40

FOLDER is a model folder, such as the one that `python -m kvstream.training.reader --merged FOLDER`
writes. The script asks one question for each paragraph, drawn with a fixed seed; the paragraph fits
the budget. It prints a line of JSON for each set. ``--first 60`` leaves out the 60 paragraphs of
each set that ``--limit 60`` asks about. See docs/research/reader.md.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from kvstream.evaluation import metrics
from kvstream.evaluation.harness import ask
from kvstream.evaluation.intervals import mean_interval
from kvstream.evaluation.synthetic.corpus import Corpus
from kvstream.run.prompt import REFUSAL
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

SETS = ("squadshifts_newwiki", "fairytaleqa_train", "nq_oracle_train", "squad2_unanswerable")

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--data", type=Path, default=Path("../shared/data"))
parser.add_argument("--limit", type=int, default=40)
parser.add_argument("--first", type=int, default=0, help="number of the first paragraph")
parser.add_argument("--threads", type=int, default=1)
asked = parser.parse_args()

settings = ModelSettings(name=asked.model, dtype="float32", threads=asked.threads)
session = Session.open(settings)
corpus, rng = Corpus(asked.data, heldout=True), random.Random(7)
run = RunSettings(budget=Budget(tokens=2048), max_tokens=32)
for name in SETS:
    contexts = corpus.human(name)
    rng.shuffle(contexts)
    scores: list[float] = []
    contained = refused = 0
    for context in contexts[: asked.first]:
        rng.choice(context.questions)  # keeps the next set in the order of a shorter run
    draw = random.Random(asked.first) if asked.first else rng
    chosen = contexts[asked.first :][: asked.limit]
    for context in chosen:
        question, answer = draw.choice(context.questions)
        said = ask(session, context.text, [question], run)[0].answer
        refused += metrics.abstains(said)
        if answer != REFUSAL:
            scores.append(metrics.f1(said, answer))
            contained += metrics.contains(said, answer)
    f1 = [round(100 * v, 1) for v in mean_interval(scores)] if len(scores) > 1 else None
    row = {"set": name, "questions": len(chosen), "f1": f1, "contained": contained}
    row["refused"] = refused
    print(json.dumps(row), flush=True)
