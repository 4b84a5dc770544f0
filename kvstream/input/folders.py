"""List the files of a folder, sorted, without those hidden or ignored; recognize own files."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kvstream.input import pseudo

if TYPE_CHECKING:
    import pathspec

Ignores: TypeAlias = "list[tuple[Path, pathspec.GitIgnoreSpec]]"
"""Folders with a ``.gitignore``, nearest first, and its patterns."""
# Folders of git, Mercurial, Subversion and others begin with a dot, so they are already hidden.
VCS_FOLDERS = {"CVS", "_darcs", "RCS", "SCCS"}
HIDDEN = "hidden"
"""In counts of what is left out: hidden files and folders, and those that git ignores."""
FIRST = 1024
"""Number of bytes at the beginning of a file that say whether kvstream wrote it."""
_GENERATOR = b'<meta name="generator" content="kvstream">'
_COMMANDS = b"ask|count|summarize|compare|remember|merge|inspect"
_RESULT = re.compile(
    rb'\{"command": "(?:%b)", "(?:model|method|memory|file|question|words|source)": ' % _COMMANDS
    + rb'|\{"kind": "log", "lines": \d+, "blank_lines": '
    + rb'|\{"event": "started", "model": "[^\n]*", "budget_tokens": '
    + rb'|\{\n "document": "[^\n]*",\n "answers": \['
)
"""The beginning of what --json, --stats and --each write."""


def files_in(folder: Path, left_out: Counter[str]) -> Iterator[Path]:
    """Yield regular files in ``folder``, depth first by name, and respect ``.gitignore``.

    Links to folders are not followed; links to files that are yielded anyway, FIFOs, sockets and
    devices are skipped. ``left_out`` counts other losses by description, which can name the first,
    and as HIDDEN what is hidden or ignored. Raises OSError if ``folder`` itself cannot be listed.
    """
    kind = pseudo.kind(folder.stat())
    if kind is not None:
        left_out[f"folder on no disk ({kind})"] += 1
        return
    yield from _walk(folder, _ignores_above(folder, left_out), left_out)


def output_in(start: bytes) -> str:
    """Return what a file is that begins with these bytes if kvstream wrote it, else ``""``."""
    if start[8:].startswith(b'{"__metadata__": {"state": "'):
        return "memory file of kvstream"
    if start.startswith(b"<!doctype html>") and _GENERATOR in start:
        return "report of kvstream"
    return "JSON file of kvstream" if _RESULT.match(start) is not None else ""


def is_own(path: Path) -> bool:
    """Return whether kvstream wrote the file at `path`, which is then no source of its folder."""
    with suppress(OSError), path.open("rb") as file:
        return bool(output_in(file.read(FIRST)))
    return False


def name_of(path: Path) -> str:
    """Return the name of a file as a source, where ``-`` alone is standard input."""
    return "./-" if str(path) == "-" else str(path)


def would_read(folder: Path, path: Path) -> bool:
    """Return whether `files_in` would yield a file at `path`, if there was one."""
    # Path.resolve raises RuntimeError for a link to itself.
    root, place = (Path(os.path.realpath(each)) for each in (folder, path))
    if not place.is_relative_to(root):
        return False
    left_out: Counter[str] = Counter()
    ignores, at = _ignores_above(root, left_out), root
    parts = place.relative_to(root).parts
    for part in parts:
        ignores = [*_ignores_in(at, left_out), *ignores]
        at /= part
        if part.startswith(".") or _left_out(at, ignores, is_folder=at != place):
            return False
    return bool(parts)


def _walk(folder: Path, ignores: Ignores, left_out: Counter[str]) -> Iterator[Path]:
    # No recursion, because folders can be nested deeper than Python's limit.
    waiting: list[tuple[Path | os.DirEntry[str], Ignores]] = [(folder, ignores)]
    while waiting:
        at, ignores = waiting.pop()
        if not isinstance(at, Path):
            yield Path(at.path)
            continue
        try:
            entries = sorted(os.scandir(at), key=lambda entry: entry.name)
        except OSError:
            if at == folder:
                raise
            lose("unreadable folder", at, left_out)
            continue
        ignores = [*_ignores_in(at, left_out), *ignores]
        places: list[tuple[Path | os.DirEntry[str], Ignores]] = []
        for entry in entries:
            if entry.name.startswith("."):
                left_out[HIDDEN] += 1
                continue
            path = Path(entry.path)
            if entry.is_symlink() and not os.path.exists(path):
                if not _ignored(path, ignores, is_folder=False):
                    lose("broken link", path, left_out)
                continue
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
                if not (is_folder or entry.is_file()):
                    if entry.is_dir() and not _ignored(path, ignores, is_folder=False):
                        target, here = path.resolve(), folder.resolve()
                        if not (target.is_relative_to(here) or here.is_relative_to(target)):
                            left_out["link to another folder"] += 1
                    continue
            except OSError:
                lose("unreadable folder", path, left_out)
                continue
            if entry.is_symlink() and would_read(folder, path):
                continue
            if _left_out(path, ignores, is_folder=is_folder):
                left_out[HIDDEN] += 1
            elif (kind := _pseudo(entry)) is not None:
                left_out[f"{'folder' if is_folder else 'file'} on no disk ({kind})"] += 1
            else:
                places.append((path if is_folder else entry, ignores))
        waiting += reversed(places)


def lose(what: str, path: Path, left_out: Counter[str]) -> None:
    """Count a loss, under a description that names the first of its kind."""
    new = f"{what} (the first: {path})"
    left_out[next((key for key in left_out if key.startswith(f"{what} (")), new)] += 1


def _ignores_in(folder: Path, left_out: Counter[str]) -> Ignores:
    """Return the ``.gitignore`` of a folder, if there is one."""
    path = folder / ".gitignore"
    try:
        if not path.is_file():  # reading a FIFO of that name would never end
            return []
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        lose("unreadable file with patterns", path, left_out)
        return []
    return [(Path(os.path.realpath(folder)), _spec(text.splitlines()))]


def _left_out(path: Path, ignores: Ignores, *, is_folder: bool) -> bool:
    """Return whether version control owns a folder, or git ignores a file or folder."""
    owned = is_folder and path.name in VCS_FOLDERS
    return owned or _ignored(path, ignores, is_folder=is_folder)


def _pseudo(entry: os.DirEntry[str]) -> str | None:
    with suppress(OSError):  # removed or not readable: opening it gives the error
        return pseudo.kind(entry.stat())
    return None


def _spec(lines: list[str]) -> pathspec.GitIgnoreSpec:
    """Compile the valid patterns, for RE2, whose time does not grow with the pattern."""
    import pathspec  # few folders need it
    import re2

    def is_pattern(line: str) -> bool:
        try:
            pathspec.GitIgnoreSpec.from_lines([line], backend="re2")
        except (ValueError, re.error, re2.error):
            return False
        return True

    # A star alone would prevail over later patterns of folders, as in `*` and `!*/`.
    lines = [re.sub(r"^(!?/?)\*\*?\s*$", r"\1?*", line) for line in lines]
    # Only spaces are no part of a pattern at its end.
    lines = [re.sub(r"\t( *)$", r"[\t]\1", line) for line in lines]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # re warns about some patterns, but RE2 decides
        return pathspec.GitIgnoreSpec.from_lines(filter(is_pattern, lines), backend="re2")


def _ignores_above(folder: Path, left_out: Counter[str]) -> Ignores:
    """Read the ``.gitignore`` files of the folders above, nearest first, up to the repository."""
    top = folder.resolve()
    ignores: Ignores = []
    while not os.path.exists(top / ".git"):
        if top.parent == top:
            return []  # not in a repository: files outside the named folder do not apply
        top = top.parent
        ignores += _ignores_in(top, left_out)
    return ignores


def _ignored(path: Path, ignores: Ignores, *, is_folder: bool) -> bool:
    """Return whether ``path`` is excluded by the nearest ``.gitignore`` with a matching pattern."""
    place = Path(os.path.realpath(path.parent), path.name) if ignores else path
    for folder, spec in ignores:
        name = place.relative_to(folder).as_posix() + "/" * is_folder
        if (verdict := spec.check_file(name).include) is not None:
            return verdict
    return False
