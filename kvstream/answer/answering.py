"""Answer a question from memory, and find the passages that the answer rests on."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from kvstream.answer.citations import NOTHING, Basis, as_json, basis_of, measure
from kvstream.answer.sampling import RefusalLimit, Repetition, StopStrings, make_sampler
from kvstream.answer.support import Calibration, Support, abstains, judge
from kvstream.answer.versions import disagreement
from kvstream.errors import BudgetError
from kvstream.events import Answered, AnswerStarted, AnswerToken, Event, Notice, Result, returned
from kvstream.input.source import identity
from kvstream.memory.contents import Memory
from kvstream.memory.snapshot import positions
from kvstream.model.bounded import BoundedModel
from kvstream.passages.bm25 import bm25_of_documents
from kvstream.run.prompt import REFUSAL, broken_apart
from kvstream.run.request import Request
from kvstream.settings import Budget, jsonable
from kvstream.tokenization.forms import COMMON, words
from kvstream.tokenization.loading import Tokenizer, WordForms
from kvstream.tokenization.passages import Passage
from kvstream.tokenization.passages import extract as best_passages
from kvstream.version import __version__

NOT_SUPPORTED = "What memory holds of the text does not support an answer."
"""Printed with --strict in place of a weakly supported answer."""
NO_SUMMARY = (
    "The model gave no summary. Use --extract for the sentences that memory holds, or another "
    "model (-m)."
)
_REFUSAL_WORDS = 12
"""A text of more words counts as a summary, even if it has the words of a refusal."""


def answers(memory: Memory, request: Request, *, may_compress: bool = True) -> Iterator[Event]:
    """Yield the events of the answers to all questions. Raises BudgetError.

    A request without a question has one answer, such as a summary. With `may_compress`, memory must
    not be used after the last answer, which may evict entries and leaves the keys rotated.
    """
    questions = request.questions or ("",)
    for number, question in enumerate(questions):
        yield from answer(
            memory,
            question,
            number,
            last=may_compress and number + 1 == len(questions),
            extract=bool(request.extract),
            passages=request.passages,
            strict=request.strict,
        )


def answer(
    memory: Memory,
    question: str,
    number: int = 0,
    *,
    last: bool = False,
    extract: bool = False,
    passages: int = Request.passages,
    strict: bool = False,
    earlier: Sequence[tuple[str, str]] = (),
    stays: bool = False,
    stop: Sequence[str] = (),
) -> Generator[Event, None, Basis]:
    """Yield the events of one answer; return what it rests on.

    Memory stays unchanged, unless this is the `last` question: a long answer may then evict
    entries, and keys stay rotated unless memory `stays` in use. With `extract` the answer is at
    most `passages` passages, those that memory retains best. A weakly supported answer gets a
    warning; with `strict` it is withheld. The model sees the newest of the `earlier` questions and
    answers that fit. The answer ends before the first `stop` string in it. Raises BudgetError if
    the question alone does not fit.
    """
    tail = question_tail(memory, question, earlier)
    # Kept apart from memory.warnings: a later answer and a saved file must not repeat them.
    warnings: list[str] = []
    if sequences := memory.prompt.broken(question):
        warnings.append(broken_apart("question", sequences))
        yield Notice(warnings[-1])
    ordinals, in_part = memory.reader.retained().numpy(), memory.partial
    body = _extract(memory, passages) if extract else None
    if body is not None and body.message:
        yield Notice(body.message, note=True)
    yield AnswerStarted(question, number, partial(positions.snapshot, memory))
    began = time.perf_counter()
    if body is not None:
        yield AnswerToken(body.text, memory.reader.cache.size)
    else:
        how = {"may_compress": last, "final": last and not stays}
        body = yield from _write(memory, question, tail, StopStrings(stop), hide=strict, **how)
        warnings += [body.message] * bool(body.message)
    result = _result(
        memory, ordinals, body.basis, question=question, answer=body.text.strip(),
        generated=body.length, stopped=body.stopped, answer_s=time.perf_counter() - began,
        warnings=(*memory.warnings, *warnings), narrowed=body.narrowed, partial=in_part,
    )  # fmt: skip
    # No support is measured for an extract, or for a summary, which rests on the whole text.
    if extract:
        notes = [*memory.trace.notes, *body.notes]
        result = replace(result, receipt={**(result.receipt or {}), "notes": notes})
    elif memory.prompt.task != "ask":
        size = len(result.answer.split())
        if not size or (size <= _REFUSAL_WORDS and abstains(result.answer)):
            result = replace(result, warnings=(*result.warnings, NO_SUMMARY))
    elif abstains(result.answer):
        result = with_remedy(result, memory.reader.model.trained_length)
    else:
        support = _support(memory, result, body.basis)
        result = with_support(_with_versions(memory, result), support, withhold=strict)
    if strict and not extract:
        yield AnswerToken(result.answer, memory.reader.cache.size)
    yield Answered(result)
    return body.basis


@dataclass(frozen=True)
class _Text:
    """The text of an answer, and how it came about."""

    text: str
    basis: Basis
    message: str
    """What the user should know of it; may be empty."""
    notes: Sequence[str] = ()
    """Of an extract, for the receipt."""
    length: int = 0
    """Tokens that the model wrote."""
    stopped: str | None = "end"
    narrowed: dict[str, Any] | None = None


def _extract(memory: Memory, passages: int) -> _Text:
    """Return at most so many passages, those that memory retains best."""
    best, repeats = extract_of(memory, passages)
    message = f"Extracted {len(best)} of at most {passages} passages"
    message += ": memory holds no others" if len(best) < passages else ""
    message += f"; repeats of these that were left out: {repeats:,}" if repeats else ""
    return _Text(
        lines_of(best, memory.trace.names),
        replace(NOTHING, citations=tuple(best)),
        f"{message}." if repeats or len(best) < passages else "",
        [f"Repeats of passages that were left out: {repeats:,}."] * bool(repeats),
    )


def _write(
    memory: Memory,
    question: str,
    tail: Sequence[int],
    stops: StopStrings,
    *,
    hide: bool,
    **how: bool,
) -> Generator[Event, None, _Text]:
    """Yield the events of a text that the model writes; return the text. `hide` its pieces."""
    text, message, repetition = "", "", Repetition()
    with narrow(memory, question) as sight:
        for piece in _pieces(memory, tail, repetition, stops, **how):
            text += piece
            yield AnswerToken("" if hide else piece, memory.reader.cache.size)
        tokens, length = repetition.tokens, len(repetition.tokens)
        stopped, count = memory.reader.stopped, repetition.count
        if stops.count is not None:
            stopped, tokens = "stop", tokens[: stops.count]
        elif stopped == "budget":
            message = f"The answer stopped after {length} tokens, because the budget was full."
        elif count:
            stopped, tokens = "repetition", tokens[:count]
            message = (
                f"The answer repeated itself: kvstream stopped it after {length} tokens and "
                f"cut the last {length - count}, which are repetition. "
                "--repetition-penalty 1.2 makes repetition less likely."
            )
        if message:
            yield Notice(message)
        basis = _basis(memory, tail, tokens)
    return _Text(text, basis, message, length=length, stopped=stopped, narrowed=sight)


def result_of(memory: Memory, question: str) -> tuple[Result, Basis]:
    """Return result and basis of an answer. Raises BudgetError."""
    events: list[Event] = []
    basis = returned(answer(memory, question), events.append)
    return next(event.result for event in events if isinstance(event, Answered)), basis


def question_tail(
    memory: Memory, question: str, earlier: Sequence[tuple[str, str]] = ()
) -> list[int]:
    """Return ids of the newest `earlier` turns that fit, and the question. Raises BudgetError."""
    sizes, prompt, brief = memory.reader.sizes, memory.prompt, memory.run.brief
    room = sizes.budget - memory.reader.cache.size
    longest = min(memory.run.max_tokens, sizes.answer)
    for first in range(len(earlier)):
        tail = prompt.tail(question, earlier[first:], brief=brief)
        if len(tail) + longest <= room:
            return tail
    tail = prompt.tail(question, brief=brief)
    if len(tail) > room:
        raise BudgetError(
            f"The question takes {len(tail)} entries, and memory leaves {room} of "
            f"{sizes.budget}; ask a shorter one, or read with a larger --budget."
        )
    return tail


@contextmanager
def narrow(memory: Memory, question: str) -> Iterator[dict[str, Any] | None]:
    """Let the model see only the entries of the source with most words of the question.

    It also sees the sources of `Memory.always`, and those with the same score. Yield the object
    ``narrowed`` of ``--json``: these sources, and the entries of the fullest head that the answer
    sees and that memory holds, both with those of the prompt. Yield None and hide nothing if that
    leaves all, if memory was chosen for this question, or if nothing was evicted: then the answer
    equals the plain model's. (A small model attends to the entries of every source, whatever the
    question is about: docs/research/answers.md.)
    """
    cache = memory.reader.cache
    whole = cache.base == 0 or question in memory.plan.questions
    scores = np.zeros(0) if whole else _scores(memory, question)
    always = [i for i in range(len(scores)) if memory.trace.names[i] in memory.always]
    scores[always] = 0.0
    scores[always] = scores.max(initial=0.0)
    best = np.flatnonzero(scores == scores.max(initial=0.0)).tolist()
    if len(best) == len(scores):
        yield None
        return
    order = np.argsort(-scores, kind="stable")
    sources = [memory.trace.names[i] for i in best]
    total = cache.size
    with memory.reader.in_sight(_begins(memory), order.tolist(), len(best)) as entries:
        counts = {"entries": entries, "held": total, "prompt": memory.reader.sizes.prompt}
        yield {"sources": sources, **counts}


def _scores(memory: Memory, question: str) -> np.ndarray:
    """Return the BM25 score [sources] of the question's words in each source's held passages."""
    trace = memory.trace
    terms = [w for w in dict.fromkeys(words(question)) if w not in COMMON]
    names = trace.names[: len(trace.bases)]  # an interrupted reading did not reach the others
    if len(names) < 2 or trace.passages is None or not terms:
        return np.zeros(len(names))
    counts = [Counter(words(name)) for name in names]
    # Only passages with retained tokens, which a memory file also has. `trace.passages` may still
    # have passages without any.
    starts = trace.origins.starts(memory.reader.retained().numpy())
    for passage in trace.passages.score(starts, np.ones(len(starts))):
        counts[passage.source].update(words(passage.text))
    often = np.array([[float(each[word]) for word in terms] for each in counts])
    scores = bm25_of_documents(often, np.array([float(each.total()) for each in counts]))
    # An empty file has words in its name, but no entries that could answer.
    return np.where(np.diff([*trace.bases, trace.end]) > 0, scores, 0.0)


def _begins(memory: Memory) -> list[int]:
    """Return the ordinal of the first token that memory may hold of each source."""
    trace = memory.trace
    ordinals, starts = trace.origins.known()
    ends = np.append(ordinals, trace.read)
    return [int(ends[np.searchsorted(starts, base)]) for base in trace.bases]


def extract_of(memory: Memory, count: int) -> tuple[list[Passage], int]:
    """Return the best retained passages, in document order, and the number of repeats."""
    trace = memory.trace
    assert trace.passages is not None
    ordinals, weights = memory.reader.rank()
    starts = trace.origins.starts(ordinals.numpy())
    parts = count if memory.command == "summarize" else 1
    return best_passages(trace.passages.score(starts, weights.numpy()), count, parts=parts)


def _pieces(
    memory: Memory, tail: Sequence[int], repetition: Repetition, stops: StopStrings, **how: bool
) -> Iterator[str]:
    """Yield the text of the answer, held back while it may be a loop or a stop string."""
    decoder = memory.tokenizer.decoder()
    text, begin, ends = "", 0, [0]
    tokens = memory.reader.answer(
        tail,
        make_sampler(memory.run, _limit(memory)),
        frozenset(memory.prompt.stop_ids),
        memory.run.max_tokens,
        **how,
    )
    with closing(tokens):  # type: ignore[type-var]
        for token in tokens:
            piece = decoder.push(token)
            text += piece
            ends.append(len(text))
            repetition.push(token, piece)
            if stops.place(text) is not None:
                break
            if (count := repetition.count) is not None:
                decoder = memory.tokenizer.decoder()
                text = "".join(map(decoder.push, repetition.tokens[:count])) + decoder.flush()
                yield text[begin:]
                return
            ready = min(ends[max(0, len(ends) - 1 - repetition.open)], stops.clear(text))
            yield text[begin:ready]
            begin = max(begin, ready)
    text += decoder.flush()
    if (end := stops.place(text)) is not None:
        stops.count = bisect_left(ends, end)
    yield text[begin:end]


def _limit(memory: Memory) -> RefusalLimit | None:
    asks = memory.prompt.task == "ask"
    return refusal_limit(memory.reader.model, memory.tokenizer) if asks else None


def refusal_limit(model: BoundedModel, tokenizer: Tokenizer) -> RefusalLimit | None:
    """Return the refusal limit of a calibrated model; None if it has none."""
    calibration = Calibration.of(model.facts.folder)
    if calibration is None or not calibration.refusal_limit:
        return None
    tokens = (tokenizer.encode(start + REFUSAL)[0] for start in ("", " "))
    return RefusalLimit(tuple(sorted(set(tokens))), calibration.refusal_limit)


def _basis(memory: Memory, tail: Sequence[int], tokens: Sequence[int]) -> Basis:
    """Return the passages that `tokens`, an answer to the question, attended to."""
    attention = measure(memory.reader, tail, tokens)
    passages = memory.trace.passages
    if attention is None or passages is None:
        return NOTHING
    starts = memory.trace.origins.starts(attention.ordinals.numpy())
    by_answer = passages.score(starts, attention.by_answer.numpy())
    by_question = passages.score(starts, attention.by_question.numpy())
    return basis_of(by_answer, by_question, attention)


def _with_versions(memory: Memory, result: Result) -> Result:
    """Return the result with the newest value and a warning if sources say the same with others."""
    names = memory.trace.names
    passages = _passages(memory) if len(names) > 1 else ()
    conflict = disagreement(result.answer, passages, names, result.question)
    if conflict is None:
        return result
    return replace(result, answer=conflict[1], warnings=(*result.warnings, conflict[0]))


def _passages(memory: Memory) -> Sequence[Passage]:
    """Return the passages of which memory retains tokens."""
    memory.trace.prune(memory.reader.retained())
    return () if memory.trace.passages is None else memory.trace.passages.all()


def _support(memory: Memory, result: Result, basis: Basis) -> Support:
    """Judge how well the text supports the answer of a result."""
    trace = memory.trace
    forms, name = trace.words, "the text"
    if forms is None and trace.passages is not None:
        forms, name = WordForms(), _part(result)
        forms.add("\n".join(passage.text for passage in _passages(memory)))
    calibration = Calibration.of(memory.reader.model.facts.folder)
    return judge(calibration, basis, result.question, result.answer, forms, name)


def _result(memory: Memory, ordinals: np.ndarray, basis: Basis, **own: Any) -> Result:
    """Make the result with `own` fields of this answer; `ordinals`: of tokens in memory."""
    trace, reader, counts = memory.trace, memory.reader, memory.trace.line_counts
    read, count = trace.read, len(ordinals)
    peak = reader.cache.peak
    on_gpu = reader.model.device.type == "cuda"
    return Result(
        command=memory.command,
        model=memory.model,
        method=memory.run.method,
        budget_tokens=reader.sizes.budget,
        budget_bytes=reader.cache.capacity_bytes,
        peak_kv_tokens=peak.tokens,
        peak_kv_bytes=peak.bytes,
        scratch_bytes=peak.scratch,
        peak_rss_bytes=peak_rss(),
        peak_device_bytes=torch.cuda.max_memory_allocated() if on_gpu else None,
        read=read,
        retained=count,
        evicted=read - count,
        schedule=memory.run.schedule,
        chunk=memory.run.chunk,
        steps=reader.steps,
        load_s=memory.load_s,
        prefill_s=memory.prefill_s,
        select_s=reader.select_seconds,
        tokens_per_s=memory.tokens_per_s,
        citations=tuple(as_json(p, trace.names, trace.bases) for p in basis.citations),
        support=basis.to_json() if own["generated"] else None,
        coverage=coverage(ordinals, read),
        interrupted=trace.interrupted,
        of_reading=tuple(memory.warnings),
        lines=None if counts is None else counts.to_json(),
        shards=None if memory.shards is None else memory.shards.to_json(),
        receipt=_receipt(memory),
        waiting=trace.waiting,
        **own,
    )


def _receipt(memory: Memory) -> dict[str, Any]:
    """Return what is needed to repeat a run, besides its result."""
    model, run = memory.reader.model, dict(vars(memory.run))
    if run["budget"] is None:
        run["budget"] = Budget(memory.reader.sizes.budget)
    return {
        "kvstream": __version__,
        "input": identity(memory.trace.records),
        "model_digest": model.fingerprint,
        "precision": model.precision,
        "settings": {name: jsonable(value) for name, value in run.items() if value is not None},
        "notes": list(memory.trace.notes),
    }


def with_support(result: Result, support: Support, *, withhold: bool) -> Result:
    """Return the result with its support; a doubtful answer gets a warning, or is withheld."""
    record = result.support
    if record is not None and support.probability is not None:
        record = {**record, "probability": round(support.probability, 4)}
    result = replace(result, support=record, absent=support.absent)
    if not support.doubts:
        return result
    why = ". ".join(support.doubts)
    if support.silent and result.stopped == "stop":
        why = "The answer is empty, because it begins with a stop string"
    if withhold:
        warnings = (*result.warnings, f"The answer was withheld. {why}.")
        return replace(result, answer=NOT_SUPPORTED, withheld=result.answer, warnings=warnings)
    return replace(result, warnings=(*result.warnings, f"{why}. Check the text."))


def with_remedy(result: Result, length: int) -> Result:
    """Return a refusal; warn of text not seen, but advise no budget over the trained `length`."""
    if result.narrowed is not None:
        sources = result.narrowed["sources"]
        have = "has" if len(sources) == 1 else "have"
        warning = (
            f"The answer is not in what memory kept of {', '.join(sources)}, which {have} most "
            "words of the question; it may be in another source. If you know which, name it in "
            "the question."
        )
    elif result.interrupted or result.evicted or result.partial:
        remedy = "Read the text again with a larger --budget."
        if result.interrupted:
            remedy = "Run the command again, and let it read to the end."
        elif result.budget_tokens >= length:
            remedy = "Use words of the text in the question, or --skim self."
        warning = f"The answer is not in {_part(result)}; it may be in the rest. {remedy}"
    else:
        return result
    return replace(result, warnings=(*result.warnings, warning))


def _part(result: Result) -> str:
    """Describe the part of the text that memory represents, for a message."""
    text = f"the first {result.read:,} tokens" if result.interrupted else "the text"
    if result.partial:
        return f"what memory kept of {text} (each token, but not in each head)"
    if not result.evicted or result.coverage is None:
        return text
    share = result.coverage["share"]
    parts = f"parts of {share:.0%} of {text}"
    if share >= 0.995:  # nearly every stretch is represented
        parts = f"{result.retained:,} of {result.read:,} tokens"
    return f"what memory kept ({parts})"


def lines_of(passages: Sequence[Passage], names: Sequence[str]) -> str:
    """Return the passages as lines, each behind its spot, and its source's name if several."""
    several = len(names) > 1
    return "\n".join(
        f"{names[p.source] + ':' if several else ''}{p.spot}: {' '.join(p.text.split())}"
        for p in passages
    )


