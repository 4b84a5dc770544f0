"""Convert the tokenizer of a GGUF file to a tokenizer.json of the ``tokenizers`` library.

A GGUF file has a vocabulary, merges or scores, and in ``tokenizer.ggml.pre`` the name of the rule
that splits text into words before merging. The rules are those of llama.cpp
(src/llama-vocab.cpp). An unknown name is refused: with other tokens than in training, answers are
worse without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from kvstream.errors import ModelError
from kvstream.tokenization.tokenizer import byte_alphabet

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of tokens in ``tokenizer.ggml.token_type``."""
SPACE = "▁"
TEXT = frozenset((9, 10, 13, *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1)))
"""Bytes that occur in texts. Some vocabularies lack other bytes, such as control characters. Those
are left out of the text, as in llama.cpp."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"


def _words(digits: str, letters: str = _LETTERS, signs: str = _SIGNS, short: str = _SHORT) -> str:
    parts = (short, letters, digits, signs, _SPACES)
    return "|".join(part for part in parts if part)


def _by_case(behind: str) -> str:
    """Return a pattern of words in which capital letters come before lower-case letters."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{_UPPER}*{_LOWER}+{behind}|{start}{_UPPER}+{_LOWER}*{behind}"


_CASED_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LLAMA3 = _words(r"\p{N}{1,3}")
_QWEN2 = _words(r"\p{N}")
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_FINNISH = r" ?[^(\s|.,!?…。，、।۔،)]+"
DIGITS = "digits"
"""Stands for a split at every digit, then as in GPT-2. The library has components for both."""

SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (),
    "starcoder": (DIGITS,),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "qwen35": (
        _words(r"\p{N}", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),
    ),
    "tekken": (_words(r"\p{N}", _by_case(""), _CASED_SIGNS, ""),),
    "gpt-4o": (_words(r"\p{N}{1,3}", _by_case(f"{_SHORT}?"), _CASED_SIGNS, ""),),
    "deepseek-coder": (
        "[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"(?:(?!\s)[一-龥ࠀ-一가-퟿])+", r"\p{N}",
    ),
    "deepseek-v3": (r"\p{N}{1,3}", _CJK, _DEEPSEEK3),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "bloom": (_FINNISH,),
    "viking": (_FINNISH, r"\p{N}"),
    "seed-coder": (_words(r"\p{N}", signs=r" ?[^\s\p{L}\p{N}\r\n]+"),),
    "minicpm5": (r"\p{N}{1,3}", _words(r"\p{N}+")),
}  # fmt: skip
"""Patterns of each rule, applied in order: each splits the pieces of the one before. The empty
tuple is the library's built-in GPT-2 split."""
_SAME: dict[str, Iterable[str]] = {
    "gpt-2": (
        "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais", "trillion",
        "granite-docling",
    ),
    "starcoder": (
        "smollm", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2",
    ),
    "llama-bpe": (
        "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx",
        "smaug-bpe", "glm4", "chatglm-bpe",
    ),
    "qwen2": (
        "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open",
        "grok-2",
    ),
    "gpt-4o": ("llama4", "kanana2", "talkie", "minimax-m2"),
    "deepseek-v3": ("hunyuan-dense", "joyai-llm", "hy_v4"),
    "bloom": ("poro-chat", "gpt3-finnish"),
}  # fmt: skip
RULES = {same: name for name, others in _SAME.items() for same in (name, *others)} | {
    name: name for name in SPLITS
}
WHOLE_WORDS = {
    "minicpm5", "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
    "lfm2", "tekken",
}  # fmt: skip
"""Rules by which a word in the vocabulary is one token, regardless of the merges."""
BEGINS = WHOLE_WORDS - {"minicpm5"}
"""Rules by which a text begins with the BOS token unless the file says otherwise."""


def build(keys: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    """Build ``tokenizer.json`` and ``tokenizer_config.json`` from a header. Raises ModelError."""
    try:
        return _build(keys, name)
    except (TypeError, ValueError, AttributeError) as error:  # such as a number instead of a text
        raise ModelError(
            f"The tokenizer of {name} is damaged: a field of its header is of the wrong kind "
            f"({error}); download it again."
        ) from error


def _build(keys: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    table = {k.removeprefix("tokenizer.ggml."): v for k, v in keys.items()}
    tokens = table.get("tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelError(
            f"{name} has no tokenizer, so text cannot be turned into tokens; choose a file of this "
            "model that has one."
        )
    kinds = table.get("token_type") or [NORMAL] * len(tokens)
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ModelError(
            f"The vocabulary of {name} is damaged: it has {len(tokens):,} tokens, "
            f"{len(set(tokens)):,} of them different, and {len(kinds):,} kinds; download it again."
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = table.get("model")
    if model == "gpt2":
        backend = _byte_level(table, vocabulary, name)
    elif model == "llama":
        backend = _characters(
            _by_scores(table, vocabulary, kinds, name), table, vocabulary, kinds, name
        )
    elif model == "gemma4":
        backend = _characters(_by_lines(table, vocabulary, name), table, vocabulary, kinds, name)
    else:
        raise ModelError(
            f"The tokenizer of {name} is of the kind {model!r}, and kvstream rebuilds those of the "
            "kinds gpt2 (byte-level BPE), llama (SentencePiece BPE) and gemma4; choose the model "
            "in the hub's format, with its tokenizer.json."
        )
    # Tokens that are searched for before all else.
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind != USER_DEFINED)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (CONTROL, UNKNOWN, USER_DEFINED) and token
        ]
    )
    return backend.to_str(), _config(table, keys, tokens)


