"""The models of a server: the one that is loaded, and every memory file of a folder."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from kvstream.api.files import MemoryFile, inspect
from kvstream.errors import KvstreamError, SourceError
from kvstream.memory.glance import Models, models_in
from kvstream.server.errors import ApiError, unusable, without_folders

if TYPE_CHECKING:
    from kvstream.api.model import Model

SUFFIX = ".kvs"
LONGEST_NAME = 200
"""Characters that are shown of the name of a model in a file, which may say anything."""


@dataclass(frozen=True)
class Entry:
    """A memory file as it was when it was looked at."""

    path: Path
    signature: tuple[int, int, int]
    """Inode, size and time of its last change; another file has another one."""
    digest: str
    bytes: int
    """Of the KV cache that it needs."""
    tokens: int
    """That it has read."""
    answering: str | None = None
    """The model that the passages beside it are kept for; None: that which made it."""


class Catalog:
    """Names of models. Files are found by looking through the folder, never by a path from a
    client.
    """

    def __init__(self, model: Model, folder: Path | None) -> None:
        self._model = model
        self.folder = None if folder is None else folder.resolve()
        self._known: dict[str, Entry] = {}
        self.created = int(time.time())

    def files(self) -> dict[str, Path]:
        """Memory files by the names of their models."""
        return {path.stem: path for path in self._inside() if self._unnamable(path) is None}

    def _inside(self) -> list[Path]:
        """The memory files of the folder, by name; not those that are hidden."""
        if self.folder is None:
            return []
        found = sorted(self.folder.glob(f"*{SUFFIX}"))
        # A link may lead out of the folder; what it leads to is not for clients.
        return [
            path for path in found
            if path.is_file()
            and path.resolve().parent == self.folder
            and not path.name.startswith(".")
        ]  # fmt: skip

    def _unnamable(self, path: Path) -> str | None:
        """Why no client can name a file, if that is so."""
        if path.stem == self._model.name:
            return f"{path.name} is not offered: the loaded model has this name. Rename the file."
        try:
            path.name.encode()
        except UnicodeEncodeError:
            name = path.name.encode("utf-8", "replace").decode()
            return f"{name} is not offered: its name is not UTF-8. Rename the file."
        return None

    def offered(self) -> tuple[dict[str, Path], list[str]]:
        """Those files that the model can be asked with, and why the others are left out.

        Only headers are read; a file that is damaged further on fails when it is asked.
        """
        found, problems = {}, []
        for path in self._inside():
            why = self._unnamable(path)
            if why is not None:
                problems.append(why)
                continue
            try:
                models = models_in(path)
            except SourceError as error:
                problems.append(str(error))
                continue
            if self._made(models):
                found[path.stem] = path
                continue
            made = _shown(models.made)
            alone = "" if models.answering is None else f", and {made} answers alone"
            problems.append(
                f"{path.name} is not offered: it was made by {_makers(models, _shown)}, and the "
                f"server uses one model, {self._model.name}. With -m {shlex.quote(made)} the "
                f"server offers it{alone}."
            )
        return found, problems

    def _made(self, models: Models) -> bool:
        """Whether the loaded model made a file. Its weights may be in another number type."""
        same = models.fingerprint == self._model.session.model.fingerprint
        return same or models.made == self._model.name

    def listing(self) -> list[dict[str, Any]]:
        """What ``GET /v1/models`` tells."""
        rows = [(self._model.name, self.created)]
        for name, path in self.offered()[0].items():
            try:
                rows.append((name, int(path.stat().st_mtime)))
            except OSError:  # removed in between
                continue
        return [
            {"id": name, "object": "model", "created": created, "owned_by": "kvstream"}
            for name, created in rows
        ]

    def row(self, name: str) -> dict[str, Any]:
        """What ``GET /v1/models/NAME`` tells. Raises ApiError where no such model is listed."""
        for row in self.listing():
            if row["id"] == name:
                return row
        self.path(name)  # which says why it is not listed
        raise _unknown(name)

    def path(self, name: str) -> Path | None:
        """The file of a model; None for the loaded one.

        Raises ApiError where there is none, or where another model made it.
        """
        if name == self._model.name:
            return None
        path = self.files().get(name)
        if path is None:
            raise _unknown(name)
        signature = self.signature(path)
        known = self._known.get(path.name)
        if known is not None and known.signature == signature:
            return path
        try:
            models = models_in(path)
        except SourceError as error:
            raise unusable(without_folders(str(error), self.folder)) from error
        if not self._made(models):
            raise _unknown(
                name,
                f"its file was made by {_makers(models, named)}, and this server uses one model, "
                f"{self._model.name}",
            )
        return path

    def entry(self, path: Path) -> Entry:
        """What is known of a file, which is read if it has changed. Raises ApiError."""
        signature = self.signature(path)
        known = self._known.get(path.name)
        if known is None or known.signature != signature:
            try:
                file = inspect(path)
                size = self.bytes_of(file)
            except KvstreamError as error:
                raise unusable(without_folders(str(error), self.folder)) from error
            answering = None if file.answering is None else named(file.answering)
            known = Entry(path, signature, file.digest, size, file.tokens, answering)
            self._known[path.name] = known
        return known

    def signature(self, path: Path) -> tuple[int, int, int]:
        """Tells one content of a file from another. Raises ApiError where it is gone."""
        try:
            found = path.stat()
        except OSError as error:
            raise ApiError(
                404, f"The memory {path.stem!r} is gone.", code="model_not_found", param="model"
            ) from error
        return found.st_ino, found.st_size, found.st_mtime_ns

    def bytes_of(self, file: MemoryFile) -> int:
        """Bytes of the KV cache that a memory file needs."""
        own = file.options
        method = own["method"]
        settings = {f"{method}.{name}": value for name, value in own["set"].items()}
        return self._model.kv_bytes(budget=own["budget"], method=method, set=settings)


def named(name: str) -> str:
    """The name of a model in a file, for a client: of a path its last part alone."""
    path = PurePath(name)
    return _shown(path.name if path.is_absolute() else name)


def _shown(name: str) -> str:
    """The name of a model in a file, in one short line."""
    return "".join(c if c.isprintable() else "?" for c in name[:LONGEST_NAME])


def _makers(models: Models, shown: Callable[[str], str]) -> str:
    """``pocket``, or ``pocket for reader``."""
    both = (models.made, models.answering)
    return " for ".join(shown(name) for name in both if name is not None)


def _unknown(name: str, why: str = "") -> ApiError:
    listed = "GET /v1/models lists those that are."
    why = f": {why}. {listed}" if why else f"; {listed}"
    return ApiError(
        404, f"There is no model {name[:80]!r} here{why}", code="model_not_found", param="model"
    )
