"""``kvstream serve``: an OpenAI-compatible server with memories as models."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from kvstream.api.options import AUTO, refuse_later_questions, refuse_passages, require
from kvstream.cli.options.option import option
from kvstream.cli.options.table import Options, reading_command
from kvstream.cli.options.types import SIZE, Finite, Parsed
from kvstream.cli.shared.model_choice import POCKET, demonstration, open_model, settled
from kvstream.cli.shared.running import check_early, quiet_libraries
from kvstream.reporters.format import visible
from kvstream.settings import size_of

ONLY_POCKET = (
    "pocket is a small model for demonstration, but only pocket answers from the memory files that "
    "it made."
)
"""Shown with pocket if memory files are offered: another model could not use them."""


server_option = partial(option, section="Server")


def _cache_size(text: str) -> int | None:
    """Return a size in bytes, or 0."""
    return 0 if text.strip() == "0" else size_of(text)


@reading_command("serve")
@server_option(
    "--memories", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
    help="Offer every memory file of this folder as a model: book.kvs is the model book.",
)  # fmt: skip
@server_option(
    "--host", default="127.0.0.1", metavar="ADDRESS",
    help="Address to listen on. An address that other machines can reach needs --key.",
)  # fmt: skip
@server_option(
    "--port", type=click.IntRange(0, 65535), default=8100, metavar="N",
    help="Port to listen on; 0 selects a free port.",
)  # fmt: skip
@server_option(
    "--key", metavar="TEXT",
    help="API key that clients must send. KVSTREAM_KEY is safer: other users of this machine can "
    "see command lines.",
)  # fmt: skip
@server_option(
    "--allow-host", multiple=True, metavar="NAME", advanced=True,
    help="Accept requests whose Host header has this name, for example behind a proxy; repeatable.",
)  # fmt: skip
@server_option(
    "--parallel", type=click.IntRange(1, 64), default=2, metavar="N",
    help="Maximum requests in progress; others wait.",
)  # fmt: skip
@server_option(
    "--bound", type=SIZE, metavar="SIZE",
    help="Maximum size of all KV caches together. [default: --parallel times --budget]",
)  # fmt: skip
@server_option(
    "--cache", type=Parsed(_cache_size, "size"), default="256MB", metavar="SIZE",
    envvar=(),  # KVSTREAM_CACHE is the folder of models
    help="Maximum disk space for the memories of conversations; 0 saves none.",
)  # fmt: skip
@server_option(
    "--cache-dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Save the memories of conversations in this folder, and use them after a restart. "
    "[default: a temporary folder]",
)  # fmt: skip
@server_option(
    "--queue", type=click.IntRange(0, 10000), default=32, metavar="N", advanced=True,
    help="Maximum number of waiting requests; a further one gets error 429.",
)  # fmt: skip
@server_option(
    "--max-body", type=SIZE, default="16MB", metavar="SIZE", advanced=True,
    help="Maximum size of a request; a larger one gets error 413.",
)  # fmt: skip
@server_option(
    "--timeout", type=Finite(min=0, min_open=True), default=600.0, metavar="SECONDS", advanced=True,
    help="Maximum time of a request, including its wait; a longer one gets error 504.",
)  # fmt: skip
@server_option(
    "--grace", type=Finite(min=0), default=10.0, metavar="SECONDS", advanced=True,
    help="Time that requests in progress have to finish when the server stops.",
)  # fmt: skip
def command(options: Options, **server: Any) -> None:
    """Answer OpenAI-compatible clients: editors, chat programs, the openai package, curl.

    A message may be longer than the model's context: kvstream reads all of it under the budget. The
    last paragraph of a long message is the question. Each memory file is a model. Ctrl-C stops the
    server.

    \b
      kvstream serve --memories . --budget 4k
      curl http://127.0.0.1:8100/v1/models
    """
    for module in ("fastapi", "uvicorn"):
        require(module, "serve", "kvstream serve")
    check_early(options)
    refuse_later_questions(options.skim)
    refuse_passages(options.request.run.method)
    options = settled(options)
    if options.skim == AUTO:
        options = replace(options, skim=POCKET)
    from kvstream.server.server_settings import ServerSettings

    allowed = tuple(server.pop("allow_host"))
    settings = ServerSettings(request=options.request, allowed_hosts=allowed, **server)
    serve(options, settings)


def serve(options: Options, settings: Any) -> None:
    """Load the model and serve it until Ctrl-C."""
    from kvstream.server import run

    quiet_libraries(options)
    with _log(options) as log:
        found = run.listen(settings)  # before the model, which takes longer to load
        try:
            model = open_model(options)
        except BaseException:
            found.close()
            raise

        def ready(server: run.Server) -> None:
            service = server.service
            offered, problems = service.catalog.offered()
            if options.model == POCKET and not options.quiet:
                log.info(ONLY_POCKET if offered else demonstration(options))
            for problem in problems:
                log.warning("%s", problem)
            log.info("Models: %s", ", ".join([model.name, *offered]))
            log.info(
                "A memory holds at most %s bytes, all memories together %s.",
                f"{service.memory_bytes:,}",
                f"{service.bound.most:,}",
            )
            log.info("Listening on %s/v1; Ctrl-C ends it.", server.address)

        server = run.Server(run.Service(model, settings), found)
        server.afterwards = signal.SIG_IGN  # the program ends as after the first signal
        server.serve_all(ready)


class Line(logging.Formatter):
    """Makes one safe line of a message: clients choose names in it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return visible(super().formatMessage(record)).replace("\n", "␊")

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return visible(super().formatException(ei))


@contextmanager
def _log(options: Options) -> Iterator[logging.Logger]:
    """Yield the server's log, which goes to stderr; with -q it only has warnings and errors."""
    log = logging.getLogger("kvstream.server")
    before = log.handlers[:], log.propagate, log.level
    handler = logging.StreamHandler()
    handler.setFormatter(Line("%(asctime)s %(message)s", "%H:%M:%S"))
    log.handlers[:], log.propagate = [handler], False
    log.setLevel(logging.WARNING if options.quiet else logging.INFO)
    try:
        yield log
    finally:  # the program may go on
        log.handlers[:], log.propagate = before[:2]
        log.setLevel(before[2])
