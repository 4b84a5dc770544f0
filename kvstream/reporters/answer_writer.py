"""Write the answer: streamed on a terminal, whole elsewhere, or as JSON."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kvstream.events import Answered, AnswerStarted, AnswerToken, Event, Result
from kvstream.reporters.citation_lines import looked_lines, news_lines
from kvstream.reporters.format import Sink, json_line, visible


class AnswerWriter:
    """Writes answers to a stream that it does not own; with `labels`, below their questions.

    `origin` is added to the receipt of each answer in JSON.
    """

    def __init__(
        self,
        stream: Sink,
        *,
        as_json: bool,
        labels: bool = False,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self.origin = origin
        self.stream = stream
        self.as_json = as_json
        self.labels = labels and not as_json
        self.is_terminal = stream.isatty()
        self.streamed: list[str] = []
        self.last_character = ""

    def show(self, event: Event) -> None:
        if isinstance(event, AnswerStarted):
            if self.labels:
                question = " ".join(event.question.split())
                self._write(("\n" if self.last_character else "") + f"Question: {question}\n")
        elif isinstance(event, AnswerToken):
            text = event.text if self.streamed else event.text.lstrip()
            if self.is_terminal and not self.as_json and text:
                self.streamed.append(text)
                self._write(text)
        elif isinstance(event, Answered):
            if self.as_json:
                self._write(json_line(event.result.to_json(self.origin), self.stream))
            else:
                self._answer(event.result, shutil.get_terminal_size().columns)
            self.streamed.clear()

    def _answer(self, result: Result, width: int) -> None:
        lines = looked_lines(result, width) if self.is_terminal else []
        if result.news is not None:
            lines = news_lines(result, width)
        elif self.streamed:
            # White space at the ends of the streamed text is cut; a newer value may come before it.
            self._write("\n" if self.last_character != "\n" else "")
            if "".join(self.streamed).strip() != result.answer:
                self._write(f"{result.answer}\n")
        else:
            self._write(result.answer.rstrip("\n") + "\n")
        for line in lines:
            self._write(line + "\n")

    def close(self) -> None:
        """End the line of an answer that was interrupted."""
        if self.streamed and self.last_character != "\n":
            with suppress(OSError):
                self._write("\n")
        self.streamed.clear()

    def _write(self, text: str) -> None:
        if text:
            self.stream.write(visible(text) if self.is_terminal else text)
            self.stream.flush()
            self.last_character = text[-1]
