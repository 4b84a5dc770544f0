"""The models of a command: which answer and skim, what is said of them, and loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import click

from kvstream.api.options import AUTO, PASSAGES_METHOD, SELF, WORDS
from kvstream.cli.options.option import first_typed, given_options, typed
from kvstream.cli.options.table import OF_MEMORY, Options
from kvstream.cli.options.types import NONE
from kvstream.cli.shared.saying import say
from kvstream.errors import UsageError
from kvstream.reporters.plain import Teller
from kvstream.store import reader
from kvstream.store.offered import OFFERS, is_local

if TYPE_CHECKING:
    from kvstream.api.model import Model

POCKET = "pocket"
"""The base model of `reader`, without its adapter."""
DEMONSTRATION = "pocket is a small model for demonstration"
OTHERS = "choose another with -m, such as -m {}"
FOR_ONE = ("shards", "every", "follow", "extract", "checkpoint")
"""Options, like --each, with which one model reads everything: pocket, unless -m names another."""


def settled(options: Options, *, alone: bool = False) -> Options:
    """Choose the models that -m and --skim leave open.

    The best model that was fetched answers questions. With --skim auto, each reading of a model
    other than pocket chooses its scout by cost (`kvstream.session.scouting.choose_scout`); pocket
    scouts if an option says what a KV cache keeps. With `alone`, or with a command or an option for
    one model, use only the named models. Raises UsageError if --skim contradicts that.
    """
    from kvstream.api.models import default_model

    command = options.request.command
    alone = alone or command in ("summarize", "compare") or _for_one(options) is not None
    model, skim = options.model, options.skim
    if not options.model_given and not alone:
        model = default_model()
    # An option about what a KV cache keeps.
    about = None if options.methods == (PASSAGES_METHOD,) else first_typed(OF_MEMORY)
    if skim == AUTO and (alone or model == POCKET):
        skim = NONE
    elif about and (skim == AUTO or (skim == WORDS and not typed("skim"))):
        skim = POCKET  # words alone would ignore it
    elif about and skim == WORDS:
        raise UsageError(
            f"{about} has no effect with --skim words, which keeps no KV cache; leave one of them "
            "out."
        )
    if skim == model:
        raise UsageError(
            f"--skim and --model are both {skim}; use --skim {SELF} for a model that reads twice, "
            "or --skim none."
        )
    return replace(options.with_model(model), skim=skim)


def summarizing(options: Options) -> Options:
    """Replace a reader by its base model for a summary: its adapter answers in a few words."""
    own = without_adapter(options)
    if own is not options and not options.quiet:
        say(f"{options.model} answers questions; {own.model}, the model below it, summarizes.")
    return own


def without_adapter(options: Options) -> Options:
    """Return the options with the base model of a reader."""
    base = OFFERS[options.model].same_as if options.model in OFFERS else ""
    return options.with_model(base) if base else options


class QueryModel:
    """The model that writes queries for tables: the one that answers, else the smallest that was
    fetched. A call loads it, once.
    """

    def __init__(self, options: Options, fetched: Sequence[str]) -> None:
        self._options, self._fetched = options, fetched

    @cached_property
    def name(self) -> str:
        """The name of the model. The default that answers depends on the free memory."""
        own = without_adapter(settled(self._options)).model
        return own if own in self._fetched else self._fetched[0]

    def __call__(self) -> Model:
        return self._loaded

    @cached_property
    def _loaded(self) -> Model:
        if not self._options.quiet:
            say(f"Loading {self.name}, which writes a query ...")
        folder = str(reader.path(reader.QUERIES[self.name]))
        own = replace(self._options.with_model(folder), skim=NONE)
        return open_model(replace(own, loading=replace(own.loading, revision=None)))


def query_model(options: Options) -> QueryModel | None:
    """Return the model that writes queries for tables; None if none was fetched."""
    own = [name for name, folder in reader.QUERIES.items() if reader.is_shipped(folder)]
    fetched = [name for name in own if OFFERS[name].is_here()]
    return QueryModel(options, fetched) if fetched else None


def demonstration(options: Options) -> str:
    """Describe pocket, and how to get better answers or summaries."""
    from kvstream.api.models import default_model

    if options.request.command == "summarize":
        shows = "shows sentences of the text; other models (-m) write summaries."
        return f"{DEMONSTRATION}, and {shows}"
    best = default_model()
    if reader.is_shipped() and best == POCKET:
        fetch = "fetch reader once (kvstream models get reader, 93 MB)."
        return f"{DEMONSTRATION}; for better answers {fetch}"
    ctx = click.get_current_context(silent=True)
    chosen = ctx is None or ctx.info_name not in ("ask", "chat", "remember")
    why = None if chosen or "model" in given_options() else _for_one(options)
    if why is None:
        return f"{DEMONSTRATION}; for better answers {OTHERS.format(best)}."
    return (
        f"{DEMONSTRATION}, and the default with {why}; for better answers {OTHERS.format(best)}, "
        "which then reads all of the text and takes longer."
    )


def _for_one(options: Options) -> str | None:
    """Return the option with which one model reads everything, as it is typed."""
    if len(options.methods) > 1:
        return "several methods"
    if options.each:
        return "--each"
    return next((f"--{name}" for name in FOR_ONE if getattr(options.request, name)), None)


def open_model(options: Options, reporter: Teller | None = None, *, fixed: bool = False) -> Model:
    """Load the model. Raises UsageError, ModelError.

    A `reporter` announces it, and describes pocket, unless it is `fixed` by a file.
    """
    if reporter is not None:
        if not options.quiet and options.skim == NONE and options.model == POCKET and not fixed:
            reporter.tell(demonstration(options))
        alone = options.skim in (NONE, WORDS, SELF, AUTO)
        models = options.model if alone else f"{options.model} and {options.skim}"
        reporter.wait_for(f"Loading {models} ...")
    from kvstream.api.model import Model  # torch takes seconds to import

    refuse_revision(options.model)
    return Model.open(options.loading, None if options.skim == NONE else options.skim)


def refuse_revision(model: str) -> None:
    """Raise click's UsageError if --revision was given for a model that is not on the hub."""
    if typed("revision") and is_local(model):
        raise click.UsageError(
            f"--revision is for models of the hub, and {model} is none; leave --revision out."
        )
