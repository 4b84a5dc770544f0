"""Measure whether a long question hides a short one that is asked of the same text.

See docs/research/methods.md.

    python docs/research/lab/two_questions.py --text ../shared/data/books/*.gz --budgets 440,512

A text of novels has two passkeys. Both questions are known while the text is read. The question
about the second passkey has a preamble, so it takes about four times as many tokens. The script
prints how many keys of each kind come back, for each budget.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from kvstream.evaluation.filler import Filler, insert
from kvstream.evaluation.harness import ask
from kvstream.evaluation.metrics import contains
from kvstream.evaluation.needle import Plan, make_needles
from kvstream.evaluation.synthetic.splits import is_heldout
from kvstream.run.prompt import build_prompt
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

PREAMBLE = (
    "I read this long story with my brother last winter, and since then the two of us have argued "
    "about one small matter in it, which neither he nor I can now find again on any of the pages, "
    "so please look at all of it with care before you say anything. "
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--budgets", default="440,512")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--depths", default="0.3,0.6", help="of the two passkeys; they take turns")
    parser.add_argument("--trials", type=int, default=12)
    asked = parser.parse_args()
    session = Session.open(ModelSettings())
    heldout = [p for p in asked.text if is_heldout(Path(p).name.partition(".")[0])]
    filler = Filler.of(heldout)
    depths = [float(depth) for depth in asked.depths.split(",")]
    budgets = [int(budget) for budget in asked.budgets.split(",")]
    right = {budget: [0, 0] for budget in budgets}
    lengths: list[list[int]] = []
    prompt = build_prompt(session.tokenizer)
    for trial in range(asked.trials):
        rng = random.Random(f"two questions {trial}")
        needles = make_needles(Plan("passkey", (asked.tokens,), (), needles=2), rng, trial)
        taken = sum(len(session.tokenizer.encode(n.sentence)) for n in needles)
        text = filler.cut(session.tokenizer, asked.tokens - taken, rng)
        places = depths if trial % 2 else depths[::-1]
        pairs = zip(places, (n.sentence for n in needles), strict=True)
        text = insert(text, session.tokenizer, pairs)
        questions = [needles[0].question, PREAMBLE + needles[1].question]
        lengths.append([len(prompt.tail(question)) for question in questions])
        for budget in budgets:
            run = RunSettings(Budget(tokens=budget), max_tokens=16)
            results = ask(session, text, questions, run)
            for i, (needle, result) in enumerate(zip(needles, results, strict=True)):
                right[budget][i] += contains(result.answer, needle.answers[0])
    short, long = (round(sum(part) / len(lengths)) for part in zip(*lengths, strict=True))
    print(f"{asked.trials} texts of {asked.tokens:,} tokens")
    for budget, (of_short, of_long) in right.items():
        print(
            f"budget {budget}: question of {short} tokens {of_short} right, of {long} {of_long}",
            flush=True,
        )


if __name__ == "__main__":
    main()
