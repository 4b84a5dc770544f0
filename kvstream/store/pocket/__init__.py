"""pocket, the embedded model: weights, tokenizer and card in the hub's file layout.

``AutoModelForCausalLM.from_pretrained(pocket.path())`` loads it. ``pocket.encoding()`` is its
tokenizer as a faster tiktoken encoding. Heavy modules are imported only when needed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tiktoken

BOS, EOS = "<|bos|>", "<|eos|>"
# The same pattern as in tokenizer.json; a test compares the two.
PATTERN = r"'(?:ll|ve|re|[sdmt])(?!\p{L})| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*\n+|\s+(?!\S)|\s+"


def path() -> Path:
    """Return the folder with ``model.safetensors``, ``config.json`` and the tokenizer's files."""
    return Path(__file__).resolve().parent


@cache
def encoding() -> tiktoken.Encoding:
    """Return the tokenizer as a tiktoken encoding of 8,192 tokens, with BOS 8190 and EOS 8191."""
    import base64

    import tiktoken

    lines = (path() / "pocket.tiktoken").read_text(encoding="ascii").splitlines()
    pairs = (line.split() for line in lines)
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    specials = {BOS: len(ranks), EOS: len(ranks) + 1}
    return tiktoken.Encoding(
        name="pocket", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=specials
    )
