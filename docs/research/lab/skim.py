"""Measure answers to people's questions hidden in novels: one model skims, another one answers.

    python docs/research/lab/skim.py --limit 40 --budget 1024 --out build/skim.jsonl
    python docs/research/lab/skim.py --limit 40 --budget 4096 --tokens 131072 --rows skim,bm25
    python docs/research/lab/skim.py --stories --limit 40 --budget 1024

The script inserts a paragraph of a held-out document at a random depth in text of held-out books,
and asks one of its questions. With --stories the text is a whole story of several paragraphs. The
skimming model reads the text once for each question, and all ways to choose passages start from
that reading. Rows:

    memory, words, both   the answering model reads what --skim-by finds
    search                the answering model alone, with --skim words
    pocket                the skimming model's own answer
    bm25                  the answering model reads as many tokens, found by BM25 in the whole text
    right                 it reads the right paragraph: the ceiling
    alone, reread         it reads the whole text, without and with --reread (slow)

For each row the script prints F1, how often the answer, in the right paragraph, is among what was
read (found), seconds of processor time for reading and answering, without loading, and the F1 minus
that of bm25 on the same questions. The last table has the third of the questions that share the
fewest content words with their paragraph. The script stops after --minutes of processor time, and
resumes from what --out holds. With --first and --apart it asks questions that no other run asked.
See docs/research/skim.md.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvstream.answer.answering import answered
from kvstream.answer.reread.excerpts import Excerpts, excerpts_of
from kvstream.answer.reread.ranking import Words
from kvstream.answer.reread.second_pass import enough, fitting, room_of
from kvstream.answer.skim.kept import BY, BYTES_A_TOKEN, KeptPassages
from kvstream.answer.support import matter
from kvstream.evaluation import metrics
from kvstream.evaluation.filler import Filler, insert
from kvstream.evaluation.harness import ask, document
from kvstream.evaluation.intervals import difference_interval, mean_interval
from kvstream.events import Answered, Result, returned
from kvstream.input.sources import open_sources
from kvstream.memory.base import Memory
from kvstream.run.prompt import REFUSAL
from kvstream.run.request import Request
from kvstream.session.searching import Searching
from kvstream.session.skimming import Skimmed, Skimming
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream_lab.synthetic.corpus import Corpus, HumanContext
from support import Refusing, shipped_signals

SETS = ("squadshifts_newwiki", "fairytaleqa_train", "nq_oracle_train")
ALL = ("memory", "words", "both", "search", "pocket", "bm25", "right", "alone", "reread")

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--data", type=Path, default=Path("../shared/data"))
parser.add_argument("--sets", default=",".join(SETS))
parser.add_argument("--tokens", type=int, default=32768)
parser.add_argument("--stories", action="store_true")
parser.add_argument("--budget", type=int, default=1024)
parser.add_argument("--limit", type=int, default=10, help="questions")
parser.add_argument("--rows", default="skim,pocket,bm25,right", help="skim: memory,words,both")
parser.add_argument("--model", default="reader")
parser.add_argument("--skim", default="pocket")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--first", type=int, default=0, help="the first question of those drawn")
parser.add_argument("--apart", default="", help="without paragraphs of these, SEED:LIMIT,...")
parser.add_argument("--minutes", type=float, default=10**6)
parser.add_argument("--out", type=Path)
given = parser.parse_args()
rows = tuple(dict.fromkeys(given.rows.replace("skim", "memory,words,both").split(",")))
if not set(rows) <= set(ALL):
    parser.error(f"rows are {', '.join(ALL)}")

torch.set_num_threads(1)
pair = Skimming.open(ModelSettings(model=given.model), ModelSettings(model=given.skim))
run = RunSettings(Budget(tokens=given.budget), max_tokens=32)


def cases() -> Iterator[tuple[str, HumanContext, str, str, str]]:
    """Yield (name, paragraph, text, question, answer), the same in every run of a seed."""
    corpus, rng = Corpus(given.data, heldout=True), random.Random(given.seed)
    filler = Filler("\n\n".join(corpus.books), "books", given.seed)
    names = given.sets.split(",")
    usable = [[c for c in corpus.human(name) if list(_inside(c))] for name in names]
    others: set[str] = set()
    for other in filter(None, given.apart.split(",")):
        seed, limit = map(int, other.split(":"))
        for contexts in _drawn(usable, random.Random(seed), limit):
            others |= {c.text for c in contexts[: -(-limit // len(names))]}
    usable = [[c for c in contexts if c.text not in others] for contexts in usable]
    drawn = _drawn(usable, rng, given.limit)
    for number in range(given.limit):
        name, contexts = names[number % len(names)], drawn[number % len(names)]
        context = contexts[number // len(names) % len(contexts)]
        question, answer = rng.choice(list(_inside(context)))
        if given.stories:
            story = [c for c in corpus.human(name) if c.doc_id == context.doc_id]
            text = "\n\n".join(c.text for c in story)
        else:
            book = filler.cut(pair.skimmer.tokenizer, given.tokens, rng)
            text = insert(book, pair.skimmer.tokenizer, [(rng.random(), context.text)])
        yield name, context, text, question, answer


def _drawn(
    usable: list[list[HumanContext]], rng: random.Random, limit: int
) -> list[list[HumanContext]]:
    """Return random paragraphs of each set."""
    return [rng.sample(contexts, min(limit, len(contexts))) for contexts in usable]


def _inside(context: HumanContext) -> Iterator[tuple[str, str]]:
    """Return the questions of a paragraph that have their answers in its text."""
    return ((q, a) for q, a in context.questions if a != REFUSAL and a in context.text)


@dataclass(frozen=True)
class Said:
    """An answer from excerpts."""

    answer: str
    read: int = 0
    odds: float | None = None
    """Log-odds of a refusal."""
    signals: dict[str, float] = field(default_factory=dict)
    """Signals of support.py."""


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    return work(), time.process_time() - began


def skimmed(path: str, question: str) -> tuple[dict[str, Skimmed], Any, Any]:
    """Read once, and keep passages in three ways.

    Returns them with the skimming model's answer and its basis.
    """
    request = Request((question,), run)
    room = BYTES_A_TOKEN * given.budget
    kept = {by: KeptPassages(room, by, (question,)) for by in BY}

    def show(block: Any) -> None:
        for each in kept.values():
            each.feed(block)

    def step(memory: Memory) -> None:
        for each in kept.values():
            each.note(memory.trace.end, memory)

    reading = pair.skimmer.read(
        open_sources([path], plain=True), pair.skims(request), show=show, on_step=step
    )
    memory = returned(reading)
    for each in kept.values():
        each.note(memory.trace.end, memory, final=True)
    first, basis = answered(memory, question)
    return {by: Skimmed(kept[by], request, memory) for by in BY}, first, basis


def searched(path: str, question: str) -> Result:
    """Return the answering model's answer from what a word search finds."""
    sources = open_sources([path], plain=True)
    events = Searching(pair.answerer).ask(sources, Request((question,), run))
    return next(event.result for event in events if isinstance(event, Answered))


