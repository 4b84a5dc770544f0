"""The warnings and notes about sources."""

from __future__ import annotations

from collections import Counter, defaultdict

from kvstream.errors import SourceError
from kvstream.input.blocks import BlockDecoder
from kvstream.input.inspection import OneSource
from kvstream.input.source import shown_name
from kvstream.input.terminal import ControlFilter

TOLD = 3
"""Maximum files that messages of one kind name individually. More are counted."""


class Messages:
    """Collects what the user must know about the sources of a run."""

    def __init__(self) -> None:
        self.general: list[str] = []
        """Warnings as text. `warnings` adds those that count files: encodings and damage."""
        self.notes: list[str] = []
        """Messages that are no reason to doubt an answer."""
        self._encodings: list[tuple[str, str]] = []
        self._damage: list[tuple[OneSource, SourceError]] = []
        self._files: dict[str, int] = {}
        """Number of files in base64, by name of the source."""
        self._nuls: dict[str, tuple[int, int]] = {}
        """By name of the source: number of NULs, and the place of the first one."""

    @property
    def warnings(self) -> list[str]:
        """Reasons why an answer may be wrong; complete when everything was read."""
        return [*self.general, *self._about_encodings(), *self.about_damage()]

    def encoding(self, name: str, encoding: str) -> None:
        """Record a source that is not UTF-8."""
        self._encodings.append((shown_name(name), encoding))

    def damage(self, source: OneSource, error: SourceError) -> None:
        """Record a file of a folder that cannot be read, or not to its end."""
        source.problem = str(error)
        self._damage.append((source, error))

    def ended_early(self, source: OneSource, message: str) -> None:
        """Warn that a source was not read to its end."""
        source.problem = message
        self.general.append(message)

    def replacements(self, name: str, decoder: BlockDecoder, base: int) -> None:
        """Warn of bytes that a decoder replaced in a source that begins at byte `base`."""
        if decoder.first_invalid is None:
            return
        place, encoding = f"byte {decoder.first_invalid - base:,}.", decoder.encoding.upper()
        text = f"1 byte is not {encoding} and was replaced, at {place}"
        if (count := decoder.invalid) > 1:
            text = f"{count:,} bytes are not {encoding} and were replaced, the first at {place}"
        self.general.append(f"{shown_name(name)}: {text}")

    def nuls(self, name: str, controls: ControlFilter, base: int) -> None:
        """Record how many NULs and files of a source, which begins at byte `base`, were skipped."""
        if controls.files:
            self._files[shown_name(name)] = controls.files
        if controls.nuls:
            self._nuls[shown_name(name)] = controls.nuls, controls.first_nul - base

    def about_nuls(self) -> list[str]:
        """Return the notes about files and skipped NULs, individually or counted."""
        files = [f"{name}: left out {n:,} × file in base64." for name, n in self._files.items()]
        if len(files) > TOLD:
            every = sum(self._files.values())
            files = [f"{len(files):,} files: left out {every:,} × file in base64."]
        if len(self._nuls) > TOLD:
            every = sum(count for count, _ in self._nuls.values())
            return [*files, f"{len(self._nuls):,} files: {every:,} NULs skipped."]
        return files + [
            f"{name}: {count:,} NUL{'s' * (count > 1)} skipped, the first at byte {place:,}."
            for name, (count, place) in self._nuls.items()
        ]

    def _about_encodings(self) -> list[str]:
        """Return messages about files that are not UTF-8, individually or counted."""
        if len(self._encodings) <= TOLD:
            return [f"{name} is not UTF-8; it was read as {e}." for name, e in self._encodings]
        counts = Counter(encoding for _, encoding in self._encodings).most_common()
        parts = ", ".join(f"{count:,} × {encoding}" for encoding, count in counts)
        return [f"{len(self._encodings):,} files are not UTF-8; they were read as: {parts}."]

    def about_damage(self) -> list[str]:
        """Return messages about files in folders that failed: those read in part, and others."""
        failures: defaultdict[str, list[SourceError]] = defaultdict(list)
        partly: defaultdict[str, list[tuple[OneSource, SourceError]]] = defaultdict(list)
        for source, error in self._damage:
            if source.gave_text:
                partly[source.folder].append((source, error))
            else:
                failures[source.folder].append(error)
        messages: list[str] = []
        for folder, some in partly.items():
            only = f"{len(some):,} files in {folder} were read only in part"
            each = (
                f"Only the first {source.length or 0:,} bytes of text of "
                f"{shown_name(source.name)} were read: {error}"
                for source, error in some
            )
            messages += each if len(some) <= TOLD else [f"{only} (the first: {some[0][1]})"]
        return messages + [
            f"Skipped in {folder}: {len(errors):,} × document that cannot be read "
            f"(the first: {errors[0]})"
            for folder, errors in failures.items()
        ]
