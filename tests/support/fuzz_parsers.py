"""Targets of tests/support/fuzz.py that parse: options, files, archives, text, memory files."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from cutting import excerpts_of

from kvstream.answer.answering import answer
from kvstream.api.options import settings_by_method
from kvstream.cli import config
from kvstream.cli.app import COMMANDS, cli
from kvstream.cli.options.table import pairs
from kvstream.errors import BudgetError, KvstreamError, ModelError, UsageError
from kvstream.evaluation.datasets import load
from kvstream.events import Answered
from kvstream.input.blocks import BlockDecoder
from kvstream.input.controls import SIGNS
from kvstream.input.sources import open_sources
from kvstream.memory import file as memory_file
from kvstream.memory.saving import look
from kvstream.methods.registry import available
from kvstream.reporters.format import visible
from kvstream.run.prompt import build_prompt
from kvstream.run.request import Request
from kvstream.settings import Budget, RunSettings, count_of
from kvstream.tokenization.loading import Tokenizer, TokenStream, load_tokenizer
from kvstream.tokenization.passages import Passages

_ALPHABETS = (
    "abcdefghij klmno pqrst.!?\n",
    "0123456789.kKmMgGiIbB-+eE_ ,",
    "\x00\x01\x07\x1b[31m\r\n\t\x7f\x80\x9b",
    "äßéλЖ漢字かなアあ한글עבריתالعربية🙂👩‍👩‍👧\u200b\ufeff\u2028\udcff",
    "<|im_start|>user</s>[INST]<bos>{}%\\\"'`$;&",
)

_CHOSEN = (*_ALPHABETS, "".join(_ALPHABETS))


def some_text(rng: random.Random, most: int = 300) -> str:
    """Return any text, from one alphabet or from all of them; most texts are short."""
    alphabet = rng.choice(_CHOSEN)
    short = most > 300 and rng.random() < 0.85
    return "".join(rng.choices(alphabet, k=rng.randrange((most // 10 if short else most) + 1)))


def some_bytes(rng: random.Random, most: int = 2000) -> bytes:
    """Return text, noise, or a mixture."""
    text = some_text(rng, most).encode("utf-8", "surrogatepass")
    noise = rng.randbytes(rng.randrange(rng.choice([most, most // 10 + 1, 40]) + 1))
    return rng.choice([text, noise, text + noise, noise[:20] + text])


def altered(rng: random.Random, data: bytes) -> bytes:
    """Return the data with bytes changed, cut, doubled or inserted."""
    out = bytearray(data)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(5):
            case 0:
                del out[at:]
            case 1:
                out[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(1, 9))
            case 2:
                out[at:at] = out[at : at + rng.randrange(200)]
            case 3:
                out[at:at] = rng.randbytes(rng.randrange(8))
            case 4 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
    return bytes(out)


def numbers(rng: random.Random, _: Path) -> None:
    """Parse counts and budgets, as typed."""
    text = some_text(rng, 12) if rng.random() < 0.5 else _number(rng)
    if rng.random() < 0.5:
        assert count_of(text) >= 1
    else:
        budget = Budget.parse(text)
        assert (budget.tokens is None) != (budget.bytes is None)
        assert (budget.tokens or budget.bytes or 0) >= 0


def _number(rng: random.Random) -> str:
    value = rng.choice(["0", "1", "1.5", "4096", "9" * 30, "9" * 400, "1e9", "-3", "0.0001", "007"])
    return value + rng.choice(["", "k", "M", "G", "kB", "MiB", "GiB", "b", " mb", "kk"])


def settings(rng: random.Random, _: Path) -> None:
    """Check settings of a run, and of methods."""

    def one(good: list[Any], bad: list[Any]) -> Any:
        return rng.choice(bad if rng.random() < 0.08 else good)

    no_number = [float("nan"), float("inf"), -0.1, -1]
    run = RunSettings(
        schedule=one(["linear", "sqrt", "fixed"], ["", "x"]),
        keep=one([None, 1, 10**9], [0, -5]),
        chunk_size=one([None, 1, 10**9], [0, -1]),
        max_tokens=one([1, 256], [0, -7]),
        temp=one([0.0, 1, 0.5, 10**12], no_number),
        top_p=one([1, 0.5], [0, 7, *no_number]),
    )
    assert run.max_tokens >= 1
    assert 0 <= run.temp < float("inf")
    assert 0 < run.top_p <= 1
    name = rng.choice([*available(), some_text(rng, 6)])
    setting = rng.choice(["alpha", "pool", "sinks", some_text(rng, 8)])
    value = rng.choice([_number(rng), some_text(rng, 5), "0.25", "3"])
    settings_by_method(pairs((f"{name}.{setting}={value}",)), (name,), strict=rng.random() < 0.5)


@cache
def _command(name: str) -> click.Command:
    command: click.Command = import_module(f"kvstream.cli.commands.{name}").command
    return command


def command_line(rng: random.Random, _: Path) -> None:
    """Parse the arguments of a command, and run nothing."""
    command = _command(rng.choice([c for c in COMMANDS if c != "bench"]))
    options = [o for p in command.params for o in p.opts if o.startswith("-")]
    arguments = []
    for _ in range(rng.randrange(6)):
        arguments.append(rng.choice(options) if rng.random() < 0.6 else some_text(rng, 12))
        if rng.random() < 0.5:
            arguments.append(rng.choice([_number(rng), some_text(rng, 8), "auto", "--", "-"]))
    arguments = [a.replace("\0", "") for a in arguments]  # no system passes a null byte
    if {"-h", "--help", "--help-all", "--version"} & set(arguments):
        return
    # Click keeps the help option of the first context that a command is given.
    with cli.make_context("kvstream", ["--help"], resilient_parsing=True) as parent:
        command.make_context("kvstream", arguments, parent, resilient_parsing=False)


def config_files(rng: random.Random, folder: Path) -> None:
    """Load the user's defaults."""
    lines = ['model = "pocket"', 'budget = "8k"', "set = []", "[ask]", "max-tokens = 600"]
    if rng.random() < 0.3:
        rng.shuffle(lines)
    path = folder / "config.toml"
    data = "\n".join(lines).encode()
    path.write_bytes(altered(rng, data) if rng.random() < 0.8 else data)
    values = config.load(path)
    config.for_command(
        values, "ask", {"ask": dict.fromkeys(["model", "budget", "set", "max_tokens"])}, path
    )


