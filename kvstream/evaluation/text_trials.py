"""Trials of benchmarks that read whole texts: one for each text and case."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvstream.evaluation.harness import ModelIdentity
from kvstream.evaluation.records import Record, Trial
from kvstream.evaluation.sweep import Case
from kvstream.input.sources import open_sources
from kvstream.session.session import Session
from kvstream.tokenization.loading import TokenStream


@dataclass(frozen=True)
class Text:
    """The tokens of a file."""

    path: str
    ids: list[int]
    bytes: int
    """Number of bytes of the text of the tokens."""


def text_trials(
    bench: str,
    session: Session,
    paths: Sequence[str],
    cases: Sequence[Case],
    limit: int | None,
    run: Callable[[Text, Case], Record],
    **more: Any,
) -> Iterator[Trial]:
    """Yield one trial for each text and case, which reads the text and calls `run`.

    A text is read up to `limit` tokens. `more` is everything else that the result depends on.
    """
    facts = ModelIdentity.of(session)

    def measured(path: str, case: Case) -> Record:
        stream = TokenStream(session.tokenizer, open_sources([path], plain=True))
        chunk = stream.read(limit if limit is not None else 2**62)
        return run(Text(path, chunk.ids.tolist(), chunk.end), case)

    for path in paths:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()[:12]
            size = file.tell()
        for case in cases:
            identity: Record = {
                "bench": bench, **facts.identity(), **case.identity(),
                "text": Path(path).name, "size": size, "limit": limit, **more,
                **case.seed(),
            }  # fmt: skip
            yield Trial(identity, partial(measured, path, case), content=content)
