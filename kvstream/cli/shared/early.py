"""Checks before a source is read or a model is loaded: methods, budget, extras."""

from __future__ import annotations

from kvstream.api.options import need_bm25, refuse_small, require
from kvstream.cli.options.reading import ReadingOptions

__all__ = ["check", "require"]


def check(options: ReadingOptions, *, by_words: bool = False) -> None:
    """Check the options before the work.

    Raises UsageError for unknown methods or settings and for missing extras, and BudgetError for a
    budget that is too small for any text. `by_words`: BM25 is needed, whatever the options say.
    """
    from kvstream.api.options import run_settings

    if by_words or options.reread in ("words", "both"):
        need_bm25()
    if options.report is not None:
        require("jinja2", "report", "--report")
    refuse_small(options.asked.get("budget"))
    for method in options.methods:
        run_settings(options.of_method(method), known=True)
