"""Measure which signals find the line that explains a flood of errors, in ambiguous logs.

    python docs/research/lab/log_signals.py --logs 20

In each log, four rare lines come shortly before a flood of errors. One of them names its cause, in
words that do not tell of a failure. Harmless bursts have rare lines before them, too, and about
forty other rare lines are spread over the log. The script prints the place of the cause in each log
and a table. The row `table` is the page as it is; `table without` rows leave one of its signals
out. `surprise` and `attention` rank lines by how much of them a model's memory holds, after it
reads the first line of each template that is rare or severe (`sirllm` holds surprising lines,
`infinipot` those that the question attends to). Rows with `+` use such a ranking where the rounded
scores of the table's rare rows tie.

`page`: the cause is among the rare rows of a page (a ranking of lines has as many as a page has
rows). `first three` and `first`: it is among the first rare rows. The four lines are equal to the
table, so chance alone puts the cause first in a quarter of the logs.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import kvstream
from incidents import DAY, filled, moment, stamped, word
from kvstream.logs import unusual
from kvstream.logs.findings import ROWS, report
from kvstream.logs.levels import SEVERE
from kvstream.logs.shape import Shape
from kvstream.logs.summary import LogSummary
from kvstream.logs.unusual import RARE, SECTIONS, Finding

CAUSES = (
    "certificate of the payment gateway ends today",
    "volume data-two is now read only",
    "leader of the orders shard is another node now",
    "pool size changed from sixty to four",
    "clock stepped back by forty seconds",
    "schema of the orders table changed",
    "link of the uplink port is down",
    "quota of the invoice bucket is used up",
    "new router turned on for all customers",
    "host key of the database changed",
    "license ends in zero days",
    "cache tier drained by an operator",
)
OBJECTS = (
    "language pack", "weekly report", "session index", "thumbnail queue", "metric labels",
    "search synonyms", "address book", "color theme",
)  # fmt: skip
DONE = ("loaded", "printed", "renewed", "cleared", "warmed", "moved", "listed", "archived")
TAIL = (
    "again", "after", "noon", "for", "guests", "by", "hand", "with", "new", "defaults", "under",
    "review", "before", "lunch", "on", "request", "of", "support", "in", "place", "without",
    "hurry",
)  # fmt: skip
USUAL = (
    "order <id> served to <ip>", "letter <id> sent to <user>", "<user> logged in from <ip>",
    "queue holds <n> letters", "page <path> shown to <user>", "search of <user> gave <n> results",
    "order <id> paid by <user>", "invoice <id> written to <path>", "health check answered <ip>",
)  # fmt: skip
FLOODS = ("order <id> of <user> was not saved", "payment <id> from <ip> was not booked")
QUESTION = "Why did the errors begin?"


def made_log(seed: int, lines: int) -> tuple[list[str], str]:
    """Return a log in the order of time, and the cause of its flood."""
    rng = random.Random(seed)
    services = [f"{word(rng)}-{word(rng)}" for _ in range(6)]
    harmless = [
        " ".join([thing, done, *rng.sample(TAIL, rng.randint(3, 8))])
        for thing in OBJECTS
        for done in DONE
    ]
    rng.shuffle(harmless)
    cause, flood_at = rng.choice(CAUSES), DAY * rng.uniform(0.3, 0.9)
    events: list[tuple[float, str, str, str]] = []

    def add(t: float, level: str, text: str) -> None:
        events.append((t, level, rng.choice(services), filled(text.split(), rng)))

    for _ in range(lines):
        add(moment(rng), "INFO", rng.choice(USUAL))
    for job in range(3):
        at = DAY * rng.uniform(0.1, 0.9)
        for _ in range(300):
            add(at + rng.uniform(0, 120), "INFO", f"nightly job {'abc'[job]} copied row <id>")
        for _ in range(3):
            add(at - rng.uniform(1, 30), "INFO", harmless.pop())
    for _ in range(600):
        add(flood_at + rng.expovariate(1 / 120), "ERROR", rng.choice(FLOODS))
    for text in (cause, harmless.pop(), harmless.pop(), harmless.pop()):
        add(flood_at - rng.uniform(1, 30), "INFO", text)
    while len(harmless) > 10:
        add(moment(rng), "INFO", harmless.pop())
    events.sort()
    return [stamped(seed % 4, *event) for event in events], cause


def rare_rows(log: LogSummary) -> list[Finding]:
    """Return all rare rows of the page, best first."""
    found = report(log, 10_000).findings
    return [f for f in found if f.section == SECTIONS[1]]


def without(name: str, log: LogSummary, value: Any) -> list[Finding]:
    """Return the rare rows of the page if `unusual`'s function `name` returns `value`."""
    kept: Callable[..., Any] = getattr(unusual, name)
    setattr(unusual, name, lambda *args: value)
    try:
        return rare_rows(log)
    finally:
        setattr(unusual, name, kept)


