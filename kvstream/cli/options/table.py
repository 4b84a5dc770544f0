"""The options of the commands that read, made from the table, and their values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from kvstream.api import options as api
from kvstream.api.options import AUTO, WORDS, Request
from kvstream.cli.options import types
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.option import Option, given_options, typed
from kvstream.cli.shared.saying import say
from kvstream.errors import UsageError
from kvstream.settings import ModelSettings, Row, row, stated, table
from kvstream.version import __version__

SECTIONS = ("Following", "Many documents", "Memory", "Model", "Answer", "Input and output")
PROGRESS = ("auto", "live", "plain", "none")
SERVED = "answers go to clients."
RUNS = "a page shows one run. Use kvstream ask --memory FILE --report."
SKIMMED = {
    **dict.fromkeys(("compare", "summarize"), "one model reads here."),
    "merge": "the memory files fix it.",
}
IN_EACH = ("ask", "summarize", "remember", "compare")
MODELS = {
    **dict.fromkeys(("summarize", "compare", "measure"), "pocket"),
    "merge": "the model that made the files",
}  # fmt: skip
"""The default of --model in the help of a command."""
OTHER_MODELS = "the best fetched model, else pocket; with --memory the model that made the file"


def regex_of(pattern: str) -> str:
    """Return a regular expression. Raises UsageError if it is none, or empty."""
    try:
        re.compile(stated(pattern))
    except re.error as error:
        raise UsageError(f"{pattern!r} is not a regular expression: {error}.") from None
    return pattern


@dataclass(frozen=True)
class Options:
    """The values of all options of a command that reads."""

    request: Request
    """Without questions, and with the first method."""
    loading: ModelSettings
    methods: tuple[str, ...]
    """The methods to use. If there are several, they are compared."""
    one_of_several: bool = False
    """Whether other questions were answered without a model, so that answers need labels."""
    skim: str = row(
        AUTO, "Model",
        "Who reads a long text first and keeps passages; --model then reads the best ones and "
        "answers. A small model; self: --model itself; words: no model, the words of the question "
        "(BM25); none: --model answers from what --method keeps. auto: self if --model reads the "
        "text within a minute, else pocket or words, whichever is quick; none for pocket.",
        metavar="MODEL", advanced=True, without=SKIMMED, one_reading=True,
        one_text="--skim is for one text",
    )  # fmt: skip
    each: bool = row(
        False, "Many documents",
        "Read every file separately, each under the budget; give one result per file.",
        variable=False, only=IN_EACH, helps={"count": "Count in every file separately."},
    )  # fmt: skip
    ray: str | None = row(
        None, "Many documents",
        "Read on the machines of a running Ray cluster: HOST:PORT; auto: the cluster of this "
        "machine.",
        metavar="ADDRESS", advanced=True, only=IN_EACH,
    )  # fmt: skip
    until_answer: str | None = row(
        None, "Following",
        "With --follow: end with exit code 0 when an answer matches this regular expression.",
        parse=regex_of, metavar="REGEX", advanced=True, variable=False, only=("ask",),
        one_reading=True,
        needs={"follow": "--until-answer has no effect without --follow; add it."},
    )  # fmt: skip
    output: Path | None = row(
        None, "Input and output",
        "Write the answer (remember, merge: the memory) to this file; with --each, to a folder.",
        spelling=("-o", "--output"), metavar="FILE", without={"serve": SERVED},
        helps={"merge": "The memory file to write.", "chat": "Write the answers to this file."},
    )  # fmt: skip
    json: bool = row(
        False, "Input and output", "Print one JSON object per answer.",
        without={"serve": SERVED},
        helps={"merge": "Print one JSON object about the file.",
               "count": "Print one JSON object per count."},
    )  # fmt: skip
    report: Path | None = row(
        None, "Input and output",
        "Write a page that shows the run: the answer, what memory kept of the text, charts.",
        metavar="FILE.html", variable=False, one_text="--report shows one text",
        without={"merge": RUNS, "chat": RUNS, "serve": SERVED},
        excludes={"dry_run": "--dry-run reads nothing, so there is no --report; use one."},
    )  # fmt: skip
    stats: Path | None = row(
        None, "Input and output", "Write every event to this file, one JSON object per line.",
        metavar="FILE", advanced=True, one_text="--stats records the steps of one text",
        without={
            "merge": "it reads no text and does not answer, so there are no events.",
            "serve": "GET /health shows what the server does.",
        },
        excludes={"dry_run": "--dry-run reads nothing, so there are no --stats; use one."},
    )  # fmt: skip
    progress: str = row(
        "auto", "Input and output", "auto: live on a terminal, else plain lines.",
        choices=PROGRESS, advanced=True, without={"serve": SERVED},
    )  # fmt: skip
    quiet: bool = row(
        False, "Input and output", "Show only warnings and errors on stderr.",
        spelling=("-q", "--quiet"),
    )  # fmt: skip
    verbose: bool = row(
        False, "Input and output",
        "Show tracebacks, the numbers behind warnings, and messages of libraries.",
        spelling=("-v", "--verbose"), advanced=True,
    )  # fmt: skip
    dry_run: bool = row(
        False, "Input and output",
        "Show the sizes, steps and memory of a run without reading.",
        advanced=True, one_reading=True, one_text="--dry-run shows the sizes of one text",
        without={
            "merge": "it reads no text.",
            "chat": "kvstream remember --dry-run shows the same reading.",
            "serve": "the server reads nothing at the start.",
        },
    )  # fmt: skip
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings by method."""

    @property
    def model(self) -> str:
        """The answering model."""
        return self.loading.model

    @property
    def model_given(self) -> bool:
        """Whether the user chose it; otherwise `models.settled` may choose another one."""
        return "model" in self.request.choices

    def with_model(self, model: str) -> Options:
        """Return the options with a model, as if the user had chosen it."""
        request = replace(self.request, choices=self.request.choices | {"model"})
        return replace(self, request=request, loading=replace(self.loading, model=model))

    def asking(self, **changes: Any) -> Options:
        """Return the options with changes of the request."""
        return replace(self, request=replace(self.request, **changes))

    @property
    def answers(self) -> dict[str, Any]:
        """The given options of `Memory.ask`."""
        options = {name: self.value(name) for name in self.request.choices & set(api.PER_ANSWER)}
        return api.effective(options)  # without idle ones that come from the config file

    def value(self, name: str) -> Any:
        """Return the value of an option of the table."""
        holders = (self, self.request, self.request.run, self.loading)
        return next(getattr(each, name) for each in holders if hasattr(each, name))

    def of_method(self, name: str) -> Request:
        """Return the request of a method."""
        settings = {f"{name}.{key}": value for key, value in self.settings.get(name, {}).items()}
        return replace(self.request, run=replace(self.request.run, method=name, set=settings))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Options:
        """Create the options from click's values by name. Raises UsageError."""
        methods = tuple(m.strip() for m in values["method"].split(",") if m.strip())
        if not methods:
            raise UsageError("--method is empty; see kvstream methods.")
        api.refuse_twice(methods, "--method")
        typed_settings = pairs(values["set"])
        owners = {path.partition(".")[0] for path in typed_settings}
        if methods == (AUTO,) and len(own := owners & api.AUTOMATIC) == 1:
            methods = tuple(own)
        # A setting in the config file may belong to a method that this run does not use.
        settings = api.settings_by_method(typed_settings, methods, strict=typed("set"))
        keys = given_options()
        names = frozenset(name for name, row in ROWS.items() if row.key in keys)
        options = cls(
            api.request_from({**values, "method": methods[0], "set": {}}, choices=names),
            ModelSettings(**{n: values[n] for n in (*table(ModelSettings), "quiet")}),
            methods,
            settings=settings,
            **{name: values[name] for name in table(cls) if name in values},
        )
        return replace(options, request=options.of_method(methods[0]))


