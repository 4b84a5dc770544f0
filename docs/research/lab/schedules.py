"""Compute steps, peak and attended entries of each schedule, by arithmetic alone.

    python docs/research/lab/schedules.py [START ...]

The text has 32,768 tokens; 960 entries are free, at most 700 of them in memory. START is m_0.
"""

import argparse

from kvstream.engine.schedule import Schedule

LENGTH, FREE, KEEP = 32_768, 960, 700
KINDS = (
    ("fixed", "fixed"), ("fixed", "decremental"), ("linear", "fixed"), ("linear", "decremental"),
    ("sqrt", "decremental"), ("square", "decremental"),
)  # fmt: skip


def followed(growth: str, chunk: str, start: int) -> tuple[int, int, float]:
    """Return the number of steps and of entries that a schedule needs.

    The entries are the peak, and the mean number that a token attends to.
    """
    schedule = Schedule(
        name=growth, chunk=chunk, layers=6, free=FREE, final=KEEP, keep=KEEP, start=start,
        length=LENGTH,
    )  # fmt: skip
    steps = peak = read = 0
    attended = 0.0
    while read < LENGTH:
        new, held = min(LENGTH - read, schedule.chunk()), max(schedule.held)
        steps, peak, read = steps + 1, max(peak, held + new), read + new
        attended += new * (held + new / 2)
        schedule.memory(new, last=read == LENGTH)
    return steps, peak, attended / LENGTH


parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("starts", nargs="*", type=int, default=[KEEP // 2, 120])
for start in parser.parse_args().starts:
    print(f"m_0 = {start}: steps, peak, attended")
    for growth, chunk in KINDS:
        steps, peak, attended = followed(growth, chunk, start)
        print(f"{growth:>8} {chunk:<12} {steps:4} {peak:5} {attended:5.0f}")
