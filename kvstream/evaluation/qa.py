"""Questions about texts, scored against references; also multiple choice and unanswerable ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kvstream.errors import BudgetError, UsageError
from kvstream.evaluation import metrics
from kvstream.evaluation.confidence import mean_interval, wilson
from kvstream.evaluation.datasets import Item, Question, load
from kvstream.evaluation.filler import Filler, insert
from kvstream.evaluation.harness import IdFeed, ask, model_identity, room_for, too_long
from kvstream.evaluation.records import CASE_KEYS, Record, Trial, digest, grouped, left_out
from kvstream.evaluation.splits import is_heldout
from kvstream.evaluation.sweep import STREAM, WHOLE, Case
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import RunSettings

MEANS = ("em", "f1", "rouge_1", "rouge_2", "rouge_l")
"""Scores of a question that are averaged, if it has them."""
PHRASE = 5
"""Maximum words of a phrase, the kind of answer that `--brief` asks for."""


@dataclass(frozen=True)
class Within:
    """A longer text around each context, which is at a random place in it."""

    tokens: int
    filler: Filler


def choose(
    paths: Sequence[str], where: Sequence[str], limit: int | None, seed: int, *,
    heldout: bool = False,
) -> list[Item]:  # fmt: skip
    """Return items that match every ``key=value``, at most `limit` of them, drawn with the seed."""
    tests = [_test(text) for text in where]
    pool = (i for i in load(paths) if i.questions and (not heldout or is_heldout(i.document)))
    items = [item for item in pool if all(test(item.record) for test in tests)]
    if not items:
        raise UsageError(
            "No record fits; leave --where, --explicit and --heldout out, or use values of the "
            "records in --where."
        )
    if limit is not None and limit < len(items):
        items = random.Random(seed).sample(items, limit)
    return items


def elsewhere(items: Sequence[Item], seed: int) -> list[Item]:
    """Return each item's questions with the context of another document, which has no answer.

    Drop questions that the other context answers by chance, and choices, which always need an
    answer. Raise UsageError if all contexts are of one document.
    """
    rng = random.Random(seed)
    result = []
    for item in items:
        own = [q for q in item.questions if q.answers and not q.options]
        others = [i for i in items if i.document != item.document]
        if not others:
            raise UsageError("--elsewhere needs records of more than one document.")
        other = rng.choice(others)
        text = other.context.lower()
        lacking = tuple(
            replace(q, answers=()) for q in own if not any(a.lower() in text for a in q.answers)
        )
        if lacking:
            result.append(
                Item(f"{item.id} of {other.id}", item.document, other.context, lacking, item.record)
            )
    return result


def _test(text: str) -> Callable[[Record], bool]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--where {text!r} is not KEY=VALUE.")
    words = {"true": True, "false": False, "null": None}
    if value in words:
        return lambda record: record.get(key) is words[value]
    return lambda record: str(record.get(key)) == value


def wants_phrases(items: Sequence[Item]) -> bool:
    """Return whether all questions have answers, most of them of at most PHRASE words.

    A model that may have to refuse is not asked for a phrase: that prevents refusals.
    """
    questions = [q for item in items for q in item.questions if not q.options]
    short = sum(min(map(len, map(str.split, q.answers)), default=0) <= PHRASE for q in questions)
    return all(q.answers for q in questions) and 2 * short > len(questions)


def trials(
    session: Session,
    items: Sequence[Item],
    cases: Sequence[Case],
    within: Within | None,
    seed: int,
) -> Iterator[Trial]:
    """Yield one trial for each item and case; the cases take turns."""
    facts = model_identity(session)
    surroundings = {} if within is None else {"within": within.tokens, "filler": within.filler.name}
    for item in items:
        content = digest((item.context, item.questions))
        for case in cases:
            identity: Record = {
                "bench": "qa", **facts, **case.identity(), "id": item.id,
                "document": item.document, "seed": seed, **surroundings,
                **({"brief": True} if case.run.brief else {}),
            }  # fmt: skip
            run = partial(_run, session, case, item, within, seed)
            yield Trial(identity, run, partial(rescore, item), content)


def _run(session: Session, case: Case, item: Item, within: Within | None, seed: int) -> Record:
    text, run, encode = item.context, case.run, session.tokenizer.encode
    kind = item.record.get("attribute")
    if kind in (None, ""):
        kind = item.record.get("dataset")
    if within is not None and case.view == STREAM:
        text = surround(session, item, within, seed)
    if case.view == WHOLE:  # room for the context, all questions and options
        parts = [text, *(q.text for q in item.questions)]
        parts += [option for q in item.questions for option in q.options]
        run = room_for(session, run, sum(len(encode(part)) for part in parts))
    try:
        return {**_scored_answers(session, run, item, text), "by": kind}
    except BudgetError as error:
        if case.view != WHOLE:
            raise
        raise BudgetError(too_long(error)) from error


def _scored_answers(session: Session, run: RunSettings, item: Item, text: str) -> Record:
    """Answer the questions of `item` after `text` and score the answers. Raise BudgetError."""
    open_ended = [q for q in item.questions if not q.options]
    scores: list[Record] = []
    record: Record = {}
    if open_ended:
        results = ask(session, text, [q.text for q in open_ended], run)
        scores += [score(q, r.answer) for q, r in zip(open_ended, results, strict=True)]
        record = {"read": results[0].read, "tokens_per_s": round(results[0].tokens_per_s)}
    scores += [_choose(session, text, q, run) for q in item.questions if q.options]
    return {**record, "questions": scores}


def check_within(session: Session, items: Sequence[Item], within: Within) -> None:
    """Raise UsageError if a context is longer than the text that it is hidden in."""
    longest = max((len(session.tokenizer.encode(item.context)) for item in items), default=0)
    if longest > within.tokens:
        raise UsageError(
            f"--within {within.tokens:,} is too short: the longest context has {longest:,} tokens. "
            "Raise it, or choose records with --where."
        )


def surround(session: Session, item: Item, within: Within, seed: int) -> str:
    """Return the context inside a longer text; place and text are the same for every method."""
    rng = random.Random(f"{seed} {item.id} {within.tokens}")
    size = len(session.tokenizer.encode(item.context))
    filler = within.filler.cut(session.tokenizer, within.tokens - size, rng)
    return insert(filler, session.tokenizer, [(rng.random(), item.context + "\n\n")])


def score(question: Question, answer: str) -> Record:
    """Return all scores of one answer."""
    text = answer.strip()
    out: Record = {
        "question": question.text,
        "answers": list(question.answers),
        "answer": answer,
        "abstains": metrics.abstains(text),
        "metric": question.metric,
    }
    references = question.answers
    if references:
        out["em"] = metrics.best(metrics.exact_match, text, references)
        out["f1"] = metrics.best(metrics.f1, text, references)
        out.update(metrics.rouge(text, references))
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in out.items()}


def rescore(item: Item, record: Record) -> Record:
    """Return a record with its answers scored again. Choices and changed questions stay."""
    own = {(q.text, q.answers): q for q in item.questions if not q.options}
    questions = []
    for old in record["questions"]:
        question = own.get((old["question"], tuple(old["answers"])))
        questions.append(old if question is None else score(question, old["answer"]))
    return {**record, "questions": questions}


def _choose(session: Session, text: str, question: Question, run: RunSettings) -> Record:
    """Choose the option with the lowest mean loss per token after the text. Raise BudgetError."""
    ids = session.tokenizer.encode(text)
    options = [session.tokenizer.encode(f" {o.strip()}", continuing=True) for o in question.options]
    run = replace(run, max_tokens=max(run.max_tokens, *map(len, options)))
    plan = session.settle(Request((question.text,), run))
    if plan.ends is not None and sum(plan.ends) < len(ids):
        first, last = plan.ends
        ids = ids[:first] + ids[len(ids) - last :]
    reader = plan.reader(session.model, run, len(ids))
    for _ in reader.read(IdFeed(ids)):
        pass
    tail = plan.prompt.tail(question.text)
    reader.begin()  # a context without tokens leaves the prompt unread
    longest, room = max(map(len, options)), reader.sizes.budget - reader.cache.size - len(tail)
    if longest - 1 > room:  # the model reads all tokens but the last
        raise BudgetError(
            f"An option takes {longest:,} tokens, and memory and the question leave {room:,} "
            f"entries of a budget of {reader.sizes.budget:,}; use a larger --budget."
        )
    losses = [float(reader.score(tail, option).mean()) for option in options]
    best = min(range(len(losses)), key=losses.__getitem__)
    return {
        "question": question.text,
        "answers": list(question.answers),
        "answer": question.options[best],
        "metric": "choice",
        "choice": float(best == question.correct),
        "losses": [round(loss, 4) for loss in losses],
    }


def rows(records: Sequence[Record], by: bool = False) -> list[Record]:
    """Return a row for each case and, with `by`, for each value of ``attribute`` or ``dataset``."""
    out = []
    for group in grouped(records):
        out.append(_row(group))
        # As text: values of several types have no order.
        pairs = [(str(r["by"]), r) for r in group if r.get("by") not in (None, "")] if by else []
        for kind in sorted({name for name, _ in pairs}):
            out.append({**_row([r for name, r in pairs if name == kind]), "attribute": kind})
    return out


def _row(group: list[Record]) -> Record:
    questions = [(r["document"], q) for r in group for q in r.get("questions", ())]
    row: Record = {"bench": "qa", **{k: group[0].get(k) for k in CASE_KEYS}, "n": len(questions)}
    row |= left_out(group)
    if "within" in group[0] and row["method"] != WHOLE:  # which reads the context alone
        row["within"] = group[0]["within"]
    for name in (*MEANS, "choice"):
        scores = [(document, q[name]) for document, q in questions if name in q]
        if scores:
            mean, low, high = mean_interval([s for _, s in scores], [d for d, _ in scores])
            row[name] = round(mean, 4)
            if low < high:  # one document does not tell how documents vary
                row[f"{name}_interval"] = [round(low, 4), round(high, 4)]
    answerable = [(d, q["abstains"]) for d, q in questions if q["answers"] and "abstains" in q]
    unanswerable = [(d, q["abstains"]) for d, q in questions if not q["answers"]]
    if answerable:
        row |= _share("refused", answerable)
        row["answered"] = round(1 - row["refused"], 4)
    if unanswerable:
        row["unanswerable"] = len(unanswerable)
        row |= _share("recognised", unanswerable)
    return row


def _share(name: str, refusals: Sequence[tuple[str, bool]]) -> Record:
    """Return the share of refusals, given with the document of each question."""
    documents, values = zip(*refusals, strict=True)
    share, low, high = mean_interval([float(v) for v in values], documents)
    if len(set(documents)) == len(documents):  # they are independent
        low, high = wilson(sum(values), len(values))
    interval = {f"{name}_interval": [round(low, 4), round(high, 4)]} if low < high else {}
    return {name: round(share, 4), **interval}


def so_far(records: Sequence[Record]) -> str:
    """Return a line about the newest case, to show during the run."""
    last = records[-1]
    same = [r for r in records if all(r.get(k) == last.get(k) for k in CASE_KEYS)]
    questions = [q for r in same for q in r["questions"]]
    parts = [f"{last['method']}, {len(questions)} questions"]
    for name in ("f1", "choice"):
        values = [q[name] for q in questions if name in q]
        if values:
            parts.append(f"{name} {sum(values) / len(values):.2f}")
    return ", ".join(parts)