def decoding(rng: random.Random, _: Path) -> None:
    """Decode bytes that are not text: every character has its place."""
    data = some_bytes(rng, 400)
    decoder = BlockDecoder(0, 0)
    end = at = 0
    while at < len(data) or not end:
        step = rng.randrange(1, 50)
        block = decoder.decode(data[at : at + step], final=at + step >= len(data))
        at += step
        if block is not None:
            offsets = block.offsets()
            assert offsets[0] >= end
            assert (np.diff(offsets) >= 0).all()
            end = int(offsets[-1])
        elif at >= len(data):
            break
    assert end <= len(data)


def _xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=0)


def archives(rng: random.Random, folder: Path) -> None:
    """Read compressed files, whole and damaged, as files and through a pipe, with a limit."""
    data = some_bytes(rng)
    packed = rng.choice([gzip.compress, bz2.compress, _xz, bytes])(data)
    packed = altered(rng, packed) if rng.random() < 0.8 else packed
    limit, text = rng.choice([None, 100, 10**6]), rng.random() < 0.5
    if rng.random() < 0.5:
        sources = open_sources(["-"], stdin=io.BytesIO(packed), plain=text, max_unpacked=limit)
    else:
        path = folder / rng.choice(["a.txt", "a.gz", "a.html", "a.pdf"])
        path.write_bytes(packed)
        sources = open_sources([str(path)], plain=text, max_unpacked=limit)
    total = 0
    for block in sources:
        total += len(block.text)
        # Without unpacking the length stays, but a page may get a newline that it lacks.
        assert limit is None or total <= max(limit, len(packed) + 1)
        assert len(block.offsets()) == len(block.text) + 1


def text(rng: random.Random, _: Path) -> None:
    """Cut any text into passages and excerpts, however it arrives.

    Checks also what a terminal would see.
    """
    data = some_bytes(rng, 6000)

    class Slow(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return self.read(rng.randrange(1, 700))

    sources = open_sources(["-"], stdin=Slow(data), plain=True)
    passages = Passages(rng.choice(["auto", "lines", "sentences"]))
    held = 0
    for block in sources:
        passages.feed(block)
        if rng.random() < 0.2:
            kept = np.array([rng.randrange(len(data) + 1) for _ in range(rng.randrange(4))])
            passages.prune(kept, rng.randrange(len(data) + 1))
        held = max(held, passages.held_chars)
    starts = np.sort(np.array([rng.randrange(len(data) + 1) for _ in range(20)]))
    for passage in passages.score(starts, np.ones(20)):
        assert 0 <= passage.start < passage.end <= len(data)
        assert 1 <= passage.line_start <= passage.line_end
        shown = visible(passage.text)
        assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)
        assert "\x9b" not in shown
    for piece in excerpts_of(open_sources(["-"], stdin=io.BytesIO(data), plain=True)):
        assert piece.start < piece.end <= len(data)


@cache
def pocket() -> Tokenizer:
    """Return the tokenizer that comes with the package."""
    return load_tokenizer("pocket")


