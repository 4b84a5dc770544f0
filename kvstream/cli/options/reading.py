"""Options that every reading command has, and their values."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any

import click

from kvstream.api.options import (
    AUTO,
    AUTOMATIC,
    BESIDE_SKIMMING,
    WORDS,
    effective,
    refuse_twice,
    settings_by_method,
)
from kvstream.cli.options.answers import ANSWERS, answer_options
from kvstream.cli.options.memory import memory_options
from kvstream.cli.options.model import LOADING, loading_options, model_option, skim_options
from kvstream.cli.options.option import Command, given_options, stack, typed
from kvstream.cli.options.streams import output_options
from kvstream.cli.options.types import NONE
from kvstream.cli.shared.saying import say
from kvstream.errors import UsageError

ASKED = (
    "budget", "preset", "keep", "start", "schedule", "chunk", "chunk_size", "seed", "system",
    "thin", "checkpoint", "checkpoint_every", *ANSWERS,
)  # fmt: skip
"""Names of the options that are passed to `Model.read` and `Model.stream` if given."""
FIELDS = (
    "model", "skim", "max_unpacked", "output", "report", "stats", "progress", "quiet",
    "verbose", "dry_run",
)  # fmt: skip
"""Names of the options that are also fields of `ReadingOptions`."""
OF_MEMORY = (
    "method", "set", "preset", "keep", "start", "schedule", "chunk", "chunk_size",
)  # fmt: skip
"""Names of the options that determine how a model keeps memory."""
SHARED = tuple(dict.fromkeys((*FIELDS, *LOADING, *ASKED, "method", "set", "json", "text")))
"""Names of all options of `reading_options`, which become one `ReadingOptions`."""


@dataclass(frozen=True)
class ReadingOptions:
    """Values of the shared options, as options of `kvstream.Model` and of the program."""

    model: str
    model_given: bool
    """Whether the user chose it; otherwise `running.settled` may choose another one."""
    skim: str
    """A model, ``auto``, ``none`` or ``words``."""
    loading: Mapping[str, Any]
    """Options of `kvstream.load`."""
    methods: tuple[str, ...]
    """The methods to use. If there are several, they are compared."""
    settings: Mapping[str, Mapping[str, str]]
    """Settings by method."""
    asked: Mapping[str, Any]
    """Given options of `Model.read` and `Model.stream`, without method and settings."""
    plain: bool
    max_unpacked: int
    output: Path | None
    as_json: bool
    report: Path | None
    stats: Path | None
    progress: str
    quiet: bool
    verbose: bool
    dry_run: bool

    @property
    def checkpoint(self) -> Path | None:
        """The file of --checkpoint."""
        return self.asked.get("checkpoint")

    @property
    def extract(self) -> bool | None:
        """The value of --extract; with None, the model decides (pocket extracts its summaries)."""
        return self.asked.get("extract")

    @property
    def answers(self) -> dict[str, Any]:
        """The given options of `Memory.ask`."""
        asked = effective(self.asked)
        return {name: asked[name] for name in (*ANSWERS, "seed") if name in asked}

    def of_method(self, name: str | None = None) -> dict[str, Any]:
        """Return the options of a reading by a method, by default the first one."""
        name = name or self.methods[0]
        settings = {f"{name}.{key}": value for key, value in self.settings.get(name, {}).items()}
        return {**effective(self.asked), "method": name, "set": settings}

    @classmethod
    def of(
        cls, values: Mapping[str, Any], *, strict_settings: bool, given: Container[str] = ()
    ) -> ReadingOptions:
        """Create the options from click's values.

        ``strict_settings``: refuse --set for a method that is not used. ``given``: names of the
        options whose value is not the default.
        """
        methods = tuple(m.strip() for m in values["method"].split(",") if m.strip())
        if not methods:
            raise UsageError("--method is empty; see kvstream methods.")
        refuse_twice(methods, "--method")
        typed_settings = pairs(values["set"])
        owners = {path.partition(".")[0] for path in typed_settings}
        if methods == (AUTO,) and len(own := owners & AUTOMATIC) == 1:
            methods = tuple(own)
        return cls(
            model_given="model" in given,
            loading={name: values[name] for name in LOADING},
            methods=methods,
            settings=settings_by_method(typed_settings, methods, strict=strict_settings),
            asked={name: values[name] for name in ASKED if name in given},
            as_json=values["json"],
            plain=values["text"],
            **{name: values[name] for name in FIELDS},
        )


def pairs(given: Sequence[str]) -> dict[str, str]:
    """Split ``METHOD.NAME=VALUE`` into names and values; later ones win. Raises UsageError."""
    found = {}
    for item in given:
        path, equals, value = item.partition("=")
        owner, dot, name = path.strip().partition(".")
        if not (equals and dot and owner and name):
            raise UsageError(f"--set {item!r} is not METHOD.NAME=VALUE, as in infinipot.alpha=0.5.")
        found[path.strip()] = value.strip()
    return found


def reading_options(command: Command) -> Command:
    """Add the options of every reading command. The function gets one ReadingOptions."""

    def wrapper(**values: Any) -> Any:
        shared = {name: values.pop(name) for name in SHARED}
        context = click.get_current_context()
        shared["skim"] = _skim(context, shared)
        refuse_without_effect(context, shared)
        output = shared["output"]
        if output is not None and os.path.isdir(output) and values.get("each") is None:
            raise click.BadParameter(
                f"File {str(output)!r} is a folder.", context, param_hint="'-o' / '--output'"
            )
        given = given_options()
        # A setting in the config file may belong to a method that this run does not use.
        options = ReadingOptions.of(shared, strict_settings=typed(context, "set"), given=given)
        with _telling_of(options.checkpoint, quiet=options.quiet):
            return command(options=options, **values)

    update_wrapper(wrapper, command)
    model = model_option(
        "reader once it is fetched, else pocket; with --memory the model that made the file"
    )
    return stack(  # type: ignore
        memory_options, model, skim_options, loading_options, answer_options, output_options
    )(wrapper)


def _skim(ctx: click.Context, shared: Mapping[str, Any]) -> str:
    """Return the value of --skim. A default gives way to typed options that it contradicts."""
    skim: str = shared["skim"]
    if typed(ctx, "skim") or skim in (AUTO, NONE):
        return skim
    later = ctx.info_name in ("chat", "remember")  # words need their questions first
    if (skim == WORDS and later) or ctx.params.get("memory"):
        return AUTO
    for_one = any(typed(ctx, name) and ctx.params[name] for name in BESIDE_SKIMMING)
    same = typed(ctx, "model") and shared["model"] == skim
    return NONE if for_one or same or ctx.params.get("shards") else skim


@contextmanager
def _telling_of(checkpoint: Path | None, *, quiet: bool) -> Iterator[None]:
    """Report a checkpoint that the command wrote and left, however it ends: it can be resumed."""
    before = _written(checkpoint)
    try:
        yield
    finally:
        if _written(checkpoint) not in (None, before) and not quiet:
            say(f"{checkpoint} holds the reading so far; the same command resumes from it.")


def _written(checkpoint: Path | None) -> tuple[int, int] | None:
    """Return inode and time of the last change of a checkpoint, or None if there is none."""
    if checkpoint is None:
        return None
    try:
        status = checkpoint.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def refuse_without_effect(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Raise click's UsageError for options that only have an effect together with others."""
    for name in ("top_p", "top_k"):
        if typed(ctx, name) and not values["temp"]:
            raise click.UsageError(
                f"--{name.replace('_', '-')} has no effect at temperature 0, which always takes "
                "the most likely token; add --temp 0.7, or leave it out.",
                ctx,
            )
    if typed(ctx, "strict") and values["extract"]:
        raise click.UsageError(
            "--strict checks written answers, and --extract writes none; leave one of them out.",
            ctx,
        )
    if typed(ctx, "checkpoint_every") and values["checkpoint"] is None:
        raise click.UsageError(
            "--checkpoint-every has no effect without --checkpoint FILE; add it.", ctx
        )
    if typed(ctx, "quiet") and typed(ctx, "progress") and values["progress"] != "none":
        raise click.UsageError(
            f"--progress {values['progress']} has no effect with --quiet; leave one of them out.",
            ctx,
        )
    if values["report"] is not None and values["dry_run"]:
        raise click.UsageError("--dry-run reads nothing, so there is no --report; use one.", ctx)
    # A summary may be an extract by default.
    extracts = values["extract"] or (ctx.info_name == "summarize" and values["extract"] is None)
    if typed(ctx, "passages") and not extracts:
        raise click.UsageError(
            "--passages has no effect without --extract; add it, or leave --passages out.", ctx
        )
