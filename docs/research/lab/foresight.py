"""``python docs/research/lab/foresight.py``: scorers that predict the attention of questions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kvstream.cli.app import run
from kvstream.cli.commands.bench import common_options as common
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.option import option
from kvstream.cli.options.table import model_options
from kvstream.cli.options.types import COUNT
from kvstream.cli.shared.saying import say
from kvstream.errors import SourceError
from kvstream_lab.output import refuse_unwritable

HELD = 12
"""Number of held-out documents that measure the scorers at the end."""
KEPT = 1 / 8


@click.command("foresight", cls=SectionedCommand, short_help="Train its scorers for a model.")
@option(
    "--data", required=True, type=click.Path(path_type=Path), metavar="FOLDER",
    section="Training",
    help="Folder with books/ and qa/: prose, and passages with questions; a tenth is held out.",
)  # fmt: skip
@option(
    "-o", "--out", default=Path("foresight.safetensors"), metavar="FILE",
    type=click.Path(path_type=Path), section="Training", help="Write the scorers to this file.",
)  # fmt: skip
@option(
    "--texts", type=click.IntRange(min=1), default=240, metavar="N",
    section="Training", help="Documents to learn from.",
)  # fmt: skip
@option(
    "--tokens", type=COUNT, default="3584", metavar="N",
    section="Training", help="Maximum tokens per document.",
)  # fmt: skip
@option(
    "--by-layer", is_flag=True, section="Training",
    help="Let each layer keep its own tokens: for models of many layers.",
)  # fmt: skip
@option(
    "--epochs", type=click.IntRange(min=1), default=8, metavar="N",
    section="Training", help="Passes over the documents.",
)  # fmt: skip
@common.seed_option(
    section="Training", help="Random seed for the documents, their order, and the first weights."
)
@model_options
@common.quiet_option(section="Output")
@common.verbose_option(section="Output", help="Show tracebacks and messages of libraries.")
def command(**values: Any) -> int:  # fmt: skip
    """Train the scorers of foresight for a model; the model itself does not change.

    The embedded model has scorers. For another model, the training takes minutes to hours. The
    model reads documents with known questions. The scorers learn to predict, from the keys of a
    token, whether a question attends to it. At the end the command prints how much of the attention
    of held-out questions the best eighth of the tokens gets.

    \b
      python docs/research/lab/foresight.py --model OWNER/NAME --data FOLDER
      kvstream remember book.txt -o book.kvs --model OWNER/NAME \\
          --method foresight --set foresight.scorers=foresight.safetensors
    """
    from kvstream_lab import scorers
    from kvstream_lab.synthetic.corpus import Corpus

    out, texts, seed = values["out"], values["texts"], values["seed"]
    refuse_unwritable(out)
    try:
        corpora = Corpus(values["data"]), Corpus(values["data"], heldout=True)
    except FileNotFoundError as error:
        raise SourceError(f"--data: {error}.") from None
    settings = common.model_settings(values)
    session = common.open_session(settings, verbose=values["verbose"])
    read: list[list[scorers.Lesson]] = []
    for corpus, count in zip(corpora, (texts, HELD), strict=True):
        read.append([])
        made = scorers.lessons(
            session.model, session.tokenizer, corpus, count, seed, values["tokens"],
            by_layer=values["by_layer"],
        )  # fmt: skip
        for lesson in made:
            read[-1].append(lesson)
            if not values["quiet"] and len(read[-1]) % 20 == 0:
                say(f"text {len(read[-1])} of {count}")
    recipe = scorers.Recipe(
        texts=texts, epochs=values["epochs"], seed=seed, by_layer=values["by_layer"]
    )
    for now in scorers.train(session.model, read[0], recipe):
        if not values["quiet"]:
            say(f"epoch {now.epoch} of {recipe.epochs}: loss {now.loss:.4f}, {now.seconds:.0f} s")
    scorers.save_scorers(now.scorers, out)
    click.echo(f"{out}: the scorers of {session.model_name}")
    found = scorers.recovered(now.scorers, read[1], KEPT)
    if found:
        click.echo(
            f"The best eighth of the tokens gets {sum(found) / len(found):.0%} of the attention of "
            f"held-out questions (mean of {len(found)} documents)."
        )
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], command))
