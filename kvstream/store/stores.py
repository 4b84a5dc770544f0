"""GGUF files on this machine: in the stores of Ollama, LM Studio, llama.cpp and the hub.

Each store has a prefix under which ``-m`` finds its models: ``ollama:llama3.2:1b``,
``lmstudio:publisher/repo/file.gguf``. kvstream changes nothing in these stores. The folders of
kvstream's own cache are here too.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvstream.errors import ModelError
from kvstream.store.gguf_file import SPLIT

CACHE_VARIABLE = "KVSTREAM_CACHE"
OLLAMA_HOST, OLLAMA_OWNER = "registry.ollama.ai", "library"
_MODEL, _ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
_MOST_MANIFEST = 1 << 20


@dataclass(frozen=True)
class Stored:
    """A GGUF file in a store."""

    name: str
    """The value to give to ``-m``."""
    path: Path
    problem: str | None = None
    """Why the model cannot be used, as far as the store shows."""


def cache_folder() -> Path:
    """Return kvstream's cache folder, which may not exist yet. ``KVSTREAM_CACHE`` replaces it."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(os.path.expanduser(named)).absolute()
    from platformdirs import user_cache_path

    return user_cache_path("kvstream", appauthor=False)


def converted_folder() -> Path:
    return cache_folder() / "converted"


def fetched_folder() -> Path:
    return cache_folder() / "fetched"


def refuse_undecodable(folder: Path, remedy: str) -> None:
    """Raise ModelError if a folder's name is not UTF-8: libraries cannot open files in it."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise ModelError(
            f"The name of {folder} is not UTF-8, so tokenizers and safetensors cannot open its "
            f"files; {remedy}."
        ) from None


def stored() -> Iterator[Stored]:
    """Yield all models in the stores of other programs, sorted by store and name."""
    for prefix, store in STORES.items():
        yield from sorted(store.list_all(prefix), key=lambda model: model.name)


def find(name: str) -> Path | None:
    """Return the file that a name with a prefix stands for; None for a name without a prefix.

    A part of the name is enough if it matches only one model; for Ollama, the name without its tag.
    Raise ModelError if no model matches, several match, or the model cannot be used.
    """
    prefix, colon, rest = name.partition(":")
    if not colon or prefix not in STORES:
        return None
    store = STORES[prefix]
    every = sorted(store.list_all(prefix), key=lambda matches: matches.name)
    matches = [model for model in every if model.name == name]
    if prefix == "ollama" and not matches:
        matches = _tagged(name, every)
    elif not matches and rest:
        matches = [model for model in every if rest.lower() in model.name.lower()]
    if len(matches) > 1:
        raise ModelError(
            f"{name!r} stands for {len(matches)} models: {_listed(matches)}. Name one of them."
        )
    if not matches:
        named = prefix == "ollama" and rest
        places = " or ".join(map(str, store.folders()))
        fetch = f" Fetch it with `ollama pull {shlex.quote(rest)}`." if named else ""
        if not every:
            raise ModelError(f"{store.label} has no models in {places}.{fetch}")
        raise ModelError(
            f"{store.label} has no model {rest!r} in {places}. It has {_listed(every)}.{fetch}"
        )
    if matches[0].problem:
        raise ModelError(f"{matches[0].name} cannot be used: {matches[0].problem}.")
    return matches[0].path


def _listed(models: list[Stored]) -> str:
    names = [model.name for model in models]
    more = f" and {len(names) - 8} more (kvstream models lists them)" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _gguf_files(prefix: str) -> Iterator[Stored]:
    """Yield the files in a store's folders, named by path; only the first part of a split model."""
    for root in STORES[prefix].folders():
        for path in filter(_is_model, _files(root, "**/*.gguf")):
            yield Stored(f"{prefix}:{path.relative_to(root).as_posix()}", path)


def _is_model(path: Path) -> bool:
    """Return whether a GGUF file is a whole model or its first part."""
    split = SPLIT.fullmatch(path.name)
    return not path.name.startswith("mmproj") and (split is None or int(split[2]) == 1)


def _files(root: Path, pattern: str) -> Iterator[Path]:
    """Yield files that match a pattern. Unreadable folders, such as Ollama's, count as empty."""
    with suppress(PermissionError):
        yield from (path for path in root.glob(pattern) if not os.path.isdir(path))


# Ollama: each name and tag has a manifest, which lists blobs by digest.


