"""Many documents: one reading and one result for each, in this process or on Ray workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack

from kvstream.api import options as api
from kvstream.api.checks import (
    all_of,
    dict_of,
    kind,
    path_of,
    settings_of,
    several_of,
    text_of,
)
from kvstream.api.model import Model
from kvstream.api.models import POCKET, worker_memory
from kvstream.api.options import FileOptions, MemoryOptions, ModelOptions, ReadOptions, Request
from kvstream.errors import UsageError
from kvstream.events import CollectionEvent, Notice, Outcome
from kvstream.run.request import never
from kvstream.settings import ModelSettings

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
Command = Literal["ask", "summarize", "compare", "remember"]
ONE_TEXT = "is for one text, not for many documents; leave it out."


class EachOptions(FileOptions, total=False):
    """Where and how documents are read."""

    ray: str | None
    """Read them on a running Ray cluster: ``HOST:PORT`` or ``auto``."""
    loading: ModelOptions
    """How the model is loaded."""
    progress: Callable[[CollectionEvent], None] | None
    """Function that gets every event."""


class AskEachOptions(EachOptions, ReadOptions, total=False):
    """How documents are read and questions are answered."""

    into: str | os.PathLike[str] | None
    """Folder of the results, one file per document. The file name depends on the document's name
    and content and on all settings. A document with a result there is not read again."""


class RememberEachOptions(EachOptions, MemoryOptions, total=False):
    """How documents are read into memories."""


def ask_each(
    source: Paths,
    question: str = "",
    *,
    questions: Sequence[str] = (),
    model: str | Model = POCKET,
    methods: Sequence[str] = (),
    **options: Unpack[AskEachOptions],
) -> Iterator[Outcome]:
    """Read every document separately under the budget, and answer from it.

    `source` is a folder, a file or a list of them. With `methods`, each method answers. Yield an
    outcome when a document is done: a `DocumentDone` with the JSON records of its answers, or a
    `DocumentFailed` with the reason. The model is loaded once in this process, or once per worker.

    Raises SourceError if there is no document, ModelError, BudgetError and UsageError for problems
    that concern all documents, and KvstreamError if a cluster cannot be used.
    """
    questions = all_of(question or None, questions)
    if not questions:
        raise UsageError("No question: give it as question=, or use summarize_each().")
    methods = [text_of("methods", name) for name in several_of("methods", "names", methods)]
    api.refuse_twice(methods, "methods=")
    command: Command = "compare" if methods else "ask"
    return _each(source, questions, command, model, methods, options)


def summarize_each(
    source: Paths, *, model: str | Model = POCKET, **options: Unpack[AskEachOptions]
) -> Iterator[Outcome]:
    """Summarize every document separately; `pocket` returns extracts. Else as `ask_each`."""
    return _each(source, (), "summarize", model, (), options)


def remember_each(
    source: Paths,
    into: str | os.PathLike[str],
    *,
    questions: Sequence[str] = (),
    model: str | Model = POCKET,
    **options: Unpack[RememberEachOptions],
) -> Iterator[Outcome]:
    """Read every document into its own memory file in the folder `into`. Else as `ask_each`.

    Valid memory files of an earlier run are not made again, so a stopped run can continue.
    """
    return _each(source, questions, "remember", model, (), {**options, "into": into})


def _each(
    source: Paths,
    questions: Sequence[str],
    command: Command,
    model: str | Model,
    methods: Sequence[str],
    options: Mapping[str, Any],
) -> Iterator[Outcome]:
    rest = dict(options)
    where = {n: rest.pop(n) for n in ("ray", "into", "progress") if n in rest}
    value = rest.pop("loading", None)
    loading = dict_of("loading", {} if value is None else value)
    if not callable(where.get("progress") or callable):
        raise UsageError(f"progress= takes a function, not {kind(where['progress'])}.")
    if loading.get("skim") or (isinstance(model, Model) and (model.scouting or model.chooses)):
        raise UsageError(f"skim {ONE_TEXT}")
    method_settings = settings_of(rest.pop("set", None))
    each = api.by_method(method_settings, methods) if methods else [{"set": method_settings}]
    requests = [api.request_of(questions, **{**rest, "command": command, **own}) for own in each]
    if not isinstance(model, Model):
        settings = api.model_settings(path_of("model", model), loading)
        return each_of(source, requests, settings, **where)
    if loading:
        raise UsageError("The model is loaded already; loading= has no effect.")
    return each_of(source, requests, model, **where)


def each_of(
    source: Paths,
    requests: Sequence[Request],
    model: ModelSettings | Model,
    *,
    ray: str | None = None,
    into: str | os.PathLike[str] | None = None,
    progress: Callable[[CollectionEvent], None] | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Iterator[Outcome]:
    """Read every document by the requests, one for each method; yield the outcomes."""
    from kvstream.collection.document_list import documents_in
    from kvstream.collection.job import Job
    from kvstream.collection.spread import run
    from kvstream.collection.worker import Workers

    first = requests[0]
    settings, session = (
        (model.settings, model.session) if isinstance(model, Model) else (model, None)
    )
    spread = first.workers is not None or ray is not None
    if spread:
        api.require("ray", "ray", "Reading with workers")
        if session is not None:
            raise UsageError("Workers load the model themselves: give its name as model=.")
    learned = settings.model == POCKET
    parts = []
    for request in requests:
        for name in ("checkpoint", "every", "follow", "shards"):
            if getattr(request, name):
                raise UsageError(f"{name} {ONE_TEXT}")
        if request.command == "remember":
            api.refuse_passages(request.run.method)
        parts.append(api.with_method(request, learned=learned, extracts=learned))
    folder = None if into is None else Path(os.path.abspath(path_of("into", into)))
    # Functions of this process are not sent to workers.
    job = Job(settings, tuple(replace(part, interrupted=never) for part in parts), folder)
    documents, messages = documents_in(_paths(source), plain=first.plain, into=job.into)
    tell = progress or (lambda event: None)
    for message in messages:
        tell(Notice(message))
    place = None
    if spread:
        room = first.worker_memory or worker_memory(settings, parts)
        place = Workers(first.workers, ray, room)
    stop = interrupted or first.interrupted
    return run(job, documents, workers=place, session=session, tell=tell, interrupted=stop)


def files_of(paths: Sequence[str], *, plain: bool) -> tuple[list[str], list[str]]:
    """Return the names of files and of those in folders, each once, and messages about files left
    out.
    """
    from kvstream.collection.document_list import documents_in

    documents, messages = documents_in(paths, plain=plain)
    return [document.name for document in documents], messages


def _paths(source: Paths) -> list[str]:
    one = isinstance(source, str | os.PathLike)
    several = [source] if one else several_of("source", "paths", source)
    if "-" in several:
        raise UsageError(
            "Standard input is one text; --each reads files. Write it to a file first."
        )
    return [path_of("source", path) for path in several]
