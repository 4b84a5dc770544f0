"""`kvstream bench speed` against more: floors, kvpress, llama.cpp, StreamingLLM, reading; shapes.

    python docs/research/lab/speed.py --shape llama-3.1-8b --layers 1 --lengths 16k,64k --budget 4k
    python docs/research/lab/speed.py -m smollm2 --lengths 2k --budget 1500 --against llamacpp \
        --llamacpp-python .venv-llamacpp/bin/python

`--against` also knows floor (the same chunks and memory sizes without selection), floor-sdpa (the
floor with transformers' attention), full (the floor's loop without eviction), kvpress (its SnapKV),
llamacpp (the same GGUF file, with a full KV cache and with a sliding window), streamingllm (token
by token) and reading (from the file to tokens, without a model). `make kvpress` and `make llamacpp`
set up the Pythons that two of them need.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

import click
import torch

from kvstream.cli.app import run
from kvstream.cli.commands.bench import speed
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.option import option, typed
from kvstream.cli.shared.saying import quiet
from kvstream.errors import UsageError
from kvstream.evaluation.harness import document
from kvstream.evaluation.records import Record
from kvstream.evaluation.speed.systems import KINDS, Kind, System, Task
from kvstream.evaluation.speed.timing import Stopwatch
from kvstream.input.sources import open_sources
from kvstream.settings import ModelSettings
from kvstream.tokenization.loading import TokenStream
from kvstream_lab.speed import floor
from kvstream_lab.speed.llamacpp import FULL, LLAMACPP, SLIDING, Llamacpp
from kvstream_lab.speed.outside import KVPRESS, Kvpress
from kvstream_lab.speed.shapes import open_shape
from kvstream_lab.speed.streaming import read_token_by_token

READ_AT_ONCE = 1024


def _streamingllm(system: System, task: Task) -> Record:
    assert system.budget is not None
    return read_token_by_token(
        task.session.model, task.ids, system.budget, task.question, task.tokens, task.limit_s
    )


def _reading(_: System, task: Task) -> Record:
    """Read from a file to ids, without a model; ``text_bytes`` are the bytes of the text."""
    with document(task.session.tokenizer.decode(task.ids)) as path:
        watch = Stopwatch(torch.device("cpu"))
        stream = TokenStream(task.session.tokenizer, open_sources([path], plain=True))
        while len(chunk := stream.read(READ_AT_ONCE)):
            end = chunk.end
        watch.has_read()
    return {**watch.record(), "text_bytes": end}


class Programs:
    """The other programs, each started when it reads first; `ends` ends them."""

    def __init__(self, ends: ExitStack, values: dict[str, Any]) -> None:
        self.ends, self.values = ends, values
        self.started: dict[str, Any] = {}

    def kvpress(self, system: System, task: Task) -> Record:
        assert system.budget is not None
        if "kvpress" not in self.started:
            random, revision = bool(self.values["shape"]), self.values["revision"]
            rival = Kvpress(
                self.values["kvpress"], task.session.model, random=random, revision=revision
            )
            self.started["kvpress"] = self.ends.enter_context(rival)
        process = self.started["kvpress"]
        found = process.read(task.ids, system.budget, task.question, task.tokens)
        return {**found, **process.loaded}

    def llamacpp(self, system: System, task: Task) -> Record:
        if "llamacpp" not in self.started:
            rival = Llamacpp(self.values["llamacpp"], task.session.model)
            self.started["llamacpp"] = self.ends.enter_context(rival)
        found: Record = self.started["llamacpp"].read(
            task.ids, system.mode, system.budget, task.question, task.tokens
        )
        return found


def kinds(programs: Programs) -> dict[str, Kind]:
    """Return what the lab adds to the systems of `kvstream bench speed`."""
    return {
        **floor.KINDS,
        "reading": Kind(_reading, "reading and tokenizing alone"),
        "llamacpp": Kind(
            programs.llamacpp, "llama.cpp", {FULL: False, SLIDING: True}, (FULL,), warm=512
        ),
        "kvpress": Kind(programs.kvpress, "kvpress, SnapKV", {"": True}, ("",), method="snapkv"),
        "streamingllm": Kind(
            _streamingllm, "StreamingLLM, token by token", {"": True}, warm=256
        ),
    }  # fmt: skip


def _measure(**values: Any) -> int:
    shape, layers = values["shape"], values.pop("layers")
    if shape and typed("model"):
        raise UsageError("--shape and --model name two models; give one of them.")
    if layers and not shape:
        raise UsageError("--layers is for a --shape; a model keeps all of its layers.")
    given = {"shape": shape, "revision": values["revision"]}
    for name, program in (("kvpress", KVPRESS), ("llamacpp", LLAMACPP)):
        python = values.pop(f"{name}_python")
        if name in values["against"]:
            given[name] = program.check(python)
        elif typed(f"{name}_python"):
            raise UsageError(
                f"--{name}-python is for --against {name}; add that, or leave --{name}-python out."
            )
    with ExitStack() as ends:
        more = kinds(Programs(ends, given))
        KINDS.update(more)
        ends.callback(lambda: [KINDS.pop(name) for name in more])
        if shape:
            return speed.compare(values, partial(_random, shape, layers))
        return speed.compare(values)


def _random(shape: str, layers: int | None, settings: ModelSettings, *, verbose: bool) -> Any:
    quiet(offline=settings.offline, verbose=verbose)
    return open_shape(shape, layers, settings)


def _extra() -> list[click.Parameter]:
    """Return the options that `kvstream bench speed` does not have."""

    @option(
        "--kvpress-python", metavar="PATH", section="Measurement", help="A Python with kvpress."
    )
    @option(
        "--llamacpp-python",
        metavar="PATH",
        section="Measurement",
        help="A Python with xllamacpp.",
    )
    @option(
        "--shape",
        metavar="NAME",
        section="Measurement",
        help="Random weights of a known shape instead of a model (a wrong name lists all).",
    )
    @option(
        "--layers",
        type=click.IntRange(min=1),
        metavar="N",
        section="Measurement",
        help="Use only so many layers of the shape.",
    )
    @click.command()
    def options() -> None:
        """Hold the options."""

    return list(options.params)  # fmt: skip


# Every command adds its own --help-all.
_shared = [param for param in speed.command.params if param.name != "help_all"]
command = SectionedCommand("speed", params=[*_shared, *_extra()], callback=_measure, help=__doc__)

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], command))
