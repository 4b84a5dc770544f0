"""``kvstream bench``: measurements that anyone can repeat."""

from __future__ import annotations

from importlib import import_module

import click

BENCHES = ("needle", "qa", "summary", "perplexity", "speed")
"""Each is an attribute ``command`` of the module kvstream.cli.bench.<name>."""


class Benches(click.Group):
    """Imports a benchmark's options when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(BENCHES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in BENCHES:
            return None
        found: click.Command = import_module(f"kvstream.cli.bench.{name}").command
        return found


@click.group("bench", cls=Benches, short_help="Measure accuracy and speed.")
def command() -> None:
    """Measure how well a model answers under a budget, and how fast.

    Every benchmark compares methods on the same texts, prints a table, and with --json one object
    a row. What was measured goes to --save FILE, and is not measured again.

    \b
      kvstream bench needle --kind passkey --lengths 8k,32k --budget 1k --method infinipot,streaming
      kvstream bench speed --lengths 8k,32k --budget 4k --against floor,transformers
    """
