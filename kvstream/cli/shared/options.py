"""The options that every reading command shares, and how they become settings.

Each option is read from the command line, else ``KVSTREAM_<OPTION>``, else the config file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from kvstream.api.options import (
    ANSWER_OPTIONS,
    AUTO,
    AUTOMATIC,
    PASSAGES,
    REREADS,
    SHOWN_OPTIONS,
    SKIMS,
    method_settings,
)
from kvstream.cli import config
from kvstream.errors import UsageError, meant
from kvstream.settings import (
    CHUNKS,
    GROWTHS,
    PAPER,
    Budget,
    parse_count,
)
from kvstream.version import __version__

NONE = "none"
"""Of --skim: one model reads everything."""
PROGRESS = ("auto", "live", "plain", "none")
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


class StartType(CountType):
    """A count, or ``paper``."""

    name = "start"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return PAPER if value == PAPER else super().convert(value, param, ctx)


class Finite(click.FloatRange):
    """A number; ``nan`` and ``inf`` are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class MethodsType(click.ParamType):
    """Names of methods, separated by commas; checked before torch is imported."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from kvstream.api.methods import method_names, plugins

        known = method_names()
        for name in filter(None, (each.strip() for each in str(value).split(","))):
            # Another package's method may have another name than its entry point; it is asked later
            if name not in known and name != AUTO and not plugins():
                close = meant(name, known)
                self.fail(
                    f"Unknown method {name[:40]!r}.{close} There are: {', '.join(known)}.",
                    param,
                    ctx,
                )
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from kvstream.api.methods import method_names

        before, comma, last = incomplete.rpartition(",")
        taken = before.split(",")
        return [
            CompletionItem(f"{before}{comma}{name}")
            for name in (AUTO, *method_names())
            if name.startswith(last) and name not in taken
        ]


class EveryType(click.ParamType):
    """``10k`` tokens or ``30s``."""

    name = "interval"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from kvstream.api.options import Intervals

        try:
            return Intervals.of(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class SeedType(click.ParamType):
    """A whole number that torch takes as a seed."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{str(value)[:40]!r} is not a whole number.", param, ctx)
        if not -(2**63) <= number < 2**63:
            self.fail(f"{number} is beyond 64 bits; choose a smaller number.", param, ctx)
        return number