def tokens(rng: random.Random, _: Path) -> None:
    """Check that the stream gives the tokens of the whole text, whatever the blocks."""
    text = "".join(c for c in some_text(rng, 3000) if c not in SIGNS)
    data = text.encode("utf-8", "replace")
    stream = TokenStream(pocket(), open_sources(["-"], stdin=io.BytesIO(data), plain=True))
    ids: list[int] = []
    while len(chunk := stream.read(rng.randrange(1, 400))) or not stream.at_end:
        assert (np.diff(chunk.starts) >= 0).all()
        assert chunk.end <= len(data)
        ids += chunk.ids.tolist()
    whole = data.decode().removeprefix("\ufeff")
    whole = re.sub(r"\r+(?![\r\n])", lambda lone: "\n" * len(lone[0]), whole)
    assert ids == pocket().encode(whole)
    assert not set(ids) & set(pocket().eos_ids), "text has become a control token"


def questions(rng: random.Random, _: Path) -> None:
    """Build prompts: what users and documents write never becomes a control token."""
    tokenizer = pocket()
    special = {i for s in tokenizer.special_strings for i in tokenizer.encode_template(s)}
    hostile = "".join(rng.choices([*tokenizer.special_strings, some_text(rng, 30)], k=4))
    prompt = build_prompt(tokenizer, system=rng.choice([None, hostile]))
    plain = build_prompt(tokenizer, system="Hello." if prompt.head else None)
    count = sum(i in special for i in prompt.tail(hostile))
    assert count == sum(i in special for i in plain.tail("Who?"))
    assert not special & set(tokenizer.encode(hostile))


def records(rng: random.Random, folder: Path) -> None:
    """Load questions and answers from JSON lines."""
    good = {"context": "It rained.", "question": "Did it?", "answers": ["Yes"]}
    path = folder / "data.jsonl"
    path.write_bytes(altered(rng, (json.dumps(good) + "\n").encode() * 3))
    list(load([str(path)]))


EARLIER = Path(__file__).resolve().parents[1] / "fixtures" / "0.2"
"""Real memory files of version 0.2, of the pocket model in float32."""


@cache
def _memory(name: str) -> tuple[bytes, memory_file.Content]:
    path = EARLIER / name
    return path.read_bytes(), memory_file.read(path)


def memory_files(rng: random.Random, folder: Path) -> None:
    """Read memory files that were cut, altered or made up: refused, or exactly as written."""
    good, content = _memory("reading.kvs")
    data = altered(rng, good)
    if rng.random() < 0.4:  # a wrong length of the header
        size = rng.choice([0, 1, 8, 2**31, 2**63, 2**64 - 1, len(good)])
        data = size.to_bytes(8, "little") + data[8:]
    elif rng.random() < 0.3:
        head = json.loads(good[8 : 8 + int.from_bytes(good[:8], "little")])
        entry = head[rng.choice(["entries.0.keys", "reader.generator", "__metadata__"])]
        entry[rng.choice(["shape", "data_offsets", "dtype"])] = rng.choice(
            [[2**40, 2**40], [-1, 5], [], "F32", "C64", "F8_E5M2", [0, 2**62], None, [[1]], {}]
        )
        packed = json.dumps(head).encode()
        data = len(packed).to_bytes(8, "little") + packed + b"\0" * rng.randrange(500)
    path = folder / "memory.kvs"
    path.write_bytes(data)
    assert memory_file.read(path).digest == content.digest


