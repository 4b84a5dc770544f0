"""Texts through a session as a user's would go, and readers over ids for what goes deeper."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from kvstream.answer.answering import answers
from kvstream.engine.reader import Chunk, Reader
from kvstream.errors import BudgetError
from kvstream.events import Answered, AnswerToken, Event, Result
from kvstream.input.sources import open_sources
from kvstream.run.prompt import Layout, Prompt
from kvstream.run.request import Request
from kvstream.session.session import Session, finished
from kvstream.settings import Budget, ModelSettings, RunSettings

ROOM = 256
"""Entries for prompt, question and answer beside a text that is held whole, at the least."""
ASKING = 128
"""Entries of these for prompt and question."""
PRECISION = ("dtype", "kv_dtype", "quantize")
"""Options of the model that change the numbers it computes with, and thus its answers."""


@contextmanager
def document(text: str) -> Iterator[str]:
    """The path of a file with this text, gone afterwards."""
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(text.encode("utf-8", "replace"))
        file.flush()
        yield file.name


def ask(
    session: Session,
    text: str,
    questions: Sequence[str],
    run: RunSettings,
    reread: str | None = None,
    layout: Layout | None = None,
) -> list[Result]:
    """The answer to every question after one reading of `text`, by the way of the program.

    Answers are as the model wrote them, with the spaces at their ends: of code these count.
    """
    with document(text) as path:
        request = Request(tuple(questions), run, reread=reread, layout=layout)
        return _results(session.ask(open_sources([path], text=True), request))


def ask_later(
    session: Session,
    text: str,
    questions: Sequence[str],
    run: RunSettings,
    known: Sequence[str] = (),
) -> list[Result]:
    """The same where `text` is read without these questions, with others that are `known`."""
    with document(text) as path:
        reading = Request(tuple(known), run, command="remember")
        memory = finished(session.read(open_sources([path], text=True), reading))
        return _results(answers(memory, Request(tuple(questions), run)))


def _results(events: Iterator[Event]) -> list[Result]:
    written: list[str] = []
    results = []
    for event in events:
        if isinstance(event, AnswerToken):
            written.append(event.text)
        elif isinstance(event, Answered):
            results.append(replace(event.result, answer="".join(written)))
            written.clear()
    return results


def ask_by_words(
    session: Session, text: str, questions: Sequence[str], run: RunSettings
) -> list[Result]:
    """The answers from what BM25 finds in `text`, as much as the budget holds."""
    with document(text) as path:
        request = Request(tuple(questions), run)
        events = session.ask_by_words(open_sources([path], text=True), request)
        return [event.result for event in events if isinstance(event, Answered)]


class IdFeed:
    """Token ids that are there already."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids, self.at = ids, 0

    def read(self, count: int) -> Chunk:
        """At most `count` of them."""
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
    """A reader as a session would use it for these questions; `tokens` is the expected length."""
    plan = session.settle(Request(tuple(questions), run))
    return plan.reader(session.model, run, tokens), plan.prompt


def room_for(session: Session, run: RunSettings, tokens: int) -> RunSettings:
    """The same run with a budget that holds `tokens` tokens of text whole, if the model can.

    With the longest answer, which a full cache would cut short. A power of two, so that the
    documents of one length have one budget.
    """
    budget = 1 << (tokens + max(ROOM, ASKING + run.max_tokens) - 1).bit_length()
    return replace(run, budget=Budget(tokens=min(budget, session.model.trained_length)))


def too_long(error: BudgetError) -> str:
    """Why a text does not fit the largest budget of `room_for`: advises no larger one."""
    return f"{str(error).partition(';')[0]}, the length that the model was trained for."


@dataclass(frozen=True)
class ModelIdentity:
    """What distinguishes models in a file of records: the weights, and the numbers they are in."""

    name: str
    weights: str
    precision: Mapping[str, str] = field(default_factory=dict)
    """The options of `PRECISION` that were given; records of earlier versions have none."""

    @classmethod
    def of(cls, session: Session) -> ModelIdentity:
        """The name, and a digest of the first numbers of every tensor."""
        digest = hashlib.sha256()
        for name, tensor in session.model.model.state_dict().items():
            head = tensor.flatten()[:64].to("cpu", torch.float32)
            digest.update(name.encode() + head.numpy().tobytes())
        asked, default = vars(session.settings), vars(ModelSettings())
        precision = {name: asked[name] for name in PRECISION if asked[name] != default[name]}
        return cls(session.model_name, digest.hexdigest()[:12], precision)

    def identity(self) -> dict[str, str]:
        return {"model": self.name, "weights": self.weights, **self.precision}