class ThreadsType(click.ParamType):
    """A number of threads that this machine can run: far more make torch crash or stand still."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        cpus = os.cpu_count() or 1
        most = max(16, 4 * cpus)
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{str(value)[:40]!r} is not a whole number.", param, ctx)
        if not 1 <= number <= most:
            self.fail(
                f"{number} threads are out of range for a machine with {cpus} CPUs; "
                f"choose 1 to {most}.",
                param,
                ctx,
            )
        return number


class ModelType(click.ParamType):
    """A hub id, a folder, or a short name that the config file has for one."""

    name = "model"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name = str(value)
        if len(name) > config.LONGEST_NAME:
            self.fail(
                f"The model name has {len(name)} characters, too many for any model; check it.",
                param,
                ctx,
            )
        return config.model_name(name)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = [n for n in (config.EMBEDDED, *config.aliases()) if n.startswith(incomplete)]
        return [CompletionItem(n) for n in names] or [CompletionItem(incomplete, type="dir")]


def complete_files(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """File names, for arguments that are files or a question."""
    return [CompletionItem(incomplete, type="file")]


class FileType(click.Path):
    """A file by its path, which may still be to come; an empty one is refused."""

    def __init__(self, *, folder: bool = False) -> None:
        super().__init__(dir_okay=folder, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).strip():
            self.fail("The name is empty; name a file, or leave the option out.", param, ctx)
        return super().convert(value, param, ctx)


class OutputType(FileType):
    """A file; with ``--each`` a folder, which `ReadingOptions` sees to."""

    def __init__(self) -> None:
        click.Path.__init__(self, path_type=Path)


class Option(click.Option):
    """An option that belongs to a section of the help page and has its environment variable."""

    def __init__(
        self,
        *args: Any,
        section: str = "Options",
        bare: str | None = None,
        advanced: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.advanced = advanced
        """Shown by ``--help-all`` and not by ``--help``."""
        self.bare = bare
        """The value of the option if no ``=VALUE`` follows it."""
        if self.envvar is None and self.name and self.expose_value and not self.hidden:
            self.envvar = f"KVSTREAM_{self.name.upper()}"


class SectionedCommand(click.Command):
    """A command whose help page shows its options in sections, in the order they were declared.

    ``--help`` leaves the advanced options out, ``--help-all`` shows them. `without` names options
    that have no effect in this command, and why: they are refused where somebody types them, and
    read from the environment and the config file, which are for all commands, without a word.
    `helps` words shared options for this command, and `defaults` gives them another default.
    """

    def __init__(
        self,
        *args: Any,
        without: Mapping[str, str] | None = None,
        helps: Mapping[str, str] | None = None,
        defaults: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.without = dict(without or {})
        for param in self.params:
            if isinstance(param, click.Option) and param.name in (helps or {}):
                param.help = (helps or {})[param.name]
            if param.name in (defaults or {}):
                param.default = (defaults or {})[param.name]
        self.params.append(
            click.Option(
                ["--help-all"], is_flag=True, is_eager=True, expose_value=False,
                hidden=not any(self._is_advanced(p) for p in self.params),
                callback=_show_all, help="Show this message with all options and exit.",
            )
        )  # fmt: skip

    def _is_advanced(self, param: click.Parameter) -> bool:
        return getattr(param, "advanced", False) and param.name not in self.without

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Click would take the word behind such an option for its value, be it the question.
        bare = {
            name: f"{name}={param.bare}"
            for param in self.params
            if isinstance(param, Option) and param.bare
            for name in param.opts
        }
        end = args.index("--") if "--" in args else len(args)
        self._refuse_detached(ctx, args[:end])
        args = [bare.get(a, a) for a in args[:end]] + args[end:]
        try:
            rest = super().parse_args(ctx, list(args))
            self._refuse_without_effect(ctx)
            return rest
        except click.NoSuchOption as error:
            text = next((a for a in args[:end] if a.startswith("-") and " " in a.strip()), None)
            if text is None or not text.startswith(error.option_name):
                raise
            raise click.UsageError(
                f"{text!r} begins with a dash, like an option; put it after --, at the end of the "
                "command.",
                ctx,
            ) from None

    def _refuse_detached(self, ctx: click.Context, args: Sequence[str]) -> None:
        """A value behind such an option with a space, where it would be a source or a question."""
        values = {
            name: param.type.choices
            for param in self.params
            if isinstance(param, Option) and param.bare and isinstance(param.type, click.Choice)
            for name in param.opts
        }
        for name, word in pairwise(args):
            if word in values.get(name, ()) and not os.path.exists(word):
                raise click.UsageError(
                    f"{name} takes its value after an equals sign: {name}={word}.", ctx
                )

    def _refuse_without_effect(self, ctx: click.Context) -> None:
        for param in self.params:
            if param.name in self.without and typed(ctx, param.name):
                name = max(param.opts, key=len)
                raise click.UsageError(
                    f"{name} has no effect in {ctx.command_path}: {self.without[param.name]}", ctx
                )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Argument) or param.name in self.without:
                continue
            if self._is_advanced(param) and not ctx.meta.get(_ALL):
                continue
            record = param.get_help_record(ctx)
            if record is not None:
                section = getattr(param, "section", "Other")
                sections.setdefault(section, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=28)


def configured(option: click.Option, value: Any) -> Any:
    """A value of the config file as the command line would give it to an option.

    Numbers become text, so that the option's own type checks them. Raises UsageError.
    """
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"This is true or false, not {config.shown(value)}.")
        return value
    if option.multiple:
        if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise UsageError(
                f'This is a list of texts, as in ["one", "two"], not {config.shown(value)}.'
            )
        return [_of_type(option, each) for each in value]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (isinstance(value, str) or (number and not isinstance(option.type, TEXTS))):
        kind = "text in quotes" if isinstance(option.type, TEXTS) else "one value"
        raise UsageError(f"This is {kind}, not {config.shown(value)}.")
    if isinstance(value, int) and abs(value) >= 2**64:
        raise UsageError("This is a number beyond 64 bits; no option takes one.")
    return _of_type(option, str(value))


TEXTS = (click.types.StringParamType, click.Choice, click.Path, ModelType)
"""Types of options that a number in the config file cannot be meant for."""


def _of_type(option: click.Option, text: str) -> str:
    if "\0" in text:
        raise UsageError("This has a NUL character, which no option takes.")
    if isinstance(option.type, click.Path) and not _can_be_a_path(text):
        raise UsageError(f"{config.shown(text)} cannot be the name of a file.")
    try:
        option.type.convert(text, option, None)
    except click.UsageError as error:
        raise UsageError(error.message) from None
    return text


def _can_be_a_path(text: str) -> bool:
    return 0 < len(text) < 4096 and all(len(os.fsencode(part)) < 256 for part in text.split("/"))


_ALL = "kvstream.help_all"


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def typed(ctx: click.Context, name: str) -> bool:
    """Whether an option was given on the command line."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


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


