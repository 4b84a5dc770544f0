"""The second pass: read excerpts of the sources again, whole and under the same budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from kvstream.answer.answering import answer, answered
from kvstream.answer.reread.excerpts import Excerpt, Excerpts, excerpts_of
from kvstream.answer.reread.ranking import Cited, Words, fused
from kvstream.answer.support import abstains
from kvstream.errors import SourceError
from kvstream.events import Answered, AnswerStarted, AnswerToken, Event, Notice, Result
from kvstream.input.source import Source, SourceRecord
from kvstream.memory.base import Memory
from kvstream.memory.kept import positions
from kvstream.model.bounded import BoundedModel
from kvstream.run.plan import RunPlan
from kvstream.run.request import Request
from kvstream.settings import Budget, RunSettings
from kvstream.tokenization.loading import Tokenizer, WordForms
from kvstream.tokenization.passages import Passage

PART, LEAST, MOST = 4, 200, 256
"""A second pass reads excerpts of 1/PART of the budget, but at least LEAST and at most MOST tokens.
With more, `pocket` and `reader` answer fewer questions right, because more of the text resembles
what they look for (docs/research/citations.md, docs/research/skim.md)."""

ReadExcerpts = Callable[[Excerpts, Request, WordForms | None], Memory]
"""Reads excerpts into a memory that holds them whole. The WordForms are of the whole text."""


def enough(budget: int) -> int:
    """Return how many tokens of excerpts are enough under a budget of `budget` entries.

    The last excerpt may exceed this number.
    """
    return min(max(LEAST, budget // PART), MOST)


def second_pass(
    read: ReadExcerpts, memory: Memory, request: Request, again: Callable[[], Source]
) -> Iterator[Event]:
    """Answer every question from memory, then read excerpts for each and answer again from them.

    `again` opens the sources again. The events are those of the second answers only. Memory is
    released between the passes, so both together never hold more than the budget. It cannot be
    asked afterwards.
    """
    assert request.reread is not None
    questions = request.questions or ("",)
    # If no passage is found, the first answer is the only one, so `strict` applies to it, too.
    firsts = [answered(memory, question, strict=request.strict) for question in questions]
    held = positions.kept(memory)
    memory.release()
    for number, (question, (first, basis)) in enumerate(zip(questions, firsts, strict=True)):
        yield AnswerStarted(question, number, lambda: held)
        began = time.perf_counter()
        whole = whole_request(request, question, first.budget_tokens)
        room = room_of(memory.reader.model, memory.tokenizer, whole)
        sizes = room, enough(first.budget_tokens)
        excerpts = choose(
            again, question, memory.tokenizer, sizes,
            by=request.reread, cited=basis.regions, records=memory.trace.records,
        )  # fmt: skip
        if not excerpts:
            told = "No passage was found to read again; the answer is the first one."
            yield Notice(told)
            yield AnswerToken(first.answer, 0)
            yield Answered(replace(first, warnings=(*first.warnings, told)))
            continue
        second = read(excerpts, whole, memory.trace.words)
        for event in answer(second, question, number, last=True, strict=request.strict):
            if isinstance(event, Answered):
                seconds = time.perf_counter() - began
                second_result, by = event.result, request.reread
                yield Answered(_together(memory, first, second_result, excerpts, seconds, by=by))
            elif not isinstance(event, AnswerStarted):
                yield event
        second.release()


def words_alone(
    read: ReadExcerpts,
    model: BoundedModel,
    tokenizer: Tokenizer,
    request: Request,
    again: Callable[[], Source],
) -> Iterator[Event]:
    """Answer from the excerpts that BM25 finds, as many as the budget holds, without a memory.

    This is the baseline for reading under a budget. In the result, the method is ``bm25``, `read`
    counts the tokens that the model read, and `prefill_s` includes the search. A question
    has no answer if no excerpt has one of its words; SourceError then follows the other answers.
    """
    forms = WordForms()
    for block in again():
        forms.feed(block)
    unfound: list[int] = []
    for number, question in enumerate(request.questions):
        began = time.perf_counter()
        asked = replace(request, questions=(question,))
        tokens = RunPlan.of(model, tokenizer, asked).sizes.budget
        whole = whole_request(request, question, tokens)
        sizes = room_of(model, tokenizer, whole), tokens
        excerpts = choose(again, question, tokenizer, sizes, by="words")
        if not excerpts:
            unfound.append(number)
            continue
        memory = read(excerpts, whole, forms)
        memory.prefill_s = time.perf_counter() - began
        for event in answer(memory, question, number, last=True, strict=request.strict):
            if isinstance(event, Answered):
                told = (*event.result.warnings, *partial_refusal(event.result))
                event = Answered(replace(event.result, method="bm25", warnings=told))
            yield event
        memory.release()
    if unfound:
        several = " or ".join(f"question {number + 1}" for number in unfound)
        asked_for = "the question" if len(request.questions) == 1 else several
        raise SourceError(f"No part of the text has a word of {asked_for}; bm25 has no answer.")


def whole_request(request: Request, question: str, budget: int) -> Request:
    """Return a request for a text that fits: nothing is evicted, so no catalyst takes room."""
    run = request.run
    whole = RunSettings(
        Budget(tokens=budget),
        "full",
        max_tokens=run.max_tokens,
        temp=run.temp,
        top_p=run.top_p,
        top_k=run.top_k,
        repetition_penalty=run.repetition_penalty,
        brief=run.brief,
        seed=run.seed,
    )
    return Request((question,), whole, request.command, request.system)


def room_of(model: BoundedModel, tokenizer: Tokenizer, request: Request) -> int:
    """Return the maximum number of tokens that a memory of this request holds whole."""
    sizes = RunPlan.of(model, tokenizer, request).sizes
    return min(sizes.free, sizes.final)


def choose(
    again: Callable[[], Source],
    question: str,
    tokenizer: Tokenizer,
    sizes: tuple[int, int],
    *,
    by: str,
    cited: Sequence[Passage] = (),
    records: Sequence[SourceRecord] = (),
) -> Excerpts:
    """Return the best excerpts, in document order.

    `by` is ``citations`` (the passages that the first answer and its question attended to in
    memory), ``words`` (the words of the question, by BM25) or ``both``. `sizes`: the maximum number
    of tokens of all excerpts together, and the number that is enough. The second is smaller, so
    that a long excerpt that ranks first is not left out. The sources are read twice, once to rank
    and once to fetch. `cited` are passages with weights; `records` describe the sources of the
    first pass. Raises SourceError if the sources have changed.
    """
    words = Words(question) if by != "citations" else None
    weights = Cited(cited)
    score: dict[int, float] = {}  # of the few excerpts with cited passages
    count = 0
    for count, excerpt in enumerate(excerpts_of(again()), 1):
        weight = weights.weight(excerpt.start, excerpt.end)
        if weight > 0:
            score[count - 1] = weight
        if words is not None:
            words.add(excerpt.text)
    if words is not None:
        rankings = [words.scores()]
        if by == "both":
            rankings.append(np.zeros(count))
            rankings[1][list(score)] = list(score.values())
        ranked = rankings[0] if len(rankings) == 1 else fused(rankings)
        score = {int(i): float(ranked[i]) for i in np.flatnonzero(ranked > 0)}
    # An excerpt has at least one token, so no more than these can fit.
    best = sorted(score, key=lambda i: (-score[i], i))[: sizes[0] + 1]
    wanted = set(best)
    sources = again()
    fetched = {i: p for i, p in enumerate(excerpts_of(sources)) if i in wanted}
    for before, now in zip(records, sources.records, strict=False):
        # A longer source was not read to its end, or has grown: its byte offsets are still valid.
        altered = now.bytes == before.bytes and now.sha256 != before.sha256
        if altered or now.bytes < before.bytes:
            raise SourceError(f"{now.name} has changed since it was read; run the command again.")
    if any(index not in fetched for index in best):
        raise SourceError("The sources have changed since they were read; run the command again.")
    chosen = fitting([fetched[index] for index in best], tokenizer, sizes)
    return Excerpts(chosen, sources.names, sources.bases)


def fitting(
    ranked: Sequence[Excerpt], tokenizer: Tokenizer, sizes: tuple[int, int]
) -> list[Excerpt]:
    """Return the best of `ranked` excerpts that fit, in document order; `sizes` as in `choose`."""
    room, enough = sizes
    chosen: list[Excerpt] = []
    taken = 0
    for excerpt in ranked:
        tokens = len(tokenizer.encode("\n\n" + excerpt.text))
        if taken + tokens <= room:
            taken += tokens
            chosen.append(excerpt)
        if taken >= enough:
            break
    return sorted(chosen, key=lambda excerpt: excerpt.start)


def partial_refusal(result: Result) -> tuple[str, ...]:
    """Return a warning for a refusal, because the model read only some excerpts of the text."""
    if not abstains(result.answer):
        return ()
    return (
        f"The answer is not in the {result.read:,} tokens that were found and read; it may be in "
        "the rest of the text. Use words of the text in the question.",
    )


def answered_second(first: Result, second: Result, seconds: float) -> Result:
    """Return the first result with the answer of a second reading, which took `seconds`."""
    return replace(
        first,
        answer=second.answer,
        generated=second.generated,
        stopped=second.stopped,
        citations=second.citations,
        support=second.support,
        withheld=second.withheld,
        absent=second.absent,
        answer_s=first.answer_s + seconds,
        peak_kv_tokens=max(first.peak_kv_tokens, second.peak_kv_tokens),
        peak_kv_bytes=max(first.peak_kv_bytes, second.peak_kv_bytes),
        scratch_bytes=max(first.scratch_bytes, second.scratch_bytes),
        peak_rss_bytes=second.peak_rss_bytes,
        peak_device_bytes=second.peak_device_bytes,
    )


def _together(
    memory: Memory,
    first: Result,
    second: Result,
    excerpts: Excerpts,
    seconds: float,
    *,
    by: str | None,
) -> Result:
    """Return the result of both passes, with the second answer."""
    return replace(
        answered_second(first, second, seconds),
        warnings=(*memory.warnings, *second.warnings, *partial_refusal(second)),
        reread={
            "by": by,
            "pieces": excerpts.to_json(),
            "tokens": second.read,
            "peak_kv_tokens": second.peak_kv_tokens,
            "peak_kv_bytes": second.peak_kv_bytes,
            "seconds": round(seconds, 3),
            "first": {
                "answer": first.answer if first.withheld is None else first.withheld,
                "citations": list(first.citations),
                "support": first.support,
                "peak_kv_tokens": first.peak_kv_tokens,
                "peak_kv_bytes": first.peak_kv_bytes,
            },
        },
    )
