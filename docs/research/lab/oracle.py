"""Measure what a perfect choice of entries is worth: scores from the questions that come later.

See docs/research/later-questions.md.

    python docs/research/lab/oracle.py --save oracle.jsonl --qa ... --text ... \
        --cases keydiff:pool=15 full oracle:alike=none oracle:alike=all,pool=7

The script takes the options of `later_questions.py`, prints its table and adds the method `oracle`.
The score of an entry is the share of a question's attention to the text that the entry gets: the
question attends together with its answer, and the whole text is in memory. The maximum over all
questions counts.

    alike  none: each KV head has its own scores; layer, all: the mean over the heads of a layer, of
           the model
    pool   width of the max pooling
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

import later_questions
from kvstream.methods import registry
from kvstream.methods.base import Step, setting
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scoring import pool, pooling_width
from kvstream.model.attention import AttentionRequest
from kvstream.run.prompt import build_prompt


@dataclass(frozen=True)
class Oracle(ScoredMethod):
    """Keeps the entries that the later questions attend to."""

    name: ClassVar[str] = "oracle"
    shares: ClassVar[Tensor]
    """Scores [L, K, n] of the text that is read."""

    pool: int = pooling_width(1, "")
    alike: str = setting("none", "", choices=("none", "layer", "all"))

    def score(self, step: Step) -> Tensor:
        of = Oracle.shares[list(step.layers)]
        return pool(of.gather(-1, step.origin.long()), step.origin, self.pool)


def attention(session: Any, ids: Sequence[int], asked: Sequence[Any]) -> Tensor:
    """Return [Q, L, K, n]: the share of a question's attention to the text that each entry gets."""
    prompt, encode = build_prompt(session.tokenizer), session.tokenizer.encode
    first, end = len(prompt.head), len(prompt.head) + len(ids)
    rows = [[*prompt.tail(q.text), *encode(f" {q.answers[0]}", continuing=True)] for q in asked]
    cache = session.model.new_cache(end + max(map(len, rows)))
    session.model.forward([*prompt.head, *ids], cache)
    found = []
    for row in rows:
        with cache.passing():
            session.model.forward(row, cache, AttentionRequest((len(row),), reduce="max"))
        paid = torch.stack([s.window_attention[:, first:end] for s in cache.stores])
        found.append(paid / paid.sum(-1, keepdim=True))
    return torch.stack(found)


def known(session: Any, run: Any, ids: Sequence[int], asked: Sequence[Any]) -> Any:
    if run.method == "oracle":
        shares, alike = attention(session, ids, asked), run.set.get("alike", "none")
        if alike != "none":
            over = (2,) if alike == "layer" else (1, 2)
            shares = shares.mean(over, keepdim=True).expand_as(shares)
        Oracle.shares = shares.amax(0)
    return read_and_ask(session, run, ids, asked)


if __name__ == "__main__":
    read_and_ask = later_questions.read_and_ask
    later_questions.read_and_ask = known
    registry.BUILT_IN += (Oracle,)
    later_questions.main()