def peak_rss() -> int:
    """Return the peak RAM of this process, in bytes."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


STRETCH = 64
"""Source tokens of a stretch, the unit of coverage: about three sentences."""
ENOUGH = 8
"""Number of retained tokens from which a stretch counts as represented."""
PARTS = 40
"""Number of equal parts of the text in the map."""


def coverage(ordinals: np.ndarray, read: int) -> dict[str, Any]:
    """Return the ``share`` of stretches that are represented, and a ``map`` of the text.

    `ordinals` int64 [n], sorted and distinct: ordinals of the source tokens that at least one head
    holds; `read`: tokens of the sources. The map has, for each of at most PARTS equal parts from
    first to last, the share of its tokens that are retained. RAM does not grow with `read`.
    """
    stretches = -(-read // STRETCH)
    if not stretches:
        return {"share": 0.0, "map": []}
    places, totals = np.unique(ordinals // STRETCH, return_counts=True)
    # The last stretch may have fewer than ENOUGH tokens.
    sizes = np.minimum(read - places * STRETCH, STRETCH)
    enough = int((totals >= np.minimum(ENOUGH, sizes)).sum())
    parts = min(PARTS, read)
    edges = np.arange(parts + 1, dtype=np.int64) * read // parts
    counts = np.diff(np.searchsorted(ordinals, edges))
    return {
        "share": round(enough / stretches, 4),
        "map": [round(float(share), 4) for share in counts / np.diff(edges)],
    }