class SkimType(ModelType):
    """``auto``, ``none``, or a model."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in (AUTO, NONE) else super().convert(value, param, ctx)


def model_help(default: str) -> str:
    """The help of --model, with the model that a command uses if nobody names one."""
    return (
        "A model of the Hugging Face hub, a local folder, a GGUF file, a short name of the config "
        f"file, reader, or pocket (the embedded model). [default: {default}]"
    )


def _model_option(default: str) -> Callable[[Any], Any]:
    return option(
        "-m", "--model", type=ModelType(), default="pocket", metavar="ID_OR_PATH", section="Model",
        help=model_help(default),
    )  # fmt: skip


skim_options = stack(
    option(
        "--skim", type=SkimType(), default=AUTO, show_default=True, metavar="MODEL",
        section="Model", advanced=True,
        help="Read long texts with this small model; --model then reads the most relevant passages "
        "and answers. auto: pocket if reader answers on a CPU; none: --model reads everything.",
    ),
    option(
        "--skim-by", type=click.Choice(SKIMS), default=SKIMS[-1], show_default=True,
        advanced=True, section="Model",
        help="How --skim selects passages. memory: those that the small model holds and attends "
        "to; words: those with the question's words (BM25); both: the best of both.",
    ),
)  # fmt: skip

_loading_options = stack(
    option(
        "--device", default="auto", show_default=True, metavar="NAME",
        advanced=True, section="Model", help="auto, cpu, cuda, cuda:1 or mps.",
    ),
    option(
        "--dtype", default="auto", show_default=True, advanced=True, section="Model",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        help="Number type for computing. auto: the type of the stored weights, or float32 if the "
        "CPU has no instructions for that type.",
    ),
    option(
        "--kv-dtype", default="auto", show_default=True, advanced=True, section="Model",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        help="Number type of the KV cache. auto: that of --dtype, or the 16-bit type of the stored "
        "weights if --dtype auto computes in float32.",
    ),
    option(
        "--attn", default="auto", show_default=True, advanced=True, section="Model",
        type=click.Choice(["auto", "split", "flash", "sdpa", "reference"]),
        help="Attention backend.",
    ),
    option(
        "--quantize", type=click.Choice(["int8", "8bit", "4bit"]), advanced=True,
        section="Model",
        help="Quantize the weights while loading: int8 on a CPU; 8bit and 4bit need bitsandbytes.",
    ),
    option(
        "--max-weights", type=BytesType(), metavar="SIZE", advanced=True, section="Model",
        help="Maximum memory for weights; kvstream reads the others from disk for every chunk, "
        "slowly.",
    ),
    option(
        "--threads", type=ThreadsType(), metavar="N", advanced=True, section="Model",
        help="CPU threads. [default: as PyTorch chooses]",
    ),
    option(
        "--revision", metavar="NAME", advanced=True, section="Model",
        help="Branch, tag or commit on the hub.",
    ),
    option(
        "--offline", is_flag=True, advanced=True, section="Model",
        help="Use only files that are already on this machine.",
    ),
    option(
        "--trust-remote-code", is_flag=True, advanced=True, section="Model",
        help="Run Python code of the model.",
    ),
)  # fmt: skip

model_options = stack(_model_option("pocket"), _loading_options)

memory_options = stack(
    option(
        "--budget", type=BudgetType(), metavar="SIZE", section="Memory",
        help="Maximum size of the KV cache: entries per head (4k, 4096) or bytes (512MB, 1GiB). "
        "[default: 4k, or the model's trained length if that is less]",
    ),
    option(
        "--method", type=MethodsType(), default=AUTO, show_default=True, metavar="NAME",
        section="Memory",
        help="Method that decides which entries stay (list: kvstream methods); a,b compares "
        "several.",
    ),
    option(
        "--set", multiple=True, metavar="METHOD.NAME=VALUE", advanced=True, section="Memory",
        help="Change a setting of the method; repeatable.",
    ),
    option(
        "--preset", type=click.Choice([PAPER]), advanced=True, section="Memory",
        help="Use the settings and schedule of the method's paper (see kvstream methods NAME); "
        "options that you give take precedence.",
    ),
    option(
        "--keep", type=CountType(), metavar="N", advanced=True, section="Memory",
        help="Entries in memory after the last chunk. [default: as many as fit]",
    ),
    option(
        "--start", type=StartType(), metavar="N|paper", advanced=True, section="Memory",
        help="Entries in memory after the first chunk; paper: --keep / number of chunks, as in "
        "IMDC. [default: half of --keep]",
    ),
    option(
        "--schedule", type=click.Choice(GROWTHS), default="linear", show_default=True,
        advanced=True, section="Memory", help="How memory grows from chunk to chunk.",
    ),
    option(
        "--chunk", type=click.Choice(CHUNKS), default="decremental", show_default=True,
        advanced=True, section="Memory",
        help="decremental: chunks shrink as memory grows; fixed: all chunks have one size.",
    ),
    option(
        "--chunk-size", type=CountType(), metavar="N", advanced=True, section="Memory",
        help="Tokens per chunk, on average if decremental. [default: what the budget allows]",
    ),
)  # fmt: skip

answer_options = stack(
    option(
        "-s", "--system", metavar="TEXT", advanced=True, section="Answer", help="System prompt.",
    ),
    option(
        "-n", "--max-tokens", type=CountType(), default=256, show_default=True, metavar="N",
        section="Answer", help="Maximum tokens per answer.",
    ),
    option(
        "--temp", "temp", type=Finite(min=0), default=0.0, show_default=True, metavar="T",
        advanced=True, section="Answer",
        help="Sampling temperature; 0 always takes the most likely token.",
    ),
    option(
        "--top-p", type=Finite(0, 1, min_open=True), default=1.0, metavar="P",
        advanced=True, section="Answer",
        help="Sample from the smallest set of tokens whose total probability reaches P.",
    ),
    option(
        "--top-k", type=click.IntRange(min=0), default=0, metavar="K", advanced=True,
        section="Answer", help="Sample from the K most likely tokens; 0: from all.",
    ),
    option(
        "--repetition-penalty", type=Finite(min=1), default=1.0, show_default=True,
        metavar="X", advanced=True, section="Answer",
        help="Divide the logits of tokens that the answer already has by X; 1 changes nothing.",
    ),
    option(
        "--seed", type=SeedType(), default=0, show_default=True, advanced=True, section="Answer",
        help="Random seed for sampling and randomized methods.",
    ),
    option(
        "--extract/--no-extract", default=None, section="Answer",
        help="Print the passages that memory retains best, instead of a written answer.",
    ),
    option(
        "--brief", is_flag=True, section="Answer", advanced=True,
        help="Ask for a short phrase. Models without a chat template answer briefly anyway.",
    ),
    option(
        "--strict", is_flag=True, section="Answer",
        help="Withhold weakly supported answers (exit code 6).",
    ),
    option(
        "--reread", type=click.Choice(REREADS), bare=REREADS[0], section="Answer", advanced=True,
        help="Read the best passages again and answer from them. citations: those the answer "
        "attended to; words: those with the question's words (BM25); both.",
    ),
    option(
        "--passages", type=click.IntRange(min=1), default=PASSAGES, show_default=True, metavar="N",
        advanced=True, section="Answer", help="Number of passages that --extract prints.",
    ),
)  # fmt: skip

output_options = stack(
    option(
        "--thin", type=click.Choice(["auto", "off"]), default="auto", show_default=True,
        advanced=True, section="Input and output",
        help="auto: if a log is longer than the budget, read only some of its repeated lines and "
        "count the others. off: read every line.",
    ),
    option(
        "--text", is_flag=True, advanced=True, section="Input and output",
        help="Read every file as plain UTF-8 text, including HTML and binary files; replace "
        "invalid bytes.",
    ),
    option(
        "--max-unpacked", type=BytesType(), default="16GB", show_default=True, metavar="SIZE",
        advanced=True, section="Input and output",
        help="Refuse a compressed source that unpacks to more than this.",
    ),
    option(
        "-o", "--output", type=OutputType(), metavar="FILE",
        section="Input and output",
        help="Write the answer (remember, merge: the memory) to this file; with --each, to a "
        "folder.",
    ),
    option(
        "--checkpoint", type=FileType(), metavar="FILE", advanced=True,
        section="Input and output",
        help="Save progress to this file; after a crash the same command resumes from it.",
    ),
    option(
        "--checkpoint-every", type=CountType(), default=32768, show_default=True, metavar="N",
        advanced=True, section="Input and output", help="Tokens between two checkpoints.",
    ),
    option(
        "--json", is_flag=True, section="Input and output",
        help="Print one JSON object per answer.",
    ),
    option(
        "--report", type=FileType(), metavar="FILE.html", envvar=(), section="Input and output",
        help="Write a page that shows the run: the answer, what memory kept of the text, charts.",
    ),
    option(
        "--stats", type=FileType(), metavar="FILE", advanced=True,
        section="Input and output", help="Write every event to this file, one JSON object per "
        "line.",
    ),
    option(
        "--progress", type=click.Choice(PROGRESS), default="auto", show_default=True,
        advanced=True, section="Input and output",
        help="auto: live on a terminal, else plain lines.",
    ),
    option(
        "-q", "--quiet", is_flag=True, section="Input and output",
        help="Show only warnings and errors on stderr.",
    ),
    option(
        "-v", "--verbose", is_flag=True, advanced=True, section="Input and output",
        help="Show tracebacks, the numbers behind warnings, and messages of libraries.",
    ),
    option(
        "--dry-run", is_flag=True, advanced=True, section="Input and output",
        help="Show the sizes, steps and memory of a run without reading.",
    ),
    click.version_option(__version__, "--version", message="kvstream %(version)s"),
)  # fmt: skip


memory_file = option(
    "--memory", type=FileType(folder=True), metavar="FILE", envvar=(), section="Questions",
    help="Ask this memory file (from kvstream remember). For a folder, ask the memory files most "
    "relevant to the question.",
)  # fmt: skip

following_options = stack(
    option(
        "--follow", is_flag=True, section="Following",
        help="Wait for more text at the end of the last file, like tail -F; Ctrl-C ends it.",
    ),
    option(
        "--every", type=EveryType(), metavar="N|30s", advanced=True, section="Following", envvar=(),
        help="Also answer periodically while reading: every N tokens (10k), or every 30s, 5min, "
        "1h.",
    ),
)  # fmt: skip


ONE_METHOD = "Method that decides which entries stay (list: kvstream methods)."
"""The help of --method where several have no place."""
ONE_MODEL = dict.fromkeys(("skim", "skim_by"), "one model reads here.")
"""For commands where no second model skims: options without effect."""


@dataclass(frozen=True)
class Each:
    """How the documents of --each are shared out."""

    workers: int | None
    ray: str | None
    worker_memory: int | None

    @property
    def spread(self) -> bool:
        """Whether workers read, and not this process."""
        return self.workers is not None or self.ray is not None


def each_options(command: Command) -> Command:
    """The options of many documents; the function gets `each`, None where there is one text."""

    def wrapper(each: bool, **values: Any) -> Any:
        context = click.get_current_context()
        found = {name: values.pop(name) for name in _EACH}
        if not each and context.params.get("shards") is None:
            for name in _EACH:
                if typed(context, name):
                    raise click.UsageError(
                        f"--{name.replace('_', '-')} has no effect without --each; add it.", context
                    )
        return command(each=Each(**found) if each else None, **values)

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
            help="Memory that Ray reserves per worker. [default: estimated from the model's files]",
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
        """Options that go with one reading of the text. Raises UsageError."""
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
        """Options of `Model.read` and `Model.stream`."""
        return {
            "shards": self.number, "workers": self.workers, "worker_memory": self.worker_memory,
        }  # fmt: skip


def shards_option(command: Command) -> Command:
    """--shards beside `each_options`; the function gets `shards`, None where it was not given."""

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


@dataclass(frozen=True)
class ReadingOptions:
    """What the shared options said: as options of `kvstream.Model`, and those of the program."""

    model: str
    model_given: bool
    """Whether somebody chose it; else `running.settled` may choose another one."""
    skim: str
    """A model, ``auto`` or ``none``."""
    loading: Mapping[str, Any]
    """Options of `kvstream.load`."""
    methods: tuple[str, ...]
    """More than one are compared."""
    settings: Mapping[str, Mapping[str, str]]
    """Those of each method."""
    asked: Mapping[str, Any]
    """Options of `Model.read` and `Model.stream` that were given, without method and settings."""
    text: bool
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
        """None: as the model does it (pocket extracts when it summarizes)."""
        return self.asked.get("extract")

    @property
    def reread(self) -> str | None:
        """How --reread finds what to read again."""
        return self.asked.get("reread")

    @property
    def answers(self) -> dict[str, Any]:
        """Options of `Memory.ask`."""
        return {name: self.asked[name] for name in _ANSWERS if name in self.asked}

    def of_method(self, name: str | None = None) -> dict[str, Any]:
        """The options of a reading by a method, the first one if none is named."""
        name = name or self.methods[0]
        settings = {f"{name}.{key}": value for key, value in self.settings.get(name, {}).items()}
        return {**self.asked, "method": name, "set": settings}

    @classmethod
    def of(
        cls, values: Mapping[str, Any], *, strict_settings: bool, given: Container[str] = ()
    ) -> ReadingOptions:
        """From click's values. ``strict_settings``: refuse --set of a method that is not used.

        ``given`` are the names of the options that have a value which is no default.
        """
        methods = tuple(dict.fromkeys(m.strip() for m in values["method"].split(",") if m.strip()))
        if not methods:
            raise UsageError("--method is empty; see kvstream methods.")
        typed_settings = pairs(values["set"])
        owners = {path.partition(".")[0] for path in typed_settings}
        if methods == (AUTO,) and len(own := owners & AUTOMATIC) == 1:
            methods = tuple(own)
        same = (
            "model", "skim", "text", "max_unpacked", "output", "report", "stats",
            "progress", "quiet",
            "verbose", "dry_run",
        )  # fmt: skip
        return cls(
            model_given="model" in given,
            loading={name: values[name] for name in _LOADING},
            methods=methods,
            settings=method_settings(typed_settings, methods, strict=strict_settings),
            asked={name: values[name] for name in _ASKED if name in given},
            as_json=values["json"],
            **{name: values[name] for name in same},
        )


def pairs(given: Sequence[str]) -> dict[str, str]:
    """``METHOD.NAME=VALUE`` as names and values, later ones winning. Raises UsageError."""
    found = {}
    for item in given:
        path, equals, value = item.partition("=")
        owner, dot, name = path.strip().partition(".")
        if not (equals and dot and owner and name):
            raise UsageError(f"--set {item!r} is not METHOD.NAME=VALUE, as in infinipot.alpha=0.5.")
        found[path.strip()] = value.strip()
    return found


def given_options() -> set[str]:
    """Names of the options of the current command that have a value which is no default."""
    ctx = click.get_current_context()
    return {name for name in ctx.params if _is_given(ctx.get_parameter_source(name))}


def _is_given(source: ParameterSource | None) -> bool:
    return source not in (ParameterSource.DEFAULT, None)


def reading_options(command: Command) -> Command:
    """All options that every reading command has; the function gets one ReadingOptions."""

    def wrapper(**values: Any) -> Any:
        shared = {name: values.pop(name) for name in _VALUES}
        context = click.get_current_context()
        refuse_without_effect(context, shared)
        output = shared["output"]
        if output is not None and output.is_dir() and values.get("each") is None:
            raise click.BadParameter(
                f"File {str(output)!r} is a directory.", context, param_hint="'-o' / '--output'"
            )
        # A setting in the config file may be for a method that this run does not use.
        options = ReadingOptions.of(
            shared, strict_settings=typed(context, "set"), given=given_options()
        )
        return command(options=options, **values)

    update_wrapper(wrapper, command)
    model = _model_option("reader once it is fetched, else pocket")
    return stack(  # type: ignore
        memory_options, model, skim_options, _loading_options, answer_options, output_options
    )(wrapper)


def refuse_without_effect(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Options that have an effect only beside others. Raises click.UsageError."""
    for name in ("top_p", "top_k"):
        if typed(ctx, name) and not values["temp"]:
            raise click.UsageError(
                f"--{name.replace('_', '-')} has no effect at temperature 0, which always takes "
                "the most likely token; add --temp 0.7, or leave it out.",
                ctx,
            )
    if typed(ctx, "skim_by") and values["skim"] == NONE:
        raise click.UsageError(
            "--skim-by has no effect with --skim none; leave one of them out.", ctx
        )
    if typed(ctx, "checkpoint_every") and values["checkpoint"] is None:
        raise click.UsageError(
            "--checkpoint-every has no effect without --checkpoint FILE; add it.", ctx
        )
    if values["report"] is not None and values["dry_run"]:
        raise click.UsageError("--dry-run reads nothing, so there is no --report; use one.", ctx)
    # A summary may be extracted without being asked to.
    extracts = values["extract"] or (ctx.info_name == "summarize" and values["extract"] is None)
    if typed(ctx, "passages") and not extracts:
        raise click.UsageError(
            "--passages has no effect without --extract; add it, or leave --passages out.", ctx
        )


_LOADING = (
    "device", "dtype", "kv_dtype", "attn", "quantize", "max_weights", "threads", "revision",
    "offline", "trust_remote_code", "quiet", "skim_by",
)  # fmt: skip
_ANSWERS = (*ANSWER_OPTIONS, *SHOWN_OPTIONS)
OF_ANSWERS_ALONE = (*SHOWN_OPTIONS, "reread", *(n for n in ANSWER_OPTIONS if n != "max_tokens"))
"""What a memory does not depend on: --max-tokens says how much room it leaves for an answer."""
_ASKED = (
    "budget", "preset", "keep", "start", "schedule", "chunk", "chunk_size", "seed", "system",
    "reread", "thin", "checkpoint", "checkpoint_every", *_ANSWERS,
)  # fmt: skip
_VALUES = tuple(dict.fromkeys((
    "model", "skim", *_LOADING, "method", "set", *_ASKED, "text", "max_unpacked",
    "output", "json", "report", "stats", "progress", "quiet", "verbose", "dry_run",
)))  # fmt: skip
