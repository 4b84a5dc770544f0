"""Target of tests/support/fuzz.py: whole sessions on tiny models with random weights."""

from __future__ import annotations

import dataclasses
import io
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_parsers import pocket, some_bytes, some_text
from models import FAMILIES, fresh

from kvstream.events import Answered, StepDone
from kvstream.input.sources import open_sources
from kvstream.methods.base import limits
from kvstream.methods.registry import available
from kvstream.model.probe import bound
from kvstream.run.request import Request
from kvstream.session.scouting import Scouting
from kvstream.session.session import Session
from kvstream.settings import CHUNKS, SCHEDULES, Budget, RunSettings

TRAINED = 2048
CHECKED = [name for name in available() if name not in ("edgeinfinite", "foresight")]
"""All methods but the two that need something trained for the model."""


@cache
def _session(family: str) -> Session:
    """Open the smallest possible model with the vocabulary of pocket's tokenizer."""
    tiny = {
        "vocab_size": 8192, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
        "max_position_embeddings": TRAINED,
    }  # fmt: skip
    return Session(bound(fresh(FAMILIES[family].config(**tiny)), family), pocket())


def _text(rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return some_bytes(rng, rng.choice([0, 1, 40, 1500]))
    words = [some_text(rng, 8) if rng.random() < 0.02 else "word" for _ in range(300)]
    words += ["The", "gate", "7731", "of", "Anna", "was.", "\n", "\n\n"] * 40
    return " ".join(rng.choices(words, k=rng.randrange(1200))).encode("utf-8", "replace")


def _settings(rng: random.Random, method: str) -> dict[str, str]:
    """Return some of the method's settings, each with a valid value."""
    given = {}
    for field in dataclasses.fields(available()[method]):
        choices, allowed = field.metadata.get("choices"), limits(field)
        if rng.random() < 0.7:
            continue
        if choices:
            given[field.name] = rng.choice(choices)
        elif isinstance(field.default, bool):
            given[field.name] = rng.choice(["true", "false"])
        elif allowed:
            least, most = allowed
            value = rng.choice([least, rng.uniform(least, min(most, 20)), min(most, 300)])
            whole = isinstance(field.default, int)
            given[field.name] = str(round(value) if whole else value)
    return given


def _run(rng: random.Random) -> RunSettings:
    budget = rng.choice(
        [Budget(tokens=rng.choice([1, 130, 200, 333, 400, 512, 777, TRAINED, 10**9]))]
    )
    if rng.random() < 0.2:
        budget = Budget(bytes=rng.choice([0, 1, 50_000, 200_000, 10**9]))
    method = rng.choice(CHECKED)
    return RunSettings(
        budget=budget,
        method=method,
        set=_settings(rng, method),
        keep=rng.choice([None, None, None, 1, 60, 400]),
        start=rng.choice([None, None, None, 1, 60, 400]),
        schedule=rng.choice(SCHEDULES),
        chunk=rng.choice(CHUNKS),
        chunk_size=rng.choice([None, None, None, 6, 17, 100, 10**6]),
        max_tokens=rng.choice([1, 3, 3, 20]),
        temp=rng.choice([0.0, 0.0, 1.0, 1e-9, 1e9]),
        top_p=rng.choice([1.0, 0.5]),
        top_k=rng.choice([0, 1, 99999]),
        seed=rng.randrange(3),
    )


def sessions(rng: random.Random, folder: Path) -> None:
    """Run any text, budget and questions: an answer within the budget, or a refusal."""
    session = _session(rng.choice(["llama", "gemma3", "smollm3", "qwen3.5", "falcon-h1"]))
    data, run = _text(rng), _run(rng)
    questions = [
        some_text(rng, rng.choice([0, 20, 20, 20, 600])) for _ in range(rng.choice([1, 2]))
    ]
    path = folder / "text.txt"
    path.write_bytes(data)

    pipe = rng.random() < 0.3
    sources = (
        open_sources(["-"], stdin=io.BytesIO(data), plain=True)
        if pipe
        else open_sources([str(path)], plain=True)
    )
    more: dict[str, Any] = rng.choice(
        [{}, {}, {"strict": True}, {"extract": True, "passages": 3}, {"command": "summarize"}]
    )
    system = some_text(rng, 60) if rng.random() < 0.2 else None
    stop_after = rng.choice([None, None, None, 1, 3])
    steps = 0

    def interrupted() -> bool:
        return stop_after is not None and steps >= stop_after

    answered = 0
    request = Request(tuple(questions), run, system=system, interrupted=interrupted, **more)
    scout = rng.choice([None, session])
    scouts = questions and not more and rng.random() < 0.5
    events = (Scouting(session, scout) if scouts else session).ask(sources, request)
    for event in events:
        if isinstance(event, StepDone):
            steps += 1
            assert event.kv_tokens <= event.peak_tokens <= event.budget_tokens
        elif isinstance(event, Answered):
            answered += 1
            _check(event, len(data), whole=stop_after is None)
    assert answered == len(questions)


def _check(event: Answered, size: int, *, whole: bool) -> None:
    """Check what holds of every result, whatever was asked."""
    result = event.result
    assert result.peak_kv_tokens <= result.budget_tokens <= TRAINED
    assert result.peak_kv_bytes <= result.budget_bytes
    assert result.retained + result.evicted == result.read
    assert result.read <= 3 * size  # an invalid byte may become three tokens
    told = json.loads(json.dumps(result.to_json(), allow_nan=False))
    for cited in _every_citation(told):
        assert 0 <= cited["byte_start"] < cited["byte_end"] <= size
        assert 1 <= cited["line_start"] <= cited["line_end"]
    if told["coverage"]:
        shares = [told["coverage"]["share"], *told["coverage"]["map"]]
        assert all(0 <= share <= 1 for share in shares)
    if told["support"]:
        shares = [share for share in told["support"].values() if share is not None]
        assert all(0 <= share <= 1.001 for share in shares)
    if told["skim"]:
        assert all(p["kv_tokens"] <= result.budget_tokens for p in told["skim"]["peak"].values())


def _every_citation(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from told["citations"]
    if told["skim"]:
        yield from told["skim"]["pieces"]
        yield from (told["skim"]["first"] or {}).get("citations", [])


Target = Callable[[random.Random, Path], None]
ENGINE: dict[str, Target] = {"sessions": sessions}
