"""Fast tokenizers of Hugging Face."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, pre_tokenizers

from kvstream.input.blocks import utf8_starts
from kvstream.streams import without_panics
from kvstream.tokenization import tokenizer
from kvstream.tokenization.control import Guard, frames, markers
from kvstream.tokenization.templates import time_limit

_NOWHERE = "\ue000\U000f0000\U0010fffd"
"""Private-use characters, which vocabularies do not contain."""


class HubTokenizer(tokenizer.Tokenizer):
    """A ``tokenizers`` backend, and the transformers wrapper with its names and chat template.

    The backend itself is not changed. Light copies that share its model encode: ``_plain`` for
    documents and ``_control`` for template text.
    """

    def __init__(self, backend: Backend, wrapper: Any = None, name: str = "") -> None:
        self.name = name
        self._backend = backend
        self._wrapper = wrapper
        added = backend.get_added_tokens_decoder()
        self.bos_id = getattr(wrapper, "bos_token_id", None)
        eos = getattr(wrapper, "eos_token_id", None)
        self.eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        template = str(getattr(wrapper, "chat_template", None) or "")
        around = frames(template, self.render) if template else ()
        # Some role markers are added tokens that are not declared special, but the template uses
        # them.
        control = {
            token.content
            for token in added.values()
            if token.special
            or (
                token.content.strip() and any(token.content in text for text in (template, *around))
            )
        }
        self.special_strings = tuple(sorted(control))
        self._plain = _Pair(backend, control)
        self._control = _Pair(backend, set())
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.highest = max((i for i in vocabulary.values() if i not in added), default=-1)
        self._pieces = _byte_pieces(backend, vocabulary)
        self._guard = Guard(
            _texts(backend, vocabulary),
            self._plain.places,
            self._control.places,
            {
                *(vocabulary[text] for text in control),
                *self.eos_ids,
                *([self.bos_id] if self.bos_id is not None else []),
            },
            # Added tokens with `single_word` are plain text next to other word characters.
            (markers(around, control) - control)
            | {token.content for token in added.values() if token.single_word} & control,
            self._unknown(backend),
        )
        pieces = self._pieces or [token.encode() for token in vocabulary]
        lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
        self.longest = max(int(lengths.max(initial=1)), self._guard.longest)
        self.crosses_words = tokenizer.any_crosses_words(pieces)
        self._lengths = lengths if self._pieces else None

    @property
    def has_template(self) -> bool:
        return bool(getattr(self._wrapper, "chat_template", None))

    def render(self, messages: list[dict[str, str]], **options: Any) -> str:
        with time_limit():
            text: str = self._wrapper.apply_chat_template(messages, tokenize=False, **options)
        return text

    def encode(self, text: str, *, continuing: bool = False) -> list[int]:
        text = tokenizer.without_surrogates(text)
        ids = np.array(self._plain.ids(text, continuing), dtype=np.int32)
        if not self._guard.clean(ids):
            ids = self._guard.mend(text, continuing)[0]
        return ids.tolist()

    def encode_template(self, text: str, *, continuing: bool = False) -> list[int]:
        return self._control.ids(tokenizer.without_surrogates(text), continuing)

    def controls(self, ids: Sequence[int]) -> int:
        return self._guard.count(ids)

    def between(self, before: Sequence[int], behind: Sequence[int]) -> list[int]:
        return self._guard.between(before, behind)

    @property
    def reach(self) -> int:
        return self._guard.reach

    def spans(self, text: str, *, continuing: bool = False) -> tokenizer.Spans:
        spans = self._spans(text, continuing)
        if self._guard.clean(spans.ids):
            return spans
        ids, chars, broken = self._guard.mend(text, continuing)
        return tokenizer.Spans(ids, chars if text.isascii() else utf8_starts(text)[chars], broken)

    def _spans(self, text: str, continuing: bool) -> tokenizer.Spans:
        """Return the spans of ``text`` without a check for control sequences."""
        if self._lengths is not None and self._unchanged(text):
            ids = np.array(self._plain.ids(text, continuing), dtype=np.int32)
            lengths = self._lengths[ids]
            ends = np.cumsum(lengths)
            size = len(text) if text.isascii() else len(text.encode())
            if (int(ends[-1]) if len(ends) else 0) == size:
                return tokenizer.Spans(ids, ends - lengths)
        # With a prefix, a normalizer or an unknown token, only the library knows the places.
        ids, chars, _ = self._plain.places(text, continuing)
        return tokenizer.Spans(ids, chars if text.isascii() else utf8_starts(text)[chars])

    def _unknown(self, backend: Backend) -> int | None:
        """Return the id of characters that are not in the vocabulary; None if they become bytes."""
        name = getattr(backend.model, "unk_token", None)
        if name:
            return backend.token_to_id(name)
        for char in _NOWHERE:
            ids = self._plain.ids(char, True)
            if len(ids) == 1:
                return ids[0]
        return None

    def _unchanged(self, text: str) -> bool:
        normalizer = self._backend.normalizer
        with without_panics():
            return normalizer is None or normalizer.normalize_str(text) == text

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def decoder(self) -> tokenizer.Decoder:
        if self._pieces is not None:
            return tokenizer.ByteDecoder(self._pieces, self.special_ids)
        return tokenizer.WindowDecoder(self)


class _Pair:
    """Two copies of a backend: for the beginning of a text, and for text that continues another."""

    def __init__(self, backend: Backend, control: set[str]) -> None:
        self._first = _copy(backend, first=True, control=control)
        self._later = _copy(backend, first=False, control=control)
        for copy in (self._first, self._later):
            copy.encode_special_tokens = bool(control)
        differ = any(
            _state(part, first=True) != _state(part, first=False)
            for part in (backend.normalizer, backend.pre_tokenizer)
        )
        added = backend.get_added_tokens_decoder().values()
        active = [token for token in added if token.content not in control]
        patterns = [(r"\s*" if t.lstrip else "") + re.escape(t.content) for t in active]
        self._inner = re.compile("|".join(patterns)) if active and differ else None

    def ids(self, text: str, continuing: bool) -> list[int]:
        """Return only ids: this function of the library spends no time on offsets."""
        ids: list[int] = []
        for backend, part in self._parts(text, continuing):
            with without_panics():
                ids += backend.encode_batch_fast([part], add_special_tokens=False)[0].ids
        return ids

    def places(self, text: str, continuing: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ids int32 [n], and the characters at which tokens begin and end, int64 [n]."""
        ids: list[int] = []
        offsets = [np.empty((0, 2), dtype=np.int64)]
        place = 0
        for backend, part in self._parts(text, continuing):
            with without_panics():
                encoding = backend.encode(part, add_special_tokens=False)
            ids += encoding.ids
            offsets.append(np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2) + place)
            place += len(part)
        begins, ends = np.concatenate(offsets).T
        return np.array(ids, dtype=np.int32), begins, ends

    def _parts(self, text: str, continuing: bool) -> list[tuple[Backend, str]]:
        """Split ``text`` by copy: some tokenizers add a prefix again after an added token."""
        if not continuing:
            return [(self._first, text)]
        match = self._inner.search(text) if self._inner is not None else None
        if match is None:
            return [(self._later, text)]
        return [(self._later, text[: match.start()]), (self._first, text[match.start() :])]


