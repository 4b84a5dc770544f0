"""Options that every benchmark has: lists of values to compare, and outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvstream.api.source_objects import open_sources
from kvstream.cli.options.option import given_options, option, stack
from kvstream.cli.options.table import PROGRESS, ROWS, type_of
from kvstream.cli.options.types import COUNT, SEED, FileType
from kvstream.cli.shared.model_choice import refuse_revision
from kvstream.cli.shared.saying import quiet
from kvstream.errors import UsageError
from kvstream.settings import PAPER, ModelSettings, RunSettings, table
from kvstream.version import __version__

if TYPE_CHECKING:
    from kvstream.api.model import Session
    from kvstream.evaluation.sweep import Case


class ListType(click.ParamType):
    """Different values of an inner type, separated by commas."""

    name = "list"

    def __init__(self, inner: click.ParamType) -> None:
        self.inner = inner

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not parts:
            self.fail(f"{value!r} names nothing.")
        # A value given twice is measured once: the same trial is no second observation.
        return tuple(dict.fromkeys(self.inner.convert(part, param, ctx) for part in parts))


COUNTS = ListType(COUNT)
NAMES = ListType(click.STRING)
SHARES = ListType(click.FloatRange(0, 1))


compared_option = partial(option, section="Compared")
measured_option = partial(option, section="Measurement")
result_option = partial(option, section="Results")
quiet_option = partial(option, "-q", "--quiet", is_flag=True, help="Hide progress.")
verbose_option = partial(option, "-v", "--verbose", is_flag=True, help="Show tracebacks.")
seed_option = partial(option, "--seed", type=SEED, default=0, metavar="N")
data_option = partial(measured_option, "--data", multiple=True, required=True, metavar="FILE")
lengths_option = partial(measured_option, "--lengths", type=COUNTS, default="8k", metavar="N,...")
tokens_option = partial(
    measured_option, "-n", "--max-tokens", type=COUNT, metavar="N",
    help="Maximum tokens per answer.",
)  # fmt: skip
ROOM = "Tokens for which memory leaves room, as for an answer."
"""Help of `tokens_option` where no answer is written."""


def listed(name: str, **changes: Any) -> Callable[[Any], Any]:
    """Return an option of the table that takes several values, which are compared."""
    row = ROWS[name]
    inner = type_of(row)
    assert inner is not None
    attributes = {
        "type": ListType(inner), "default": row.default,
        "metavar": f"{row.metavar or 'NAME'},...", "help": row.help,
    }  # fmt: skip
    return compared_option(row.flag, **(attributes | changes))


case_options = stack(
    listed(
        "method", type=NAMES, default="infinipot",
        help="Methods to compare (list: kvstream methods).",
    ),
    listed(
        "budget",
        help="Maximum size of the KV cache: entries per head (4k, 4096) or bytes (512MB). "
        "[default: 4k, or the model's trained length if that is less]",
    ),
    compared_option(
        "--set", multiple=True, metavar="METHOD.NAME=VALUE,...",
        help="Change a setting of a method; several values are compared. Repeatable.",
    ),
    compared_option(
        "--preset", type=click.Choice([PAPER]),
        help="Use the settings and schedule of each method's paper (see kvstream methods NAME); "
        "options that you give take precedence.",
    ),
    listed("schedule"),
    listed("chunk", help="decremental: chunks shrink; fixed: one size."),
    listed("keep"),
    listed("start", metavar="N,paper,..."),
    listed("chunk_size"),
)  # fmt: skip

result_options = stack(
    result_option("--json", is_flag=True, help="Print one JSON object per row instead of a table."),
    result_option(
        "--save", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
        help="Append every trial to this file as a line of JSON; skip trials that it already has.",
    ),
    result_option(
        "--report", type=FileType(), metavar="FILE.html", envvar=(),
        help="Write a page with the tables and plots.",
    ),
    result_option(
        "--progress", type=click.Choice(PROGRESS), default="auto",
        help="auto: live on a terminal, else plain lines.",
    ),
    quiet_option(section="Results"),
    verbose_option(section="Results"),
    click.version_option(__version__, "--version", message="kvstream %(version)s"),
)  # fmt: skip

trials_seed_option = seed_option(
    section="Measurement", help="Random seed for documents and randomized methods."
)
heldout_option = measured_option(
    "--heldout", is_flag=True,
    help="Use only the tenth of books and documents that pocket was not trained on.",
)  # fmt: skip


def limit_option(what: str) -> Callable[[Any], Any]:
    """Return the option for the number of records; `what` names them, such as "records"."""
    return measured_option(
        "--limit", type=click.IntRange(min=1), metavar="N",
        help=f"Maximum {what}, drawn at random with --seed. [default: all]",
    )  # fmt: skip


def text_option(use: str) -> Callable[[Any], Any]:
    """Return the option for the user's texts; `use` says what they are for."""
    return measured_option(
        "--text", multiple=True, metavar="FILE",
        help=f"Text {use}: files or folders. [default: made-up prose]",
    )  # fmt: skip


