"""``kvstream serve``: an OpenAI-compatible server with memories as models."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from kvstream.api.options import AUTO, refuse_later_questions, refuse_passages, require
from kvstream.cli.options.table import Options, added, reading_command
from kvstream.cli.shared.model_choice import POCKET, demonstration, open_model, settled
from kvstream.cli.shared.running import check_early, quiet_libraries
from kvstream.reporters.format import visible
from kvstream.server.server_settings import ServerSettings
from kvstream.settings import table

ONLY_POCKET = (
    "pocket is a small model for demonstration, but only pocket answers from the memory files that "
    "it made."
)
"""Shown with pocket if memory files are offered: another model could not use them."""


@reading_command("serve")
@partial(added, rows=table(ServerSettings).values(), name="serve")
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
    serve(options, ServerSettings(request=options.request, **server))


def serve(options: Options, settings: ServerSettings) -> None:
    """Load the model and serve it until Ctrl-C."""
    from kvstream.server import run

    quiet_libraries(options)
    with _log(options) as log:
        socket = run.listen(settings)  # before the model, which takes longer to load
        try:
            model = open_model(options)
        except BaseException:
            socket.close()
            raise

        def ready(server: run.Server) -> None:
            service = server.service
            files, problems = service.catalog.offers()
            if options.model == POCKET and not options.quiet:
                log.info(ONLY_POCKET if files else demonstration(options))
            for problem in problems:
                log.warning("%s", problem)
            log.info("Models: %s", ", ".join([model.name, *files]))
            log.info(
                "A memory holds at most %s bytes, all memories together %s.",
                f"{service.memory_bytes:,}",
                f"{service.bound.most:,}",
            )
            log.info("Listening on %s/v1; Ctrl-C ends it.", server.address)

        server = run.Server(run.Service(model, settings), socket)
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
