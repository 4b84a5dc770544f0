"""Commands with sections on their help pages, and the options that they refuse."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from kvstream.cli.config import config_path
from kvstream.cli.options.option import Option, typed
from kvstream.errors import KvstreamError, closest


class SectionedCommand(click.Command):
    """A command whose help page shows its options in sections, in the order of declaration.

    ``--help`` omits the advanced options except those of `common`. Options of `without` have no
    effect: they are refused with the reason on the command line, and ignored in the environment and
    the config file, which apply to all commands.
    """

    def __init__(
        self,
        *args: Any,
        without: Mapping[str, str] | None = None,
        common: Collection[str] = (),
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.without = dict(without or {})
        self.common = frozenset(common)
        for param in self.params:
            if param.name in self.without:
                param.envvar = None
        self.params.append(
            click.Option(
                ["--help-all"], is_flag=True, is_eager=True, expose_value=False,
                hidden=not any(self._is_advanced(p) for p in self.params),
                callback=_show_all, help="Show this message with all options and exit.",
            )
        )  # fmt: skip

    def _is_advanced(self, param: click.Parameter) -> bool:
        ours = param.name in self.without or param.name in self.common
        return getattr(param, "advanced", False) and not ours

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        try:
            rest = super().parse_args(ctx, list(args))
            self._check(ctx, args)
            return rest
        except KvstreamError as error:  # of a value
            self._add_elsewhere(ctx, error)
            raise
        except click.NoSuchOption as error:
            text = next((a for a in args[:end] if a.startswith("-") and " " in a.strip()), None)
            if text is None or not text.startswith(error.option_name):
                raise self._unknown(ctx, error.option_name) from None
            raise click.UsageError(
                f"{text!r} begins with a dash, like an option; put it after --, at the end of the "
                "command.",
                ctx,
            ) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error says which of its options nobody typed."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            vars(error)["message"] += self._set_elsewhere(ctx, error.message)
            raise
        except KvstreamError as error:
            self._add_elsewhere(ctx, error)
            raise

    def _add_elsewhere(self, ctx: click.Context, error: KvstreamError) -> None:
        error.args = (f"{error}{self._set_elsewhere(ctx, str(error))}",)

    def _set_elsewhere(self, ctx: click.Context, message: str) -> str:
        """Name the options in a message that the environment or the config file set."""
        text = ""
        for param in self.params:
            source = ctx.get_parameter_source(param.name or "")
            wheres = {
                ParameterSource.ENVIRONMENT: param.envvar,
                ParameterSource.DEFAULT_MAP: config_path(),
            }
            named = any(re.search(rf"(?<![\w-]){o}(?![\w-])", message) for o in param.opts)
            if named and source in wheres:
                text += f" {wheres[source]} sets {max(param.opts, key=len)}."
        return text

    def _unknown(self, ctx: click.Context, name: str) -> click.UsageError:
        """Return the error for an unknown option, with the option that was probably meant."""
        message = f"No such option {name!r}."
        if name.startswith("--"):
            near = {option.removeprefix("--") for option in _long_options(self)}
            close = closest(name.removeprefix("--"), near, CLOSE)
            message += _elsewhere(ctx, name) if close is None else f" Did you mean --{close}?"
        return click.UsageError(message, ctx)

    def _check(self, ctx: click.Context, args: Sequence[str]) -> None:
        """Refuse options without effect, and a second value of one that takes one."""
        for param in self.params:
            if param.name in self.without and typed(param.name):
                name = max(param.opts, key=len)
                raise click.UsageError(
                    f"{name} has no effect in {ctx.command_path}: {self.without[param.name]}", ctx
                )
        limited = [p for p in self.params if isinstance(p, Option) and p.once]
        if limited:
            *_, order = self.make_parser(ctx).parse_args(list(args))
            for param in limited:
                if order.count(param) > 1:
                    raise click.UsageError(param.once, ctx)

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


CLOSE = 0.75
"""Minimum similarity of an unknown option and a suggested one."""


def effective(command: click.Command) -> list[click.Option]:
    """Return the options that have an effect in a command."""
    without = getattr(command, "without", ())
    return [p for p in command.params if isinstance(p, click.Option) and p.name not in without]


def _long_options(command: click.Command) -> set[str]:
    return {name for o in effective(command) for name in o.opts if name.startswith("--")}


def _elsewhere(ctx: click.Context, name: str) -> str:
    """Name the commands of the same group that have an option; empty if none has it."""
    group = ctx.parent and ctx.parent.command
    if ctx.parent is None or not isinstance(group, click.Group):
        return ""
    commands = ((other, group.get_command(ctx.parent, other)) for other in group.list_commands(ctx))
    names = [other for other, each in commands if each and name in _long_options(each)]
    return f" It is an option of {ctx.parent.command_path} {', '.join(names)}." if names else ""


_ALL = "kvstream.help_all"


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()
