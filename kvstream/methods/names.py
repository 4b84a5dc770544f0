"""Names of the methods, for code that must not import torch: early errors, shell completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CLASSES = {
    "infinipot": "infinipot:InfiniPot", "cascade": "cascade:Cascade",
    "bumblebee": "bumblebee:BumbleBee", "edgeinfinite": "edgeinfinite:EdgeInfinite",
    "snapkv": "snapkv:SnapKV", "pyramidkv": "pyramidkv:PyramidKV", "h2o": "h2o:H2O",
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


def plugins() -> tuple[EntryPoint, ...]:
    """Return the entry points of other packages, whose methods may differ in name."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def method_names() -> tuple[str, ...]:
    """Return all names that are known without importing a method."""
    return (*NAMES, *(point.name for point in plugins() if point.name not in NAMES))