def _ollama(prefix: str) -> Iterator[Stored]:
    for root in _ollama_folders():
        manifests = root / "manifests"
        for path in _files(manifests, "**/*"):
            names = path.relative_to(manifests).parts
            # A file beside the models, such as a note, is not a manifest.
            if len(names) > 1 and os.path.isfile(path) and not path.name.startswith("."):
                *owner, model, tag = names
                if owner[:1] == [OLLAMA_HOST]:
                    del owner[0]
                if owner == [OLLAMA_OWNER]:
                    owner = []
                yield _manifest(f"{prefix}:{'/'.join([*owner, model])}:{tag}", path, root)


def _manifest(name: str, path: Path, root: Path) -> Stored:
    try:
        if path.stat().st_size > _MOST_MANIFEST:
            raise ValueError(f"{path} is not a manifest")
        layers = json.loads(path.read_text("utf-8"))["layers"]
        digests = {layer["mediaType"]: str(layer["digest"]) for layer in layers}
        digest = digests[_MODEL].replace(":", "-")
        if os.sep in digest or "/" in digest:
            raise ValueError(f"the digest {digest!r}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return Stored(name, path, f"its manifest {path} is damaged ({error}); pull it again")
    blob = root / "blobs" / digest
    if _ADAPTER in digests:
        return Stored(name, blob, "it has an adapter, which would be left out; use its base model")
    if not os.path.isfile(blob):
        return Stored(name, blob, f"{blob} is missing; pull it again with ollama")
    return Stored(name, blob)


def _tagged(name: str, every: list[Stored]) -> list[Stored]:
    """Find a name without a tag: the tag `latest`, as in Ollama, else all tags of that name."""
    models = [model for model in every if model.name.rpartition(":")[0] == name]
    latest = [model for model in models if model.name.endswith(":latest")]
    return latest or models


# Folders of the stores on this machine: from the environment, else the programs' defaults.


def _named(variable: str, *parts: str) -> list[Path]:
    value = os.environ.get(variable)
    return [Path(os.path.expanduser(value), *parts)] if value else []


def _home() -> Path:
    """Return the user's folder; an unexpanded ``~`` if there is none, as in some containers."""
    return Path(os.path.expanduser("~"))


def _ollama_folders() -> list[Path]:
    return _named("OLLAMA_MODELS") or [
        _home() / ".ollama" / "models",
        Path("/usr/share/ollama/.ollama/models"),  # of the service on Linux
    ]


def _lmstudio_folders() -> list[Path]:
    return [_home() / ".lmstudio" / "models", _home() / ".cache" / "lm-studio" / "models"]


def _llamacpp_folders() -> list[Path]:
    from platformdirs import user_cache_path

    own = user_cache_path("llama.cpp", appauthor=False, opinion=False)
    return _named("LLAMA_CACHE") or [own]


def _hub_folders() -> list[Path]:
    return (
        _named("HF_HUB_CACHE")
        or _named("HF_HOME", "hub")
        or _named("XDG_CACHE_HOME", "huggingface", "hub")
        or [_home() / ".cache" / "huggingface" / "hub"]
    )


def _hub(prefix: str) -> Iterator[Stored]:
    """Yield models named by repository and file. Of several snapshots, use the newest."""
    newest: dict[str, Stored] = {}
    pattern = "models--*/snapshots/*/**/*.gguf"
    files = (path for root in STORES[prefix].folders() for path in _files(root, pattern))
    # A broken link counts as the oldest.
    age = {path: path.stat().st_mtime if os.path.exists(path) else 0.0 for path in files}
    for path in sorted(filter(_is_model, age), key=age.__getitem__):
        snapshot = next(p for p in path.parents if p.parent.name == "snapshots")
        repository = snapshot.parent.parent.name.removeprefix("models--").replace("--", "/")
        name = f"{prefix}:{repository}/{path.relative_to(snapshot).as_posix()}"
        newest[name] = Stored(name, path)
    yield from newest.values()


@dataclass(frozen=True)
class Store:
    """A program that keeps models."""

    label: str
    folders: Callable[[], list[Path]]
    list_all: Callable[[str], Iterator[Stored]] = _gguf_files
    """Yields the models, named with the prefix."""


STORES = {
    "ollama": Store("Ollama", _ollama_folders, _ollama),
    "lmstudio": Store("LM Studio", _lmstudio_folders),
    "llamacpp": Store("llama.cpp", _llamacpp_folders),
    "hub": Store("hub cache", _hub_folders, _hub),
}
