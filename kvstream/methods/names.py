"""Names of the methods, for code that must not import torch: early errors, shell completion."""

from __future__ import annotations

from functools import cache

NAMES = (
    "infinipot", "cascade", "bumblebee", "edgeinfinite",
    "snapkv", "pyramidkv", "h2o", "tova", "sirllm", "keydiff", "foresight", "append",
    "streaming", "window", "random", "truncate", "full",
)  # fmt: skip
"""Names of the built-in methods, in the order of `kvstream methods`. A test compares them with
`BUILT_IN` of the registry, which has the classes and imports torch."""
GROUP = "kvstream.methods"
"""Group of the entry points with which other packages add methods."""


@cache
def plugin_of(error: BaseException) -> str | None:
    """Return name and module of the plugin in whose code an error was raised; None: no plugin."""
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
    """Return the names of the entry points of other packages; their methods may differ in name."""
    from importlib.metadata import entry_points

    return tuple(point.name for point in entry_points(group=GROUP))


def method_names() -> tuple[str, ...]:
    """Return all names that are known without importing a method."""
    return (*NAMES, *(name for name in plugins() if name not in NAMES))
