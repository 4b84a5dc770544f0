"""Measure which words around a short document a chat model follows best.

See docs/research/prompts.md.

    python docs/research/lab/prompts.py ../shared/data --questions 24 --save out.jsonl

Every wording answers the same questions, in turns: people's questions about passages of up to 250
tokens (SQuAD's and FairytaleQA's training part), and the one IP address in eight lines of a log.
Memory holds each text whole; answers are greedy. The script prints F1 and the share of answers that
contain the right one, with 95% intervals. The same command resumes from the file of --save. It also
compares the answers with those of other models and number types in that file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from pathlib import Path

from kvstream.answer.support import abstains
from kvstream.evaluation.harness import ask
from kvstream.evaluation.intervals import mean_interval, wilson
from kvstream.evaluation.metrics import best, contains, f1
from kvstream.run import prompt
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

TAGS = ("<document>\n", "<document>\n", "\n</document>\n\n")
REST = prompt.CURRENT.summary, prompt.CURRENT.brief
WORDINGS = {
    "current": prompt.CURRENT,
    "phrase": prompt.Wording(
        *TAGS, "Question: {}\nAnswer with a short phrase copied from the document.", *REST
    ),
    "words or not in the text": prompt.Wording(
        *TAGS,
        "Question: {}\nAnswer with a few words from the document, or write: not in the text.",
        *REST,
    ),
    "instruction first": prompt.Wording(
        *TAGS, "Answer this question with a short phrase from the document above: {}", *REST
    ),
    "no tags": prompt.Wording(
        "Text: ", "Text: ", "\n\n",
        "Question: {}\nAnswer with a short phrase copied from the text above.", *REST,
    ),
    "system": prompt.Wording(
        "Read the document, then answer the question below it with a short phrase.\n\n<document>\n",
        TAGS[1], TAGS[2], "Question: {}\nShort answer:", *REST,
    ),
}  # fmt: skip
KINDS = ("prose", "logs")
LONGEST = 1000
"""Maximum number of characters of a passage."""
LINES = 8
ADDRESS = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")


def prose(data: Path, count: int) -> list[tuple[str, str, list[str]]]:
    """Return texts, questions and right answers; documents take turns."""
    found = []
    for name in ("squad_dev_train", "fairytaleqa_train"):
        of: dict[str, list[dict]] = {}
        with gzip.open(data / "qa" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            for record in map(json.loads, file):
                short = len(record["context"]) <= LONGEST and record.get("explicit", True)
                if short and any(a.lower() in record["context"].lower() for a in record["answers"]):
                    of.setdefault(record["doc_id"], []).append(record)
        rng = random.Random(name)
        documents = rng.sample(sorted(of), min(len(of), (count + 1) // 2))
        records = [rng.choice(of[document]) for document in documents]
        found += [(r["context"], r["question"], r["answers"]) for r in records]
    return found[:count]


def logs(data: Path, count: int) -> list[tuple[str, str, list[str]]]:
    """Return excerpts of eight lines with one address, from all logs in turns."""
    files = sorted((data / "logs").glob("*.gz"))
    rng, found = random.Random("logs"), {}
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8", errors="replace") as text:
            lines = [line[:200] for line in text.read().splitlines()]
        starts = rng.sample(range(len(lines) - LINES), len(lines) - LINES)
        excerpts = ("\n".join(lines[at : at + LINES]) for at in starts)
        found[file] = [e for e in excerpts if len(set(ADDRESS.findall(e))) == 1][:count]
    turns = [e for i in range(count) for e in (found[f][i : i + 1] for f in files)]
    return [
        (e, "Which IP address does the log name?", list(set(ADDRESS.findall(e))))
        for (e,) in filter(None, turns)
    ][:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--wordings", default=",".join(WORDINGS))
    parser.add_argument("--questions", type=int, default=24, help="of each kind")
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--quantize", choices=("int8",))
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--save", type=Path, required=True)
    asked = parser.parse_args()
    done = {}
    if asked.save.exists():
        lines = asked.save.read_text("utf-8").splitlines()
        saved = [json.loads(line) for line in lines]
        done = {(r["model"], r["wording"], r["question"], r["text"]): r for r in saved}
    model = asked.model + (f" {asked.quantize}" if asked.quantize else "")
    for kind in (asked.dtype, asked.kv_dtype):
        model += f" {kind}" if kind != "auto" else ""
    session = Session.open(
        ModelSettings(
            asked.model,
            quantize=asked.quantize,
            dtype=asked.dtype,
            kv_dtype=asked.kv_dtype,
            threads=1,
        )
    )
    run = RunSettings(Budget(tokens=1024), max_tokens=asked.max_tokens)
    names = asked.wordings.split(",")
    of = {"prose": prose, "logs": logs}
    for kind in asked.kinds.split(","):
        rows = []
        for text, question, answers in of[kind](asked.data, asked.questions):
            for name in names:
                key = (model, name, question, text)
                if key not in done:
                    prompt.CURRENT = WORDINGS[name]
                    said = ask(session, text, [question], run)[0].answer.strip()
                    done[key] = {
                        "model": model, "wording": name, "question": question, "text": text,
                        "answers": answers, "said": said,
                    }  # fmt: skip
                    with asked.save.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(done[key]) + "\n")
                rows.append(done[key])
        told(kind, rows, names)
    others = {r["model"] for r in done.values()} - {model}
    for other in sorted(others):
        pairs = [(r, done.get((other, *key[1:]))) for key, r in done.items() if key[0] == model]
        both = [(ours["said"], theirs["said"]) for ours, theirs in pairs if theirs]
        print(f"{model}: {sum(a == b for a, b in both)} of {len(both)} answers are {other}'s")


def told(kind: str, rows: list[dict], names: list[str]) -> None:
    for name in names:
        own = [r for r in rows if r["wording"] == name]
        right = sum(any(contains(r["said"], a) for a in r["answers"]) for r in own)
        low, high = wilson(right, len(own))
        scores = mean_interval([best(f1, r["said"], r["answers"]) for r in own])
        middle, least, most = (100 * score for score in scores)
        refused = sum(abstains(r["said"]) for r in own)
        words = sum(len(r["said"].split()) for r in own) / max(1, len(own))
        print(
            f"{kind:6} {name:26} F1 {middle:4.1f} ({least:.0f} to {most:.0f})  contains {right} of "
            f"{len(own)} ({low:.0%} to {high:.0%})  refuses {refused}  {words:.0f} words"
        )


if __name__ == "__main__":
    main()
