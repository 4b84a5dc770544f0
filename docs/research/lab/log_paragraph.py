"""Measure whether a small model can write a paragraph about the page of a log, for each wording.

    python docs/research/lab/log_paragraph.py ../shared/data/logs -m smollm2 --wording 0

Each log of the folder becomes a table of its first rows. The model answers, and the check removes
sentences unless they cite the rows that have their numbers and names. The script prints the kept
and the removed sentences, and a person judges what is left.
"""

from __future__ import annotations

import argparse
import gzip
import time
from pathlib import Path

import kvstream
from kvstream.logs.clock import Clock
from kvstream.logs.findings import report
from kvstream.logs.levels import SEVERE
from kvstream.logs.page import head, page
from kvstream.logs.summary import LogSummary
from kvstream.logs.telling import QUESTION, ROWS_READ, checked
from kvstream.logs.unusual import Finding


def row(finding: Finding, log: LogSummary) -> str:
    """Return a finding as one plain line that begins with its citation."""
    level = finding.level.upper() if finding.level in SEVERE else "INFO"
    times = finding.span(Clock(log))
    text = finding.message if finding.count == 1 else finding.text
    return f"[line {finding.first_line}] {times}: {finding.count} x {level} {text.strip()[:160]}"


def plain(log: LogSummary, rows: int) -> str:
    """Return the first line of the page, and a plain line for each finding."""
    findings = report(log, rows).findings
    return "\n".join([head(log).split("\n")[0], *(row(f, log) for f in findings)]) + "\n"


WORDINGS = [
    ("page", QUESTION),
    (
        "plain",
        "In two sentences: what went wrong, and when? Cite the line of each fact, as [line N].",
    ),
    ("plain", "Which error matters most? Write one sentence with its time and its [line N]."),
    (
        "plain",
        "Complete this report with words of the table only. First problem: what, when, [line N]. "
        "Second problem: what, when, [line N].",
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("logs", type=Path)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--wording", type=int, default=0, help=f"0 to {len(WORDINGS) - 1}")
    parser.add_argument("--max-tokens", type=int, default=90)
    options = parser.parse_args()
    form, question = WORDINGS[options.wording]
    model = kvstream.load(options.model)
    kept_any = 0
    paths = sorted(options.logs.glob("*.gz"))
    for path in paths:
        log = LogSummary()
        log.begin(path.name)
        log.feed(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"))
        log.close()
        table = page(log, ROWS_READ) if form == "page" else plain(log, ROWS_READ)
        begin = time.process_time()
        answer = model.ask(
            text=table, question=question, max_tokens=options.max_tokens, thin="off"
        ).text
        kept, removed = checked(answer, table)
        kept_any += bool(kept)
        print(f"## {path.name} ({time.process_time() - begin:.0f} s)\nkept: {kept}")
        print("removed:", *removed, sep="\n  ", flush=True)
    print(f"{options.model}, wording {options.wording}: something is left in {kept_any} of "
          f"{len(paths)} logs")  # fmt: skip


if __name__ == "__main__":
    main()
