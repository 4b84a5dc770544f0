"""Names of the methods, for what must not import torch: early errors and shell completion."""

from __future__ import annotations

from functools import cache

BUILT_IN = (
    "infinipot", "cascade", "bumblebee", "edgeinfinite",
    "snapkv", "pyramidkv", "h2o", "tova", "sirllm", "keydiff", "foresight", "append",
    "streaming", "window", "random", "truncate", "full",
)  # fmt: skip
"""In the order of `kvstream methods`; a test compares them with the registry."""
GROUP = "kvstream.methods"
"""Entry points of other packages' methods."""


@cache
def plugins() -> tuple[str, ...]:
    """Names of the entry points of other packages; their methods may have other names."""
    from importlib.metadata import entry_points

    return tuple(point.name for point in entry_points(group=GROUP))


def method_names() -> tuple[str, ...]:
    """Every name that is known without importing a method."""
    return (*BUILT_IN, *(name for name in plugins() if name not in BUILT_IN))
