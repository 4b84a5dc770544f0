"""Check from the lines of --stats whether time and memory of a long reading stay flat.

    kvstream sample --tokens 10M --seed 5 | kvstream ask - "Who was the mayor of Fleskton?" \\
        --budget 1k --threads 1 --progress plain --stats ten.ndjson
    python docs/research/lab/flat.py ten.ndjson

    # to rule out that the machine changed, start this on the same core when the first reading has
    # read eight million tokens:
    kvstream sample --tokens 2M --seed 5 | kvstream ask - ... --stats two.ndjson
    python docs/research/lab/flat.py ten.ndjson --beside two.ndjson

The script prints a table of stretches of `--stretch` tokens, and then a summary. Memory: the
maximum that the process held after `--settled` tokens, relative to what it held at that point.
Time: processor time per token in the last stretch, relative to the second stretch (the first one
includes the start); with `--beside`, also relative to the second stretch of a reading that ran at
the same time. Programs that share a core also share its caches, and then the same work takes more
processor time. So each stretch also shows its share of a core and its best twentieth, the 5th
percentile of pieces of 32 steps. See docs/research/performance.md.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("stats", type=Path)
parser.add_argument("--settled", type=int, default=100_000, metavar="TOKENS")
parser.add_argument("--beside", type=Path, metavar="STATS", help="of a reading at the same time")
parser.add_argument("--stretch", type=int, default=1_000_000, metavar="TOKENS")
options = parser.parse_args()

Step = tuple[int, float, int, int, float]  # tokens, processor s, process bytes, entries, wall s


def steps_of(path: Path) -> list[Step]:
    """Return the steps of a reading."""
    with path.open(encoding="utf-8") as lines:
        events = (json.loads(line) for line in lines)
        return [
            (e["seen"], e["cpu_s"], e["rss_bytes"], e["kv_tokens"], e["seconds"])
            for e in events
            if e["event"] == "step"
        ]


def place(steps: list[Step], tokens: int) -> Step:
    """Return the first step that has read at least `tokens` tokens, or the last step."""
    return next((step for step in steps if step[0] >= tokens), steps[-1])


steps = steps_of(options.stats)
read = steps[-1][0]
pieces = [
    (b[0], 1e6 * (b[1] - a[1]) / (b[0] - a[0])) for a, b in pairwise(steps[::32]) if b[0] > a[0]
]
costs: list[float] = []
best: list[float] = []
print(
    f"{'tokens':>12} {'process MiB':>12} {'KV entries':>11} {'CPU µs a token':>15} "
    f"{'best twentieth':>15} {'of a core':>10}"
)
before = (0, 0.0, 0.0)
for end in range(options.stretch, read + 1, options.stretch):
    seen, cpu, rss, entries, seconds = place(steps, end)
    inside = sorted(cost for at, cost in pieces if before[0] < at <= seen)
    costs.append(1e6 * (cpu - before[1]) / (seen - before[0]))
    best.append(inside[len(inside) // 20])
    share = (cpu - before[1]) / (seconds - before[2])
    before = seen, cpu, seconds
    print(
        f"{seen:>12,} {rss / 2**20:>12.1f} {entries:>11,} {costs[-1]:>15.1f} "
        f"{best[-1]:>15.1f} {share:>10.0%}"
    )
settled = place(steps, options.settled)
if settled[0] >= options.settled:
    most = max(s[2] for s in steps if s[0] >= options.settled)
    print(
        f"Memory: {settled[2] / 2**20:.1f} MiB after {settled[0]:,} tokens, "
        f"{most / 2**20:.1f} MiB at the most up to {read:,}: {most / settled[2] - 1:+.2%}."
    )
if len(costs) > 2:
    print(
        f"Time: the last stretch took {costs[-1] / costs[1] - 1:+.1%} more a token than the second "
        f"(best twentieth {best[-1] / best[1] - 1:+.1%})."
    )
if options.beside is not None and costs:
    other = steps_of(options.beside)
    a, b = place(other, options.stretch), place(other, 2 * options.stretch)
    cost = 1e6 * (b[1] - a[1]) / (b[0] - a[0])
    print(
        f"Beside: the last stretch took {costs[-1]:.1f} µs a token, tokens {a[0]:,} to {b[0]:,} of "
        f"{options.beside.name} {cost:.1f} at the same time: {costs[-1] / cost - 1:+.1%}."
    )
