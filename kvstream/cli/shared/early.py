"""What can be told before a source is read or a model is loaded: methods, settings, extras."""

from __future__ import annotations

from importlib.util import find_spec

from kvstream.cli.shared.options import ReadingOptions
from kvstream.errors import UsageError


def check(options: ReadingOptions, *, by_words: bool = False) -> None:
    """Raises UsageError for unknown methods or settings, and for extras that are missing.

    `by_words`: BM25 is needed, whatever the options say.
    """
    if by_words or options.reread in ("words", "both"):
        require("rank_bm25", "words", "Ranking by words (BM25)")
    from kvstream.methods.registry import make

    for run in options.runs:
        make(run.method, run.method_settings)


def require(module: str, extra: str, what: str) -> None:
    """Raises UsageError where an optional package is not installed."""
    if find_spec(module) is None:
        raise UsageError(f"{what} needs the extra {extra}: pip install 'kvstream[{extra}]'.")