NESTED: Any = json.loads("[" * 200 + "]" * 200)
WRONG: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 5, 127, 10**6, 2**31, 2**53, 2**63, 10**30, 10**400, 0.5, -0.0,
    1e308, float("nan"), float("inf"), "", "x", "fixed", "h2o", "truncate", "\ud800", "a" * 5000,
    [], [[]], [1], [-1], ["x"], [None] * 7, [10**9] * 6, {}, {"a": 1}, {"held": []}, NESTED,
)  # fmt: skip
"""Values that a field of a header may be changed to."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to every field of a JSON value (two items of each list)."""
    inner = value.items() if isinstance(value, dict) else []
    if isinstance(value, list):
        inner = list(enumerate(value))[:2]
    return [path] * bool(path) + [p for k, v in inner for p in places(v, (*path, k))]


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of a JSON value with `new` in one place; LEFT_OUT removes the place."""
    value = json.loads(json.dumps(value))
    *way, last = place
    inner = value
    for key in way:
        inner = inner[key]
    if new is LEFT_OUT:
        del inner[last]
    else:
        inner[last] = new
    return value


LEFT_OUT = object()
ROWS: tuple[Any, ...] = (
    [], [[]], [[0] * 7], [[0, 0, 9, 1, 1, 0, "text"]], [[0, 9, 0, 1, 1, 0, "x"]], {}, None, "x",
    [[0, 0, 2**63, 1, 1, 0, "x"]], [[9, 0, 1, 1, 1, 0, "x"]], [[0, 0, 9, -1, 1, 0, "x"]], NESTED,
    [[0, 0, 1, 1, 1, 0, "x"]] * 5000,
)  # fmt: skip


@cache
def _session() -> Any:
    """Open the pocket model, as it made the files."""
    from kvstream.session.session import Session
    from kvstream.settings import ModelSettings

    torch.set_num_threads(1)
    return Session.open(ModelSettings(dtype="float32"))


def memory_headers(rng: random.Random, folder: Path) -> None:
    """Read memory files with right digests and wrong content: refused with code 3, or usable.

    An accepted memory answers a question and reads on, within its budget.
    """
    name = rng.choice(["any-question.kvs", "one-question.kvs", "reading.kvs"])
    _, content = _memory(name)
    state, notes, tensors = content.state, content.notes, dict(content.tensors)
    for _ in range(rng.choice([1, 1, 1, 2])):
        kind = rng.random()
        if kind < 0.6:
            place, new = rng.choice(places(state)), rng.choice([*WRONG, LEFT_OUT])
            with suppress(LookupError, TypeError):  # the first change removed the place
                state = changed(state, place, new)
        elif kind < 0.75:
            place, new = rng.choice(places(notes)), rng.choice([*WRONG, LEFT_OUT])
            with suppress(LookupError, TypeError):
                notes = changed(notes, place, new)
        else:
            _change_tensor(rng, tensors)
    path = folder / "headers.kvs"
    memory_file.write(path, state, notes, tensors)
    try:
        used(path, folder)
    except KvstreamError as error:
        # Another model, method or setting is not damage; nor is a text too long for a budget.
        told = isinstance(error, (ModelError, UsageError, BudgetError))
        if not told and error.exit_code != 3:
            raise RuntimeError(f"the exit code is {error.exit_code}") from error


def _change_tensor(rng: random.Random, tensors: dict[str, torch.Tensor]) -> None:
    name = rng.choice(sorted(tensors))
    tensor = tensors[name].clone()
    if name == "trace.passages" and rng.random() < 0.7:
        data = zlib.compress(json.dumps(rng.choice(ROWS)).encode())
        tensors[name] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return
    match rng.randrange(6):
        case 0:
            del tensors[name]
        case 1:
            tensors[name] = tensor[..., :-1].contiguous()
        case 2:
            tensors[name] = tensor.double()
        case 3:
            tensors[name] = tensor.flatten()
        case 4:
            tensors[f"{name}.{rng.randrange(9)}"] = tensor
        case _ if tensor.is_floating_point():
            worst = rng.choice([float("nan"), float("inf"), 3e38, -1e13, 1e11, 0.0])
            tensor.view(-1)[rng.randrange(tensor.numel()) :: rng.choice([1, 10**9])] = worst
            tensors[name] = tensor
        case _:
            tensor.view(-1)[rng.randrange(tensor.numel())] = rng.choice([0, 1, 255, 127])
            tensors[name] = tensor


def used(path: Path, folder: Path) -> None:
    """Ask a memory file, read a text into it, and resume it if it is a checkpoint."""
    run = RunSettings(max_tokens=2)
    kind = look(path)
    str(kind)
    json.dumps(kind.to_json(), allow_nan=False)
    session = _session()
    memory = session.recall(kind, run)
    for extract in (False, memory.trace.passages is not None):
        for event in answer(memory, "Who?", extract=extract, passages=2):
            if isinstance(event, Answered):
                json.dumps(event.result.to_json(), allow_nan=False)
    more = folder / "more.txt"
    more.write_text("It rained for a week, and the road to the mill was wet. " * 20)
    memory = session.recall(kind, run)
    source = open_sources([str(more)])
    for _ in session.read(source, Request(command="remember"), memory):
        pass
    assert memory.reader.cache.peak.tokens <= memory.reader.sizes.budget
    if kind.position is not None:
        run = RunSettings(Budget(tokens=150), max_tokens=8)
        request = Request(run=run, command="remember", checkpoint=path)
        source = open_sources([str(EARLIER / "story.sample")])
        for _ in session.read(source, request):
            pass


Target = Callable[[random.Random, Path], None]
PARSERS: dict[str, Target] = {
    "numbers": numbers,
    "settings": settings,
    "command-line": command_line,
    "config": config_files,
    "decoding": decoding,
    "archives": archives,
    "text": text,
    "tokens": tokens,
    "questions": questions,
    "records": records,
    "memory-files": memory_files,
    "memory-headers": memory_headers,
}