def whole_option(what: str) -> Callable[[Any], Any]:
    """Return the option to also measure a full KV cache."""
    text = f"Also {what} in a full KV cache, up to the trained length."
    return compared_option("--whole", is_flag=True, help=text)


def cases_of(values: dict[str, Any], baselines: Sequence[str] = ()) -> list[Case]:
    """Move the options of the comparison from `values` to checked cases."""
    from kvstream.evaluation.sweep import cases

    base = RunSettings(max_tokens=values.pop("max_tokens"), seed=values["seed"])
    preset = values.pop("preset") is not None
    if preset:  # None: use the preset of each method
        names = given_options()
        values |= {k: None for k in ("schedule", "chunk", "start") if k not in names}
    axes = ("schedule", "chunk", "keep", "chunk_size", "start")
    return cases(
        base, methods=values.pop("method"), budgets=values.pop("budget") or (None,),
        settings=values.pop("set"), preset=preset, baselines=baselines,
        **{name: values.pop(name) or (None,) for name in axes},
    )  # fmt: skip


def refuse_idle(values: dict[str, Any]) -> None:
    """Raise UsageError for --heldout without texts to choose from."""
    if values["heldout"] and not (values["text"] or values.get("more")):
        raise UsageError(
            "--heldout chooses among the texts of --text, and made-up prose is no text that pocket "
            "was trained on; add --text, or leave --heldout out."
        )


def no_stdin(paths: Sequence[str]) -> None:
    """Refuse standard input: a benchmark reads its texts more than once."""
    if "-" in paths:
        raise UsageError("A benchmark reads its texts many times; name files, not -.")


def text_files(paths: Sequence[str], *, heldout: bool) -> list[str]:
    """Return the files of these paths and folders; with `heldout` only the held-out tenth."""
    from kvstream.evaluation.splits import is_heldout

    no_stdin(paths)
    names = open_sources(list(paths), plain=True).names if paths else []
    if not heldout or not names:
        return names
    texts = [name for name in names if is_heldout(Path(name).name.partition(".")[0])]
    if not texts:
        raise UsageError(
            f"None of the {len(names)} texts was held out from pocket's training; leave "
            "--heldout out."
        )
    return texts


def model_settings(values: dict[str, Any]) -> ModelSettings:
    """Move the shared model options from `values` to settings."""
    refuse_revision(values["model"])
    return ModelSettings(**{name: values.pop(name) for name in table(ModelSettings)})


def open_session(settings: ModelSettings, *, verbose: bool) -> Session:
    """Load the model once for all measurements, with quiet libraries unless -v was given."""
    quiet(offline=settings.offline, verbose=verbose)
    from kvstream.api.model import Model

    return Model.open(settings).session
