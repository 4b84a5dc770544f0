"""Names of the methods, for what must not import torch: early errors and shell completion."""

from __future__ import annotations

from functools import cache

NAMES = (
    "infinipot", "cascade", "bumblebee", "edgeinfinite",
    "snapkv", "pyramidkv", "h2o", "tova", "sirllm", "keydiff", "foresight", "append",
    "streaming", "window", "random", "truncate", "full",
)  # fmt: skip
"""Of the built-in methods, in the order of `kvstream methods`; a test compares them with
`BUILT_IN` of the registry, which has their classes and imports torch."""
GROUP = "kvstream.methods"
"""Entry points of other packages' methods."""


@cache
def plugin_of(error: BaseException) -> str | None:
    """The plugin in whose code an error was raised: its name and module; None if in no plugin."""
    from importlib.metadata import entry_points

    trace, passed = error.__traceback__, set()
    while trace is not None:
        passed.add(str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0])
        trace = trace.tb_next
    for point in entry_points(group=GROUP):
        if point.module.partition(".")[0] in passed:
            return f"{point.name!r} of {point.module!r}"
    return None


def plugins() -> tuple[str, ...]:
    """Names of the entry points of other packages; their methods may have other names."""
    from importlib.metadata import entry_points

    return tuple(point.name for point in entry_points(group=GROUP))


def method_names() -> tuple[str, ...]:
    """Every name that is known without importing a method."""
    return (*NAMES, *(name for name in plugins() if name not in NAMES))