def ranks_of(model: Any, method: str, text: str, budget: int) -> list[str]:
    """Return lines by how much of them memory holds, most first."""
    answer = model.ask(
        text=text, question=QUESTION, extract=True, passages=100, method=method, budget=budget
    )
    return [c["text"] for c in sorted(answer.citations, key=lambda c: -c["weight"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--logs", type=int, default=20)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("-m", "--model", default="pocket")
    options = parser.parse_args()
    model = kvstream.load(options.model) if options.model != "none" else None
    hits: dict[str, Counter[str]] = {}
    for seed in range(options.seed, options.seed + options.logs):
        rows, shown, shapes, log, cause = prepared(seed, options.lines)
        found: dict[str, Sequence[Finding | str]] = {
            "table": rows,
            "table + chance": mixed(rows, shuffled(rows, seed)),
        }
        for name, value in (("burst_after", None), ("_lateness", 0.0), ("telling_burst", None)):
            found[f"table without {name.strip('_')}"] = without(name, log, value)
        found["random lines"] = [f.example for f in shuffled(rows, seed)]
        text = "".join(f"{shape.example}\n" for shape in shapes)
        for name, method in (("surprise", "sirllm"), ("attention", "infinipot")):
            if model is not None:
                ranked = ranks_of(model, method, text, options.budget)
                found[name] = ranked
                found[f"table + {name}"] = mixed(rows, ranked)
        for name, order in found.items():
            place = place_of(order, cause)
            most = shown if name.startswith("table") else ROWS
            count = hits.setdefault(name, Counter())
            count.update(page=place < most, three=place < 3, one=place < 1)
        told = {name: place_of(order, cause) + 1 for name, order in found.items()}
        print(f"log {seed}: {len(shapes)} templates, places of the cause: {told}", flush=True)
    print(f"\n| {options.logs} logs | page | first three | first |\n|---|---|---|---|")
    for name, count in hits.items():
        print(f"| {name} | {count['page']} | {count['three']} | {count['one']} |")


def prepared(seed: int, lines: int) -> tuple[list[Finding], int, list[Shape], LogSummary, str]:
    """Return the findings of a log and its cause.

    These are the rare rows, how many of them a page shows, the rare and severe templates, the log,
    and the cause of its flood.
    """
    made, cause = made_log(seed, lines)
    log = LogSummary()
    log.begin("made")
    log.feed("\n".join(made) + "\n")
    log.close()
    shown = sum(f.section == SECTIONS[1] for f in report(log, ROWS).findings)
    shapes = [s for s in log.shapes if s.count <= RARE or s.level in SEVERE]
    return rare_rows(log), shown, sorted(shapes, key=lambda s: s.first_line), log, cause


def shuffled(rows: list[Finding], seed: int) -> list[Finding]:
    return random.Random(seed).sample(rows, len(rows))


def mixed(rows: list[Finding], order: Sequence[Finding | str]) -> list[Finding]:
    """Sort rows by their rounded scores; another order of their lines breaks ties."""
    lines = [each if isinstance(each, str) else each.example for each in order]
    place = {line.strip(): i for i, line in enumerate(lines)}
    return sorted(rows, key=lambda f: (-round(f.score), place.get(f.example.strip(), len(place))))


def place_of(order: Sequence[Finding | str], cause: str) -> int:
    """Return the place of the cause in an order, from 0."""
    for place, each in enumerate(order):
        if cause in (each if isinstance(each, str) else each.example):
            return place
    return len(order)


if __name__ == "__main__":
    main()
