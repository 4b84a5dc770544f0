"""Lines that continue another one: stack traces, and other indented lines."""

from __future__ import annotations

import re

from kvstream.logs.levels import BEGINS_WITH_LEVEL

TRACE_LINES, EXAMPLE = 12, 400
"""Maximum number of first lines held of a trace, and of characters of a line."""
MESSAGE_LINES = 20
"""Maximum number of lines of the message of an exception, after its first one."""
_ERROR = (
    r"(?:[\w$-]+(?:\.|::|/))*[\w$]*(?:Exception|Error|Exit|Interrupt|Panic)"
    r"(?: [\[(][\w.]+[\])])?(?:: |$)"
)
_FRAME = r"#\d+ (?: +\S|/|\[internal |\{main\}|\S+\(\d+\): )"
"""Of PHP, gdb and Dart. BuildKit numbers its steps in the same way: ``#5 [2/3] RUN make``."""
_HEADING = (
    r"(?:Current )?[Ss]tack ?(?:back)?trace(?:back)?:|Call Trace:|CallStack \(from|Wrapped by: "
    r"|\[(?:stacktrace|previous exception)\]"  # of Laravel
)
_SURELY = re.compile(
    rf"\s+\S|Caused by:|Suppressed: |\.\.\. \d+ (?:more|common)|at [\w.$]+\(|---> |{_FRAME}"
    r"|During handling of|The above exception|goroutine \d+ \[|\[signal SIG"
    rf"|{_HEADING}|note: (?:run with|[Ss]ome details)"
    r"|future: <|[\w./-]+:\d+:in [`'][^`']+'$"
)
"""These lines continue another one, even if the program of a container writes no times at all."""
_GO_NAME = r"(?:[\w.-]+/)*[\w-]+(?:\.(?:\(\*?\w+\)|\w+(?:\[\.{3}\])?)){1,4}$"
"""Of zap, above a place: ``k8s.io/client-go/rest.(*Request).Do``."""
_CONTINUES = re.compile(
    rf"\"?\}}|\]|\)|Traceback \(|exit status \d+$|{_ERROR}|Node\.js v\d|{_GO_NAME}"
)
TRACE = re.compile(
    rf"\s+at [\w.$<>]+|Caused by:|(?:\s+\+ Exception Group )?Traceback \(|\s+File \""
    rf"|goroutine \d+ \[|{_HEADING}"
    r"|\s+from \S+:\d+:in |\s+\S+ called at \S+ line \d|\s+\(\S+ [\d.]+\) \S+:\d+: "
    rf"|note: run with|{_FRAME}|\s*---> |{_ERROR}"
)
"""A line that continues another and is part of a stack trace."""
_SQL = re.compile(
    r"(?:SELECT|FROM|WHERE|AND|OR|(?:[A-Z]+ )?JOIN|ON|SET|VALUES|INSERT INTO|UPDATE|DELETE FROM"
    r"|WITH|(?:ORDER|GROUP) BY|HAVING|LIMIT|UNION)\b"
)
_CAUSE = re.compile(r"Caused by:|---> |\[cause\]: |panic: ")
_NAME = re.compile(rf"(?:Unhandled exception\.? |Uncaught )?{_ERROR}")
_IN_HEAD = re.compile(rf"(?<!\S){_ERROR}")
_CHAIN = ("During handling of", "The above exception")
_PYTHON, _RUST = "Traceback (most recent call last):", "panicked at "
_GO = re.compile(
    r"[\w./-][\w./*·\[\]-]*+(?:\([\w./*·\[\]]++\)[\w.*·\[\]-]*+){0,3}\(.*\)$|created by |panic\("
)
_ANY = re.compile(r"\S")
_IN_GROUP = re.compile(r"\s*[|+]")
"""A line of an exception group of Python, which no line without a sign ends."""
_OF_GROUP = re.compile(r"[|+] +(?:Exception Group )?Traceback")