def _byte_level(table: Mapping[str, Any], vocabulary: dict[str, int], name: str) -> Tokenizer:
    """Build a BPE of bytes, within the words of a rule."""
    pre = table.get("pre", "default") or "default"
    if pre not in RULES:
        raise ModelError(
            f"The tokenizer of {name} cuts text by the rule {pre!r}, which kvstream does not know: "
            "it would read other tokens than the model was trained on. Choose the model in the "
            "hub's format, with its tokenizer.json, or update kvstream."
        )
    missing = [c for c, byte in byte_alphabet().items() if byte in TEXT and c not in vocabulary]
    if missing:
        raise ModelError(
            f"The tokenizer of {name} has no token for {len(missing)} bytes that texts are made "
            "of, so a part of every text would be lost; choose another file of this model."
        )
    bpe = models.BPE(vocabulary, _merges(table, vocabulary, name), ignore_merges=pre in WHOLE_WORDS)
    backend = Tokenizer(bpe)
    splits = SPLITS[RULES[pre]]
    cuts: list[Any]
    if splits in ((), (DIGITS,)):
        cuts = [pre_tokenizers.Digits(individual_digits=True)] if splits else []
        cuts += [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    else:
        cuts = [pre_tokenizers.Split(Regex(split), "isolated") for split in splits]
        cuts += [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(cuts) if len(cuts) > 1 else cuts[0]
    backend.decoder = decoders.ByteLevel()
    return backend


Merges = list[tuple[str, str]]


def _by_scores(
    table: Mapping[str, Any], vocabulary: dict[str, int], kinds: list[int], name: str
) -> Merges:
    """Return merges in the order of the scores of their results, as in SentencePiece."""
    scores, tokens = table.get("scores"), list(vocabulary)
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError(f"The tokenizer of {name} has no scores; download the model again.")
    # Merges never make control tokens: text that spells one stays text.
    plain = [i for i, kind in enumerate(kinds) if kind in (NORMAL, USER_DEFINED)]
    order = sorted((i for i in plain if len(tokens[i]) > 1), key=lambda i: (-scores[i], i))
    return [pair for i in order for pair in _cuts(tokens[i], vocabulary)]


def _by_lines(table: Mapping[str, Any], vocabulary: dict[str, int], name: str) -> Merges:
    """Return the merges of the file, and those that join a run of line breaks to one token."""
    runs = sorted((token for token in vocabulary if token and not token.strip("\n")), key=len)
    joining = [pair for run in runs for pair in _cuts(run, vocabulary)]
    return _merges(table, vocabulary, name) + joining


def _cuts(token: str, vocabulary: dict[str, int]) -> Merges:
    """Return the pairs of tokens that make a token."""
    pairs = ((token[:place], token[place:]) for place in range(1, len(token)))
    return [pair for pair in pairs if vocabulary.keys() >= {*pair}]


def _merges(table: Mapping[str, Any], vocabulary: dict[str, int], name: str) -> Merges:
    """Read the merges of the file that make tokens: two texts with a space between them."""
    merges = table.get("merges")
    if not isinstance(merges, list):
        raise ModelError(f"The tokenizer of {name} has no merges; download the model again.")
    spaces = ((merge, merge.find(" ", 1)) for merge in merges)
    pairs = [(merge[:space], merge[space + 1 :]) for merge, space in spaces if space > 0]
    return [pair for pair in pairs if vocabulary.keys() >= {*pair, "".join(pair)}]


def _characters(
    merges: Merges,
    table: Mapping[str, Any],
    vocabulary: dict[str, int],
    kinds: list[int],
    name: str,
) -> Tokenizer:
    """Build a BPE of characters, with ``▁`` for spaces. Unknown characters become bytes."""
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary]
    if missing:
        raise ModelError(
            f"The tokenizer of {name} has no token for {len(missing)} of 256 bytes, so some text "
            "would be lost; choose another file of this model."
        )
    unknown = next((t for t, kind in zip(vocabulary, kinds, strict=True) if kind == UNKNOWN), None)
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    lines = table.get("model") == "gemma4"
    prefix = bool(table.get("add_space_prefix", not lines))
    put = [normalizers.Prepend(SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*put, normalizers.Replace(" ", SPACE)])
    if lines:
        # A run of line breaks is one token if the vocabulary has it; otherwise each is separate.
        runs = max((len(token) for token in vocabulary if not token.strip("\n")), default=1)
        cut = Regex(rf"(?<!\n)\n{{1,{runs}}}(?!\n)|\n")
        backend.pre_tokenizer = pre_tokenizers.Split(cut, "isolated")
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _config(table: Mapping[str, Any], keys: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """Return the special tokens and the chat template for ``tokenizer_config.json``."""
    template = keys.get("tokenizer.chat_template")
    begins = table.get("model") in ("llama", "gemma4") or table.get("pre") in BEGINS
    begins = bool(table.get("add_bos_token", begins))

    def token(name: str) -> str | None:
        number = table.get(f"{name}_token_id")
        return tokens[number] if isinstance(number, int) and 0 <= number < len(tokens) else None

    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
    }
    if begins or "bos_token" in (template or ""):
        # Without a template, kvstream puts BOS before a text, and a model that was trained without
        # BOS must not read it. So it is only set if the rule, the file or the template uses it.
        config["bos_token"] = token("bos")
    if template:
        config["chat_template"] = template
    return {name: value for name, value in config.items() if value is not None}
