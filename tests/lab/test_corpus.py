"""The data folder that training reads."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kvstream_lab.synthetic.corpus import HUMAN_FILES, SENTENCES, Corpus


def test_what_a_data_folder_lacks_is_named_and_documented(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no books/\*\.txt\.gz whose name is not held"):
        Corpus(tmp_path)
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt.gz").write_bytes(gzip.compress(b"A book."))
    with pytest.raises(FileNotFoundError, match=r"has no qa/squad_dev_train\.jsonl\.gz"):
        Corpus(tmp_path)
    page = Path(__file__).parents[2] / "docs/research/lab/README.md"
    written = page.read_text(encoding="utf-8")
    assert [name for name in (*HUMAN_FILES, SENTENCES) if f"`{name}`" not in written] == []
