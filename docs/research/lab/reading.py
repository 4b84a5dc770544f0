"""Measure how fast text becomes tokens with a large vocabulary, and how long a run waits for them.

    python docs/research/lab/reading.py books/*.gz
    python docs/research/lab/reading.py books/*.gz --spaces
    python docs/research/lab/reading.py books/*.gz --tokenizer tokenizer.json

Without --tokenizer, the script trains one on the beginning of the files: a byte-level BPE with
Llama 3's pattern, or, with --spaces, one that writes spaces as Llama 2's and Gemma's do. It prints
the speed from files to ids, per second of processor time, of the library and of kvstream. Then a
device that reads 50,000 tokens a second without the processor (it sleeps) runs alone, with chunks
from files in its own thread, and with chunks from files that a thread reads ahead. The script
prints how long the device waits.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from kvstream.input.sources import open_sources
from kvstream.tokenization import huggingface as hub
from kvstream.tokenization.huggingface import HubTokenizer
from kvstream.tokenization.loading import ReadAhead, TokenStream

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LETTERS = r"▁?\p{L}+|▁?[^\p{L}]"
CHUNK = 1024

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("files", nargs="+")
parser.add_argument("--tokenizer", help="a tokenizer.json")
parser.add_argument("--spaces", action="store_true")
parser.add_argument("--vocabulary", type=int, default=32_768)
parser.add_argument("--train", type=int, default=100, metavar="BLOCKS", help="of 64k characters")
parser.add_argument("--tokens-per-second", type=int, default=50_000)
parser.add_argument("--chunks", type=int, default=400)
options = parser.parse_args()


def texts() -> Iterator[str]:
    return (block.text for block in open_sources(options.files, plain=True))


def trained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(islice(texts(), options.train), trainer)
    return tokenizer


def trained_with_spaces() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(LETTERS), "isolated")  # to train
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocabulary,
        special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(islice(texts(), options.train), trainer)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    description = json.loads(tokenizer.to_str())
    description |= {"added_tokens": [], "pre_tokenizer": None}
    tokenizer = Tokenizer.from_str(json.dumps(description))
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def speed(label: str, tokenizer: HubTokenizer) -> list[int]:
    begun = time.process_time()
    stream = TokenStream(tokenizer, open_sources(options.files, plain=True))
    ids: list[int] = []
    while chunk := stream.read(CHUNK):
        ids += chunk.ids.tolist()
        end = chunk.end
    seconds = time.process_time() - begun
    print(f"{label:<34} {end / seconds / 1e6:5.1f} MB/s, {1e6 * seconds / len(ids):.2f} µs a token")
    return ids


def waited(label: str, source: TokenStream | ReadAhead | None) -> None:
    work = CHUNK / options.tokens_per_second
    idle, begun = 0.0, time.perf_counter()
    for _ in range(options.chunks):
        if source is not None:
            source.read(CHUNK)
        asleep = time.perf_counter()
        time.sleep(work)
        idle += time.perf_counter() - asleep
    seconds = time.perf_counter() - begun
    print(f"{label:<34} {seconds:5.2f} s, {1 - idle / seconds:.2%} of it spent waiting for tokens")


if options.tokenizer:
    backend = Tokenizer.from_file(options.tokenizer)
else:
    backend = trained_with_spaces() if options.spaces else trained()
hub.WORTH = 1 << 60
slow = HubTokenizer(backend)
expected = speed("tokenizers", slow)
hub.WORTH = 1 << 22
quick = HubTokenizer(backend)
assert speed("quick, and finding that it may", quick) == expected
assert speed("quick", quick) == expected
waited("device alone", None)
for label, tokenizer in (("tokenizers", slow), ("quick", quick)):
    files = open_sources(options.files, plain=True)
    waited(f"{label}, in turns", TokenStream(tokenizer, files))
    files = open_sources(options.files, plain=True)
    with closing(ReadAhead(tokenizer, files)) as ahead:
        waited(f"{label}, ahead", ahead)