ROWS: Mapping[str, Row] = {**api.TABLE, **table(ModelSettings), **table(Options)}
"""The table of options: all of commands that read, by name."""
OF_MEMORY = tuple(row.key for row in ROWS.values() if row.of_memory)
"""Options that determine how a model keeps memory, as click names them."""


def pairs(items: Sequence[str]) -> dict[str, str]:
    """Split ``METHOD.NAME=VALUE`` into names and values; later ones win. Raises UsageError."""
    settings = {}
    for item in items:
        path, equals, value = item.partition("=")
        owner, dot, name = path.strip().partition(".")
        if not (equals and dot and owner and name):
            raise UsageError(f"--set {item!r} is not METHOD.NAME=VALUE, as in infinipot.alpha=0.5.")
        settings[path.strip()] = value.strip()
    return settings


def click_option(row: Row, command: str = "") -> Option:
    """Return the option of a row for click. `command` chooses its help."""
    several = row.name == "set" or row.kind.startswith("tuple")
    default = None if several else row.default
    if (row.name, command) == ("method", "compare"):
        # One that needs the question, one that does not, and a baseline.
        default = "infinipot,keydiff,streaming"
    text = row.helps.get(command, row.help)
    if row.name == "model":
        text = text.format(default=MODELS.get(command, OTHER_MODELS))
    kind: dict[str, Any] = {"metavar": row.metavar, "type": type_of(row)}
    if row.kind == "bool":
        kind = {"is_flag": True}
    if not row.shown:
        kind["show_default"] = False
    return Option(
        list(row.spelling or (row.flag,)), section=row.section, help=text, default=default,
        multiple=several, advanced=row.advanced, once=row.once,
        envvar=None if row.variable else (), **kind,
    )  # fmt: skip


