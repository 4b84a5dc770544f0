"""What a model writes behind a prompt of its own."""

from __future__ import annotations

import pytest

from kvstream.errors import BudgetError
from kvstream.run.prompt import Layout
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.session.writing import written
from kvstream.settings import Budget, RunSettings


def test_the_likeliest_tokens_of_a_whole_pass(session: Session) -> None:
    run = RunSettings(Budget(tokens=300), max_tokens=6)
    text, likely = written(session, run, "You count.", "one two three", start="one two")
    request = Request(("one two three",), run, system="You count.", layout=Layout(""))
    prompt, tokenizer = session.settle(request).prompt, session.tokenizer
    ids = [*prompt.head, *prompt.tail("one two three")]
    ids += tokenizer.encode("one two", continuing=True)
    shares, found = [], list[int]()
    for _ in range(6):
        hidden = session.model.forward(ids + found, session.model.new_cache(300))
        logits = session.model.logits(hidden[-1:])[0]
        best = int(logits.argmax())
        shares.append(float(logits.float().log_softmax(-1)[best]))
        if best in prompt.stop_ids:
            break
        found.append(best)
    assert text == tokenizer.decode(found)
    assert likely == pytest.approx(sum(shares) / len(shares), abs=1e-3)


def test_a_budget_without_room(session: Session) -> None:
    run = RunSettings(Budget(tokens=100), max_tokens=6)
    with pytest.raises(BudgetError):
        written(session, run, "You count.", "one two " * 200, start="one")
