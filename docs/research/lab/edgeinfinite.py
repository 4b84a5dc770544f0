"""Train and measure the gate of edgeinfinite, which mixes in its memory."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.app import run
from kvstream.cli.commands.bench import common_options as common
from kvstream.cli.groups import Group
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.option import option, stack
from kvstream.cli.options.table import model_options
from kvstream.cli.options.types import COUNT
from kvstream.cli.shared.saying import say
from kvstream.errors import UsageError
from kvstream.reporters.format import duration
from kvstream_lab.output import refuse_unwritable

if TYPE_CHECKING:
    from kvstream.api.model import Session
    from kvstream.methods.tools.gates import Gate
    from kvstream_lab.gates.train import Progress, Trainer

EVERY = 20
"""Maximum number of lessons between lines of progress."""
MEASURED = 4
"""Number of held-out texts that measure a gate after its training."""
PATIENCE = 30.0
"""Seconds after which slow lessons get a line of progress earlier."""


def gate_options(
    section: str, *, data: str, budget: str, tokens: int, seed: str
) -> Callable[[Any], Any]:
    """Return the options of training and measuring, with their help texts."""
    return stack(
        option(
            "--data", required=True, type=click.Path(path_type=Path), metavar="FOLDER",
            section=section, help=data,
        ),
        option(
            "--form", type=click.Choice(("learned", "paper")), default="learned",
            section=section,
            help="Form of the gate. learned: features like the softmax; paper: ELU + 1.",
        ),
        option(
            "--budget", type=COUNT, default=1024, metavar="N",
            section=section, help=budget,
        ),
        option(
            "--tokens", type=COUNT, default=tokens, metavar="N",
            section=section, help="Tokens per text, from a random place in it.",
        ),
        common.seed_option(section=section, help=seed),
    )  # fmt: skip


def number_option(name: str, default: int | None, help: str) -> Callable[[Any], Any]:
    """Return an option of the training that takes a positive number."""
    return option(
        name, type=click.IntRange(min=1), default=default, show_default=default is not None,
        metavar="N", section="Training", help=help,
    )  # fmt: skip


@click.command("train", cls=SectionedCommand, short_help="Train its gate for a model.")
@gate_options(
    "Training",
    data="Folder of text files to learn from; a tenth, chosen by name, is held out.",
    budget="KV entries per head during training; the gate works with other budgets too.",
    tokens=6144,
    seed="Random seed for the order of the texts, the places in them, and the first weights.",
)
@option(
    "-o", "--out", default=Path("gate.safetensors"), metavar="FILE",
    type=click.Path(path_type=Path), section="Training", help="Write the gate to this file.",
)  # fmt: skip
@option(
    "--resume", is_flag=True, section="Training",
    help="Resume from FILE.checkpoint, which training writes after every text and every 100 steps, "
    "or from the lessons in FILE.lessons.",
)  # fmt: skip
@number_option(
    "--lessons", 400, "Excerpts from which the features learn, most with questions about planted "
    "facts. Each is a file of some MB until the training ends.",
)  # fmt: skip
@number_option("--steps", 6000, "Training steps of the features, one excerpt each.")
@number_option("--texts", None, "Maximum texts per epoch of next-token training. [default: all]")
@number_option("--epochs", 2, "Passes over all texts.")
@model_options
@common.quiet_option(section="Output")
@common.verbose_option(section="Output", help="Show tracebacks and messages of libraries.")
def train(**values: Any) -> int:  # fmt: skip
    """Train the gate of edgeinfinite for a model; the model itself does not change.

    The embedded model has a gate. For another model, train one on texts of the kind that you will
    read. You can stop the training at any time and resume it (--resume). At the end, the
    command measures the perplexity on held-out texts: without the memory, with it, and with the
    memory of another text.

    \b
      python docs/research/lab/edgeinfinite.py train --model OWNER/NAME --data FOLDER
      kvstream ask book.txt "Who?" --model OWNER/NAME --method edgeinfinite \\
        --set edgeinfinite.gate=gate.safetensors
    """
    from kvstream_lab.gates.train import GateRecipe, Trainer

    refuse_unwritable(values["out"])
    settings = common.model_settings(values)
    session = common.open_session(settings, verbose=values["verbose"])
    names = (field.name for field in dataclasses.fields(GateRecipe))
    recipe = GateRecipe(**{name: values[name] for name in names if name in values})
    trainer = Trainer(session.model, session.tokenizer, recipe, values["data"], values["out"])
    resumed = values["resume"] and trainer.resume()
    if values["resume"] and not resumed:
        say(f"There is no {trainer.checkpoint} to resume; the training starts again.")
    if not values["quiet"]:
        say(
            f"{len(trainer.learned)} texts, {len(trainer.held)} held out; the gate is "
            f"{trainer.share:.2%} of the weights"
            + (f"; resuming after {_where(trainer)}." if resumed else ".")
        )
    lines = _Lines()
    try:
        for at in trainer.train():
            line = lines.of(at, time.monotonic())
            if line and not values["quiet"]:
                say(line)
    except KeyboardInterrupt:
        if reached := _where(trainer):
            say(f"Stopped after {reached}; the same command with --resume continues.")
        raise
    trainer.save()
    click.echo(f"{values['out']}: the gate of {session.model_name}, {trainer.share:.2%} of it")
    if not trainer.held:
        say("The gate was not measured: of so few files none is held out; see the command measure.")
        return 0
    from kvstream_lab.gates.worth import BASE, CONTROL

    try:
        variants = (BASE, "edgeinfinite", CONTROL)
        _show(session, trainer.gates, trainer.heldout(MEASURED), recipe.budget, variants)
    except UsageError as error:  # the gate is there
        say(f"The gate was not measured: {error}")
    return 0


def _where(trainer: Trainer) -> str:
    """Return the last unit that --resume does not repeat, or an empty text if there is none."""
    if trainer.done:
        return f"text {trainer.done}"
    if trainer.stepped:
        return f"step {trainer.stepped}"
    return f"lesson {trainer.read}" if trainer.read else ""


class _Lines:
    """Lines of progress: for every block of steps and every text, and for lessons now and then."""

    def __init__(self) -> None:
        self.said = -math.inf
        self.what, self.first, self.seconds = "", 0, 0.0

    def of(self, at: Progress, now: float) -> str | None:
        """Return a line if one is due; `now` is in seconds from any origin."""
        if at.what != self.what or (at.what == "lesson" and not at.tokens):  # or already read
            self.what, self.first, self.seconds = at.what, at.done, 0.0
        else:
            self.seconds += at.seconds
        due = at.done == at.of or at.done % EVERY == 0 or now - self.said >= PATIENCE
        if at.what == "lesson" and not due:
            return None
        self.said = now
        line = f"{at.what} {at.done} of {at.of}"
        if at.what == "step":
            line += f": {at.loss:.3f} nats from the attention, over all layers"
        elif at.what == "text":
            line += f": loss {at.loss:.4f}"
        if at.tokens:
            line += f", {at.tokens / max(at.seconds, 1e-9):,.0f} tokens/s"
        if self.first < at.done < at.of:
            left = self.seconds / (at.done - self.first) * (at.of - at.done)
            line += f", {duration(left)} left"
        return line


@click.command("measure", cls=SectionedCommand, short_help="Measure its gate on texts.")
@gate_options(
    "Measurement",
    data="Folder of text files; it uses the tenth that training held out, chosen by name.",
    budget="KV entries per head.",
    tokens=8192,
    seed="Random seed for the texts and the places in them.",
)
@option(
    "--gate", default="", metavar="FILE", section="Measurement",
    help="File of the gate. [default: the one in the folder of the model]",
)  # fmt: skip
@option(
    "--texts", type=click.IntRange(min=2), default=8, metavar="N",
    section="Measurement", help="Number of texts.",
)  # fmt: skip
@model_options
@common.verbose_option(section="Output", help="Show tracebacks and messages of libraries.")
def measure(**values: Any) -> int:  # fmt: skip
    """Measure perplexity with the memory, without it, and with the memory of another text.

    A gate can help by its weights alone. If the memory of another text helps as much as the memory
    of the text itself, the model uses nothing from memory. The paper's ablation (no window, no
    sinks, neither) follows. Changes are relative to sinks and window without memory, with the 95%
    interval of the paired differences.

    \b
      python docs/research/lab/edgeinfinite.py measure --model OWNER/NAME --data FOLDER \\
        --gate gate.safetensors
    """
    from kvstream.methods.tools.gates import load_gates
    from kvstream_lab.gates.texts import excerpts, texts_in
    from kvstream_lab.gates.worth import VARIANTS

    settings = common.model_settings(values)
    session = common.open_session(settings, verbose=values["verbose"])
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
    from kvstream.evaluation.confidence import difference_interval
    from kvstream_lab.gates.worth import BASE, compare, overall

    found = compare(session.model, session.tokenizer, gates, texts, budget, variants)
    if not any(m.tokens for m in found[BASE]):
        raise UsageError(
            f"A budget of {budget:,} entries holds all {max(map(len, texts)):,} tokens of a text, "
            "so nothing can be measured; use a smaller --budget, or longer texts (--tokens)."
        )
    for name, measured in found.items():
        both = overall(measured)
        line = f"{name}: perplexity {both.perplexity:.3f} on {both.tokens:,} tokens"
        # A text that fits into memory has no tokens to compare.
        pairs = [(a, b) for a, b in zip(measured, found[BASE], strict=True) if b.tokens]
        if name != BASE and len(pairs) > 1:
            less = difference_interval(
                [a.loss - b.loss for a, b in pairs], weights=[b.tokens for _, b in pairs]
            )
            change, low, high = map(math.expm1, less)
            line += f", {change:+.2%} ({low:+.2%} to {high:+.2%})"
        click.echo(line)


command = Group(
    "edgeinfinite", commands={"train": train, "measure": measure}, help="The gate of edgeinfinite."
)

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], command))
