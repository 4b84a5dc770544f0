"""Makes untrusted text safe for a page: it stays text, and nothing in it stays hidden."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup, escape

from kvstream.reporters.format import json_text

_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"}
_HIDDEN = [0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFFFE, 0xFFFF]
"""Controls that a parser drops or that change the direction of the text around them."""
_VISIBLE = {**_CONTROLS, **dict.fromkeys(_HIDDEN, 0xFFFD)}
_SURROGATES = re.compile("[\ud800-\udfff]")
_IN_JSON = {ord(char): f"\\u{ord(char):04x}" for char in "<>&'"}


def visible(text: str) -> str:
    """Replace control characters and surrogates by visible signs, one for one.

    This includes the characters that open or close an embedding, an override or an isolate of
    bidirectional text, which could make a page look different from its contents.
    """
    return _SURROGATES.sub("\ufffd", text.translate(_VISIBLE))


def html(value: Any) -> Any:
    """Return what a template writes for a value: text with all special characters escaped.

    A parser turns a carriage return into a newline unless it is written as a number.
    """
    if value is None:
        return ""
    if isinstance(value, Markup):
        return value
    return Markup(str(escape(visible(str(value)))).replace("\r", "&#13;"))


def script_json(value: Any) -> Markup:
    """Return JSON for a script element that no browser runs. No text can end the element."""
    return Markup(json_text(value).translate(_IN_JSON))