class Continuation:
    """Says whether a line without a time continues the one before, also by earlier lines."""

    def __init__(self) -> None:
        self.expects: re.Pattern[str] | None = None
        """What the next line of the trace is like, if its form does not show it."""
        self.head = ""
        """The line that is continued, if it has a time."""
        self.has_level = False
        """Whether that line begins with a level, so that others of its writer do, too."""
        self._head = ""
        self._room = 0
        """Number of lines that the message of an exception below `head` may still have."""

    def begin(self, line: str) -> None:
        """Note a line that does not continue another one. (Without `expects`, only a line that ends
        with a colon matters.)"""
        self.expects = None
        if line.endswith(_PYTHON) or (_RUST in line and line[-1:] == ":"):
            self.expects = _IN_GROUP if _OF_GROUP.search(line) else _ANY

    def continues(self, line: str, *, surely: bool = False) -> bool:
        """Return whether a line continues the one before. `surely`: an exception's name alone may
        begin another line."""
        if self.head is not self._head:
            self._head = self.head
            self._room = MESSAGE_LINES * (_IN_HEAD.search(self.head) is not None)
        expected = self.expects is not None and self.expects.match(line) is not None
        of_sql = self.head != "" and _SQL.match(line)
        known = _SURELY.match(line) or of_sql or (not surely and _CONTINUES.match(line))
        if not expected and not known:
            of_message = self._room > 0 and not BEGINS_WITH_LEVEL.match(line)
            self._room = self._room - 1 if of_message else 0
            return of_message
        if self.head and TRACE.match(line):
            name = _NAME.match(line) or _CAUSE.match(line.strip())
            self._room = MESSAGE_LINES * (name is not None)
        if line.endswith(_PYTHON) or line.startswith(_CHAIN):
            self.expects = _IN_GROUP if _OF_GROUP.search(line) else _ANY
        elif line.startswith("goroutine "):
            self.expects = _GO
        elif self.expects is _ANY and not line[0].isspace():
            self.expects = None
            self._room = MESSAGE_LINES * bool(self.head)
        return True


class Trace:
    """The lines that continue a line: the first ones, and those that name an exception and its
    cause."""

    def __init__(self, head: str = "") -> None:
        self._head, self._python = head, False
        self._frames = False
        """Whether numbers are those of frames, and no longer those of causes."""
        self.line = 0
        """Number of the line that is continued; 0 if there is none yet."""
        self.first: list[str] = []
        self.exception = self.cause = ""
        self.is_stack = False

    def add(self, line: str) -> None:
        """Add a line."""
        line = line[:EXAMPLE]
        text = line.strip(" \t|+-")
        if line.startswith('  File "') or line.endswith(_PYTHON):
            self._python = True
        elif _CAUSE.match(line.strip()) is not None:
            self.cause = line.strip()
        elif self.cause.startswith("Caused by:") and self.cause.endswith(":"):  # of Rust
            self.cause = f"{self.cause} {text}"
        elif re.match(_HEADING, text):
            self._frames = True
        elif self.cause.startswith("Caused by: ") and not self._frames and re.match(r"\d+: ", text):
            self.cause = f"Caused by: {text}"
        elif self._python and not line[:1].isspace() and _SURELY.match(line) is None:
            self.exception, self._python = text, False  # the last one
        elif not self.exception and (
            _NAME.match(text) or (not self.first and _RUST in self._head and self._head[-1] == ":")
        ):
            self.exception = text
        self.is_stack = self.is_stack or TRACE.match(line) is not None
        if len(self.first) < TRACE_LINES:
            self.first.append(line)

    @property
    def key_lines(self) -> list[str]:
        """The lines to show: the exception and its cause, else the first place of a stack, or the
        last line of another text."""
        names = [line for line in (self.exception, self.cause) if line]
        lines = [line for line in self.first if re.search(r"\w", line)] or self.first
        places = [line for line in lines if line[-1:] != ":"][:1]
        return names or [line.strip() for line in (places if self.is_stack else lines[-1:])]

    @property
    def lines(self) -> list[str]:
        """The first lines, and those of `key_lines` that come later."""
        texts = {line.strip(" \t|+-") for line in self.first}
        return self.first + [k for k in self.key_lines if k.strip(" \t|+-") not in texts]
