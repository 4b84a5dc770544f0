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
    """Return name and module of the plugin in whose code an error was raised; None: no plugin.

    Of a package with several methods it names the one that ran, and all if none of them did.
    """
    from importlib.metadata import entry_points

    trace, packages, classes = error.__traceback__, set(), set()
    while trace is not None:
        owner = type(trace.tb_frame.f_locals.get("self"))
        # A base class of kvstream runs on behalf of the class that derives from it.
        for module in (trace.tb_frame.f_globals.get("__name__"), owner.__module__):
            packages.add(str(module).partition(".")[0])
        classes.add(owner.__qualname__)
        trace = trace.tb_next
    points = [p for p in entry_points(group=GROUP) if p.module.partition(".")[0] in packages]
    if not points:
        return None
    ran = [p for p in points if p.attr in classes] or points
    return f"{' or '.join(repr(p.name) for p in ran)} of {ran[0].module!r}"


def plugins() -> tuple[str, ...]:
    """Return the names of the entry points of other packages; their methods may differ in name."""
    from importlib.metadata import entry_points

    return tuple(point.name for point in entry_points(group=GROUP))


def method_names() -> tuple[str, ...]:
    """Return all names that are known without importing a method."""
    return (*NAMES, *(name for name in plugins() if name not in NAMES))
