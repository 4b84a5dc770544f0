"""Text of strangers on its way into a page: it stays text, and it hides nothing."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup, escape

from kvstream.reporters.format import json_text

_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"}
_HIDDEN = [0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFFFE, 0xFFFF]
"""Controls that a parser drops or that turn the direction of what stands around them."""
_VISIBLE = {**_CONTROLS, **dict.fromkeys(_HIDDEN, 0xFFFD)}
_SURROGATES = re.compile("[\ud800-\udfff]")
_IN_JSON = {ord(char): f"\\u{ord(char):04x}" for char in "<>&'"}


def visible(text: str) -> str:
    """The same text, as long as before: control characters and surrogates have visible signs.

    Among them are those that open or close an embedding, an override or an isolate of
    bidirectional text, which could make a page read otherwise than it is.
    """
    return _SURROGATES.sub("\ufffd", text.translate(_VISIBLE))


def html(value: Any) -> Any:
    """What a template writes of a value: text with all of HTML's signs escaped.

    A parser turns a carriage return into a newline unless it is written as a number.
    """
    if value is None:
        return ""
    if isinstance(value, Markup):
        return value
    return Markup(str(escape(visible(str(value)))).replace("\r", "&#13;"))


def script_json(value: Any) -> Markup:
    """A value as JSON for a script element that no browser runs; nothing in it ends the element."""
    return Markup(json_text(value).translate(_IN_JSON))
