"""The models of a server: the one that is loaded, and every memory file of a folder."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstream.api.files import MemoryFile, inspect
from kvstream.errors import SourceError
from kvstream.memory.glance import models_in
from kvstream.server.errors import ApiError

if TYPE_CHECKING:
    from kvstream.api.model import Model

SUFFIX = ".kvs"


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
        if self.folder is None:
            return {}
        found = {}
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            # A link may lead out of the folder; what it leads to is not for clients.
            inside = path.is_file() and path.resolve().parent == self.folder
            if inside and path.stem != self._model.name and not path.name.startswith("."):
                found[path.stem] = path
        return found

    def offered(self) -> tuple[dict[str, Path], list[str]]:
        """Those files that the model can be asked with, and why the others are left out.

        Only headers are read; a file that is damaged further on fails when it is asked.
        """
        found, problems = {}, []
        model = self._model.session.model
        for name, path in self.files().items():
            try:
                models = models_in(path)
            except SourceError as error:
                problems.append(str(error))
                continue
            if models.made != self._model.name and models.fingerprint != model.fingerprint:
                problems.append(
                    f"{path.name} is not offered: it was made by {models.made}, and this is "
                    f"{self._model.name}."
                )
                continue
            found[name] = path
        return found, problems

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
        raise _unknown(name)

    def path(self, name: str) -> Path | None:
        """The file of a model; None for the loaded one. Raises ApiError where there is none."""
        if name == self._model.name:
            return None
        path = self.files().get(name)
        if path is None:
            raise _unknown(name)
        return path

    def entry(self, path: Path) -> Entry:
        """What is known of a file, which is read if it has changed. Raises KvstreamError."""
        signature = self.signature(path)
        known = self._known.get(path.name)
        if known is None or known.signature != signature:
            file = inspect(path)
            known = Entry(path, signature, file.digest, self.bytes_of(file), file.tokens)
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


def _unknown(name: str) -> ApiError:
    return ApiError(
        404,
        f"There is no model {name[:80]!r} here; GET /v1/models lists those that are.",
        code="model_not_found",
        param="model",
    )
