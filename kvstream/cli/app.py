"""The group of commands, which imports a command when it is called and handles all failures."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click

from kvstream.cli.groups import Modules
from kvstream.errors import FULL, KvstreamError, hint, is_out_of_memory
from kvstream.version import __version__

COMMANDS = {
    "ask": "Answer a question about texts.",
    "count": "Count words, rows or messages.",
    "summarize": "Summarize texts.",
    "remember": "Read once and save the memory.",
    "inspect": "Show what memory files hold.",
    "merge": "Join memory files into one.",
    "chat": "Ask one question after another.",
    "serve": "Answer OpenAI-compatible clients.",
    "compare": "Compare methods side by side.",
    "sample": "Write a text with known facts in it.",
    "bench": "Measure accuracy and speed.",
    "methods": "List the methods and their settings.",
    "models": "List the models on this machine.",
    "doctor": "Report what this machine can run.",
}
"""Names and help lines. Each command is ``kvstream.cli.commands.<name>.command``."""

KERNELS = "12"
"""Number of compiled CPU kernels to keep. One step needs fewer."""
INTERRUPTED = 130
"""Exit code if Ctrl-C stopped the work: there is no result, or one of a part of the text."""
OUT_OF_MEMORY = 5


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Raise an error without a number: for one with a number, click ends with exit code 1."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise BrokenPipeError from error
        raise


class App(Modules):
    """The commands, with defaults from the config file for the called command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        asks_for_help = {"-h", "--help", "--help-all"} & set(rest)
        configurable = name in self.modules and not ctx.resilient_parsing
        if name is not None and configurable and not asks_for_help:
            from kvstream.api.methods import tolerate_malformed_packages  # not for help

            tolerate_malformed_packages()
            ctx.default_map = {name: self._configured(ctx, name)}
            self._tell_of_mistyped_variables(ctx)
        return name, command, rest

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with _reader_may_leave():  # --help and --version
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _reader_may_leave():
            return super().invoke(ctx)

    def _configured(self, ctx: click.Context, name: str) -> dict[str, Any]:
        from kvstream.cli import config

        path = config.config_path()
        if not (values := config.load(path)):
            return {}
        from kvstream.cli.options.option import configured, key_of

        commands = {
            other: {key_of(o): o for o in options if o.expose_value}
            for other, options in self._options(ctx).items()
        }
        defaults = config.for_command(values, name, commands, path, configured)
        return {str(commands[name][key].name): value for key, value in defaults.items()}

    def _tell_of_mistyped_variables(self, ctx: click.Context) -> None:
        """Warn of variables that look like those of options, but are ignored."""
        from kvstream.cli.config import PATH_VARIABLE
        from kvstream.store.stores import CACHE_VARIABLE

        ours = {name for name in os.environ if name.startswith("KVSTREAM_")}
        ours -= {PATH_VARIABLE, CACHE_VARIABLE}  # known without the import of all commands
        if not ours:
            return
        from kvstream.cli.options.option import key_of, variable_of

        every = [option for options in self._options(ctx).values() for option in options]
        names = {PATH_VARIABLE, CACHE_VARIABLE, *(str(o.envvar) for o in every if o.envvar)}
        others = {
            variable_of(key_of(o)): o.opts[-1] for o in every if o.expose_value and not o.envvar
        }
        for name in ours - names:
            if name in others:
                _say(f"Warning: {name} is not read: {others[name]} has no variable.")
            # Require a close match: other variables may belong to other programs.
            elif close := hint(name, names, 0.9):
                _say(f"Warning: {name} is not read.{close}")

    def _options(self, ctx: click.Context) -> dict[str, list[click.Option]]:
        """Return the options of each command that have an effect. Imports all commands."""
        from kvstream.cli.options.command import effective

        commands = {name: self.get_command(ctx, name) for name in self.modules}
        return {name: effective(command) for name, command in commands.items() if command}


@click.group(
    "kvstream",
    cls=App,
    package="kvstream.cli.commands",
    modules=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
    epilog="Every command has its own page: kvstream ask --help",
)
@click.version_option(__version__, "--version", message="%(prog)s %(version)s")
def cli() -> None:
    """Ask questions about texts far longer than a model's context, with a KV cache of bounded size.

    kvstream reads a text of any length through a causal language model, chunk by chunk. After
    every chunk it evicts the least important entries, so that the KV cache never exceeds a budget
    that you choose. It answers from the entries that remain.

    \b
      kvstream ask book.txt "Who hid the letter?" --budget 4k
      zcat server.log.gz | kvstream summarize
    """


