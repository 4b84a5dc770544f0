"""Options for many documents, and for one text that is read in parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import click

from kvstream.api.options import AUTO
from kvstream.cli.options.option import Command, option, stack, typed
from kvstream.cli.options.reading import ReadingOptions
from kvstream.cli.options.types import NONE, BytesType
from kvstream.errors import UsageError


@dataclass(frozen=True)
class Each:
    """How the documents of --each are distributed."""

    workers: int | None
    ray: str | None
    worker_memory: int | None

    @property
    def spread(self) -> bool:
        """Whether workers read instead of this process."""
        return self.workers is not None or self.ray is not None


def each_options(command: Command) -> Command:
    """Add the options for many documents. The function gets `each`, None without --each."""

    def wrapper(each: bool, **values: Any) -> Any:
        context = click.get_current_context()
        found = {name: values.pop(name) for name in _EACH}
        if not each and context.params.get("shards") is None:
            for name in _EACH:
                if typed(context, name):
                    # Workers read documents or parts of a text; a cluster only reads documents.
                    beside = "; add it" if name == "ray" else " or --shards; add one of them"
                    raise click.UsageError(
                        f"--{name.replace('_', '-')} has no effect without --each{beside}.", context
                    )
        many = Each(**found) if each else None
        if many is not None and typed(context, "worker_memory") and not many.spread:
            raise click.UsageError(
                "--worker-memory has no effect without --workers or --ray.", context
            )
        return command(each=many, **values)

    update_wrapper(wrapper, command)
    return stack(
        option(
            "--each", is_flag=True, section="Many documents", envvar=(),
            help="Read every file separately, each under the budget; give one result per file.",
        ),
        option(
            "--workers", type=click.IntRange(1, 4096), metavar="N", section="Many documents",
            advanced=True,
            help="Read N documents (or --shards) in parallel, each in a process with --threads "
            "threads (default 1; extra ray).",
        ),
        option(
            "--ray", metavar="ADDRESS", section="Many documents", advanced=True,
            help="Read on the machines of a running Ray cluster: HOST:PORT; auto: the cluster of "
            "this machine.",
        ),
        option(
            "--worker-memory", type=BytesType(), metavar="SIZE", section="Many documents",
            advanced=True,
            help="RAM that Ray reserves per worker. [default: estimated from the model's files]",
        ),
    )(wrapper)  # type: ignore  # fmt: skip


_EACH = ("workers", "ray", "worker_memory")


@dataclass(frozen=True)
class Shards:
    """How one text is read in parts."""

    number: int
    workers: int | None
    worker_memory: int | None

    def refuse_with(self, options: ReadingOptions, **given: object) -> None:
        """Raise UsageError for options that need a single reading of the text."""
        given |= {
            "checkpoint": options.checkpoint,
            "dry_run": options.dry_run,
            "skim": options.skim not in (AUTO, NONE),
        }
        for name, value in given.items():
            if value:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for one reading, but --shards makes several; "
                    "leave one of them out."
                )

    def asked(self) -> dict[str, Any]:
        """Return the options of `Model.read` and `Model.stream`."""
        return {
            "shards": self.number, "workers": self.workers, "worker_memory": self.worker_memory,
        }  # fmt: skip


def shards_option(command: Command) -> Command:
    """Add --shards after `each_options`. The function gets `shards`, None without --shards."""

    def wrapper(shards: int | None, **values: Any) -> Any:
        found = None
        if shards is not None:
            context = click.get_current_context()
            for name in ("each", "ray"):
                if values[name]:
                    raise click.UsageError(
                        f"--shards reads one text on this machine; leave it or --{name} out.",
                        context,
                    )
            found = Shards(shards, values["workers"], values["worker_memory"])
            if found.worker_memory is not None and found.workers is None:
                raise click.UsageError("--worker-memory has no effect without --workers.", context)
            values |= {"workers": None, "worker_memory": None}
        return command(shards=found, **values)

    update_wrapper(wrapper, command)
    return option(
        "--shards", type=click.IntRange(1, 4096), metavar="N", section="Many documents",
        advanced=True, envvar=(),
        help="Read one long text in N parts, each under the budget, and join their memories; with "
        "--workers several parts at once.",
    )(wrapper)  # type: ignore  # fmt: skip