def _copy(backend: Backend, *, first: bool, control: set[str]) -> Backend:
    """Return a light copy of a tokenizer, which shares its model.

    The copy has no post-processor, which would trim offsets. Unless ``first``, it adds no prefixes.
    Added tokens in ``control`` are declared special, so that they can be disabled.
    """
    copy = Backend(backend.model)
    states: dict[str, Any] = {"post_processor": None}
    for name, kinds in (("normalizer", normalizers), ("pre_tokenizer", pre_tokenizers)):
        states[name] = state = _state(getattr(backend, name), first=first)
        if state is not None:
            part = kinds.Sequence([])
            part.__setstate__(json.dumps(state).encode())
            setattr(copy, name, part)
    added = sorted(backend.get_added_tokens_decoder().items())
    for _, token in added:
        token.special = token.special or token.content in control
    copy.add_tokens([token for _, token in added])
    if any(copy.token_to_id(token.content) != number for number, token in added):
        # The ids have gaps, which only the complete JSON can restore.
        whole = json.loads(backend.to_str())
        whole |= states
        for token in whole["added_tokens"]:
            token["special"] = token["special"] or token["content"] in control
        copy = Backend.from_str(json.dumps(whole))
    copy.no_truncation()
    copy.no_padding()
    return copy


def _state(component: Any, *, first: bool) -> dict[str, Any] | None:
    if component is None:
        return None
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state if first else _without_prefix(state)


def _without_prefix(state: dict[str, Any]) -> dict[str, Any] | None:
    """Return a normalizer or pre-tokenizer for continuing text, which adds no prefix."""
    kind = state["type"]
    if kind == "Prepend":
        return None
    if kind == "Sequence":
        key = "normalizers" if "normalizers" in state else "pretokenizers"
        parts = [_without_prefix(part) for part in state[key]]
        return {**state, key: [part for part in parts if part is not None]}
    if kind == "Metaspace":
        return {**state, "prepend_scheme": "never"}
    if kind == "ByteLevel" and "add_prefix_space" in state:
        return {**state, "add_prefix_space": False}
    if kind == "Strip":
        return {**state, "strip_left": False}
    return state


def _texts(backend: Backend, vocabulary: dict[str, int]) -> list[str]:
    """Return the text of each id, without prefixes and suffixes that say where in a word it is."""
    prefix = getattr(backend.model, "continuing_subword_prefix", None) or ""
    suffix = getattr(backend.model, "end_of_word_suffix", None) or ""
    texts = [""] * (max(vocabulary.values(), default=-1) + 1)
    for token, number in vocabulary.items():
        texts[number] = token.removeprefix(prefix).removesuffix(suffix)
    return texts


def _byte_pieces(backend: Backend, vocabulary: dict[str, int]) -> list[bytes] | None:
    """Return the bytes of every token of a byte-level tokenizer, or None for other kinds."""
    pre_tokenizer = _state(backend.pre_tokenizer, first=True) or {"type": ""}
    parts = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    if not any(part["type"] == "ByteLevel" for part in parts):
        return None
    decoder = _state(backend.decoder, first=True)
    if decoder is None or decoder["type"] != "ByteLevel":
        return None
    back = tokenizer.byte_alphabet()
    table = {ord(char): chr(byte) for char, byte in back.items()}
    added = backend.get_added_tokens_decoder()
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, number in vocabulary.items():
        if number in added or not back.keys() >= set(token):
            pieces[number] = token.encode()
        else:
            pieces[number] = token.translate(table).encode("latin-1")
    return pieces
