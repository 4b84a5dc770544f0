"""Measure the grouping accuracy of ``kvstream.logs.templates`` on loghub's labeled samples.

    python docs/research/lab/grouping.py path/to/loghub
    python docs/research/lab/grouping.py path/to/loghub --variants 4

The folder holds ``NAME_2k.log_structured.csv`` and ``NAME_2k.log`` (https://github.com/logpai/loghub).
A line is grouped right if the lines of its group are exactly those of its event (Zhu et al.,
"Tools and Benchmarks for Automated Log Parsing", ICSE-SEIP 2019). All logs use the same setting,
the one of the program. Groups are taken at the end of the log, when templates have joined.

The script prints the accuracy of each log and two speeds: of the tree on the messages alone, with
the log once; and of `LogSummary` on whole lines with times and levels, with the log repeated a
hundred times.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import defaultdict
from pathlib import Path

from kvstream.logs.summary import LogSummary
from kvstream.logs.templates import Template, TemplateTree

REPEATS = 100


def final(template: Template) -> Template:
    """Return the template that now has the lines of `template`."""
    while template.joined is not None and template.joined is not template:
        template = template.joined
    return template


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--variants", type=int, help="of the tree alone [default: the program's]")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of a log, for its speed")
    options = parser.parse_args()
    settings = {} if options.variants is None else {"variants": options.variants}
    scores, speeds = [], []
    print("| Log | grouping accuracy | templates | events | messages/s | whole lines/s |")
    print("|---|---|---|---|---|---|")
    for path in sorted(options.folder.glob("*_2k.log_structured.csv")):
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            rows = list(csv.DictReader(file))
        tree, begin = TemplateTree(**settings), time.process_time()
        found = [tree.add(row["Content"]) for row in rows]
        took = time.process_time() - begin
        events: dict[str, set[int]] = defaultdict(set)
        groups: dict[int, set[int]] = defaultdict(set)
        for i, (row, template) in enumerate(zip(rows, found, strict=True)):
            events[row["EventId"]].add(i)
            groups[final(template).number].add(i)
        right = sum(
            len(lines)
            for lines in groups.values()
            if events[rows[next(iter(lines))]["EventId"]] == lines
        )
        scores.append(right / len(rows))
        text = Path(str(path).removesuffix("_structured.csv")).read_text("utf-8", "replace")
        log, begin = LogSummary(), time.process_time()
        log.begin(path.name)
        for _ in range(options.repeats):
            log.feed(text if text.endswith("\n") else f"{text}\n")
        speeds.append(log.lines / (time.process_time() - begin))
        print(
            f"| {path.name.split('_')[0]} | {scores[-1]:.3f} | {len(groups)} | {len(events)} "
            f"| {len(rows) / took:,.0f} | {speeds[-1]:,.0f} |"
        )
    print(f"| mean | {sum(scores) / len(scores):.3f} | | | | {sum(speeds) / len(speeds):,.0f} |")


if __name__ == "__main__":
    main()
