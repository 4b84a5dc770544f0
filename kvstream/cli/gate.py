"""``kvstream gate``: the gate that lets ``edgeinfinite`` read its memory, trained for a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.bench.options import model_settings
from kvstream.cli.bench.output import open_session, quiet_libraries, say
from kvstream.cli.options import CountType, SectionedCommand, model_options, option

if TYPE_CHECKING:
    from kvstream.session import Session
    from kvstream.training.gate import Trainer


@click.group("gate", short_help="Train the gate of edgeinfinite for a model.")
def command() -> None:
    """The method edgeinfinite needs a gate that was trained for the model.

    The embedded model has one. For another, train it on texts of the kind that will be read:

    \b
      kvstream gate train --model MODEL --data FOLDER --out gate.safetensors
      kvstream ask book.txt "Who?" --model MODEL --method edgeinfinite \\
        --set edgeinfinite.gate=gate.safetensors
    """


@command.command("train", cls=SectionedCommand, short_help="Train a gate on a folder of texts.")
@option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    section="Training",
    help="Text files to learn from; a tenth, chosen by name, is held out.",
)
@option(
    "-o",
    "--out",
    default=Path("gate.safetensors"),
    show_default=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    section="Training",
    help="Where the gate goes.",
)
@option(
    "--resume",
    is_flag=True,
    section="Training",
    help="Go on from FILE.checkpoint, which is written after every text.",
)
@option(
    "--budget",
    type=CountType(),
    default=1024,
    show_default=True,
    metavar="N",
    section="Training",
    help="Entries a head while it learns; the gate works with others too.",
)
@option(
    "--tokens",
    type=CountType(),
    default=6144,
    show_default=True,
    metavar="N",
    section="Training",
    help="Tokens of each text, from a random place in it.",
)
@option(
    "--texts",
    type=click.IntRange(min=1),
    metavar="N",
    section="Training",
    help="Most texts in an epoch. [default: all]",
)
@option(
    "--epochs",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    section="Training",
    help="Times that every text is read.",
)
@option(
    "--lr",
    type=click.FloatRange(min=0, min_open=True),
    default=0.005,
    show_default=True,
    metavar="RATE",
    section="Training",
    help="Learning rate at its highest.",
)
@option(
    "--hidden",
    type=click.IntRange(min=1),
    metavar="N",
    section="Training",
    help="Width of the gate's MLP. [default: the dimension of a head]",
)
@option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    section="Training",
    help="Order of the texts, places in them, and the weights at the start.",
)
@option(
    "--measure",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    metavar="N",
    section="Training",
    help="Held-out texts on which the gate is measured at the end.",
)
@model_options
@option("-q", "--quiet", is_flag=True, section="Output", help="No progress.")
@option("-v", "--verbose", is_flag=True, section="Output", help="Tracebacks, library warnings.")
def train(**values: Any) -> int:  # fmt: skip
    """Train the gate of edgeinfinite for a model; the model itself stays as it is.

    Can be broken off at any time and gone on with (--resume). Ends with the perplexity on texts
    that were held out: with the memory, and without it.
    """
    from kvstream.training.gate import GateRecipe, Trainer

    settings = model_settings(values)
    quiet_libraries(settings, verbose=values["verbose"])
    session = open_session(settings)
    fields = ("budget", "tokens", "texts", "epochs", "lr", "hidden", "seed")
    recipe = GateRecipe(**{name: values[name] for name in fields})
    trainer = Trainer(session.model, session.tokenizer, recipe, values["data"], values["out"])
    resumed = values["resume"] and trainer.resume()
    if not values["quiet"]:
        say(
            f"{len(trainer.learned)} texts, {len(trainer.held)} held out; the gate is "
            f"{trainer.share:.2%} of the weights"
            + (f"; going on after text {trainer.done}." if resumed else ".")
        )
    try:
        _train(trainer, quiet=values["quiet"])
    except KeyboardInterrupt:
        if trainer.done:
            say(f"Stopped after {trainer.done} texts; the same command with --resume goes on.")
        raise
    trainer.save()
    click.echo(f"{values['out']}: the gate of {session.model_name}, {trainer.share:.2%} of it")
    if values["measure"] and trainer.held:
        _measure(session, trainer, values["measure"])
    return 0


def _train(trainer: Trainer, *, quiet: bool) -> None:
    for at in trainer.train():
        if not quiet:
            speed = at.tokens / max(at.seconds, 1e-9)
            say(f"text {at.text} of {at.texts}: loss {at.loss:.4f}, {speed:,.0f} tokens/s")


def _measure(session: Session, trainer: Trainer, count: int) -> None:
    from kvstream.training.gate import compare, overall

    found = compare(
        session.model, session.tokenizer, trainer.gates, trainer.heldout(count),
        trainer.recipe.budget, ("edgeinfinite", "without memory"),
    )  # fmt: skip
    for name, measured in found.items():
        both = overall(measured)
        click.echo(f"{name}: perplexity {both.perplexity:.3f} on {both.tokens:,} held-out tokens")
