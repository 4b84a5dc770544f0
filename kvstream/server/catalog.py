"""The models of a server: the loaded model, and every memory file of a folder."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from kvstream.api.memory import inspect
from kvstream.api.model import Model
from kvstream.errors import KvstreamError, SourceError
from kvstream.memory.glance import state_in
from kvstream.memory.header import State
from kvstream.reporters.format import shortened, visible
from kvstream.server.bound import Bound, Entry, rounded_up
from kvstream.server.client_errors import ApiError, for_clients, unusable

SUFFIX = ".kvs"
LONGEST_NAME = 200
"""Maximum number of characters shown of a model's name in a file, which may be any text."""


class Catalog:
    """Names of models. Files are found by listing the folder, never by a path from a client."""

    def __init__(self, model: Model, folder: Path | None, bound: Bound) -> None:
        """Offer no file whose KV cache is larger than the whole `bound`."""
        self._model, self._bound = model, bound
        self.folder = None if folder is None else folder.resolve()
        self._entries: dict[str, Entry] = {}
        self._sizes: dict[str, int] = {}
        """Bytes of a KV cache, by the options that determine it."""
        self.created = int(time.time())

    def files(self) -> dict[str, Path]:
        return {path.stem: path for path in self._inside() if self._unnamable(path) is None}

    def _inside(self) -> list[Path]:
        """Return the memory files of the folder, sorted by name, without hidden ones."""
        if self.folder is None:
            return []
        paths = sorted(self.folder.glob(f"[!.]*{SUFFIX}"))
        # A link may lead out of the folder; clients must not get its target.
        return [p for p in paths if p.is_file() and p.resolve().parent == self.folder]

    def _unnamable(self, path: Path) -> str | None:
        """Return why no client can name a file, or None."""
        if path.stem == self._model.name:
            return f"{path.name} is not offered: the loaded model has this name. Rename the file."
        name = path.name.encode("utf-8", "replace").decode()
        if name != path.name:
            return f"{name} is not offered: its name is not UTF-8. Rename the file."
        return None

    def offers(self) -> tuple[dict[str, Path], list[str]]:
        """Return the files to answer from, and why others are left out, by their headers."""
        why = {path: self._unnamable(path) or self._unasked(path) for path in self._inside()}
        files = {path.stem: path for path, problem in why.items() if problem is None}
        return files, list(filter(None, why.values()))

    def _unasked(self, path: Path) -> str | None:
        """Return why the model cannot answer from a file, or that it never fits, or None."""
        try:
            state = state_in(path)
        except SourceError as error:
            return str(error)
        if not self._made(state):
            maker = _short(state.model.name)
            alone = "" if state.answering is None else f", and {maker} answers alone"
            return (
                f"{path.name} is not offered: it was made by {_makers(state, _short)}, and the "
                f"server uses one model, {self._model.name}. With -m {shlex.quote(maker)} the "
                f"server offers it{alone}."
            )
        size = self._size(state)
        if size <= self._bound.most:
            return None
        return (
            f"{path.name} is not offered: it needs {size:,} bytes of KV cache, and all memories "
            f"together may hold {self._bound.most:,}. With --bound {rounded_up(size)} the server "
            "offers it."
        )

    def _made(self, state: State) -> bool:
        """Return whether the loaded model made a file. Its weights may have another number type."""
        return any(
            state.model.fingerprint == r.model.fingerprint or state.model.name == r.model_name
            for r in self._model.readers
        )

    def _size(self, state: State) -> int:
        """Return the bytes of the KV cache of a file; 0 if its method is not usable here."""
        with suppress(KvstreamError):
            return self._bytes(state.sizes.budget, state.method.name, state.method.typed)
        return 0

    def listing(self) -> list[dict[str, Any]]:
        rows = [(self._model.name, self.created)]
        for name, path in self.offers()[0].items():
            with suppress(OSError):  # removed meanwhile
                rows.append((name, int(path.stat().st_mtime)))
        return [
            {"id": name, "object": "model", "created": created, "owned_by": "kvstream"}
            for name, created in rows
        ]

    def row(self, name: str) -> dict[str, Any]:
        """Return the data of ``GET /v1/models/NAME``. Raises ApiError for an unknown model."""
        for row in self.listing():
            if row["id"] == name:
                return row
        self.path(name)  # raises with the reason why it is not listed
        raise _unknown(name)

    def path(self, name: str) -> Path | None:
        """Return the file of a model; None: the loaded one. Raises ApiError if it is unusable."""
        if name == self._model.name:
            return None
        path = self.files().get(name)
        if path is None:
            raise _unknown(name)
        if self._entry_of(path)[0] is not None:
            return path
        try:
            state = state_in(path)
        except SourceError as error:
            raise unusable(for_clients(str(error), self.folder)) from error
        if not self._made(state):
            raise _unknown(
                name,
                f"its file was made by {_makers(state, label)}, and this server uses one model, "
                f"{self._model.name}",
            )
        self._bound.check(self._size(state))
        return path

    def entry(self, path: Path) -> Entry:
        """Return the entry of a file, and read the file if it has changed. Raises ApiError."""
        entry, signature = self._entry_of(path)
        if entry is None:
            try:
                file = inspect(path)
                own = file.options
                size = self._bytes(own["budget"], own["method"], own["set"])
            except KvstreamError as error:
                raise unusable(for_clients(str(error), self.folder)) from error
            answering = None if file.answering is None else label(file.answering)
            entry = Entry(path, signature, file.digest, size, file.tokens, answering)
            self._entries[path.name] = entry
        return entry

    def _entry_of(self, path: Path) -> tuple[Entry | None, tuple[int, int, int]]:
        """Return the entry of an unchanged file, or None, and the signature of its content.

        Raises ApiError if the file is gone.
        """
        try:
            status = path.stat()
        except OSError as error:
            why = f"The memory {path.stem!r} is gone."
            raise ApiError(404, why, code="model_not_found", param="model") from error
        signature = status.st_ino, status.st_size, status.st_mtime_ns
        entry = self._entries.get(path.name)
        return entry if entry and entry.signature == signature else None, signature

    def _bytes(self, budget: int, method: str, typed: Mapping[str, str]) -> int:
        settings = {f"{method}.{name}": value for name, value in typed.items()}
        key = repr((budget, method, sorted(settings.items())))
        if key not in self._sizes:  # GET /v1/models needs the sizes of all files
            self._sizes[key] = self._model.kv_bytes(budget=budget, method=method, set=settings)
        return self._sizes[key]


def label(name: str) -> str:
    """Return the name of a model in a file for a client: only the last part of a path."""
    path = PurePath(name)
    return _short(path.name if path.is_absolute() else name)


def _short(name: str) -> str:
    return shortened(visible(name), LONGEST_NAME)


def _makers(state: State, form: Callable[[str], str]) -> str:
    """Name the models of a memory file: ``pocket``, or ``pocket for reader``."""
    both = (state.model, state.answering)
    return " for ".join(form(model.name) for model in both if model is not None)


def _unknown(name: str, why: str = "") -> ApiError:
    remedy = "GET /v1/models lists those that are."
    message = f"There is no model {name[:80]!r} here{f': {why}. ' if why else '; '}{remedy}"
    return ApiError(404, message, code="model_not_found", param="model")
