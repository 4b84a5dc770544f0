"""``kvstream bench``: measurements that anyone can repeat."""

from __future__ import annotations

import click

from kvstream.cli.groups import Modules

BENCHES = {
    "needle": "Find a fact that a long text states once.",
    "qa": "Answer questions of a data set.",
    "perplexity": "Measure how well a model predicts long texts.",
    "speed": "Measure the time and memory of a reading.",
}
"""Help lines of the benchmarks, each ``kvstream.cli.commands.bench.<name>.command``."""


@click.group("bench", cls=Modules, package="kvstream.cli.commands.bench", modules=BENCHES)
def command() -> None:
    """Measure how well a model answers under a budget, and how fast.

    Every benchmark compares methods on the same texts and prints a table, or with --json one object
    per row. With --save FILE it keeps every trial, and the same command resumes an interrupted run.

    \b
      kvstream bench needle --kind passkey --lengths 8k,32k --budget 1k \\
          --method infinipot,streaming
      kvstream bench speed --lengths 8k,32k --budget 4k
    """
