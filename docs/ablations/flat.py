"""Whether a long reading stays flat, from the lines of --stats (docs/performance.md).

    kvstream sample --tokens 10M --seed 5 | kvstream ask - "Who was the mayor of Fleskton?" \\
        --budget 1k --threads 1 --progress plain --stats ten.ndjson
    python docs/ablations/flat.py ten.ndjson

Memory: the most that the process held after `--settled` tokens, beside what it held there. Time:
processor time a token in the last stretch of `--stretch` tokens, beside that in the second one;
the first has the start in it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("stats", type=Path)
parser.add_argument("--settled", type=int, default=100_000, metavar="TOKENS")
parser.add_argument("--stretch", type=int, default=1_000_000, metavar="TOKENS")
options = parser.parse_args()

with options.stats.open(encoding="utf-8") as lines:
    events = (json.loads(line) for line in lines)
    steps = [
        (e["seen"], e["cpu_s"], e["rss_bytes"], e["kv_tokens"])
        for e in events
        if e["event"] == "step"
    ]
read = steps[-1][0]
costs = []
print(f"{'tokens':>12} {'process MiB':>12} {'KV entries':>11} {'CPU µs a token':>15}")
before = (0, 0.0)
for end in range(options.stretch, read + 1, options.stretch):
    seen, cpu, rss, entries = min((s for s in steps if s[0] >= end), default=steps[-1])
    costs.append(1e6 * (cpu - before[1]) / (seen - before[0]))
    before = seen, cpu
    print(f"{seen:>12,} {rss / 2**20:>12.1f} {entries:>11,} {costs[-1]:>15.1f}")
settled = next((s for s in steps if s[0] >= options.settled), None)
if settled is not None:
    most = max(s[2] for s in steps if s[0] >= options.settled)
    print(
        f"Memory: {settled[2] / 2**20:.1f} MiB after {settled[0]:,} tokens, "
        f"{most / 2**20:.1f} MiB at the most up to {read:,}: {most / settled[2] - 1:+.2%}."
    )
if len(costs) > 2:
    print(
        f"Time: the last stretch took {costs[-1] / costs[1] - 1:+.1%} more a token than the second."
    )
