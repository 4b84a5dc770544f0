"""Answer questions about texts far longer than a model's context, in a bounded KV cache.

    import kvstream

    model = kvstream.load("pocket")
    memory = model.read("book.txt", questions=["Who hid the letter?"], budget="1k")
    print(memory.ask("Who hid the letter?"))

`import kvstream` does not load torch; `load` does. docs/guide/python.md describes the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstream.version import __version__

if TYPE_CHECKING:
    from kvstream.api.answer import Answer
    from kvstream.api.collection import ask_each, remember_each, summarize_each
    from kvstream.api.doctor import Finding, diagnose
    from kvstream.api.html_report import Report
    from kvstream.api.memories import Memories
    from kvstream.api.memory import Memory, MemoryFile, inspect
    from kvstream.api.methods import MethodInfo, MethodSetting, available_methods
    from kvstream.api.model import Model, load
    from kvstream.api.models import ModelEntry, available_models
    from kvstream.api.source_objects import Source, Text, open_sources
    from kvstream.errors import (
        BudgetError,
        KvstreamError,
        ModelError,
        SourceError,
        UnsupportedModelError,
        UsageError,
    )
    from kvstream.events import (
        Answered,
        AnswerStarted,
        AnswerToken,
        DocumentDone,
        DocumentFailed,
        Event,
        Notice,
        PartRead,
        Result,
        Started,
        StepDone,
    )

__all__ = [
    "Answer", "AnswerStarted", "AnswerToken", "Answered", "BudgetError", "DocumentDone",
    "DocumentFailed", "Event", "Finding", "KvstreamError", "Memories", "Memory", "MemoryFile",
    "MethodInfo", "MethodSetting", "Model", "ModelEntry", "ModelError", "Notice", "PartRead",
    "Report", "Result", "Source", "SourceError", "Started", "StepDone", "Text",
    "UnsupportedModelError", "UsageError", "__version__", "ask_each", "available_methods",
    "available_models", "diagnose", "inspect", "load", "open_sources", "remember_each",
    "summarize_each",
]  # fmt: skip

_HOMES = {
    "api.answer": ("Answer",),
    "api.collection": ("ask_each", "remember_each", "summarize_each"),
    "api.doctor": ("Finding", "diagnose"),
    "api.memories": ("Memories",),
    "api.memory": ("Memory", "MemoryFile", "inspect"),
    "api.methods": ("MethodInfo", "MethodSetting", "available_methods"),
    "api.model": ("Model", "load"),
    "api.models": ("ModelEntry", "available_models"),
    "api.html_report": ("Report",),
    "api.source_objects": ("Source", "Text", "open_sources"),
    "errors": (
        "BudgetError", "KvstreamError", "ModelError", "SourceError", "UnsupportedModelError",
        "UsageError",
    ),
    "events": (
        "Answered", "AnswerStarted", "AnswerToken", "DocumentDone", "DocumentFailed", "Event",
        "Notice", "PartRead", "Result", "Started", "StepDone",
    ),
}  # fmt: skip
"""The public names of each module. `__getattr__` imports a module when a name is first used."""
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "pocket":  # its place in 0.1
        return import_module(f"{__name__}.store.pocket")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
