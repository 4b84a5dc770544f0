"""The available methods, with their settings and the presets of their papers."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvstream.methods.automatic import ABOUT, AUTO
from kvstream.methods.names import NAMES, method_names, plugins, tolerate_malformed_packages

if TYPE_CHECKING:
    from kvstream.methods.base import Method, Preset

__all__ = [
    "ABOUT", "AUTO", "NAMES", "MethodInfo", "MethodSetting", "available_methods",
    "broken_methods", "method_info", "method_names", "plugins", "tolerate_malformed_packages",
]  # fmt: skip


@dataclass(frozen=True)
class MethodSetting:
    """One setting of a method: ``set={"METHOD.NAME": value}``."""

    name: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    """Minimum of a number; None if there is no limit."""
    most: float | None = None
    """Maximum of a number; None if there is no limit."""
    allowed: str = ""
    """The limits of a number in words; empty if the setting has none."""


@dataclass(frozen=True)
class MethodInfo:
    """Description and settings of a method."""

    name: str
    about: str
    """Its description. The first line is a summary."""
    source: str
    """The paper of the method."""
    settings: tuple[MethodSetting, ...]
    preset: Preset | None
    """What ``preset="paper"`` sets: ``source``, ``settings`` and ``run``."""

    @property
    def summary(self) -> str:
        """The first line of its description."""
        return self.about.partition("\n")[0]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``kvstream methods --json`` prints."""
        keys = ("default", "help", "choices", "least", "most")
        return {
            "method": self.name,
            "summary": self.summary,
            "source": self.source,
            "preset": None if self.preset is None else dataclasses.asdict(self.preset),
            "settings": {
                each.name: {
                    name: list(value) if isinstance(value := getattr(each, name), tuple) else value
                    for name in keys
                }
                for each in self.settings
            },
        }


def available_methods() -> Mapping[str, MethodInfo]:
    """Return all methods by name: the built-in ones, and those of other packages.

    `broken_methods` has those that do not load.
    """
    from kvstream.methods.registry import available

    return {name: _info(name, method) for name, method in available().items()}


def broken_methods() -> tuple[str, ...]:
    """Return why methods of other packages are left out."""
    from kvstream.methods.registry import FAULTS, available

    available()
    return tuple(FAULTS.values())


def method_info(name: str) -> MethodInfo:
    """Return the method with this name. Raises UsageError, with the available names."""
    from kvstream.methods.registry import by_name

    return _info(name, by_name(name, (AUTO,)))


def _info(name: str, method: type[Method]) -> MethodInfo:
    from kvstream.methods.base import in_words, limits

    settings = []
    for field in dataclasses.fields(method):
        bounds = limits(field)
        least, most = bounds or (math.inf, math.inf)
        settings.append(
            MethodSetting(
                name=field.name,
                default=field.default,
                help=field.metadata.get("help", ""),
                choices=tuple(field.metadata.get("choices") or ()),
                least=least if least < math.inf else None,  # JSON has no infinity
                most=most if most < math.inf else None,
                allowed="" if bounds is None else in_words(bounds),
            )
        )
    about = (inspect.getdoc(method) or "").replace("``", "`")
    return MethodInfo(name, about, method.source, tuple(settings), method.paper)
