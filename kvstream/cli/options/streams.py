"""Options of input and output beside the answer."""

from __future__ import annotations

import click

from kvstream.cli.options.option import option, stack
from kvstream.cli.options.types import BytesType, CountType, EveryType, FileType, OutputType
from kvstream.version import __version__

PROGRESS = ("auto", "live", "plain", "none")

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

ONE_MEMORY = (
    "--memory names one memory file. Join several with kvstream merge, or put them into a folder "
    "and use kvstream ask --memory FOLDER."
)
"""For a second ``--memory``."""

memory_file = option(
    "--memory", type=FileType(folder=True), metavar="FILE", envvar=(), once=ONE_MEMORY,
    section="Questions",
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
