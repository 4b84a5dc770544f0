"""The models of a command: which answer and skim, what is said of them, and loading."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from kvstream.api.options import AUTO, WORD_SEARCH
from kvstream.cli.options.model import refuse_revision
from kvstream.cli.options.option import given_options, typed
from kvstream.cli.options.reading import OF_MEMORY, ReadingOptions
from kvstream.cli.options.types import NONE
from kvstream.cli.shared.saying import say
from kvstream.errors import UsageError
from kvstream.reporters import Reporter

if TYPE_CHECKING:
    from kvstream.api.model import Model

POCKET = "pocket"
READER = "reader"
BASE = "smollm2"
"""The base model of `reader`, without its adapter."""
DEMONSTRATION = "pocket is a small model for demonstration"
OTHERS = "choose another with -m, such as -m reader"
EXTRACTS = (
    "pocket is a small model for demonstration, and shows sentences of the text; other models (-m) "
    "write summaries."
)
FETCH = "fetch reader once (kvstream models get reader, 93 MB)."
FOR_ONE = ("extract", "reread", "checkpoint")
"""Options with which one model reads everything: pocket, unless -m names another."""
PASSING = ("each", "shards", "every", "follow")
"""Options of commands with the same effect."""


def settled(
    options: ReadingOptions, *, alone: bool = False, searches: bool = False
) -> ReadingOptions:
    """Choose the models that -m and --skim leave open.

    For questions, `reader` answers if it was fetched, and on a CPU pocket skims for it; if all
    questions are known (`searches`), a word search does, unless an option is about memory. It
    finds as much in half of the time (docs/research/skim.md). With `alone`, or with an option for
    one model, use only the named models. Raises UsageError if --skim or --skim-by contradicts that.
    """
    from kvstream.api.models import reader_is_ready

    alone = alone or any(options.asked.get(name) for name in FOR_ONE) or len(options.methods) > 1
    ctx = click.get_current_context(silent=True)
    model, skim = options.model, options.skim
    if not options.model_given and not alone and reader_is_ready():
        model = READER
    if skim == AUTO:
        skim = NONE
        if model == READER and not alone and _on_cpu(options.loading["device"]):
            about_memory = ctx is not None and given_options() & {*OF_MEMORY, "report"}
            skim = WORD_SEARCH if searches and not about_memory else POCKET
    if skim == model:
        raise UsageError(
            f"--skim and --model are both {skim}; name two models, or use --skim none."
        )
    if skim == NONE and ctx is not None and typed(ctx, "skim_by"):
        raise UsageError(
            f"--skim-by has no effect here, where {model} reads all of the text; leave it out, or "
            "choose another model that skims with --skim MODEL."
        )
    loading = {**options.loading, "skim": None if skim == NONE else skim}
    return replace(options, model=model, model_given=True, skim=skim, loading=loading)


def summarizing(options: ReadingOptions) -> ReadingOptions:
    """Replace `reader` by its base model for a summary: its adapter answers in a few words."""
    if options.model != READER:
        return options
    if not options.quiet:
        say(f"{READER} answers questions; {BASE}, the model below it, summarizes.")
    return replace(options, model=BASE)


def _on_cpu(device: str) -> bool:
    if device != "auto":
        return device == "cpu"
    import torch

    return not torch.cuda.is_available()


def announce(
    reporter: Reporter, options: ReadingOptions, *, summary: bool = False, fixed: bool = False
) -> None:
    """Name the models of the run, announce that they are loaded, and describe pocket.

    `fixed`: a memory file names the model, so do not advise to choose another one.
    """
    skim = options.loading.get("skim")
    if not options.quiet:
        if skim is not None:
            reads = "a word search" if skim == WORD_SEARCH else skim
            reporter.tell(
                f"{options.model} answers; {reads} reads a long text for it. With --skim none "
                f"{options.model} reads all of it."
            )
        elif options.model == POCKET and not fixed:
            reporter.tell(EXTRACTS if summary else demonstration(options))
    one = skim in (None, WORD_SEARCH)
    reporter.loading(options.model if one else f"{options.model} and {skim}")


def demonstration(options: ReadingOptions) -> str:
    """Describe pocket, and how to get better answers."""
    from kvstream.api.models import reader_is_ready, reader_is_shipped

    if reader_is_shipped() and not reader_is_ready():
        return f"{DEMONSTRATION}; for better answers {FETCH}"
    why = _why_alone(options)
    if why is None:
        return f"{DEMONSTRATION}; for better answers {OTHERS}."
    return (
        f"{DEMONSTRATION}, and the default with {why}; for better answers {OTHERS}, which then "
        "reads all of the text and takes longer."
    )


def _why_alone(options: ReadingOptions) -> str | None:
    """Return the option for which `reader`, although it is there, is not the default."""
    ctx = click.get_current_context(silent=True)
    if ctx is None or ctx.info_name not in ("ask", "chat", "remember"):
        return None
    if "model" in given_options():
        return None
    if len(options.methods) > 1:
        return "several methods"
    found = {**{name: ctx.params.get(name) for name in PASSING}, **options.asked}
    return next((f"--{name}" for name in (*PASSING, *FOR_ONE) if found.get(name)), None)


def open_model(options: ReadingOptions) -> Model:
    """Load the model. The import is local because torch takes seconds to import.

    Raises UsageError, ModelError.
    """
    from kvstream.api.model import load

    refuse_revision(options.model)
    return load(options.model, **options.loading)
