"""Let a model write on from a prompt of its own, outside of any memory."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from kvstream.run.prompt import Layout
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import RunSettings


def written(
    session: Session, run: RunSettings, system: str, text: str, *, start: str
) -> tuple[str, float]:
    """Return what the model writes behind `start`, and the mean log-probability of its tokens.

    The budget of `run` holds all of the prompt. Raises BudgetError if it cannot.
    """
    run = replace(run, method="full", set={})
    request = Request((text,), run, system=system, layout=Layout(""))
    plan, tokenizer = session.settle(request), session.tokenizer
    ids = [*plan.prompt.tail(text), *tokenizer.encode(start, continuing=True)]
    reader = plan.reader(session.model, run, 0)
    shares: list[float] = []

    def choose(logits: Tensor) -> int:
        likely = logits.log_softmax(-1)
        best = int(likely.argmax())
        shares.append(float(likely[best]))
        return best

    stop = frozenset(plan.prompt.stop_ids)
    found = [*reader.answer(ids, choose, stop, run.max_tokens)]
    reader.release()
    return tokenizer.decode(found), sum(shares) / max(1, len(shares))
