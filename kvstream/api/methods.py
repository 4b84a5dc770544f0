"""The methods that there are, with their settings and what their papers set."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvstream.methods.automatic import ABOUT, AUTO
from kvstream.methods.names import method_names, plugin_of, plugins

if TYPE_CHECKING:
    from kvstream.methods.base import Method, Preset

__all__ = [
    "ABOUT", "AUTO", "MethodInfo", "MethodSetting", "available_methods", "method_info",
    "method_names", "plugin_of", "plugins",
]  # fmt: skip


@dataclass(frozen=True)
class MethodSetting:
    """One setting of a method: ``set={"METHOD.NAME": value}``."""

    name: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    """The least value of a number; None where there is no limit."""
    most: float | None = None
    allowed: str = ""
    """The limits of a number in words; empty where it is none."""


@dataclass(frozen=True)
class MethodInfo:
    """What a method does, and its settings."""

    name: str
    about: str
    """Its description; the first line says it in short."""
    source: str
    """The paper that it is from."""
    settings: tuple[MethodSetting, ...]
    preset: Preset | None
    """What ``preset="paper"`` sets: ``source``, ``settings`` and ``run``."""
    learning: str = ""
    """The module of its package that trains what it has to learn for a model; empty for most."""

    @property
    def summary(self) -> str:
        """The first line of its description."""
        return self.about.partition("\n")[0]

    def to_json(self) -> dict[str, Any]:
        """What ``kvstream methods --json`` prints."""
        shown = ("default", "help", "choices", "least", "most")
        return {
            "method": self.name,
            "summary": self.summary,
            "source": self.source,
            "preset": None if self.preset is None else dataclasses.asdict(self.preset),
            "settings": {
                each.name: {
                    name: list(value) if isinstance(value := getattr(each, name), tuple) else value
                    for name in shown
                }
                for each in self.settings
            },
        }


def available_methods() -> Mapping[str, MethodInfo]:
    """Every method by name: those built in, and those of other packages.

    Raises UsageError for a package whose method does not load.
    """
    from kvstream.methods.registry import available

    return {name: _info(name, method) for name, method in available().items()}


def method_info(name: str) -> MethodInfo:
    """The method of that name. Raises UsageError with those that there are."""
    from kvstream.methods.registry import named

    return _info(name, named(name, (AUTO,)))


def _info(name: str, method: type[Method]) -> MethodInfo:
    from kvstream.methods.base import in_words, limits

    settings = []
    for field in dataclasses.fields(method):
        allowed = limits(field)
        least, most = allowed or (math.inf, math.inf)
        settings.append(
            MethodSetting(
                name=field.name,
                default=field.default,
                help=field.metadata.get("help", ""),
                choices=tuple(field.metadata.get("choices") or ()),
                least=least if least < math.inf else None,  # JSON knows no infinity
                most=most if most < math.inf else None,
                allowed="" if allowed is None else in_words(allowed),
            )
        )
    about = inspect.getdoc(method) or ""
    return MethodInfo(name, about, method.source, tuple(settings), method.paper, method.learning)
