"""Tests with a real pretrained model. ``make real`` fetches it and runs them."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import llamacpp_ids
import pytest
from test_gguf_tokenizer import TEXTS, mixed, stored
from tokenizers import Tokenizer
from user_cache import CACHE

from kvstream.model.folders import converted
from kvstream.model.loading import load
from kvstream.session.session import Session
from kvstream.settings import ModelSettings
from kvstream.store import gguf_file, offered
from kvstream.tokenization import gguf as gguf_tokenizer
from kvstream.tokenization.huggingface import HubTokenizer

pytestmark = pytest.mark.real


@pytest.fixture
def smollm2(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVSTREAM_CACHE", str(CACHE))
    offer = offered.OFFERS["smollm2"]
    if not offer.is_here():
        pytest.skip("needs `kvstream models get smollm2`")
    return offer.path


def tokenizer(path: Path) -> HubTokenizer:
    backend, _ = gguf_tokenizer.build(gguf_file.read(path, texts=True).keys, "smollm2")
    return HubTokenizer(Tokenizer.from_str(backend))


def test_token_ids_are_llama_cpps(smollm2: Path) -> None:
    ours = tokenizer(smollm2)
    for text, ids in zip(TEXTS, stored()["ids"]["smollm2"], strict=True):
        assert ours.encode(text) == ids, text


def test_token_ids_of_books_and_logs_are_llama_cpps(smollm2: Path, data: Path) -> None:
    interpreter = llamacpp_ids.python()
    if interpreter is None:
        pytest.skip("needs xllamacpp, or a Python that has it in KVSTREAM_TEST_LLAMACPP")
    files = [*sorted((data / "books").glob("jane*"))[:1], *sorted((data / "books").glob("e-n*.gz"))]
    files += sorted((data / "logs").glob("*.gz"))
    texts = [gzip.decompress(f.read_bytes()).decode("utf-8", "replace")[:50_000] for f in files]
    texts = [text.replace("\ufffd", "") for text in texts if text] + mixed(50)
    texts += [Path(__file__).read_text("utf-8"), " " * 500, "\n \t" * 100]
    ours = tokenizer(smollm2)
    for text, ids in zip(texts, llamacpp_ids.ids(interpreter, smollm2, texts), strict=True):
        assert ours.encode(text) == ids


def test_it_loads_and_is_bounded(smollm2: Path) -> None:
    session = Session.open(ModelSettings(model="smollm2", dtype="float32"))
    model = session.model
    assert len(model.layers) == 30
    assert model.trained_length == 8192
    assert session.tokenizer.has_template
    prompt = "The capital of France is"
    ids = session.tokenizer.encode(prompt)
    hidden = model.forward(ids, model.new_cache(64))
    best = int(model.logits(hidden[-1:]).argmax())
    assert session.tokenizer.decode([best]) == " Paris"


def test_later_starts_cost_no_more_than_a_folder(smollm2: Path) -> None:
    """Compares processor times, each the minimum of three runs. The limit is a factor of 1.5."""
    folder = converted(smollm2)

    def seconds(name: str) -> float:
        times = []
        for _ in range(3):
            before = time.process_time()
            load(ModelSettings(model=name, dtype="float32"))
            times.append(time.process_time() - before)
        return min(times)

    seconds(str(folder))
    from_file, from_folder = seconds("smollm2"), seconds(str(folder))
    print(f"\nfrom the file {from_file:.2f} s, from the folder {from_folder:.2f} s")
    assert from_file <= 1.5 * from_folder


def test_the_conversion_takes_little_memory(smollm2: Path, tmp_path: Path) -> None:
    """The limit is 2 GiB plus the largest tensor, with the memory of the libraries."""
    code = (
        "import sys; from pathlib import Path; from kvstream.model.folders import converted\n"
        "print(converted(Path(sys.argv[1]), quiet=True))"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = subprocess.run(
        [sys.executable, "-c", code, str(smollm2)],
        env={**os.environ, "KVSTREAM_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"\n{peak / 2**20:.0f} MiB at most (before {before / 2**10:.0f})")
    assert (
        json.loads((Path(done.stdout.strip()) / "config.json").read_text())["vocab_size"] == 49152
    )
    assert peak <= 2 * 2**30 + 49152 * 576 * 4


def test_a_query_for_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSTREAM_CACHE", str(CACHE))
    if not offered.OFFERS["qwen-0.5b"].is_here():
        pytest.skip("needs `kvstream models get qwen-0.5b`")
    rows = "pet,kind,kilos\nBello,dog,21\nMimi,cat,4\nRex,dog,33\nTom,cat,5\n"
    (tmp_path / "pets.csv").write_text(rows)
    question = "how many kilos does a dog weigh on average?"
    command = [sys.executable, "-m", "kvstream", "ask", "pets.csv", question, "-m", "qwen-0.5b"]
    env = {**os.environ, "KVSTREAM_CACHE": str(CACHE)}
    ran = subprocess.run(
        [*command, "--json"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    answer = json.loads(ran.stdout)
    assert (answer["answer"], answer["model"]) == ("27", "qwen-0.5b")
    assert answer["query"] == "SELECT AVG(kilos) FROM t WHERE kind = 'dog'"
    assert answer["query"] in ran.stderr
