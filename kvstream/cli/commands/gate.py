"""``kvstream gate``: the gate that lets ``edgeinfinite`` read its memory, trained for a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.commands.bench.options import model_settings
from kvstream.cli.commands.bench.output import open_session, quiet_libraries, say
from kvstream.cli.groups import Group
from kvstream.cli.shared.options import CountType, SectionedCommand, SeedType, model_options, option
from kvstream.errors import UsageError

if TYPE_CHECKING:
    from kvstream.api.model import Session
    from kvstream.gates.train import Trainer
    from kvstream.methods.tools.gates import Gate


@click.group("gate", cls=Group)
def command() -> None:
    """The method edgeinfinite needs a gate that was trained for the model.

    The embedded model has one. For another, train it on texts of the kind that will be read:

    \b
      kvstream gate train --model MODEL --data FOLDER --out gate.safetensors
      kvstream ask book.txt "Who?" --model MODEL --method edgeinfinite \\
        --set edgeinfinite.gate=gate.safetensors
      kvstream gate measure --model MODEL --data FOLDER --gate gate.safetensors
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
    help="Go on from FILE.checkpoint, which is written after every text and every 100 steps.",
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
    "--form",
    type=click.Choice(("learned", "paper")),
    default="learned",
    show_default=True,
    section="Training",
    help="As the method's setting: features like the softmax, or the paper's ELU + 1.",
)
@option(
    "--features",
    type=click.IntRange(min=1, max=4096),
    metavar="N",
    section="Training",
    help="Of each key in the form learned: rows of a head's memory. [default: the method's]",
)
@option(
    "--lessons",
    type=click.IntRange(min=1),
    default=400,
    show_default=True,
    metavar="N",
    section="Training",
    help="Excerpts, most with planted facts that are asked for, from which features learn.",
)
@option(
    "--steps",
    type=click.IntRange(min=1),
    default=6000,
    show_default=True,
    metavar="N",
    section="Training",
    help="Times that features learn from one of these.",
)
@option(
    "--texts",
    type=click.IntRange(min=1),
    metavar="N",
    section="Training",
    help="Most texts in an epoch of what learns from the next token. [default: all]",
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
    help="Width of the gate's MLP. [default: the dimension of a head; a quarter if learned]",
)
@option(
    "--seed",
    type=SeedType(),
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
    that were held out: without the memory, with it, and with the memory of another text.
    """
    from kvstream.gates.train import GateRecipe, Trainer

    if values["out"].is_dir():
        raise UsageError(f"--out {values['out']} is a folder; name a file in it.")
    settings = model_settings(values)
    quiet_libraries(settings, verbose=values["verbose"])
    session = open_session(settings)
    given = {field.name: values[field.name] for field in dataclasses.fields(GateRecipe)}
    recipe = GateRecipe(**{name: value for name, value in given.items() if value is not None})
    trainer = Trainer(session.model, session.tokenizer, recipe, values["data"], values["out"])
    resumed = values["resume"] and trainer.resume()
    if values["resume"] and not resumed:
        say(f"There is no {trainer.checkpoint} to go on from; beginning anew.")
    if not values["quiet"]:
        say(
            f"{len(trainer.learned)} texts, {len(trainer.held)} held out; the gate is "
            f"{trainer.share:.2%} of the weights"
            + (f"; going on after {_where(trainer)}." if resumed else ".")
        )
    try:
        _train(trainer, quiet=values["quiet"])
    except KeyboardInterrupt:
        if trainer.stepped or trainer.done:
            say(f"Stopped after {_where(trainer)}; the same command with --resume goes on.")
        raise
    trainer.save()
    click.echo(f"{values['out']}: the gate of {session.model_name}, {trainer.share:.2%} of it")
    if values["measure"] and trainer.held:
        _measure(session, trainer, values["measure"])
    elif values["measure"]:
        say("The gate was not measured: of so few files none is held out. See gate measure.")
    return 0


def _where(trainer: Trainer) -> str:
    return f"text {trainer.done}" if trainer.done else f"step {trainer.stepped}"


def _train(trainer: Trainer, *, quiet: bool) -> None:
    for at in trainer.train():
        if quiet or (at.what == "lesson" and at.done % 20 and at.done < at.of):
            continue
        line = f"{at.what} {at.done} of {at.of}"
        if at.what == "step":
            line += f": {at.loss:.3f} nats from the attention, over all layers"
        elif at.what == "text":
            line += f": loss {at.loss:.4f}, {at.tokens / max(at.seconds, 1e-9):,.0f} tokens/s"
        say(line)


def _measure(session: Session, trainer: Trainer, count: int) -> None:
    from kvstream.gates.worth import BASE, CONTROL

    texts, variants = trainer.heldout(count), (BASE, "edgeinfinite", CONTROL)
    _show(session, trainer.gates, texts, trainer.recipe.budget, variants)


@command.command("measure", cls=SectionedCommand, short_help="Measure a gate on a folder of texts.")
@option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    section="Measurement",
    help="Text files; the tenth, chosen by name, that training held out.",
)
@option(
    "--gate",
    default="",
    metavar="FILE",
    section="Measurement",
    help="The gate. [default: the one beside the model's weights]",
)
@option(
    "--form",
    type=click.Choice(("learned", "paper")),
    default="learned",
    show_default=True,
    section="Measurement",
    help="Of the gate.",
)
@option(
    "--budget",
    type=CountType(),
    default=1024,
    show_default=True,
    metavar="N",
    section="Measurement",
    help="Entries a head.",
)
@option(
    "--tokens",
    type=CountType(),
    default=8192,
    show_default=True,
    metavar="N",
    section="Measurement",
    help="Tokens of each text, from a random place in it.",
)
@option(
    "--texts",
    type=click.IntRange(min=2),
    default=8,
    show_default=True,
    metavar="N",
    section="Measurement",
    help="Texts; with fewer than two there is no interval.",
)
@option(
    "--seed",
    type=SeedType(),
    default=0,
    show_default=True,
    metavar="N",
    section="Measurement",
    help="Which texts, and where in them.",
)
@model_options
@option("-v", "--verbose", is_flag=True, section="Output", help="Tracebacks, library warnings.")
def worth(**values: Any) -> int:  # fmt: skip
    """Perplexity with the memory, without it, and with the memory of another text.

    A gate may help by what its weights say alone. Where another text's memory helps as much as the
    text's own, nothing is read from memory. The paper's ablation (no window, no sinks, neither)
    follows. Changes are to sinks and window without memory, with the 95% interval of the paired
    differences.
    """
    from kvstream.gates.texts import excerpts, texts_in
    from kvstream.gates.worth import VARIANTS
    from kvstream.methods.tools.gates import load_gates

    settings = model_settings(values)
    quiet_libraries(settings, verbose=values["verbose"])
    session = open_session(settings)
    gates = load_gates(values["form"], values["gate"], session.model.facts)
    learned, held = texts_in(values["data"])
    size, count = values["tokens"], values["texts"]
    if not held:
        say("No text of this folder is held out: a gate that learned from it knows them all.")
    texts = excerpts(held or learned, session.tokenizer, size, count, values["seed"])
    _show(session, gates, texts, values["budget"], tuple(VARIANTS))
    return 0


def _show(
    session: Session,
    gates: Mapping[int, Gate],
    texts: Sequence[Sequence[int]],
    budget: int,
    variants: Sequence[str],
) -> None:
    from kvstream.evaluation.intervals import mean_interval
    from kvstream.gates.worth import BASE, compare, overall

    found = compare(session.model, session.tokenizer, gates, texts, budget, variants)
    for name, measured in found.items():
        both = overall(measured)
        line = f"{name}: perplexity {both.perplexity:.3f} on {both.tokens:,} tokens"
        if name != BASE and len(measured) > 1:
            pairs = zip(measured, found[BASE], strict=True)
            change, low, high = map(math.expm1, mean_interval([a.loss - b.loss for a, b in pairs]))
            line += f", {change:+.2%} ({low:+.2%} to {high:+.2%})"
        click.echo(line)