SEVERAL = ("ask", "compare")
"""Commands that compare methods if --method names several."""


def type_of(row: Row) -> click.ParamType | None:
    """Return click's type of an option."""
    kinds: dict[str, click.ParamType] = {
        "model": types.ModelType(), "skim": types.SkimType(), "method": types.MethodsType(),
        "output": types.FileType(folder=True, streams=True),  # a folder only with --each: `refuse`
        "memories": click.Path(exists=True, file_okay=False, path_type=Path),
        "cache_dir": click.Path(file_okay=False, path_type=Path),
    }  # fmt: skip
    if row.name in kinds:
        return kinds[row.name]
    if row.choices:
        return click.Choice(row.choices)
    if row.kind.startswith("Path"):
        return types.FileType()
    if row.parse is not None:
        return types.Parsed(row.parse, row.name)
    if row.kind == "float":
        return types.Finite(row.least, row.most, min_open=row.above)
    if row.kind.startswith("int"):
        least, most = (None if n is None else int(n) for n in (row.least, row.most))
        return click.IntRange(least, most)
    return None


def added(command: Any, rows: Any, name: str) -> Any:
    """Add options to a function before those that it has, with their help for a command."""
    own = getattr(command, "__click_params__", [])
    command.__click_params__ = [*own, *reversed([click_option(row, name) for row in rows])]
    return command


model_options = partial(added, rows=table(ModelSettings).values(), name="measure")
"""Add the options of the model to a command that measures or trains."""


