"""The files of a directory: sorted, without what is hidden or ignored by git."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pathspec

# Those of git, Mercurial, Subversion and others begin with a dot and are hidden already.
VCS_FOLDERS = {"CVS", "_darcs", "RCS", "SCCS"}


def files_in(folder: Path, unreadable: Callable[[OSError], None]) -> Iterator[Path]:
    """Regular files in ``folder``, depth first by name, ``.gitignore`` obeyed.

    Links to directories are not followed, so a loop of links cannot hold us; FIFOs, sockets and
    devices are left alone.  A directory that cannot be listed goes to ``unreadable``.
    """
    yield from _walk(folder, _ignores_above(folder), unreadable)


def _walk(
    folder: Path, ignores: list[_Ignore], unreadable: Callable[[OSError], None]
) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        unreadable(error)
        return
    here = _Ignore.of(folder)
    if here is not None:
        ignores = [here, *ignores]
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in VCS_FOLDERS and not _ignored(path, ignores, is_folder=True):
                yield from _walk(path, ignores, unreadable)
        elif entry.is_file() and not _ignored(path, ignores, is_folder=False):
            yield path


class _Ignore:
    """One ``.gitignore`` and the folder it speaks of."""

    def __init__(self, folder: Path, lines: list[str]) -> None:
        self.folder = folder
        self.spec = pathspec.GitIgnoreSpec.from_lines(lines)

    @classmethod
    def of(cls, folder: Path) -> _Ignore | None:
        try:
            text = (folder / ".gitignore").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        return cls(folder.absolute(), text.splitlines())

    def verdict(self, path: Path, *, is_folder: bool) -> bool | None:
        name = path.absolute().relative_to(self.folder).as_posix() + ("/" if is_folder else "")
        return self.spec.check_file(name).include


def _ignores_above(folder: Path) -> list[_Ignore]:
    """The files of the folders above, nearest first, up to the top of the repository."""
    top = folder.resolve()
    found: list[_Ignore] = []
    while not (top / ".git").exists():
        if top.parent == top:
            return []  # not in a repository: files outside of what was named do not count
        top = top.parent
        ignore = _Ignore.of(top)
        if ignore is not None:
            found.append(ignore)
    return found


def _ignored(path: Path, ignores: list[_Ignore], *, is_folder: bool) -> bool:
    """Whether the nearest ``.gitignore`` that says anything about ``path`` excludes it."""
    for ignore in ignores:
        try:
            verdict = ignore.verdict(path, is_folder=is_folder)
        except ValueError:  # reached over a link, so not below that folder
            continue
        if verdict is not None:
            return verdict
    return False
