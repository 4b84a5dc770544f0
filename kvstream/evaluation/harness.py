"""Ask a session about texts as a user would, and open readers over ids for deeper measurements."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from kvstream.engine.reader import Chunk, Reader
from kvstream.errors import BudgetError
from kvstream.events import Answered, AnswerToken, Event, Result
from kvstream.input.sources import open_sources
from kvstream.run.prompt import Layout, Prompt
from kvstream.run.request import Request
from kvstream.session.scouting import road
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

ROOM = 256
"""Minimum number of entries for prompt, question and answer if the whole text is held."""
ASKING = 128
"""Those of these entries that are for prompt and question."""
PRECISION = ("dtype", "kv_dtype", "quantize")
"""Options of the model that change its numeric format, and so its answers."""


@contextmanager
def document(text: str) -> Iterator[str]:
    """Yield the path of a temporary file with this text."""
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(text.encode("utf-8", "replace"))
        file.flush()
        yield file.name


def ask(
    session: Session,
    text: str,
    questions: Sequence[str],
    run: RunSettings,
    layout: Layout | None = None,
) -> list[Result]:
    """Answer every question after one reading of `text`, exactly as the model wrote it."""
    with document(text) as path:
        request = Request(tuple(questions), run, layout=layout)
        return results_of(road(session, request).ask(open_sources([path], plain=True), request))


def results_of(events: Iterator[Event]) -> list[Result]:
    """Return the results of events, with the answers as the model wrote them."""
    written: list[str] = []
    results = []
    for event in events:
        if isinstance(event, AnswerToken):
            written.append(event.text)
        elif isinstance(event, Answered):
            results.append(replace(event.result, answer="".join(written)))
            written.clear()
    return results


class IdFeed:
    def __init__(self, ids: Sequence[int]) -> None:
        self.ids, self.at = ids, 0

    def read(self, count: int) -> Chunk:
        first = self.at
        self.at = min(first + count, len(self.ids))
        return Chunk(self.ids[first : self.at], first)

    def exhausted(self) -> bool:
        return self.at >= len(self.ids)

    def estimate(self) -> int:
        return len(self.ids)


def open_reader(
    session: Session, questions: Sequence[str], run: RunSettings, tokens: int | None
) -> tuple[Reader, Prompt]:
    """Open a reader as a session does for these questions; `tokens` is the expected length."""
    plan = session.settle(Request(tuple(questions), run))
    return plan.reader(session.model, run, tokens), plan.prompt


def room_for(session: Session, run: RunSettings, tokens: int) -> RunSettings:
    """Return the run with a budget that holds the whole text of `tokens` tokens, if the model can.

    The budget includes the longest answer, which a full cache would cut short. It is a power of
    two, so that documents of one length have one budget.
    """
    budget = 1 << (tokens + max(ROOM, ASKING + run.max_tokens) - 1).bit_length()
    return replace(run, budget=Budget(tokens=min(budget, session.model.trained_length)))


def too_long(error: BudgetError) -> str:
    """Return why a text does not fit `room_for`, without the advice on larger budgets."""
    return f"{str(error).partition(';')[0]}, the length that the model was trained for."


@dataclass(frozen=True)
class ModelIdentity:
    """The identity of a model in a file of records: its weights and their numeric format."""

    name: str
    weights: str
    precision: Mapping[str, str] = field(default_factory=dict)
    """The options of `PRECISION` that differ from the default; records of earlier versions have
    none."""

    @classmethod
    def of(cls, session: Session) -> ModelIdentity:
        """Return the name, and a digest of the first numbers of every tensor."""
        digest = hashlib.sha256()
        for name, tensor in session.model.model.state_dict().items():
            head = tensor.flatten()[:64].to("cpu", torch.float32)
            digest.update(name.encode() + head.numpy().tobytes())
        asked, default = vars(session.settings), vars(ModelSettings())
        precision = {name: asked[name] for name in PRECISION if asked[name] != default[name]}
        return cls(session.model_name, digest.hexdigest()[:12], precision)

    def identity(self) -> dict[str, str]:
        return {"model": self.name, "weights": self.weights, **self.precision}
