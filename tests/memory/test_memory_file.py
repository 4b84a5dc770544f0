"""Memory files: reading returns what was written, and damaged or forged files are refused."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from digests import digest_of
from safetensors import safe_open

from kvstream.answer.answering import answer, question_tail
from kvstream.errors import BudgetError, KvstreamError, ModelError, SourceError, UsageError
from kvstream.events import Answered, Notice, returned
from kvstream.input.sources import open_sources
from kvstream.memory import file, saving
from kvstream.memory.contents import Memory
from kvstream.model.bounded import BoundedModel
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import INT8, Budget, ModelSettings, RunSettings
from kvstream.store import writing
from kvstream.tokenization.passages import Passages

QUESTION = "What is the passkey for the old mill?"
OTHER = "Who lives in the castle?"


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    return write_story(tokens=1300, seed=3, facts=4)


def read(
    session: Session,
    path: Path,
    run: RunSettings,
    questions: tuple[str, ...] = (),
    after: Memory | None = None,
) -> Memory:
    request = Request(questions, run, "remember")
    return returned(session.read(open_sources([str(path)]), request, after))


def result(memory: Memory, question: str = QUESTION, **more: Any) -> Any:
    return next(e.result for e in answer(memory, question, **more) if isinstance(e, Answered))


def run_of(budget: int = 320, method: str = "infinipot", **more: Any) -> RunSettings:
    return RunSettings(Budget(tokens=budget), method, max_tokens=8, **more)


def test_a_memory_of_quantized_weights_is_read_back(
    session: Session, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.kvs"
    with monkeypatch.context() as patch:
        patch.setattr(BoundedModel, "weights_dtype", INT8)
        memory = read(session, story, run_of())
        digest = saving.save(memory, path)
    found = saving.look(path)
    assert digest_of(session.recall(found, run_of())) != digest  # its type is another one here
    assert found.loading({})["quantize"] == INT8
    monkeypatch.setattr(saving, "_same_weights", lambda *_: False)
    with pytest.raises(ModelError, match=r"with the same options \(--quantize int8\)"):
        session.recall(found, run_of())


METHODS = [
    "infinipot", "h2o", "bumblebee", "cascade", "sirllm", "truncate",
    *(pytest.param(name, marks=pytest.mark.long) for name in ("snapkv", "random")),
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_what_is_read_back_is_what_was_written(
    session: Session, story: Path, tmp_path: Path, method: str
) -> None:
    run, path = run_of(method=method, seed=7), tmp_path / "m.kvs"
    memory = read(session, story, run)
    digest = saving.save(memory, path)
    again = session.recall(saving.look(path), run)
    assert digest_of(again) == digest == digest_of(memory)
    for asked in ({}, {"extract": 3}, {"question": OTHER}):
        first, second = result(memory, **asked), result(again, **asked)
        assert (first.answer, first.citations) == (second.answer, second.citations)
    assert digest_of(again) == digest == digest_of(memory), "asking changed a memory"


def test_a_memory_that_lost_nothing_is_the_same_to_the_bit(
    session: Session, story: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short.txt"
    short.write_text(story.read_text()[:900])
    memory = read(session, short, run_of(800))
    assert all(s.unrotated == 0 for s in memory.reader.cache.stores)
    saving.save(memory, tmp_path / "m.kvs")
    again = session.recall(saving.look(tmp_path / "m.kvs"), run_of(800))
    ids = memory.prompt.tail(QUESTION)
    ours = [r.model.logits(r.model.forward(ids, r.cache)) for r in (memory.reader, again.reader)]
    assert torch.equal(*ours)


def test_the_sources_may_be_gone_and_the_answer_is_that_of_the_run(
    session: Session, story: Path, tmp_path: Path
) -> None:
    """A memory for a question gives the answer of `ask`, without the text."""
    copy = tmp_path / "copy.txt"
    copy.write_text(story.read_text())
    run = run_of()
    events = session.ask(open_sources([str(copy)]), Request((QUESTION,), run))
    there = next(e.result for e in events if isinstance(e, Answered))
    saving.save(read(session, copy, run, (QUESTION,)), tmp_path / "m.kvs")
    copy.unlink()
    kind = saving.look(tmp_path / "m.kvs")
    gone = result(session.recall(kind, run), last=True)
    assert gone.answer == there.answer
    assert gone.citations == there.citations
    assert kind.questions == (QUESTION,)
    assert "for 1 question" in str(kind)


@pytest.mark.parametrize("budget", [260, 1024])
def test_the_file_is_small_and_any_reader_of_safetensors_opens_it(
    session: Session, story: Path, tmp_path: Path, budget: int
) -> None:
    memory = read(session, story, run_of(budget))
    saving.save(memory, tmp_path / "m.kvs")
    assert (tmp_path / "m.kvs").stat().st_size <= 1.1 * memory.reader.cache.capacity_bytes
    with safe_open(tmp_path / "m.kvs", framework="np") as opened:
        state = json.loads(opened.metadata()["state"])
        layers = range(len(memory.reader.cache.stores))
        held = [opened.get_tensor(f"entries.{i}.origin") for i in layers]
        prompt = opened.get_tensor("prefix.0.keys")
    assert prompt.shape[1] == len(state["head"])
    every = np.unique(np.concatenate([h.ravel() for h in held]))
    assert every.tolist() == memory.reader.retained().tolist()


def test_passages_that_do_not_fit_are_left_out(
    session: Session, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = read(session, story, run_of())
    monkeypatch.setattr(saving, "ROOM", 0.72)
    saving.save(memory, tmp_path / "m.kvs")
    kind = saving.look(tmp_path / "m.kvs")
    assert kind.content.state["trace"]["passages_left_out"] > 0
    assert result(session.recall(kind, run_of())).answer == result(memory).answer


# Refused files --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(session: Session, story: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("written") / "m.kvs"
    saving.save(read(session, story, run_of(260)), path)
    return path.read_bytes()


def test_a_file_that_was_cut_short_or_altered_is_told(written: bytes, tmp_path: Path) -> None:
    path, draw = tmp_path / "m.kvs", random.Random(3)
    for _ in range(25):
        path.write_bytes(written[: draw.randrange(len(written))])
        with pytest.raises(SourceError):
            saving.look(path)
    for _ in range(40):
        data, at = bytearray(written), draw.randrange(len(written))
        data[at] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        with pytest.raises(SourceError):
            saving.look(path)
    for nonsense in (b"", b"PK\x03\x04", b"\xff" * 64, os.urandom(300)):
        path.write_bytes(nonsense)
        with pytest.raises(SourceError):
            saving.look(path)
    with pytest.raises(SourceError, match="no memory file"):
        saving.look(tmp_path / "nothing.kvs")
    with pytest.raises(SourceError):
        saving.look(tmp_path)


def forged(written: bytes, change: Any, path: Path) -> None:
    """Write a file with correct digests and a state that `change` altered."""
    size = struct.unpack("<Q", written[:8])[0]
    state = json.loads(json.loads(written[8 : 8 + size])["__metadata__"]["state"])
    path.write_bytes(written)
    tensors = dict(file.read(path).tensors)
    change(state, tensors)
    file.write(path, state, file.read(path).notes, tensors)


def set_in(*path: Any) -> Any:
    *keys, last, value = path

    def change(state: Any, tensors: Any) -> None:
        for key in keys:
            state = state[key]
        state[last] = value

    return change


def shorten(name: str) -> Any:
    def change(state: Any, tensors: Any) -> None:
        tensors[name] = tensors[name][:, :-1].clone()

    return change


def shuffle(state: Any, tensors: Any) -> None:
    tensors["entries.1.origin"] = tensors["entries.1.origin"].flip(-1).contiguous()


def held_before_its_end(state: Any, tensors: Any) -> None:
    state["reader"]["schedule"].update(_fresh=True, _first=1, length=None)


def place_lost(state: Any, tensors: Any) -> None:
    for name in ("trace.ordinals", "trace.starts"):
        tensors[name] = tensors[name][1:].clone()


def change_passages(how: Callable[[list[Any]], Any]) -> Any:
    def change(state: Any, tensors: Any) -> None:
        rows = json.loads(zlib.decompress(tensors["trace.passages"].numpy().tobytes()))
        how(rows)
        packed = bytearray(zlib.compress(json.dumps(rows).encode()))
        tensors["trace.passages"] = torch.frombuffer(packed, dtype=torch.uint8)

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_in("cache", "layers", 0, "used", 10**9),
        set_in("cache", "layers", 0, "used", -1),
        set_in("cache", "layers", 0, "raw", 10**6),
        set_in("cache", "layers", []),
        set_in("cache", "base", 5),
        set_in("sizes", "budget", 10**30),
        set_in("sizes", "budget", None),
        set_in("sizes", {}),
        set_in("reader", "seen", -4),
        set_in("reader", "schedule", {}),
        set_in("reader", "schedule", "held", [1]),
        set_in("reader", "planned", "long"),
        set_in("run", "growth", 7),
        set_in("head", [1, 2, 3]),
        set_in("questions", [4]),
        set_in("model", None),
        set_in("trace", "read", 3),
        set_in("trace", "sources", []),
        set_in("method", "name", "nobody"),
        set_in("method", "settings", {}),
        set_in("format", 99),
        shorten("entries.0.keys"),
        shorten("prefix.2.values"),
        shuffle,
        lambda state, tensors: tensors.pop("reader.generator"),
        lambda state, tensors: tensors.pop("trace.starts"),
        lambda state, tensors: tensors.update(
            {"trace.passages": torch.zeros(9, dtype=torch.uint8)}
        ),
        lambda state, tensors: tensors.update(
            {"entries.0.keys": tensors["entries.0.keys"].double()}
        ),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(
    session: Session, written: bytes, tmp_path: Path, change: Any
) -> None:
    path = tmp_path / "m.kvs"
    forged(written, change, path)
    with pytest.raises(KvstreamError):
        session.recall(saving.look(path), run_of())


def _after(source: int, start: int, end: int, *more: Any) -> list[Any]:
    """Return an empty passage behind another."""
    return [source, end, end, *more]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (set_in("sizes", "budget", "many"), "sizes.budget"),
        (set_in("method", []), "method"),
        (set_in("run", "seed", "one"), "run.seed"),
        (set_in("run", "seed", 2**64), "64 bits"),
        (set_in("system", 3), "system"),
        (set_in("model", "dtype", ["float32"]), "model.dtype"),
        (set_in("trace", "read", 10**400), "trace.read"),
        (set_in("catalysts", [[10**6]]), "token 1000000"),
        (set_in("sizes", "catalyst", 1), "prompt and catalysts"),
        (set_in("reader", "begun", None), "reader.begun"),
        (set_in("reader", "begun", False), "before the prompt"),
        (set_in("reader", "seen", 0), "layers hold more"),
        (set_in("reader", "sinks", 200), "200 sinks"),
        (set_in("reader", "ratios", [0.5]), "1 ratios"),
        (set_in("reader", "schedule", "_first", 10**6), "_first"),
        (set_in("reader", "schedule", "_attention", None), "_attention"),
        (set_in("reader", "schedule", "_fresh", 1), "_fresh cannot be 1"),
        (set_in("reader", "schedule", "held", [1]), r"not for [0-9]+ layers"),
        (held_before_its_end, "more than its first chunk"),
        (set_in("cache", "layers", 0, "raw", 250), "layer 0 cannot hold"),
        (set_in("cache", "layers", 0, "raw", 1), "different numbers of rotated entries"),
        (set_in("more", 1), "unknown field"),
        (lambda state, tensors: tensors.update({"states.0.conv": torch.zeros(2)}), "that carries"),
        (lambda state, tensors: tensors.update({"evidence.0.rows": torch.zeros(2, 3)}), "measured"),
        (lambda state, tensors: tensors["trace.ordinals"][-1:].add_(10**6), "not in order"),
        (lambda state, tensors: tensors["trace.ordinals"][:1].sub_(10**6), "not in order"),
        (lambda state, tensors: tensors["trace.starts"][-1:].add_(10**6), "not where its text is"),
        (lambda state, tensors: tensors["trace.starts"][:1].sub_(10**6), "not where its text is"),
        (
            lambda state, tensors: tensors["trace.starts"][3:5].copy_(
                tensors["trace.starts"][3:5].flip(0)
            ),
            "not where its text is",
        ),
        (place_lost, "where all of its entries came from"),
        (change_passages(lambda rows: rows[0].__setitem__(0, 7)), "no source 7"),
        (change_passages(lambda rows: rows.reverse()), "passages are not in order"),
        (change_passages(lambda rows: rows.extend([_after(*rows[-1])] * 999)), "passages around"),
        (lambda state, tensors: tensors["entries.0.keys"].fill_(float("nan")), "entries.0.keys"),
        (lambda state, tensors: tensors["entries.0.values"].fill_(torch.inf), "entries.0.values"),
        (lambda state, tensors: tensors["entries.2.keys"].fill_(3e38), "which no model makes"),
        (lambda state, tensors: tensors["reader.before"].resize_(1, 7), "mat1 and mat2|size"),
    ],
)
def test_every_field_has_a_type_and_a_range(
    session: Session, written: bytes, tmp_path: Path, change: Any, why: str
) -> None:
    """All get one remedy and one exit code: that of a source that cannot be read."""
    path = tmp_path / "m.kvs"
    forged(written, change, path)
    with pytest.raises(SourceError, match=why) as caught:
        session.recall(saving.look(path), run_of())
    assert "copy it again, or read the sources again" in str(caught.value)


def test_a_method_that_has_other_settings_by_now_is_told(
    session: Session, written: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "m.kvs"
    forged(written, set_in("method", "settings", "recent", 33), path)
    with pytest.raises(UsageError, match=r"recent=33.* and here its settings are .*recent=32"):
        session.recall(saving.look(path), run_of())


def test_a_memory_that_was_torn_is_not_saved(session: Session, story: Path, tmp_path: Path) -> None:
    memory = read(session, story, run_of(260))
    memory.reader.cache.torn = True
    with pytest.raises(KvstreamError, match="This memory is lost"):
        saving.save(memory, tmp_path / "m.kvs")
    assert not (tmp_path / "m.kvs").exists()


def test_numbers_that_no_file_can_hold_are_told_before_it_is_written(
    session: Session, story: Path, tmp_path: Path
) -> None:
    memory = read(session, story, run_of(260))
    memory.reader.cache.stores[0].values[0, 0, 0] = torch.inf
    with pytest.raises(KvstreamError, match=r"0\.values has numbers from -.* to inf"):
        saving.save(memory, tmp_path / "m.kvs")
    assert not (tmp_path / "m.kvs").exists()


def test_one_number_of_an_expanded_tensor_has_its_bytes() -> None:
    one = torch.tensor([[7]]).expand(1, 3)[:, :1]
    assert file._bytes(one.as_strided((1, 1), (0, 0))) == file._bytes(torch.tensor([7]))


def test_metadata_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    deep = "[" * 100_000
    for key in ("state", "notes"):
        said = {"state": '{"format":1}', "notes": "{}", key: f'{{"format":{deep}'}
        digest = hashlib.sha256(said["state"].encode()).hexdigest()
        seal = hashlib.sha256((digest + said["notes"]).encode()).hexdigest()
        head = json.dumps({"__metadata__": {**said, "memory": digest, "file": seal}}).encode()
        path = tmp_path / "deep.kvs"
        path.write_bytes(len(head).to_bytes(8, "little") + head)
        with pytest.raises(SourceError, match="cannot be used"):
            saving.look(path)


def test_passages_that_unpack_to_very_much_take_no_memory(
    session: Session, written: bytes, tmp_path: Path
) -> None:
    """240 MB of `[]` would become gigabytes of lists."""
    packer = zlib.compressobj()
    packed = b"".join(packer.compress(b"[]," * 2**20) for _ in range(80)) + packer.flush()
    data = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    path = tmp_path / "m.kvs"
    forged(written, lambda state, tensors: tensors.update({"trace.passages": data}), path)
    kind = saving.look(path)
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="passages unpack to more than"):
            session.recall(kind, run_of())
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("how", ["cut", "overwritten"])
def test_a_file_that_changes_after_it_was_read_changes_nothing(
    session: Session, written: bytes, tmp_path: Path, how: str
) -> None:
    """If the file were mapped, cutting it in place would end the process with SIGBUS."""
    path = tmp_path / "m.kvs"
    path.write_bytes(written)
    said = result(session.recall(saving.look(path), run_of())).answer
    kind = saving.look(path)
    if how == "cut":
        os.truncate(path, 100)
    else:
        with path.open("r+b") as opened:
            opened.seek(len(written) // 2)
            opened.write(bytes(len(written) // 2))
    assert result(session.recall(kind, run_of())).answer == said


def test_another_model_dtype_or_method_is_told(
    session: Session, written: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "m.kvs"
    forged(written, set_in("model", "fingerprint", "0" * 16), path)
    with pytest.raises(ModelError, match=r"weights 0{16}.*-m"):
        session.recall(saving.look(path), run_of())
    # The file names another number type than that of its keys and values.
    forged(written, set_in("model", "kv_dtype", "float16"), path)
    with pytest.raises(SourceError, match="keys is torch"):
        session.recall(saving.look(path), run_of())
    forged(written, set_in("method", "settings", "recent", 99), path)
    with pytest.raises(UsageError, match="recent=99"):
        session.recall(saving.look(path), run_of())
    # The method of another package that is no longer installed.
    forged(written, set_in("method", "name", "everyother"), path)
    with pytest.raises(UsageError, match=r"m\.kvs was made by the method 'everyother'"):
        session.recall(saving.look(path), run_of())


@pytest.fixture(scope="module")
def stored_as(
    session: Session, story: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[torch.dtype], Path]:
    """A function that returns a memory file whose keys and values have a number type."""

    @cache
    def stored(kind: torch.dtype) -> Path:
        path = tmp_path_factory.mktemp("stored") / "m.kvs"
        writer = Session(session.model.storing(kind), session.tokenizer)
        saving.save(read(writer, story, run_of(260)), path)
        return path

    return stored


@pytest.mark.parametrize("made", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("here", ["float32", "bfloat16", "float16"])
def test_memory_of_another_number_type_is_converted(
    session: Session, stored_as: Callable[[torch.dtype], Path], tmp_path: Path, made: str, here: str
) -> None:
    """The conversion is exact, or a warning names the loss."""
    types = {name: getattr(torch, name) for name in (made, here)}
    kind = saving.look(stored_as(types[made]))
    assert kind.kv_dtype == types[made]
    memory = Session(session.model.storing(types[here]), session.tokenizer).recall(kind, run_of())
    for store in memory.reader.cache.stores:
        stored = kind.content.tensors[f"entries.{store.spec.index}.values"]
        held = store.values[:, store.used - stored.shape[1] : store.used]
        assert held.dtype == types[here]
        assert torch.equal(held, stored.to(types[here]))
    assert memory.reader.cache.peak.bytes <= memory.reader.cache.capacity_bytes
    exact = here in (made, "float32")
    told = [w for w in memory.warnings if f"--kv-dtype {made}" in w]
    assert bool(told) is not exact
    assert result(memory).answer
    # A rounded memory names its new number type.
    again = tmp_path / "again.kvs"
    saving.save(memory, again)
    assert saving.look(again).kv_dtype == types[here]


def test_numbers_beyond_float16_are_not_made_infinite(
    session: Session, written: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "m.kvs"
    forged(written, lambda state, tensors: tensors["entries.1.values"].fill_(1e5), path)
    narrow = Session(session.model.storing(torch.float16), session.tokenizer)
    with pytest.raises(
        ModelError, match=r"100,\d+, and float16 holds at most 65,504.*--kv-dtype bfloat16"
    ):
        narrow.recall(saving.look(path), run_of())


@pytest.mark.parametrize("made", [torch.float32, torch.bfloat16])
def test_a_model_loaded_in_another_type_knows_its_memory(
    session: Session, story: Path, tmp_path: Path, made: torch.dtype
) -> None:
    path = tmp_path / "m.kvs"
    other = torch.bfloat16 if made == torch.float32 else torch.float32
    writer, reader = (
        Session.open(ModelSettings(device="cpu", dtype=str(d).removeprefix("torch.")))
        for d in (made, other)
    )
    saving.save(read(writer, story, run_of(260)), path)
    assert result(reader.recall(saving.look(path), run_of())).answer
    forged(path.read_bytes(), set_in("model", "rounded", "0" * 16), path)
    forged(path.read_bytes(), set_in("model", "fingerprint", "0" * 16), path)
    with pytest.raises(ModelError, match=r"weights 0{16}"):
        reader.recall(saving.look(path), run_of())


def test_weights_have_a_fingerprint(session: Session) -> None:
    from kvstream.model.fingerprint import fingerprint

    model = torch.nn.Linear(700, 900)
    before = fingerprint(model)
    assert before == fingerprint(model)
    with torch.no_grad():
        model.bias[17] += 1e-3
    assert fingerprint(model) != before
    assert fingerprint(model.half()) != fingerprint(model.float())


def test_two_that_write_the_same_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.kvs"

    def slow(stream: Any) -> None:
        stream.write(b"first ")
        stream.flush()
        other = Thread(target=writing.replace, args=(path, lambda s: s.write(b"second, whole")))
        other.start()
        other.join()
        assert path.read_bytes() == b"second, whole"
        stream.write(b"whole")

    writing.replace(path, slow)
    assert path.read_bytes() == b"first whole"
    assert [found.name for found in tmp_path.iterdir()] == ["a.kvs"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.kvs"

    def of(target: str, process: int) -> str:
        begin, _, thread = writing._partial(tmp_path / target).name.rsplit("-", 2)
        return f"{begin}-{process}-{thread}"

    left, others = of("a.kvs", 999_999_999), [of("a.kvs", os.getppid()), of("b.kvs", 999_999_999)]
    reused, far = of("a.kvs", os.getpid()), left.replace(socket.gethostname(), "elsewhere")
    others.append(far)
    old = [reused, far.replace("elsewhere", "elsewhere-2")]
    for name in (left, *others, *old):
        (tmp_path / name).touch()
    for name in old:  # written before this process began, and more than a day ago
        os.utime(tmp_path / name, (1, 1))
    writing.replace(path, lambda stream: stream.write(b"whole"))
    assert {found.name for found in tmp_path.iterdir()} == {"a.kvs", *others}


def test_a_full_disk_leaves_the_file_before(
    session: Session, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.kvs"
    memory = read(session, story, run_of(260))
    saving.save(memory, path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KvstreamError, match="No space left on device"):
        saving.save(memory, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.kvs"]


def test_a_question_that_does_not_fit_is_told(session: Session, story: Path) -> None:
    memory = read(session, story, run_of(260))
    with pytest.raises(BudgetError, match="shorter"):
        result(memory, "What of this? " * 100)
    assert result(memory).stopped


# Reading on -----------------------------------------------------------------------------------


def test_reading_on_is_reading_both_where_nothing_is_lost(
    session: Session, story: Path, tmp_path: Path
) -> None:
    text = story.read_text()
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text(text[:800])
    two.write_text(text[800:1500])
    run = run_of(900)
    request = Request(run=run, command="remember")
    both = returned(session.read(open_sources([str(one), str(two)]), request))
    saving.save(read(session, one, run), tmp_path / "m.kvs")
    after = read(session, two, run, after=session.recall(saving.look(tmp_path / "m.kvs"), run))
    assert after.trace.read == both.trace.read
    assert after.trace.records == both.trace.records
    assert after.trace.names == both.trace.names
    assert after.reader.retained().tolist() == both.reader.retained().tolist()
    for ours, theirs in zip(after.reader.cache.stores, both.reader.cache.stores, strict=True):
        assert ours.used == theirs.used
        torch.testing.assert_close(ours.keys[:, : ours.used], theirs.keys[:, : theirs.used])
    assert result(after).answer == result(both).answer
    # The chunks begin elsewhere, so sums differ in their last digits.
    ours, theirs = result(after).citations, result(both).citations
    assert [{**c, "weight": 0} for c in ours] == [{**c, "weight": 0} for c in theirs]
    weights = [c["weight"] for c in theirs]
    assert [c["weight"] for c in ours] == pytest.approx(weights, abs=1e-3)


@pytest.mark.parametrize("method", ["infinipot", "streaming", "cascade"])
def test_reading_on_stays_in_the_bound_and_counts_on(
    session: Session, story: Path, tmp_path: Path, method: str
) -> None:
    run = run_of(300, method)
    memory = read(session, story, run)
    before, first = memory.trace.read, memory.reader.steps
    path = tmp_path / "m.kvs"
    saving.save(memory, path)
    more = tmp_path / "more.txt"
    more.write_text(story.read_text()[:4000])
    for _ in range(2):
        recalled = session.recall(saving.look(path), run)
        loaded, earlier = recalled.trace.read, saving.look(path).to_json()["read_s"]
        assert recalled.prefill_s == recalled.tokens_per_s == 0, "nothing was read now"
        memory = read(session, more, run, after=recalled)
        now = memory.tokens_per_s * memory.prefill_s
        assert now == pytest.approx(memory.trace.read - loaded), "the speed is that of this run"
        saving.save(memory, path)
        assert saving.look(path).to_json()["read_s"] == earlier + memory.prefill_s
    assert memory.trace.read > before + 1000
    assert memory.reader.steps > first
    assert len(memory.trace.names) == 3
    assert memory.reader.cache.peak.tokens <= 300
    newest = memory.reader.retained()[-1]
    assert newest == memory.trace.read - 1
    cited = result(memory).citations
    assert all(c["source"] in memory.trace.names and c["byte_start"] >= 0 for c in cited)


def test_reading_on_goes_on_with_passages_that_are_empty(session: Session, story: Path) -> None:
    memory = read(session, story, run_of(300))
    memory.trace.passages = empty = Passages("lines")
    after = read(session, story, run_of(300), after=memory)
    assert after.trace.passages is empty
    assert len(empty)


def test_truncate_cannot_be_read_on(session: Session, story: Path) -> None:
    memory = read(session, story, run_of(300, "truncate"))
    with pytest.raises(UsageError, match="all sources at once"):
        read(session, story, run_of(300, "truncate"), after=memory)


# Earlier questions ----------------------------------------------------------------------------


def test_history_is_forgotten_oldest_first_and_fits(session: Session, story: Path) -> None:
    memory = read(session, story, run_of(400))
    room = 400 - memory.reader.cache.size - memory.reader.sizes.answer
    history = [(f"Who is number {i}?", f"It is {i}.") for i in range(30)]
    tail = question_tail(memory, OTHER, history)
    assert len(tail) + 8 <= 400 - memory.reader.cache.size
    told = memory.tokenizer.decode(tail)
    kept = [i for i in range(30) if f"number {i}?" in told]
    assert kept == list(range(30 - len(kept), 30))
    assert 0 < len(kept) < 30
    one_more = memory.prompt.tail(OTHER, history[-len(kept) - 1 :])
    assert len(one_more) > room
    before = digest_of(memory)
    result(memory, OTHER, earlier=history)
    assert digest_of(memory) == before


def test_warnings_of_a_reading_come_back_with_its_memory(
    session: Session, tmp_path: Path, story: Path
) -> None:
    odd = tmp_path / "odd.txt"
    odd.write_bytes(b"The castle is old. \xff\xfe\xff " + b"Nobody lives there. " * 20)
    memory = read(session, odd, run_of())
    (warning,) = memory.warnings
    assert "odd.txt" in warning
    saving.save(memory, tmp_path / "odd.kvs")
    kind = saving.look(tmp_path / "odd.kvs")
    again = session.recall(kind, run_of())
    assert again.warnings == [warning]
    assert warning in result(again).warnings
    request = Request((), run_of(), "remember")
    events = session.read(open_sources([str(story)]), request, again)
    said = [event.message for event in events if isinstance(event, Notice) and not event.note]
    assert warning not in said, "it was told when the first text was read"
