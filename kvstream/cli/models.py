"""``kvstream models``: what is here, and what fits."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from typing import TYPE_CHECKING

import click

from kvstream.cli.options import SectionedCommand
from kvstream.reporters.format import for_terminal, size

if TYPE_CHECKING:
    from kvstream.catalog import Entry


@click.command("models", cls=SectionedCommand)
@click.option("--json", is_flag=True, help="One JSON object a model.")
def command(json: bool) -> None:
    """List the models that are here, and which of them fit this machine's memory.

    Those are the embedded one, what the config file gives a short name (a table [models] with
    lines like small = "org/some-model"), and what is in the hub's cache. A model fits if there is
    room for its weights and a KV cache of the default budget; nothing is loaded to find out.
    """
    from kvstream import catalog

    memory = catalog.memory()
    found = list(catalog.entries(memory))
    if json:
        for entry in found:
            record = {**dataclasses.asdict(entry), "device": memory.device, "free": memory.free}
            click.echo(jsonlib.dumps(record, ensure_ascii=False))
        return
    rows = [("", "", "parameters", "weights", "KV cache", "fits"), *map(_row, found)]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    problems = ["", *(entry.problem or "" for entry in found)]
    for row, problem in zip(rows, problems, strict=True):
        cells = [
            cell.ljust(width) if i in (0, 1, 5) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo(for_terminal("  ".join([*cells, problem]).rstrip()))
    click.echo(f"{size(memory.free)} free on {memory.device}; the cache is of the default budget.")


def _row(entry: Entry) -> tuple[str, ...]:
    name = entry.name if entry.target is None else f"{entry.name} = {entry.target}"
    fits = {True: "yes", False: "no", None: "-"}[entry.fits]
    return (
        name,
        " ".join(filter(None, (entry.where, entry.kind))),
        "-" if entry.parameters is None else _count(entry.parameters),
        "-" if entry.weight_bytes is None else size(entry.weight_bytes),
        "-" if entry.kv_bytes is None else size(entry.kv_bytes),
        fits,
    )


def _count(number: int) -> str:
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return str(number)
