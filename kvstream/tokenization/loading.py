"""Tokenizers, and sources as streams of tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvstream.errors import ModelError, is_out_of_memory
from kvstream.input.blocks import TextBlock
from kvstream.input.source import Source
from kvstream.tokenization.forms import WordForms
from kvstream.tokenization.panics import without_panics
from kvstream.tokenization.prefetch import ReadAhead
from kvstream.tokenization.stream import BLOCK, TokenBatch, TokenStream
from kvstream.tokenization.tokenizer import Decoder, Tokenizer

__all__ = [
    "Decoder",
    "ReadAhead",
    "TokenBatch",
    "TokenStream",
    "Tokenizer",
    "WordForms",
    "load_tokenizer",
    "open_stream",
]


_TRIAL = "The key, No. 12, is \u00e9 \u8a9e.\n\n" + "a" * 40 + "!"
"""What every tokenizer must be able to encode."""
_RUNS = ("a", "e", "1", " ", "\n", "-", "A", "\u00e9", "x ", "the ", "No. 12, ")
"""Patterns that try many ways to match text try most of them on runs of these."""
_LONGEST_RUN = 4096
"""Characters; shorter runs come first, so that a bad pattern is found before it takes long."""
_MOST_S = 1.0
"""Seconds that a run may take. A sound tokenizer takes milliseconds."""


def open_stream(
    tokenizer: Tokenizer,
    sources: Source,
    on_block: Callable[[TextBlock], None] | None = None,
    after: tuple[int, int] = (0, 0),
) -> TokenStream | ReadAhead:
    """The sources as tokens; long ones of known size are read and encoded in a thread.

    ``after``: tokens and bytes that were read before.
    """
    size = sources.size_hint()
    if after[0]:
        return TokenStream(tokenizer, sources, on_block, after)
    kind = TokenStream if size is None or size <= BLOCK else ReadAhead
    return kind(tokenizer, sources, on_block)


def load_tokenizer(
    name: str,
    revision: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
) -> Tokenizer:
    """The tokenizer of a model: a hub id, a local folder, or ``pocket``.

    Raises ModelError where there is none, it cannot be fetched, or it has no fast version.
    """
    from kvstream.store import pocket

    if name == "pocket" or Path(name).absolute() == pocket.path():
        return _embedded()
    from kvstream.tokenization.huggingface import HubTokenizer

    wrapper = _wrapper(name, revision, offline, trust_remote_code)
    backend = getattr(wrapper, "backend_tokenizer", None)
    if backend is None or not getattr(wrapper, "is_fast", False):
        raise ModelError(
            f"The tokenizer of {name} ({type(wrapper).__name__}) has no fast version, and others "
            "cannot be streamed faithfully; choose a model that comes with a tokenizer.json."
        )
    try:
        with without_panics():
            tokenizer = HubTokenizer(backend, wrapper, name)
            tokenizer.encode(_TRIAL)
            _try_runs(tokenizer)
        return tokenizer
    except BaseException as error:  # a panic of Rust is no Exception
        if type(error).__name__ != "PanicException" and not isinstance(error, Exception):
            raise
        if is_out_of_memory(error):
            raise
        first_line = str(error).strip().split("\n")[0]
        raise ModelError(
            f"The tokenizer of {name} fails on a trial text: {first_line}. Download its "
            "tokenizer.json again, or choose another model."
        ) from error


def _try_runs(tokenizer: Tokenizer) -> None:
    """Raises TimeoutError where repeated text takes too long to be encoded."""
    size = 16
    while size <= _LONGEST_RUN:
        for run in _RUNS:
            began = time.monotonic()
            tokenizer.encode((run * size)[:size] + "!")
            took = time.monotonic() - began
            if took > _MOST_S:
                raise TimeoutError(f"{size:,} characters of {run!r} take {took:.1f} s")
        size *= 2


def _embedded() -> Tokenizer:
    from kvstream.store import pocket
    from kvstream.tokenization.tiktoken import TiktokenTokenizer

    config = json.loads((pocket.path() / "tokenizer_config.json").read_text("utf-8"))
    return TiktokenTokenizer(
        pocket.encoding(), bos=pocket.BOS, eos=pocket.EOS, template=config["chat_template"]
    )


def _wrapper(name: str, revision: str | None, offline: bool, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            name,
            revision=revision,
            local_files_only=offline,
            trust_remote_code=trust_remote_code,
        )
    except Exception as error:  # the library raises nearly everything: OSError, ValueError, ...
        if is_out_of_memory(error):
            raise
        here = Path(name).exists()
        if offline and not here:  # the library would say that it could not connect
            raise ModelError(
                f"The tokenizer of {name} is not on this machine; run once without --offline."
            ) from error
        where = "there" if here else "there or on the hub"
        first_line = str(error).strip().split("\n")[0]
        raise ModelError(
            f"No tokenizer for {name!r} could be loaded {where}: {first_line} "
            "Check the name, the network, or use the embedded model with --model pocket."
        ) from error
