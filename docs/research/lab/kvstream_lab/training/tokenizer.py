"""The tokenizer of pocket: byte-level BPE, one token per digit, 8,192 entries.

It is stored in two files that agree token for token: ``pocket.tiktoken`` (ranks) and
``tokenizer.json`` (Hugging Face). tiktoken merges any neighbors whose union has a rank, Hugging
Face only listed pairs. So the list of merges is built from the ranks, with every pair that makes a
token, not only the pair found in training.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from kvstream.evaluation.splits import is_heldout
from kvstream.store.pocket import BOS, EOS, PATTERN
from kvstream.tokenization.tokenizer import byte_alphabet

VOCABULARY = 8192
STRETCH = 110_000
"""Characters of each book that the tokens come from."""
# System text, if any, has its own line. The document is in the user's message, and the question is
# its last line.
CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message['content'] is string -%}{%- set text = message['content'] -%}"
    "{%- else -%}{%- set text = message['content'] | map(attribute='text') | join('') -%}"
    "{%- endif -%}"
    "{%- if message['role'] == 'system' -%}{{- text + '\\n' -}}"
    "{%- elif message['role'] == 'assistant' -%}{{- '\\nAnswer: ' + text -}}"
    "{%- else -%}{{- text -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '\\nAnswer:' -}}{%- endif -%}"
)


def training_texts(data: Path) -> list[str]:
    """Return the texts to learn tokens from.

    They are a stretch of every book, all passages and all questions, without the held-out ones.
    """
    rng = random.Random(0)
    texts: list[str] = []
    for file in sorted((data / "books").glob("*.txt.gz")):
        if is_heldout(file.name.removesuffix(".txt.gz")):
            continue
        book = gzip.decompress(file.read_bytes()).decode("utf-8")
        start = rng.randrange(max(1, len(book) - STRETCH))
        texts += book[start : start + STRETCH].split("\n\n")
    for file in sorted((data / "qa").glob("*.jsonl.gz")):
        seen: set[str] = set()
        if "stories" in file.name:
            continue
        for line in gzip.decompress(file.read_bytes()).decode("utf-8").splitlines():
            record = json.loads(line)
            if is_heldout(record["doc_id"]):
                continue
            if record["context"] not in seen:
                seen.add(record["context"])
                texts.append(record["context"])
            texts.append(f"\nQuestion: {record['question']}\nAnswer:")
    return texts


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    # Words include the space before them, digits do not: the digit in " 4" and in "4" is then the
    # same token, so a number is copied digit by digit wherever it occurs.
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train_ranks(texts: Iterable[str], vocabulary: int = VOCABULARY) -> dict[bytes, int]:
    """Learn the tokens from ``texts``. Return bytes to rank, without the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 2,
        initial_alphabet=list(byte_alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    back = byte_alphabet()
    learned = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return {bytes(back[c] for c in token): rank for rank, (token, _) in enumerate(learned)}


def hub_tokenizer(ranks: dict[bytes, int]) -> Tokenizer:
    """Return the Hugging Face tokenizer that encodes exactly as tiktoken does with ``ranks``."""
    signs = {byte: sign for sign, byte in byte_alphabet().items()}

    def visible(token: bytes) -> str:
        return "".join(signs[b] for b in token)

    merges = []
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [(ranks[a], ranks[b], a, b) for a, b in pairs if a in ranks and b in ranks]
        merges += [(visible(a), visible(b)) for _, _, a, b in sorted(known)]
    vocabulary = {visible(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B",
        special_tokens=[(BOS, len(ranks)), (EOS, len(ranks) + 1)],
    )
    return tokenizer


def write(ranks: dict[bytes, int], folder: Path, context: int) -> None:
    """Write ``pocket.tiktoken``, ``tokenizer.json`` and ``tokenizer_config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (folder / "pocket.tiktoken").write_text("".join(lines), encoding="ascii")
    hub_tokenizer(ranks).save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
