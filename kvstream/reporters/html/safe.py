"""Makes untrusted text safe for a page: it stays text, and nothing in it stays hidden."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup, escape

from kvstream.reporters.format import json_text, visible

_IN_JSON = {ord(char): f"\\u{ord(char):04x}" for char in "<>&'"}


def html(value: Any) -> Any:
    """Return what a template writes for a value: text with all special characters escaped."""
    if value is None:
        return ""
    if isinstance(value, Markup):
        return value
    return escape(visible(str(value)))


def script_json(value: Any) -> Markup:
    """Return JSON for a script element that no browser runs. No text can end the element."""
    return Markup(json_text(value).translate(_IN_JSON))
