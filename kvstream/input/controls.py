"""The control sequences of ECMA-48, with 7 and with 8 bits, and soft hyphens, as patterns.

This file imports nothing heavy, because the pages of logs need it before anything is loaded.
"""

from __future__ import annotations

import re

LONGEST = 4096
"""Maximum characters of a control string that has no end. What looks like a longer one has no
other text, so it is removed up to the end of its line."""
HOLE = 16
"""At least so many NULs within a line end it: they stand for the rest of it and for other lines."""
RSYSLOG = "#033["
"""Beginning of a color as rsyslog writes it."""
ASCII_SIGNS = "\0\x07\x08\x0e\x0f\x1b"
SIGNS = f"{ASCII_SIGNS}\x90\x98\x9b\x9d\x9e\x9f\xad"
"""Every other sequence begins with one of these, or has a backspace."""
_BODY = r"[^\x00-\x08\x0a-\x1f\x7f\x9c]"
"""A character of a control string. A string ends with its line at the latest."""
_STRING = rf"{_BODY}{{0,{LONGEST}}}+(?:\x1b\\|[\x07\x9c])"
SEQUENCE = re.compile(
    r"\0+"
    r"|\x1b(?:\[[0-?]*+[ -/]*+[@-~]?"
    rf"|[PX\]^_k](?:{_STRING}|{_BODY}{{{LONGEST + 1},}}+(?:\x1b\\|[\x07\x9c])?)?"
    r"|[ -/]*+[0-~]?)"
    # Text in a wrong encoding also has characters of this range: what has no end, stays.
    rf"|\x9b(?:[0-?]++[ -/]*+[@-~]|[@-~](?![A-Za-z]))|[\x90\x98\x9d-\x9f]{_STRING}"
    r"|[\x07\x0e\x0f\xad]|#033\[[\d;]*+[A-Za-z]"
)
MOVE = re.compile(r"(?:\x1b\[|\x9b)\d+[CG]")
"""A movement to a column, which stands for the space between two words."""
BASE64 = ";base64,"
LETTERS = re.compile("[A-Za-z0-9+/=]*+")
FILTERED = re.compile(
    rf"{SEQUENCE.pattern}|(?<![A-Za-z])data:[\w.+-]++/[\w.+;=-]*{BASE64}[A-Za-z0-9+/=]{{64,}}+"
)
"""These sequences, and files in base64, such as the pictures of Markdown."""
UNFINISHED = re.compile(
    rf"(?:\x1b(?:\[[0-?]*+[ -/]*+|[PX\]^_k]{_BODY}{{0,{LONGEST}}}+\x1b?|[ -/]*+)"
    rf"|\x9b(?:[0-?]*+[ -/]*+|[@-~])|[\x90\x98\x9d-\x9f]{_BODY}{{0,{LONGEST}}}+\x1b?"
    rf"|#(?:0(?:3(?:3(?:\[[\d;]*+)?)?)?)?|(?<!\0)\0{{1,{HOLE - 1}}}|(?<!\r)\r+"
    rf"|(?<![A-Za-z])d(?:a(?:t(?:a(?::[\w.+/;=-]{{0,99}}+(?:,[A-Za-z0-9+/=]{{0,63}}+)?)?)?)?)?)\Z"
)
STRUCK = re.compile(
    r"(?=([^\n\x08]))(?:.\x08{1,2}(?=\1)|_\x08(?=[^\n])|[|/\\-]\x08|\+\x08(?=o))"
    r"|(?<=[^\n\x08])\x08_"
)
"""What another character overstrikes: in bold and underlined words of a man page, in bullets, and
in a bar that turns."""
LONE = re.compile(r"(?<!\r)\r++(?!\n)")
"""Carriage returns without a newline, of a progress bar or as ends of lines."""
REST = re.compile(rf"{_BODY}*+\x9c?")


def without_controls(text: str) -> str:
    """Return a text without control sequences and NULs."""
    if text.isprintable() and RSYSLOG not in text:  # this is fast
        return text
    return SEQUENCE.sub("", text) if any(map(text.__contains__, (*SIGNS, RSYSLOG))) else text
