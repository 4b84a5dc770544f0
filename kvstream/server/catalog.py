"""The models of a server: the loaded model, and every memory file of a folder."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from kvstream.api.memory_files import inspect
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

    def __init__(self, model: Model, folder: Path | None, bound: Bound | None = None) -> None:
        """Offer no file whose KV cache is larger than the whole `bound`."""
        self._model, self._bound = model, bound
        self.folder = None if folder is None else folder.resolve()
        self._known: dict[str, Entry] = {}
        self._sizes: dict[str, int] = {}
        """Bytes of a KV cache, by the options that determine it."""
        self.created = int(time.time())

    def files(self) -> dict[str, Path]:
        return {path.stem: path for path in self._inside() if self._unnamable(path) is None}

    def _inside(self) -> list[Path]:
        """Return the memory files of the folder, sorted by name, without hidden ones."""
        if self.folder is None:
            return []
        found = sorted(self.folder.glob(f"*{SUFFIX}"))
        # A link may lead out of the folder; clients must not get its target.
        return [
            path for path in found
            if path.is_file()
            and path.resolve().parent == self.folder
            and not path.name.startswith(".")
        ]  # fmt: skip

    def _unnamable(self, path: Path) -> str | None:
        """Return why no client can name a file, or None."""
        if path.stem == self._model.name:
            return f"{path.name} is not offered: the loaded model has this name. Rename the file."
        try:
            path.name.encode()
        except UnicodeEncodeError:
            name = path.name.encode("utf-8", "replace").decode()
            return f"{name} is not offered: its name is not UTF-8. Rename the file."
        return None

    def offered(self) -> tuple[dict[str, Path], list[str]]:
        """Return the files to answer from, and why others are left out, by their headers."""
        found, problems = {}, []
        for path in self._inside():
            why = self._unnamable(path) or self._unasked(path)
            if why is None:
                found[path.stem] = path
            else:
                problems.append(why)
        return found, problems

    def _unasked(self, path: Path) -> str | None:
        """Return why the model cannot answer from a file, or None."""
        try:
            state = state_in(path)
        except SourceError as error:
            return str(error)
        if self._made(state):
            return self._too_large(path, state)
        made = _shown(state.model.name)
        alone = "" if state.answering is None else f", and {made} answers alone"
        return (
            f"{path.name} is not offered: it was made by {_makers(state, _shown)}, and the "
            f"server uses one model, {self._model.name}. With -m {shlex.quote(made)} the "
            f"server offers it{alone}."
        )

    def _made(self, state: State) -> bool:
        """Return whether the loaded model made a file. Its weights may have another number type."""
        readers = self._model.readers
        return any(
            state.model.fingerprint == r.model.fingerprint or state.model.name == r.model_name
            for r in readers
        )

    def _too_large(self, path: Path, state: State) -> str | None:
        """Return why a file can never be asked if its KV cache exceeds the bound, else None."""
        size = self._size(state)
        if self._bound is None or size is None or size <= self._bound.most:
            return None
        return (
            f"{path.name} is not offered: it needs {size:,} bytes of KV cache, and all memories "
            f"together may hold {self._bound.most:,}. With --bound {rounded_up(size)} the server "
            "offers it."
        )

    def _size(self, state: State) -> int | None:
        """Return the bytes of the KV cache of a file; None if its method is not usable here."""
        try:
            return self._bytes(state.sizes.budget, state.method.name, state.method.typed)
        except KvstreamError:
            return None

    def listing(self) -> list[dict[str, Any]]:
        rows = [(self._model.name, self.created)]
        for name, path in self.offered()[0].items():
            try:
                rows.append((name, int(path.stat().st_mtime)))
            except OSError:  # removed meanwhile
                continue
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
        signature = self.signature(path)
        known = self._known.get(path.name)
        if known is not None and known.signature == signature:
            return path
        try:
            state = state_in(path)
        except SourceError as error:
            raise unusable(for_clients(str(error), self.folder)) from error
        if not self._made(state):
            raise _unknown(
                name,
                f"its file was made by {_makers(state, named)}, and this server uses one model, "
                f"{self._model.name}",
            )
        size = self._size(state)
        if self._bound is not None and size is not None:
            self._bound.check(size)
        return path

    def entry(self, path: Path) -> Entry:
        """Return the entry of a file, and read the file if it has changed. Raises ApiError."""
        signature = self.signature(path)
        known = self._known.get(path.name)
        if known is None or known.signature != signature:
            try:
                file = inspect(path)
                own = file.options
                size = self._bytes(own["budget"], own["method"], own["set"])
            except KvstreamError as error:
                raise unusable(for_clients(str(error), self.folder)) from error
            answering = None if file.answering is None else named(file.answering)
            known = Entry(path, signature, file.digest, size, file.tokens, answering)
            self._known[path.name] = known
        return known

    def signature(self, path: Path) -> tuple[int, int, int]:
        """Return a signature of the content of a file. Raises ApiError if the file is gone."""
        try:
            found = path.stat()
        except OSError as error:
            raise ApiError(
                404, f"The memory {path.stem!r} is gone.", code="model_not_found", param="model"
            ) from error
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _bytes(self, budget: int, method: str, typed: Mapping[str, str]) -> int:
        settings = {f"{method}.{name}": value for name, value in typed.items()}
        key = repr((budget, method, sorted(settings.items())))
        if key not in self._sizes:  # GET /v1/models needs the sizes of all files
            self._sizes[key] = self._model.kv_bytes(budget=budget, method=method, set=settings)
        return self._sizes[key]


def named(name: str) -> str:
    """Return the name of a model in a file for a client: only the last part of a path."""
    path = PurePath(name)
    return _shown(path.name if path.is_absolute() else name)


def _shown(name: str) -> str:
    return shortened(visible(name), LONGEST_NAME)


def _makers(state: State, shown: Callable[[str], str]) -> str:
    """Name the models of a memory file: ``pocket``, or ``pocket for reader``."""
    both = (state.model, state.answering)
    return " for ".join(shown(model.name) for model in both if model is not None)


def _unknown(name: str, why: str = "") -> ApiError:
    listed = "GET /v1/models lists those that are."
    why = f": {why}. {listed}" if why else f"; {listed}"
    return ApiError(
        404, f"There is no model {name[:80]!r} here{why}", code="model_not_found", param="model"
    )