def read(excerpts: Excerpts, question: str) -> Said:
    """Return the answering model's answer from excerpts."""
    whole = pair.answerer.whole(Request((question,), run), question)
    memory = pair.answerer.read_excerpts(excerpts, whole, None)
    with Refusing(pair.answerer.tokenizer) as refusing:
        result, basis = answered(memory, question)
    found = shipped_signals(basis, result) if result.answer else {}
    return Said(result.answer, result.read, refusing.odds, found)


def bm25(path: str, question: str) -> Excerpts:
    """Return what BM25 finds in the whole text, as many tokens as skimming gives."""
    words, sources = Words(question), open_sources([path], plain=True)
    every = list(excerpts_of(sources))
    for excerpt in every:
        words.add(excerpt.text)
    scores = words.scores()
    order = sorted((i for i in range(len(every)) if scores[i] > 0), key=lambda i: (-scores[i], i))
    room = room_of(
        pair.answerer.model,
        pair.answerer.tokenizer,
        pair.answerer.whole(Request((question,), run), question),
    )
    sizes = room, enough(given.budget)
    ranked = [every[i] for i in order[:room]]
    return Excerpts(fitting(ranked, pair.answerer.tokenizer, sizes), sources.names, sources.bases)


def has(pieces: list[dict[str, Any]], text: str, context: str, answer: str) -> bool:
    """Return whether what was read has the answer, from the right paragraph."""
    at = len(text[: text.index(context[:200])].encode())
    end = at + len(context.encode())
    data = text.encode()
    parts = [
        data[max(at, p["byte_start"]) : min(end, p["byte_end"])].decode("utf-8", "ignore")
        for p in pieces
        if p["byte_start"] < end and p["byte_end"] > at
    ]
    return " ".join(answer.split()) in " ".join(" ".join(parts).split())


