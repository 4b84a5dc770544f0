"""Names of the methods, for code that must not import torch: early errors, shell completion."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CLASSES = {
    "infinipot": "infinipot:InfiniPot", "cascade": "cascade:Cascade",
    "bumblebee": "bumblebee:BumbleBee", "edgeinfinite": "edgeinfinite:EdgeInfinite",
    "snapkv": "snapkv:SnapKV", "pyramidkv": "snapkv:PyramidKV", "h2o": "h2o:H2O",
    "tova": "tova:TOVA", "sirllm": "sirllm:SirLLM", "keydiff": "keydiff:KeyDiff",
    "foresight": "foresight:Foresight", "append": "append:Append",
    "streaming": "recency:Streaming", "window": "recency:Window", "random": "recency:Random",
    "truncate": "whole:Truncate", "full": "whole:Full", "passages": "whole:Passages",
}  # fmt: skip
"""The built-in methods in the order of `kvstream methods`: ``module:class`` in this package. They
import torch, so they are named here and imported by the registry."""
NAMES = tuple(CLASSES)
GROUP = "kvstream.methods"
"""Group of the entry points with which other packages add methods."""


@cache
def tolerate_malformed_packages() -> list[str]:
    """Let a package whose list of entry points is malformed have none. Return their list.

    Python raises an error for all packages otherwise, and torch asks for entry points, too. The
    list has the packages with methods, once Python has looked for them.
    """
    from importlib.metadata import Distribution, EntryPoints

    problems: list[str] = []
    original = vars(Distribution)["entry_points"]

    def entry_points(package: Distribution) -> EntryPoints:
        try:
            return original.__get__(package)
        except Exception as error:
            reason = f"The entry points of a package are malformed ({error})."
            with suppress(Exception):  # its metadata may be damaged, too
                reason = f"The entry points of {package.name} are malformed ({error})."
            try:
                ours = GROUP in (package.read_text("entry_points.txt") or "")
            except ValueError:  # not UTF-8
                ours = True
            if ours and reason not in problems:
                problems.append(reason)
            return EntryPoints()

    Distribution.entry_points = property(entry_points)  # type: ignore[assignment]
    return problems


def plugins() -> tuple[tuple[EntryPoint, ...], Sequence[str]]:
    """Return the entry points of other packages, whose methods may differ in name, and problems."""
    from importlib.metadata import entry_points

    problems = tolerate_malformed_packages()
    return tuple(entry_points(group=GROUP)), problems


def method_names() -> tuple[str, ...]:
    """Return all names that are known without importing a method."""
    return (*NAMES, *(point.name for point in plugins()[0] if point.name not in NAMES))
