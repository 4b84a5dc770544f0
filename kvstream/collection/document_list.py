"""List the documents: the files given, and each text file of the folders given."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvstream.errors import SourceError, UsageError
from kvstream.input.folders import HIDDEN, files_in, lose, name_of
from kvstream.input.inspection import look, no_text_files, quote
from kvstream.input.sources import EXPANSION

KEY = 12
"""Number of hex digits in a result's name that identify its document and settings."""
RESULT = re.compile(rf"-[0-9a-f]{{{KEY}}}\.(json|kvs)$")


@dataclass(frozen=True, slots=True)
class Document:
    """A file that is read separately."""

    name: str
    """Its path as given, which citations show."""
    bytes: int
    """Bytes of its unpacked text; an estimate if the file is packed."""
    problem: str = ""
    """Why it cannot be read, if that is known before the reading."""
    output: str = ""


def documents_in(
    paths: Sequence[str], *, plain: bool = False, into: Path | None = None
) -> tuple[list[Document], list[str]]:
    """Return every file once, in the order of the paths and of names in a folder, and messages.

    A folder stands for its text files, without results of earlier runs in `into` and without other
    files that are binary or that kvstream wrote, which are counted. A file that cannot be read is a
    document with a problem. Raises SourceError for a missing path or no document, and UsageError
    for a path that is neither a file nor a folder.
    """
    if not paths:
        raise SourceError("Nothing to read: name files or a folder.")
    files: dict[Path, Document] = {}
    left_out: Counter[str] = Counter()
    for path in paths:
        try:
            mode = Path(path).stat().st_mode
        except FileNotFoundError:
            raise SourceError(f"{quote(path)} does not exist; check the path.") from None
        except (OSError, ValueError) as error:
            raise SourceError(f"{path} cannot be read: {error}.") from None
        if stat.S_ISDIR(mode):
            try:
                documents = _folder(Path(path), left_out, plain=plain, into=into)
            except OSError as error:
                raise SourceError(f"{path} cannot be read: {error.strerror}.") from None
            for document in documents:
                files.setdefault(Path(document.name).absolute(), document)
        elif stat.S_ISREG(mode):
            files.setdefault(Path(path).absolute(), _document(Path(path), path, plain=plain))
        else:
            raise UsageError(
                f"{path} is not a file, and --each names its results by their content; write it to "
                "a file first, and name the file."
            )
    hidden = left_out.pop(HIDDEN, 0) > 0
    counts = [f"{count:,} × {what}" for what, count in left_out.items()]
    if not files:
        raise SourceError(no_text_files(paths, counts, hidden=hidden))
    return list(files.values()), [f"Skipped: {', '.join(counts)}."] if counts else []


def _folder(
    folder: Path, left_out: Counter[str], *, plain: bool, into: Path | None
) -> list[Document]:
    results = None if into is None else Path(os.path.realpath(into))
    documents = []
    for path in files_in(folder, left_out):
        if RESULT.search(path.name) and path.parent.resolve() == results:
            left_out["result of an earlier run"] += 1
            continue
        document = _document(path, name_of(path), plain=plain)
        if document.output:
            left_out[document.output] += 1
        elif " is binary " in document.problem:
            lose("binary file", path, left_out)
        else:
            documents.append(document)
    return documents


def _document(path: Path, name: str, *, plain: bool) -> Document:
    try:
        source, problem = look(path, name, plain=plain)
    except OSError as error:
        return Document(name, 0, f"{name} cannot be read: {error.strerror or error}.")
    size = round((source.size or 0) * EXPANSION.get(source.kind, 1.0))
    return Document(name, size, problem or "", source.output)