def run(arguments: Sequence[str], command: click.Command = cli) -> int:
    """Run one command line and return the exit code. Reports all failures on stderr.

    `command` is another one for a program that is not the package's own.
    """
    _tolerate_any_text()
    _wait_for_input()
    _bound_kernel_caches()
    verbose = asks_for_tracebacks(arguments)
    if sys.flags.optimize > 1:
        return _report(
            "Python runs with -OO (PYTHONOPTIMIZE=2), which removes the docstrings that "
            "transformers and the help pages need; use PYTHONOPTIMIZE=1, or unset it.", 1, False
        )  # fmt: skip
    try:
        # Without click's standalone mode, exit codes (of --help, of doctor) are returned.
        code = command.main(
            args=list(arguments), prog_name=command.name, standalone_mode=False,
            obj=tuple(arguments),
        )  # fmt: skip
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        # A bare `kvstream` asks for the list of commands; click would call it an error.
        click.echo(error.ctx.get_help() if error.ctx else error.message, err=True)
        return 2
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            _say(error.ctx.get_usage())
            _say(f"Try '{error.ctx.command_path} --help' for help.\n")
        return _report(error.format_message(), error.exit_code, False)
    except KvstreamError as error:
        return _report(error, error.exit_code, verbose)
    except (KeyboardInterrupt, click.Abort):
        _say("Interrupted.")
        return INTERRUPTED
    except BaseException as error:
        if isinstance(error, BrokenPipeError):
            return 0
        message = str(error).strip().splitlines()
        if is_out_of_memory(error):
            detail = f" ({message[0]})" if message else ""
            return _report(
                f"Out of memory{detail}. Lower --budget or --chunk-size, choose a smaller model or "
                "--dtype bfloat16, or another --device.", OUT_OF_MEMORY, verbose
            )  # fmt: skip
        if isinstance(error, OSError) and error.errno in FULL:
            return _report(f"Could not write the output: {error.strerror}.", 1, verbose)
        if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
            return _report(
                "No folder for temporary files can be written to (is the disk full?); set TMPDIR.",
                1, verbose
            )  # fmt: skip
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            raise
        if type(error).__name__ == "PanicException":  # of Rust, not an Exception
            return _report(
                f"The model's tokenizer fails: {error}. Download its tokenizer.json again, or "
                "choose another model.", 4, verbose
            )  # fmt: skip
        if isinstance(error, SystemExit) and (
            f"_{command.name}_COMPLETE".upper() in os.environ  # click has completed words
            or (isinstance(error.code, int) and error.code > 128)  # of a signal
        ):
            raise  # any other is of a library or plugin, which must not end kvstream
        first = f": {message[0]}" if message else ""
        advice = "" if verbose else " Run it again with -v for the traceback, and report it."
        return _report(f"Unexpected {type(error).__name__}{first}.{advice}", 1, verbose)
    finally:
        _drop_unwritten()


def _drop_unwritten() -> None:
    """Redirect a stream that takes no more to the null device: the exit flushes it again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError):  # a plugin closed it
            continue
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _report(error: Exception | str, code: int, verbose: bool) -> int:
    if verbose and sys.exc_info()[0] is not None:
        import traceback

        _say(traceback.format_exc().rstrip())
    _say(f"Error: {error}")
    return code


def _say(text: str) -> None:
    from kvstream.cli.shared.saying import say  # not needed for --help

    say(text)


def asks_for_tracebacks(arguments: Sequence[str]) -> bool:
    """Return whether -v was given. Search the arguments, because parsing may not be reached."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(
        a == "--verbose" or ("v" in a and a[:1] == "-" and a.strip("qv") == "-") for a in before
    )


def _bound_kernel_caches() -> None:
    """Limit the kernel caches of torch on CPU. Call before torch is loaded.

    oneDNN and the layer above it each keep the compiled kernels of the last 1,024 shapes, and
    shrinking chunks have new shapes in every step: in bfloat16, a process grew by 2 MiB per step.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)
    os.environ.setdefault("LRU_CACHE_CAPACITY", KERNELS)


def _wait_for_input() -> None:
    """Let reads of standard input wait for data. If a process that shares it has turned that off, a
    read without data would look like the end of the text.
    """
    if sys.platform == "win32":  # reads of its pipes always wait
        return
    with suppress(OSError, ValueError, AttributeError):  # closed, or no file
        if not os.get_blocking(sys.stdin.fileno()):
            os.set_blocking(sys.stdin.fileno(), True)


def _tolerate_any_text() -> None:
    """Escape characters that the terminal's encoding lacks. File names and answers may have some.

    A closed stream (``>&-``) is None: stdout then raises on write, and stderr is discarded.
    """
    if sys.stdout is None:
        from kvstream.cli.shared.output import ClosedOutput

        sys.stdout = ClosedOutput()
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
