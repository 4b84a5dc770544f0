"""The perplexity of a long text, of which each token is predicted from memory at its moment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvstream.evaluation.confidence import difference_interval
from kvstream.evaluation.harness import IdFeed, model_identity, open_reader
from kvstream.evaluation.records import CASE_KEYS, Record, Trial, grouped, left_out
from kvstream.evaluation.sweep import Case
from kvstream.input.sources import open_sources
from kvstream.session.session import Session
from kvstream.store.writing import digest_of
from kvstream.tokenization.loading import TokenStream

FIRST_BIN = 1024
"""Tokens of the first bin of positions. Each further bin ends at twice the previous end."""
BLOCK = 1024
"""Tokens of a block. Its mean loss is one observation for the interval. The last block of a text is
shorter and has less weight."""


def bins(tokens: int) -> list[tuple[int, int]]:
    """Return [0, 1k), [1k, 2k), [2k, 4k) and so on; the last bin ends at `tokens`."""
    out, start, end = [], 0, FIRST_BIN
    while start < tokens:
        out.append((start, min(end, tokens)))
        start, end = end, 2 * end
    return out


def trials(
    session: Session, paths: Sequence[str], cases: Sequence[Case], limit: int | None
) -> Iterator[Trial]:
    return text_trials("perplexity", session, paths, cases, limit, partial(_run, session))


def _run(session: Session, text: Text, case: Case) -> Record:
    ids = text.ids
    reader, _ = open_reader(session, [], case.run, len(ids))
    reader.report_loss = True
    losses: list[float] = []
    for report in reader.read(IdFeed(ids)):
        assert report.loss is not None
        losses += report.loss.tolist()
    return {
        "tokens": len(ids),
        "bytes": text.bytes,
        "loss": math.fsum(losses),
        "by_position": [
            {"from": a, "to": b, "loss": math.fsum(losses[a:b])} for a, b in bins(len(ids))
        ],
        "blocks": [
            round(sum(losses[i : i + BLOCK]) / len(losses[i : i + BLOCK]), 5)
            for i in range(0, len(losses), BLOCK)
        ],
    }


def rows(records: Sequence[Record]) -> list[Record]:
    """Return a row for each case over all texts; the rows after the first are compared with it."""
    groups = grouped(records)
    return [{**_row(group), **_against(group, groups[0])} for group in groups]


def _row(every: list[Record]) -> Record:
    head = {
        "bench": "perplexity", **{k: every[0].get(k) for k in CASE_KEYS}, **left_out(every),
    }  # fmt: skip
    group = [r for r in every if "error" not in r]
    if not group:
        return {**head, "texts": 0, "by_position": []}
    tokens = sum(r["tokens"] for r in group)
    loss = math.fsum(r["loss"] for r in group)
    blocks = [pair for r in group for pair in zip(r["blocks"], _sizes(r), strict=True)]
    low = high = None  # one block does not tell how blocks vary
    if len(blocks) > 1:
        means, sizes = zip(*blocks, strict=True)
        _, low, high = (math.exp(x) for x in difference_interval(means, weights=sizes))
    by_start: dict[int, list[float]] = {}
    for part in (part for r in group for part in r["by_position"]):
        sums = by_start.setdefault(part["from"], [0, 0.0, 0])
        sums[0] = max(sums[0], part["to"])
        sums[1] += part["loss"]
        sums[2] += part["to"] - part["from"]
    return {
        **head,
        "texts": len(group),
        "tokens": tokens,
        "perplexity": round(math.exp(loss / tokens), 4),
        "low": None if low is None else round(low, 4),
        "high": None if high is None else round(high, 4),
        "bits_per_byte": round(loss / math.log(2) / sum(r["bytes"] for r in group), 4),
        "by_position": [
            {"from": start, "to": end, "perplexity": round(math.exp(total / count), 4)}
            for start, (end, total, count) in sorted(by_start.items())
        ],
    }


def _sizes(record: Record) -> list[int]:
    """Return the tokens of each block of a text."""
    return [min(BLOCK, record["tokens"] - i) for i in range(0, record["tokens"], BLOCK)]


def _against(group: list[Record], first: list[Record]) -> Record:
    """Return the relative change of perplexity from the first case, on the same tokens.

    It is the difference of the losses block by block, with a 95% interval that treats a text as one
    observation: texts differ much more than methods, and the difference cancels what they share.
    """
    # Pair texts by index: every case reads the same texts in the same order, and names may be
    # equal.
    pairs = [
        (number, a - b, size)
        for number, (r, other) in enumerate(zip(group, first, strict=False))
        if "error" not in r and "error" not in other
        for a, b, size in zip(r["blocks"], other["blocks"], _sizes(r), strict=True)
    ]
    if group is first or not pairs:
        return {}
    texts, differences, sizes = zip(*pairs, strict=True)
    interval = difference_interval(differences, texts, sizes)
    names: tuple[str, ...] = ("change", "change_low", "change_high")
    if len(set(texts)) < 2:
        names = names[:1]  # one text does not tell how texts vary
    return {n: round(math.expm1(v), 5) for n, v in zip(names, interval, strict=False)}


def so_far(records: Sequence[Record]) -> str:
    """Return a line about the newest record, to show during the run."""
    last = records[-1]
    return f"{last['method']}: {last['text']} {math.exp(last['loss'] / last['tokens']):.2f}"


@dataclass(frozen=True)
class Text:
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
    """Yield trials: `run` of each text, up to `limit` tokens, and case; `more`: identity."""
    facts = model_identity(session)

    def measure(path: str, case: Case) -> Record:
        stream = TokenStream(session.tokenizer, open_sources([path], plain=True))
        chunk = stream.read(limit if limit is not None else 2**62)
        return run(Text(path, chunk.ids.tolist(), chunk.end), case)

    for path in paths:
        content, size = digest_of(path)[:12], Path(path).stat().st_size
        for case in cases:
            identity: Record = {
                "bench": bench, **facts, **case.identity(),
                "text": Path(path).name, "size": size, "limit": limit, **more,
                **case.seed(),
            }  # fmt: skip
            yield Trial(identity, partial(measure, path, case), content=content)
