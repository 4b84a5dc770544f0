"""Load tokenizers, and open sources as streams of tokens."""

from __future__ import annotations

import json
import os
import time
from itertools import product
from pathlib import Path
from typing import Any

from kvstream.errors import ModelError, is_out_of_memory
from kvstream.store import pocket
from kvstream.tokenization.forms import WordForms
from kvstream.tokenization.stream import TokenBatch, TokenStream
from kvstream.tokenization.tokenizer import Decoder, Tokenizer

__all__ = ["Decoder", "TokenBatch", "TokenStream", "Tokenizer", "WordForms", "load_tokenizer"]


_TRIAL = "The key, No. 12, is \u00e9 \u8a9e.\n\n" + "a" * 40 + "!"
_RUNS = ("a", "e", "1", " ", "\n", "-", "A", "\u00e9", "x ", "the ", "No. 12, ")
"""Pieces to repeat. Patterns with much backtracking do most of it on such runs."""
_SIZES = [2**n for n in range(4, 13)]
"""Characters of a run. Shorter runs come first, to find a bad pattern early."""
_MOST_S = 1.0
"""Maximum seconds to encode a run. A good tokenizer takes milliseconds."""


def load_tokenizer(
    name: str, revision: str | None = None, offline: bool = False, trust_remote_code: bool = False
) -> Tokenizer:
    """Load the tokenizer of a hub id, a local folder, or ``pocket``. Raises ModelError."""
    if name == "pocket" or Path(name).absolute() == pocket.path():
        from kvstream.tokenization.tiktoken import TiktokenTokenizer

        config = json.loads((pocket.path() / "tokenizer_config.json").read_text("utf-8"))
        return TiktokenTokenizer(
            pocket.encoding(), bos=pocket.BOS, eos=pocket.EOS, template=config["chat_template"]
        )
    from kvstream.tokenization.huggingface import HubTokenizer

    wrapper = _wrapper(name, revision, offline, trust_remote_code)
    backend = getattr(wrapper, "backend_tokenizer", None)
    if backend is None or not getattr(wrapper, "is_fast", False):
        raise ModelError(
            f"The tokenizer of {name} ({type(wrapper).__name__}) has no fast version, and others "
            "cannot be streamed faithfully; choose a model that comes with a tokenizer.json."
        )
    try:
        tokenizer = HubTokenizer(backend, wrapper, name)
        tokenizer.encode(_TRIAL)
        _try_runs(tokenizer)
        return tokenizer
    except BaseException as error:  # a Rust panic is not an Exception
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
    """Raise TimeoutError if encoding repeated text takes too long."""
    for size, run in product(_SIZES, _RUNS):
        began = time.monotonic()
        tokenizer.encode((run * size)[:size] + "!")
        took = time.monotonic() - began
        if took > _MOST_S:
            raise TimeoutError(f"{size:,} characters of {run!r} take {took:.1f} s")


def _wrapper(name: str, revision: str | None, offline: bool, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            name, revision=revision, local_files_only=offline, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # the library raises many kinds: OSError, ValueError, ...
        if is_out_of_memory(error):
            raise
        here = os.path.exists(name)
        if offline and not here:  # the library's message would be that it could not connect
            raise ModelError(
                f"The tokenizer of {name} is not on this machine; run once without --offline."
            ) from error
        if os.path.isfile(os.path.join(name, "config.json")):
            _check_config(name, trust_remote_code)
        why = f"{type(error).__name__}: {str(error).strip().split(chr(10))[0].rstrip('.')}"
        if here and not os.path.isfile(os.path.join(name, "tokenizer.json")):
            why = "it has no tokenizer.json"
        remedy = "copy or download its files again" if here else "check the name and the network"
        raise ModelError(
            f"The tokenizer of {name!r} cannot be loaded: {why}; {remedy}, or use the embedded "
            "model with --model pocket."
        ) from error


def _check_config(name: str, trust_remote_code: bool) -> None:
    """Raises ModelError if config.json is what is wrong: transformers reads it first."""
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:
        if is_out_of_memory(error) or "trust_remote_code" in str(error):
            return
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise ModelError(
            f"The config.json of {name!r} cannot be used: {reason}; copy or download it again."
        ) from error
