"""Ask a session about texts as a user would, and open readers over ids for deeper measurements."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from kvstream.engine.reader import Chunk, Reader
from kvstream.errors import BudgetError
from kvstream.events import Answered, AnswerToken, Result
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
    texts: list[str] = []
    results = []
    request = Request(tuple(questions), run, layout=layout)
    with document(text) as path:
        for event in road(session, request).ask(open_sources([path], plain=True), request):
            if isinstance(event, AnswerToken):
                texts.append(event.text)
            elif isinstance(event, Answered):
                results.append(replace(event.result, answer="".join(texts)))
                texts.clear()
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
    reason, advice, _ = str(error).partition("; use a larger")
    return f"{reason}, the length that the model was trained for." if advice else reason


def model_identity(session: Session) -> dict[str, str]:
    """Return what identifies a model in a file of records: name, weights and numeric format.

    The weights are a digest of the first numbers of every tensor. An option of `PRECISION` is left
    out if it has its default, as in records of earlier versions.
    """
    digest = hashlib.sha256()
    for name, tensor in session.model.model.state_dict().items():
        head = tensor.flatten()[:64].to("cpu", torch.float32)
        digest.update(name.encode() + head.numpy().tobytes())
    settings, default = vars(session.settings), vars(ModelSettings())
    precision = {name: settings[name] for name in PRECISION if settings[name] != default[name]}
    return {"model": session.model_name, "weights": digest.hexdigest()[:12], **precision}
