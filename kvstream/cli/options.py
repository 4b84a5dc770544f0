"""The options that every reading command shares, and how they become settings.

Each option is read from the command line, else ``KVSTREAM_<OPTION>``, else the config file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from kvstream import config
from kvstream.errors import UsageError
from kvstream.settings import CHUNKS, GROWTHS, Budget, ModelSettings, RunSettings, parse_count
from kvstream.version import __version__

PROGRESS = ("auto", "live", "plain", "none")
REREADS = ("citations", "words", "both")
"""How --reread finds what to read again; the first is meant by a bare --reread."""
Command = TypeVar("Command", bound=Callable[..., Any])


class BudgetType(click.ParamType):
    """``4k``, ``4096``, ``512MB``, ``1GiB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value if isinstance(value, Budget) else Budget.parse(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


class BytesType(click.ParamType):
    """``512MB``, ``16GiB``; a number without a unit is refused."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        try:
            size = Budget.parse(str(value)).bytes
        except UsageError:
            size = None
        if not size:
            self.fail(f"{value!r} is not a size; write it as 512MB or 16GiB.", param, ctx)
        return size


class CountType(click.ParamType):
    """``4096``, ``4k``, ``1M``: k is 1024, M is 1024²."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value if isinstance(value, int) else parse_count(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


class ModelType(click.ParamType):
    """A hub id, a folder, or a short name that the config file has for one."""

    name = "model"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return config.model_name(str(value))


class Option(click.Option):
    """An option that belongs to a section of the help page and has its environment variable."""

    def __init__(
        self, *args: Any, section: str = "Options", bare: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.bare = bare
        """What the option means where no ``=VALUE`` follows it."""
        if self.envvar is None and self.name and self.expose_value and not self.hidden:
            self.envvar = f"KVSTREAM_{self.name.upper()}"


class SectionedCommand(click.Command):
    """A command whose help page shows its options in sections, in the order they were declared."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Click would take the word behind such an option for its value, be it the question.
        bare = {
            name: f"{name}={param.bare}"
            for param in self.params
            if isinstance(param, Option) and param.bare
            for name in param.opts
        }
        end = args.index("--") if "--" in args else len(args)
        args = [bare.get(a, a) for a in args[:end]] + args[end:]
        try:
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            text = next((a for a in args[:end] if a.startswith("-") and " " in a.strip()), None)
            if text is None or not text.startswith(error.option_name):
                raise
            raise click.UsageError(
                f"{text!r} begins like an option; what begins with a dash goes behind --, after "
                "all options.",
                ctx,
            ) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Argument):
                continue
            record = param.get_help_record(ctx)
            if record is not None:
                section = getattr(param, "section", "Other")
                sections.setdefault(section, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=28)


def option(*names: str, **attributes: Any) -> Callable[[Command], Command]:
    """``click.option`` with a section and an environment variable."""
    return click.option(*names, cls=Option, **attributes)


def stack(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """One decorator out of several, applied so that the help page keeps their order."""

    def apply(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


model_options = stack(
    option(
        "-m", "--model", type=ModelType(), default="pocket", show_default=True,
        metavar="ID_OR_PATH", section="Model",
        help="Model on the hub, local folder, a name from the config file, or the embedded pocket.",
    ),
    option(
        "--device", default="auto", show_default=True, metavar="NAME",
        section="Model", help="auto, cpu, cuda, cuda:1 or mps.",
    ),
    option(
        "--dtype", default="auto", show_default=True, section="Model",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        help="Number type of weights and cache; auto is as stored, or float32 where the CPU has no "
        "instructions for that.",
    ),
    option(
        "--attn", default="auto", show_default=True, section="Model",
        type=click.Choice(["auto", "split", "flash", "sdpa", "reference"]),
        help="How attention is computed.",
    ),
    option(
        "--quantize", type=click.Choice(["8bit", "4bit"]), section="Model",
        help="Quantize the weights while they are loaded (needs bitsandbytes).",
    ),
    option(
        "--max-weights", type=BytesType(), metavar="SIZE", section="Model",
        help="Memory that weights may take; the rest is read from disk at every chunk. Slow.",
    ),
    option(
        "--threads", type=click.IntRange(min=1), metavar="N", section="Model",
        help="CPU threads; default: torch's choice.",
    ),
    option("--revision", metavar="NAME", section="Model", help="Branch, tag or commit on the hub."),
    option("--offline", is_flag=True, section="Model", help="Use only what is already here."),
    option(
        "--trust-remote-code", is_flag=True, section="Model",
        help="Run Python code that comes with the model.",
    ),
)  # fmt: skip

memory_options = stack(
    option(
        "--budget", type=BudgetType(), metavar="SIZE", section="Memory",
        help="What the KV cache may hold: tokens (4k, 4096) or bytes (512MB, 1GiB). "
        "[default: 4k, or the model's trained length if that is less]",
    ),
    option(
        "--method", default="infinipot", show_default=True, metavar="NAME", section="Memory",
        help="What decides which entries stay; see kvstream methods. Several, a,b, are compared.",
    ),
    option(
        "--set", multiple=True, metavar="METHOD.NAME=VALUE", section="Memory",
        help="A setting of the method; may be given many times.",
    ),
    option(
        "--keep", type=CountType(), metavar="N", section="Memory",
        help="Entries in memory after the last chunk. [default: the most that fits]",
    ),
    option(
        "--schedule", type=click.Choice(GROWTHS), default="linear", show_default=True,
        section="Memory", help="How memory grows from chunk to chunk.",
    ),
    option(
        "--chunk", type=click.Choice(CHUNKS), default="decremental", show_default=True,
        section="Memory", help="Chunks shrink as memory grows, or are all of one size.",
    ),
    option(
        "--chunk-size", type=CountType(), metavar="N", section="Memory",
        help="Tokens in a chunk, the average if decremental. [default: what the budget allows]",
    ),
)  # fmt: skip

answer_options = stack(
    option("-s", "--system", metavar="TEXT", section="Answer", help="System prompt."),
    option(
        "-n", "--max-tokens", type=CountType(), default=256, show_default=True, metavar="N",
        section="Answer", help="Most tokens of an answer.",
    ),
    option(
        "--temp", "temp", type=click.FloatRange(min=0), default=0.0, show_default=True,
        metavar="T", section="Answer", help="Temperature; 0 always takes the likeliest token.",
    ),
    option(
        "--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, metavar="P",
        section="Answer", help="Sample from the smallest set of tokens with this probability.",
    ),
    option(
        "--top-k", type=click.IntRange(min=0), default=0, metavar="K", section="Answer",
        help="Sample from the K likeliest tokens.",
    ),
    option(
        "--seed", type=int, default=0, show_default=True, section="Answer",
        help="Seed of sampling, and of methods that draw.",
    ),
    option(
        "--extract/--no-extract", default=None, section="Answer",
        help="Print the passages that memory held on to most, instead of writing.",
    ),
    option(
        "--strict", is_flag=True, section="Answer",
        help="Withhold an answer that rests on little; the exit code is then 6.",
    ),
    option(
        "--reread", type=click.Choice(REREADS), bare=REREADS[0], section="Answer",
        help="Read what the answer rests on again, whole, and answer from that; words is BM25.",
    ),
    option(
        "--passages", type=click.IntRange(min=1), default=10, show_default=True, metavar="N",
        section="Answer", help="How many passages --extract prints.",
    ),
)  # fmt: skip

output_options = stack(
    option(
        "--text", is_flag=True, section="Input and output",
        help="Read binary files too; bytes that are no text are replaced.",
    ),
    option(
        "--max-unpacked", type=BytesType(), default="16GB", show_default=True, metavar="SIZE",
        section="Input and output",
        help="A compressed source that unpacks to more is refused.",
    ),
    option(
        "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
        section="Input and output", help="Write the answer there instead of to stdout.",
    ),
    option(
        "--checkpoint", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
        section="Input and output",
        help="Save the reading there; the same command goes on from it after a crash.",
    ),
    option(
        "--checkpoint-every", type=CountType(), default=32768, show_default=True, metavar="N",
        section="Input and output", help="Tokens between two checkpoints.",
    ),
    option(
        "--json", is_flag=True, section="Input and output",
        help="One JSON object an answer.",
    ),
    option(
        "--stats", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
        section="Input and output", help="Write every event as one line of JSON.",
    ),
    option(
        "--progress", type=click.Choice(PROGRESS), default="auto", show_default=True,
        section="Input and output", help="auto is live on a terminal, else plain lines.",
    ),
    option(
        "-q", "--quiet", is_flag=True, section="Input and output",
        help="No progress and no summary; warnings and errors only.",
    ),
    option(
        "-v", "--verbose", is_flag=True, section="Input and output",
        help="Tracebacks, and what the libraries have to say.",
    ),
    option(
        "--dry-run", is_flag=True, section="Input and output",
        help="Show sizes, steps and memory; read and answer nothing.",
    ),
    click.version_option(__version__, "--version", message="kvstream %(version)s"),
)  # fmt: skip


memory_file = option(
    "--memory", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", envvar=(),
    section="Questions", help="Ask the memory in this file, which kvstream remember wrote.",
)  # fmt: skip

following_options = stack(
    option(
        "--follow", is_flag=True, section="Following",
        help="Wait for more at the end of the last file, as tail -F does; Ctrl-C ends it.",
    ),
    option(
        "--every", metavar="N|30s", section="Following", envvar=(),
        help="Answer on the way, too: every N tokens (10k), or every 30s, 5min, 1h.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class ReadingOptions:
    """What the shared options said, as settings."""

    model: ModelSettings
    runs: tuple[RunSettings, ...]
    """One for each method; more than one are compared."""
    system: str | None
    extract: bool | None
    """None: the model's own way (pocket extracts when it summarises)."""
    passages: int
    strict: bool
    reread: str | None
    text: bool
    max_unpacked: int
    checkpoint: Path | None
    checkpoint_every: int
    output: Path | None
    as_json: bool
    stats: Path | None
    progress: str
    quiet: bool
    verbose: bool
    dry_run: bool

    @property
    def run(self) -> RunSettings:
        """The settings of the first method."""
        return self.runs[0]

    @classmethod
    def of(cls, values: Mapping[str, Any], *, strict_settings: bool) -> ReadingOptions:
        """From click's values. ``strict_settings``: refuse --set of a method that is not used."""
        model = ModelSettings(
            name=values["model"],
            revision=values["revision"],
            offline=values["offline"],
            device=values["device"],
            dtype=values["dtype"],
            attn=values["attn"],
            threads=values["threads"],
            quantize=values["quantize"],
            max_weights=values["max_weights"],
            trust_remote_code=values["trust_remote_code"],
            quiet=values["quiet"],
        )
        methods = tuple(dict.fromkeys(m.strip() for m in values["method"].split(",") if m.strip()))
        if not methods:
            raise UsageError("--method is empty; see kvstream methods.")
        settings = method_settings(values["set"], methods, strict=strict_settings)
        runs = tuple(
            RunSettings(
                budget=values["budget"],
                method=method,
                method_settings=settings[method],
                keep=values["keep"],
                growth=values["schedule"],
                chunk=values["chunk"],
                chunk_size=values["chunk_size"],
                max_tokens=values["max_tokens"],
                temperature=values["temp"],
                top_p=values["top_p"],
                top_k=values["top_k"],
                seed=values["seed"],
            )
            for method in methods
        )
        same = (
            "system", "extract", "passages", "strict", "reread", "text",
            "max_unpacked", "checkpoint", "checkpoint_every", "output", "stats", "progress",
            "quiet", "verbose", "dry_run",
        )  # fmt: skip
        rest = {name: values[name] for name in same}
        return cls(model=model, runs=runs, as_json=values["json"], **rest)


def method_settings(
    given: tuple[str, ...], methods: tuple[str, ...], *, strict: bool
) -> dict[str, dict[str, str]]:
    """The settings of each method among ``METHOD.NAME=VALUE``, later ones winning."""
    settings: dict[str, dict[str, str]] = {method: {} for method in methods}
    for item in given:
        path, equals, value = item.partition("=")
        owner, dot, name = path.strip().partition(".")
        if not (equals and dot and owner and name):
            raise UsageError(f"--set {item!r} is not METHOD.NAME=VALUE, as in {methods[0]}.name=1.")
        if owner in settings:
            settings[owner][name.replace("-", "_")] = value.strip()
        elif strict:
            raise UsageError(
                f"--set {item!r} is for the method {owner!r}, but this run uses "
                f"{', '.join(methods)}; "
                f"add --method {owner} or leave it out."
            )
    return settings


def reading_options(command: Command) -> Command:
    """All options that every reading command has; the function gets one ReadingOptions."""

    def wrapper(**values: Any) -> Any:
        shared = {name: values.pop(name) for name in _VALUES}
        # A setting in the config file may be for a method that this run does not use.
        source = click.get_current_context().get_parameter_source("set")
        strict = source is ParameterSource.COMMANDLINE
        return command(options=ReadingOptions.of(shared, strict_settings=strict), **values)

    update_wrapper(wrapper, command)
    return stack(memory_options, model_options, answer_options, output_options)(  # type: ignore
        wrapper
    )


_VALUES = (
    "model", "device", "dtype", "attn", "quantize", "max_weights", "threads", "revision", "offline",
    "trust_remote_code",
    "budget", "method", "set", "keep", "schedule", "chunk", "chunk_size",
    "system", "max_tokens", "temp", "top_p", "top_k", "seed", "extract", "passages",
    "strict", "reread",
    "text", "max_unpacked", "checkpoint", "checkpoint_every",
    "output", "json", "stats", "progress", "quiet", "verbose", "dry_run",
)  # fmt: skip