def reading_command(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command that reads. The function gets one `Options`."""
    rows = sorted(
        (row for row in ROWS.values() if not row.only or name in row.only),
        key=lambda row: SECTIONS.index(row.section),
    )

    def decorate(function: Callable[..., Any]) -> click.Command:
        own = vars(function).pop("__click_params__", [])

        @wraps(function)
        def wrapper(**values: Any) -> Any:
            entries = {row.name: values.pop(row.key) for row in rows}
            entries["skim"] = _skim(name, entries, values.get("memory"))
            spread = entries.get("each") or entries.get("shards") or typed("workers")
            if entries.get("workers") and not spread:
                entries["workers"] = None  # a default; one text is read in one part
            refuse(name, entries)
            options = Options.of(entries)
            if len(options.methods) > 1 and name not in SEVERAL:
                raise click.UsageError(
                    f"{name} uses one method, but --method names several; name one."
                )
            with _telling_of(options.request.checkpoint, quiet=options.quiet):
                return function(options=options, **values)

        click.version_option(__version__, "--version", message="kvstream %(version)s")(wrapper)
        added(wrapper, rows, name).__click_params__ += own
        without = {row.key: row.without[name] for row in rows if name in row.without}
        make = click.command(name, cls=SectionedCommand, without=without, **attributes)
        return make(wrapper)

    return decorate


def _skim(command: str, values: Mapping[str, Any], memory: Path | None) -> str:
    """Return the value of --skim. A default gives way to typed options that it contradicts."""
    skim: str = types.NONE if command in SKIMMED else values["skim"]
    if typed("skim") or skim in (AUTO, types.NONE):
        return skim
    later = command in ("chat", "remember")  # words need their questions first
    if (skim == WORDS and later) or memory:
        return AUTO
    for_one = any(typed(row.key) and values[n] for n, row in ROWS.items() if row.one_model)
    same = typed("model") and values["model"] == skim
    return types.NONE if for_one or same or values.get("shards") else skim


@contextmanager
def _telling_of(checkpoint: Path | None, *, quiet: bool) -> Iterator[None]:
    """Report a checkpoint that the command wrote and left, however it ends: it can be resumed."""
    before = _version(checkpoint)
    try:
        yield
    finally:
        if _version(checkpoint) not in (None, before) and not quiet:
            say(f"{checkpoint} holds the reading so far; the same command resumes from it.")


def _version(checkpoint: Path | None) -> tuple[int, int] | None:
    """Return inode and time of the last change of a checkpoint, or None if there is none."""
    with suppress(OSError):
        if checkpoint is not None:
            status = checkpoint.stat()
            return status.st_ino, status.st_mtime_ns
    return None


def refuse(command: str, values: Mapping[str, Any]) -> None:
    """Raise click's UsageError for options that make no sense together, by the table."""
    summary = command == "summarize" and values["extract"] is None
    present = {**values, "extract": summary or values["extract"]}  # a summary may be an extract
    a_log = summary and click.get_current_context().params.get("kind") == "log"
    shows = summary and not a_log and values["model"] == "pocket"
    for name, each in ROWS.items():
        if name not in values or not typed(each.key):
            continue
        for other, why in each.needs.items():
            if not present[other]:
                raise click.UsageError(why.format(flag=each.flag))
        for other, why in each.excludes.items():
            if values.get(other):
                raise click.UsageError(why)
            if shows and other == "extract":
                raise click.UsageError(
                    f"{each.flag} has no effect, because pocket shows sentences of the text; leave "
                    "it out, or add --no-extract."
                )
        if values.get("each") and each.one_text and values[name] != types.NONE:
            raise click.UsageError(f"{each.one_text}; leave it out, or leave out --each.")
    if typed("quiet") and typed("progress") and values["progress"] != "none":
        raise click.UsageError(
            f"--progress {values['progress']} has no effect with --quiet; leave one of them out."
        )
    _refuse_spread(values)
    output = values["output"]
    if output is not None and os.path.isdir(output) and not values.get("each"):
        raise click.BadParameter(
            f"File {str(output)!r} is a folder.", param_hint="'-o' / '--output'"
        )


def _refuse_spread(values: Mapping[str, Any]) -> None:
    """Raise click's UsageError for --each, --shards and workers that contradict each other."""
    each, shards = values.get("each"), values.get("shards")
    if shards is not None:
        if each or typed("ray"):
            other = "each" if each else "ray"
            raise click.UsageError(
                f"--shards reads one text on this machine; leave it or --{other} out."
            )
        for name, one in ROWS.items():
            if one.one_reading and values.get(name) not in (None, False, AUTO, types.NONE):
                raise UsageError(
                    f"{one.flag} is for one reading, but --shards makes several; leave one of them "
                    "out."
                )
    elif not each:
        for name in ("workers", "ray", "worker_memory"):
            if name in values and typed(name):
                # Workers read documents or parts of a text; a cluster only reads documents.
                beside = "; add it" if name == "ray" else " or --shards; add one of them"
                raise click.UsageError(f"{ROWS[name].flag} has no effect without --each{beside}.")
    spread = values.get("workers") is not None or (each and values.get("ray") is not None)
    if typed("worker_memory") and not spread:
        others = "--workers or --ray" if each else "--workers"
        raise click.UsageError(f"--worker-memory has no effect without {others}.")
