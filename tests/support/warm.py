"""Start programs of the tests as forks of one process that has already imported PyTorch.

    python -S -E warm.py SCRIPT|-mMODULE [ARGUMENT]...   # where $WARM names the socket of a server
    python warm.py --serve SOCKET PROCESS    # until this process ends

A short program spends most of its time on the import of PyTorch and transformers. The server
imports them and most of kvstream once, and forks for each request. The fork runs the program with
the streams, open files, environment, folder and ignored signals of the client. The client forwards
signals and ends as its program does, so a test starts it, interrupts it and waits for it like the
program itself. Without a server, the client becomes the program.

The fork does not take the modules apart at its end, which takes longer than to start it.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
import sys
from contextlib import suppress

CLIENT = [sys.executable, "-S", "-E", os.path.abspath(__file__)]
"""Command in front of a script, or of ``-mMODULE``, that starts it this way."""
HANDED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
MOST_FILES = 64
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main() -> None:
    if sys.argv[1] == "--serve":
        run_to_its_end(serve(sys.argv[2], int(sys.argv[3])))
    else:
        client(sys.argv[1:])


def client(arguments: list[str]) -> None:
    files = [number for number in range(MOST_FILES) if _is_open(number)]
    if "WARM" not in os.environ:
        os.execv(sys.executable, [sys.executable, *arguments])
    numbers = [int(getattr(signal, name)) for name in HANDED_ON]
    ignored = [n for n in numbers if signal.getsignal(n) == signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.connect(os.environ["WARM"])
    told = json.dumps((arguments, dict(os.environ), os.getcwd(), files, ignored)).encode()
    socket.send_fds(server, [struct.pack("=I", len(told))], files)
    server.sendall(told)
    (program,) = struct.unpack("=i", _all(server, 4))
    for number in set(numbers) - set(ignored):
        signal.signal(number, lambda number, _: _hand_on(program, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    (status,) = struct.unpack("=i", _all(server, 4))
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def serve(path: str, user: int) -> list[str]:
    """Serve requests until the process `user` ends. Return in each fork, with its command line."""
    ended = os.pidfd_open(user)
    import click
    import rich.console  # noqa: F401  these imports are for the forks
    import torch  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping("llama")  # compiles a thousand expressions, once

    sys.path.insert(0, ROOT)
    import kvstream.answer.answering
    import kvstream.api.logs
    import kvstream.input.sources
    import kvstream.memory.checkpoint
    import kvstream.model.loading
    import kvstream.reporters.html.page
    import kvstream.run.plan  # noqa: F401
    from kvstream.cli.app import COMMANDS, cli

    for name in COMMANDS:
        cli.get_command(click.Context(cli), name)
    assert "kvstream.session.session" not in sys.modules, "fake_main.py replaces it"

    gc.freeze()  # otherwise each fork copies all objects at its end, to look for garbage
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(16)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the watchers
    while True:
        if ended in select.select([listener, ended], [], [])[0]:
            os._exit(0)
        asked, _ = listener.accept()
        if os.fork():
            asked.close()
            continue
        listener.close()
        os.close(ended)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        head, received, *_ = socket.recv_fds(asked, 4, MOST_FILES)
        told = _all(asked, struct.unpack("=I", head)[0])
        program = os.fork()
        if program == 0:
            asked.close()
            return _become(*json.loads(told), received)
        for number in received:
            os.close(number)
        asked.sendall(struct.pack("=i", program))
        if asked in select.select([asked, os.pidfd_open(program)], [], [])[0]:
            os.kill(program, signal.SIGKILL)  # the client is gone: it was killed
        asked.sendall(struct.pack("=i", os.waitpid(program, 0)[1]))
        os._exit(0)


def _become(
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
    files: list[int],
    ignored: list[int],
    received: list[int],
) -> list[str]:
    high = [os.dup2(number, MOST_FILES * 4 + place) for place, number in enumerate(received)]
    os.closerange(0, MOST_FILES * 4)
    for number, copy in zip(files, high, strict=True):
        os.dup2(copy, number)
        os.close(copy)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    for name in HANDED_ON:
        number = getattr(signal, name)
        standard = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else standard)
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        errors = "backslashreplace" if name == "stderr" else "strict"
        stream = None
        if number in files:
            stream = os.fdopen(number, mode, errors=errors, closefd=False)
        if stream and name == "stderr":
            stream.reconfigure(line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return arguments


def run(arguments: list[str]) -> None:
    import runpy

    what = arguments[0]
    sys.argv = [what, *arguments[1:]]
    if what.startswith("-m"):
        sys.path[0] = os.getcwd()
        runpy.run_module(what[2:], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(what)
        runpy.run_path(what, run_name="__main__")


def _hand_on(program: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(program, number)


def run_to_its_end(arguments: list[str]) -> None:
    """Run a program, and do what Python does at its end, up to the flush of the streams."""
    import atexit
    import threading

    code: object = 0
    try:
        run(arguments)
    except SystemExit as error:
        code = error.code or 0
        if not isinstance(code, int):
            raise
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream and not stream.closed:
            stream.flush()  # an error is left to Python, as are exceptions above
    os._exit(int(code))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _all(stream: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = stream.recv(size - len(received))
        if not piece:
            raise SystemExit("the server of tests/support/warm.py has ended")
        received += piece
    return received


if __name__ == "__main__":
    main()
