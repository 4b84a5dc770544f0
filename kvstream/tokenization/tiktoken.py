"""The tokenizer of the embedded model: a tiktoken encoding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tiktoken

from kvstream.tokenization import tokenizer


class TiktokenTokenizer(tokenizer.Tokenizer):
    merges_from_left = True

    def __init__(
        self,
        encoding: tiktoken.Encoding,
        *,
        bos: str | None = None,
        eos: str | None = None,
        template: str | None = None,
    ) -> None:
        self.name = encoding.name
        self.bos_id = encoding.encode_single_token(bos) if bos else None
        self.eos_ids = (encoding.encode_single_token(eos),) if eos else ()
        self.special_strings = tuple(sorted(encoding.special_tokens_set))
        self.special_ids = frozenset(map(encoding.encode_single_token, self.special_strings))
        self._encoding = encoding
        self._template = template
        self._names = {"bos_token": bos or "", "eos_token": eos or ""}
        self._pieces = [_piece(encoding, token) for token in range(encoding.n_vocab)]
        self._lengths = np.array([len(piece) for piece in self._pieces], dtype=np.int64)
        self.longest = int(self._lengths.max())
        self.crosses_words = tokenizer.any_crosses_words(self._pieces)

    @property
    def has_template(self) -> bool:
        return self._template is not None

    @cached_property
    def _compiled(self) -> Any:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        return environment.from_string(self._template or "")

    def render(self, messages: list[dict[str, str]], **options: Any) -> str:
        text: str = self._compiled.render(messages=messages, **self._names, **options)
        return text

    def spans(self, text: str, *, continuing: bool = False) -> tokenizer.Spans:
        ids = np.array(self.encode(text), dtype=np.int32)
        ends = np.cumsum(self._lengths[ids])
        return tokenizer.Spans(ids, ends - self._lengths[ids])

    def encode(self, text: str, *, continuing: bool = False) -> list[int]:
        return self._encoding.encode_ordinary(tokenizer.without_surrogates(text))

    def encode_template(self, text: str, *, continuing: bool = False) -> list[int]:
        return self._encoding.encode(tokenizer.without_surrogates(text), allowed_special="all")

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        skip = self.special_ids if skip_special else frozenset()
        pieces = [self._pieces[token] for token in ids if token not in skip]
        return b"".join(pieces).decode("utf-8", "replace")

    def decoder(self) -> tokenizer.Decoder:
        return tokenizer.ByteDecoder(self._pieces, self.special_ids)


def _piece(encoding: tiktoken.Encoding, token: int) -> bytes:
    try:
        return encoding.decode_single_token_bytes(token)
    except KeyError:  # unused id
        return b""
