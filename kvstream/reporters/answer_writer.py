"""Write the answer: streamed on a terminal, whole elsewhere, or as JSON."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kvstream.events import Answered, AnswerStarted, AnswerToken, Event
from kvstream.reporters.citation_lines import looked_lines, news_lines
from kvstream.reporters.format import json_line, visible
from kvstream.reporters.reporter import Reporter, Sink


class AnswerWriter(Reporter):
    """Writes answers one after the other to a stream that it does not own.

    With `labels`, each answer follows a line with its question. `receipt` is added to that of each
    answer in JSON.
    """

    def __init__(
        self,
        stream: Sink,
        *,
        as_json: bool,
        labels: bool = False,
        receipt: Mapping[str, Any] | None = None,
    ) -> None:
        self.receipt = receipt or {}
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
                record = event.result.to_json()
                record["receipt"] = {**record.get("receipt", {}), **self.receipt}
                self._write(json_line(record, self.stream))
            elif event.result.news is not None:
                for line in news_lines(event.result, shutil.get_terminal_size().columns):
                    self._write(line + "\n")
            elif self.streamed:
                # The streamed text is the answer; only white space at its ends was cut.
                self._write("\n" if self.last_character != "\n" else "")
            else:
                self._write(event.result.answer.rstrip("\n") + "\n")
            if self.is_terminal and not self.as_json and event.result.news is None:
                for line in looked_lines(event.result, shutil.get_terminal_size().columns):
                    self._write(line + "\n")
            self.streamed.clear()

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
