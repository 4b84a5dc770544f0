"""Checks before a source is read or a model is loaded: methods, budget, extras."""

from __future__ import annotations

from kvstream.api.options import refuse_small, require
from kvstream.cli.options.reading import ReadingOptions

__all__ = ["check", "require"]


def check(options: ReadingOptions) -> None:
    """Check the options before the work.

    Raises UsageError for unknown methods or settings and for missing extras, and BudgetError for a
    budget that is too small for any text.
    """
    from kvstream.api.options import run_settings

    if options.report is not None:
        require("jinja2", "report", "--report")
    refuse_small(options.asked.get("budget"))
    for method in options.methods:
        run_settings(options.of_method(method), known=True)
