"""Options of memory: the budget, the method and the schedule."""

from __future__ import annotations

import click

from kvstream.api.options import AUTO
from kvstream.cli.options.option import option, stack
from kvstream.cli.options.types import BudgetType, CountType, MethodsType, StartType
from kvstream.settings import CHUNKS, PAPER, SCHEDULES

ONE_METHOD = "Method that decides which entries stay (list: kvstream methods)."
"""Help of --method in commands that take one method."""


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
        help="Entries in memory after the last eviction. [default: as many as fit]",
    ),
    option(
        "--start", type=StartType(), metavar="N|paper", advanced=True, section="Memory",
        help="Entries in memory after the first chunk; paper: --keep / number of chunks, as in "
        "IMDC. [default: half of --keep]",
    ),
    option(
        "--schedule", type=click.Choice(SCHEDULES), default="linear", show_default=True,
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