def trial(name: str, context: HumanContext, text: str, question: str, answer: str) -> dict:
    """Ask one question in every row."""
    shared = matter(question) & matter(context.text)
    record: dict[str, Any] = {
        "set": name, "document": context.doc_id, "question": question, "answer": answer,
        "overlap": round(len(shared) / max(len(matter(question)), 1), 3), "rows": {},
    }  # fmt: skip

    def tell(row: str, said: str | Said, seconds: float, found: bool | None = None) -> None:
        said = Said(said) if isinstance(said, str) else said
        record["rows"][row] = {
            "f1": round(metrics.best(metrics.f1, said.answer, context.accepted[question]), 4),
            "said": said.answer, "found": found,
            "cpu_s": round(seconds, 2), "read": said.read, "odds": said.odds,
            "signals": said.signals,
        }  # fmt: skip

    with document(text) as path:
        if set(rows) & {*BY, "pocket"}:
            (ways, first, basis), read_s = timed(lambda: skimmed(path, question))
            if "pocket" in rows:
                tell("pocket", first.answer, read_s)
            chosen = {by: pair.chosen(ways[by], question, basis) for by in BY}
            ways["memory"].memory.release()
            known: dict[str, tuple[Said, float]] = {}
            for by in (by for by in BY if by in rows):
                key = json.dumps(chosen[by].to_json())
                if key not in known:
                    known[key] = timed(partial(read, chosen[by], question))
                said, seconds = known[key]
                found = has(chosen[by].to_json(), text, context.text, answer)
                tell(by, said, read_s + seconds, found)
        if "search" in rows:
            result, seconds = timed(lambda: searched(path, question))
            pieces = result.skim["pieces"] if result.skim else []  # a text that fits is read whole
            found = not result.skim or has(pieces, text, context.text, answer)
            tell("search", Said(result.answer, result.retained), seconds, found)
        if "bm25" in rows:
            excerpts, find_s = timed(lambda: bm25(path, question))
            said, seconds = (
                timed(lambda: read(excerpts, question)) if len(excerpts) else (Said(""), 0.0)
            )
            found = has(excerpts.to_json(), text, context.text, answer)
            tell("bm25", said, find_s + seconds, found)
    alone = {
        "right": (context.text, RunSettings(Budget(tokens=2048), max_tokens=32), None),
        "alone": (text, run, None),
        "reread": (text, run, "citations"),
    }
    for row, (what, how, again) in alone.items():
        if row in rows:
            results, seconds = timed(partial(ask, pair.answerer, what, [question], how, again))
            tell(row, results[0].answer, seconds, True if row == "right" else None)
    return record


def table(records: list[dict[str, Any]], title: str) -> None:
    """Print F1 with its interval, found, and time of every row."""
    print(f"\n{title}: {len(records)} questions, budget {given.budget:,}")
    print(f"{'':8} {'F1 (95%)':>22} {'found':>7} {'cpu s':>7}  F1 minus that of BM25")
    for row in (r for r in ALL if r in rows):
        own = [(r["rows"][row], r["document"]) for r in records if row in r["rows"]]
        if not own:
            continue
        mean, low, high = mean_interval([o["f1"] for o, _ in own], [d for _, d in own])
        places = [o["found"] for o, _ in own if o["found"] is not None]
        found = f"{sum(places)}/{len(places)}" if places else "-"
        seconds = sum(o["cpu_s"] for o, _ in own) / len(own)
        f1 = _in_percent(mean, low, high)
        both = [r for r in records if {row, "bm25"} <= set(r["rows"]) and row != "bm25"]
        less = [r["rows"][row]["f1"] - r["rows"]["bm25"]["f1"] for r in both]
        than = (
            _in_percent(*difference_interval(less, [r["document"] for r in both])) if both else ""
        )
        print(f"{row:8} {f1:>22} {found:>7} {seconds:>7.1f}  {than}")


def _in_percent(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    done: list[dict[str, Any]] = []
    if given.out is not None and given.out.is_file():
        done = [json.loads(line) for line in given.out.read_text("utf-8").splitlines()]
    for number, case in enumerate(cases()):
        if number < given.first + len(done):
            continue
        if time.process_time() > 60 * given.minutes:
            print(f"Stopped after {given.minutes:g} minutes of processor time.")
            break
        done.append(trial(*case))
        if given.out is not None:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[-1]) + "\n")
        print(number + 1, json.dumps({k: v["f1"] for k, v in done[-1]["rows"].items()}), flush=True)
    table(done, "All")
    by_set = defaultdict(list)
    for record in done:
        by_set[record["set"]].append(record)
    for name, own in by_set.items():
        table(own, name)
    least = sorted(done, key=lambda r: r["overlap"])[: max(1, len(done) // 3)]
    table(least, "Fewest shared words")


main()
