"""Measure how many planted incidents of made-up logs are on the page of ``kvstream.logs``.

    python docs/research/lab/incidents.py --logs 20 --lines 200000

Each log has four incidents: an error that bursts, a latency that drifts, a service that goes silent
and a flood of errors. One line before the flood names its cause. The words of all templates are
random, so no list of words finds them. Baselines get as many lines as the page has: the last ones,
``grep -i error`` counted without digits, and random ones. A baseline finds a burst or a flood if it
shows one of its lines, and a drift if it shows an early and a late line; no line shows a silence.
The script prints what the page of each log misses, a table of hit rates, the speed and the peak of
RAM.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import time
from collections import Counter

from kvstream.logs.summary import LogSummary
from kvstream.logs.text_page import ROWS, page

SYLLABLES = [
    "ba", "ke", "lo", "mi", "nu", "ra", "so", "ti", "ve", "zu",
    "dor", "fen", "gal", "hin", "jor", "kel", "lan", "mor", "nil", "pas",
]  # fmt: skip
DAY = 86_400.0


def word(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3)))


def shape(rng: random.Random) -> list[str]:
    """Return the words of a template; a word in angle brackets is a variable."""
    words = [word(rng) for _ in range(rng.randint(4, 9))]
    for kind in rng.sample(["<id>", "<ip>", "<hex>", "<user>", "<n>", "<path>"], rng.randint(1, 3)):
        words.insert(rng.randint(1, len(words)), kind)
    return words


def filled(words: list[str], rng: random.Random) -> str:
    made = {
        "<id>": lambda: str(rng.randint(1, 999_999)),
        "<ip>": lambda: f"10.{rng.randint(0, 9)}.{rng.randint(0, 255)}.{rng.randint(1, 254)}",
        "<hex>": lambda: f"{rng.getrandbits(64):016x}",
        "<user>": lambda: f"user-{rng.randint(1, 400)}",
        "<n>": lambda: str(rng.randint(0, 64)),
        "<path>": lambda: f"/var/lib/{rng.choice(SYLLABLES)}/{rng.randint(1, 50)}",
    }
    return " ".join(made[w]() if w in made else w for w in words)


def stamped(style: int, t: float, level: str, service: str, message: str) -> str:
    whole, part = time.gmtime(1_714_521_600 + t), int(t % 1 * 1000)
    if style == 0:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", whole)
        return f"{stamp},{part:03d} {level} [main] {service}: {message}"
    if style == 1:
        stamp = time.strftime("%b %d %H:%M:%S", whole)
        return f"{stamp} host1 {service}[{1000 + len(service)}]: {level.lower()}: {message}"
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", whole) + f".{part:03d}Z"
    if style == 2:
        record = {"time": stamp, "level": level.lower(), "service": service, "msg": message}
        return json.dumps(record)
    return f'time={stamp} level={level.lower()} service={service} msg="{message}"'


def made_log(seed: int, lines: int) -> tuple[list[str], dict[str, str]]:
    """Return a log in the order of time, and the words that identify its incidents."""
    rng = random.Random(seed)
    style = seed % 4
    services = [word(rng) + "-" + word(rng) for _ in range(12)]
    silent, slow, bursting = rng.sample(services, 3)
    stop = DAY * rng.uniform(0.7, 0.85)
    burst_at, flood_at = DAY * rng.uniform(0.2, 0.8), DAY * rng.uniform(0.3, 0.9)
    drift_from = DAY * rng.uniform(0.3, 0.6)
    templates = []
    for service in services:
        for _ in range(rng.randint(6, 14)):
            level = rng.choices(["INFO", "DEBUG", "WARN", "ERROR"], [80, 15, 4, 1])[0]
            weight = rng.paretovariate(1.0) * (0.05 if level in ("WARN", "ERROR") else 1.0)
            templates.append((service, level, shape(rng), min(weight, 40.0)))
    health, latency = shape(rng), word(rng)
    events: list[tuple[float, str, str, str]] = []
    flood_lines, burst_lines = rng.randint(2000, 5000), rng.randint(150, 400)
    rare = 40
    usual = lines - flood_lines - burst_lines - rare - 1
    picks = rng.choices(templates, [t[3] for t in templates], k=int(usual * 0.9))
    for service, level, words, _ in picks:
        t = moment(rng)
        if service == silent and t > stop:
            continue
        events.append((t, level, service, filled(words, rng)))
    while len(events) < usual:
        t = moment(rng)
        if rng.random() < 0.5:
            grown = max(t - drift_from, 0) / (DAY - drift_from)
            took = rng.lognormvariate(3.0, 0.4) * (1 + 2 * grown)
            events.append((t, "INFO", slow, f"{latency} request served in {took:.1f} ms"))
        else:
            service = rng.choice(services)
            if service == silent and t > stop:
                continue
            events.append((t, "INFO", service, filled(health, rng)))
    error, floods = shape(rng), [shape(rng) for _ in range(3)]
    events += [
        (burst_at + rng.uniform(0, 180), "ERROR", bursting, filled(error, rng))
        for _ in range(burst_lines)
    ]
    for _ in range(flood_lines):
        t, service = flood_at + rng.expovariate(1 / 120), rng.choice(services[:4])
        events.append((t, "ERROR", service, filled(rng.choice(floods), rng)))
    for _ in range(rare):
        t, level = moment(rng), rng.choice(["INFO", "INFO", "WARN"])
        events.append((t, level, rng.choice(services), filled(shape(rng), rng)))
    cause = shape(rng)
    level = rng.choice(["INFO", "INFO", "WARN", "ERROR"])
    events.append((flood_at - rng.uniform(2, 30), level, rng.choice(services), filled(cause, rng)))
    events.sort()

    def known(words: list[str]) -> str:
        return max((w for w in words if w[0] != "<"), key=len)

    marks = {
        "burst": known(error), "flood": "|".join(known(f) for f in floods),
        "drift": latency, "silence": silent, "cause": known(cause),
    }  # fmt: skip
    return [stamped(style, *event) for event in events], marks


def moment(rng: random.Random) -> float:
    """Draw a second of a day; the middle of the day is busier than the rest."""
    while True:
        t = rng.uniform(0, DAY)
        if rng.random() < 0.65 + 0.35 * (1 if 0.3 < t / DAY < 0.8 else -0.5):
            return t


def on_page(text: str, marks: dict[str, str]) -> dict[str, bool]:
    """Return which incidents the rows of a page name."""
    rows: list[str] = []
    for line in text.split("\n"):
        if line.startswith(" " * 11) and rows:
            rows[-1] += " | " + line.strip()
        else:
            rows.append(line)

    def row(mark: str, note: str) -> bool:
        return any(re.search(rf"\b(?:{mark})\b", r) and note in r for r in rows)

    return {
        "burst": row(marks["burst"], "burst of"),
        "flood": row(marks["flood"], "burst of"),
        "drift": row(marks["drift"], "goes from"),
        "silence": row(marks["silence"], "silent since"),
        "cause": row(marks["cause"], ""),
    }


def in_lines(shown: list[tuple[int, str]], total: int, marks: dict[str, str]) -> dict[str, bool]:
    """Return which incidents the lines of a baseline show."""

    def places(mark: str) -> list[int]:
        return [i for i, line in shown if re.search(rf"\b(?:{mark})\b", line)]

    slow = places(marks["drift"])
    return {
        "burst": bool(places(marks["burst"])),
        "flood": bool(places(marks["flood"])),
        "drift": any(i < total * 0.4 for i in slow) and any(i > total * 0.8 for i in slow),
        "silence": False,
        "cause": bool(places(marks["cause"])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--logs", type=int, default=20)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--seed", type=int, default=0, help="number of the first log")
    parser.add_argument("--show", action="store_true", help="print pages with a miss")
    options = parser.parse_args()
    found: dict[str, Counter[str]] = {}
    took = read = 0.0
    for seed in range(options.seed, options.seed + options.logs):
        lines, marks = made_log(seed, options.lines)
        log, begin = LogSummary(), time.process_time()
        log.begin("made")
        for at in range(0, len(lines), 500):
            log.feed("\n".join(lines[at : at + 500]) + "\n")
        log.close()
        text = page(log, options.rows)
        took += time.process_time() - begin
        read += len(lines)
        screen = text.count("\n")
        rng = random.Random(seed)
        numbered = list(enumerate(lines))
        errors = Counter(re.sub(r"\d+", "", x) for x in lines if "error" in x.lower())
        grep = [(0, line) for line, _ in errors.most_common(screen)]
        results = {
            "page": on_page(text, marks),
            "last lines": in_lines(numbered[-screen:], len(lines), marks),
            "grep error": in_lines(grep, len(lines), marks),
            "random lines": in_lines(rng.sample(numbered, screen), len(lines), marks),
        }
        for name, result in results.items():
            found.setdefault(name, Counter()).update(k for k, hit in result.items() if hit)
        missed = [k for k, hit in results["page"].items() if not hit]
        print(
            f"log {seed}: page of {screen} lines, missed: {', '.join(missed) or 'nothing'}",
            flush=True,
        )
        if missed and options.show:
            print(marks, text, sep="\n")
    n, four = options.logs, ("burst", "flood", "drift", "silence")
    print("| | burst | flood | drift | silence | incidents | root cause |\n" + "|---" * 7 + "|")
    for name, hits in found.items():
        shares = [hits[kind] / n for kind in four]
        cells = [f"{share:.0%}" for share in (*shares, sum(shares) / 4, hits["cause"] / n)]
        print(f"| {name} | {' | '.join(cells)} |")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{read / took:,.0f} lines/s of processor time; peak {peak:,.0f} MiB, the made log included"
    )


if __name__ == "__main__":
    main()
