"""Options of answers: what the model is asked, and how it samples."""

from __future__ import annotations

import click

from kvstream.api.options import ANSWER_OPTIONS, PASSAGES, SHOWN_OPTIONS
from kvstream.cli.options.option import option, stack
from kvstream.cli.options.types import CountType, Finite, SeedType

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
        help="Penalize the tokens of the answer so far: divide positive logits by X, multiply "
        "negative ones; 1 changes nothing.",
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
        "--passages", type=click.IntRange(min=1), default=PASSAGES, show_default=True, metavar="N",
        advanced=True, section="Answer", help="Number of passages that --extract prints.",
    ),
)  # fmt: skip

ANSWERS = (*ANSWER_OPTIONS, *SHOWN_OPTIONS)
"""Names of the options of `Memory.ask`."""
OF_ANSWERS_ALONE = (*SHOWN_OPTIONS, *(n for n in ANSWER_OPTIONS if n != "max_tokens"))
"""Options that a memory does not depend on. It needs --max-tokens to leave room."""
