"""Checks before a source is read or a model is loaded: methods, budget, extras."""

from __future__ import annotations

from kvstream.api.options import refuse_small, require, settled
from kvstream.cli.options.table import Options

__all__ = ["check", "require"]


def check(options: Options) -> None:
    """Check the options before the work.

    Raises UsageError for unknown methods or settings and for missing extras, and BudgetError for a
    budget that is too small for any text.
    """
    if options.report is not None:
        require("jinja2", "report", "--report")
    refuse_small(options.request.run.budget)
    for method in options.methods:
        settled(options.of_method(method), known=True)
