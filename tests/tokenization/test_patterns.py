"""Patterns in tokenizer.json that take forever, or on which the library fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_control import bytewise, special
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kvstream.errors import ModelError
from kvstream.tokenization import loading
from kvstream.tokenization.loading import load_tokenizer

CATASTROPHIC = {
    "exponential": "(a+)+b",
    "digits": "(1|1)+2",
    "two letters": "(?:(?:e|ee)+)+Q",
}


def folder(path: Path, pattern: str, *, normalizer: bool = False) -> str:
    backend = special(bytewise(), "<s>", "</s>")
    if normalizer:
        backend.normalizer = normalizers.Replace(Regex(pattern), "~")
    else:
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([cut, backend.pre_tokenizer])
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(backend.to_str())).save_pretrained(
        path
    )
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return str(path)


@pytest.mark.parametrize("normalizer", [False, True], ids=["cut", "normalizer"])
@pytest.mark.parametrize("name", CATASTROPHIC)
def test_a_bad_pattern_is_refused_at_once(name: str, normalizer: bool, tmp_path: Path) -> None:
    model = folder(tmp_path, CATASTROPHIC[name], normalizer=normalizer)
    with pytest.raises(ModelError, match="fails on a trial text"):
        load_tokenizer(model, offline=True)


def test_a_slow_pattern_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = folder(tmp_path, "a+")
    load_tokenizer(model, offline=True)
    monkeypatch.setattr(loading, "_MOST_S", -1.0)
    with pytest.raises(ModelError, match=r"16 characters of .* take \d"):
        load_tokenizer(model, offline=True)


@pytest.mark.parametrize("verbose", [False, True])
def test_the_library_prints_above_our_error_only_with_v(
    tmp_path: Path, verbose: bool, warm: list[str]
) -> None:
    """Neither loading nor encoding a text that the check on loading did not try prints more."""
    program = """
import sys
from kvstream.cli import main
from kvstream.cli import app
from kvstream.tokenization.loading import load_tokenizer
def run(arguments):
    for model in arguments[:2]:
        try:
            load_tokenizer(model, offline=True).encode("zq" * 60)
        except BaseException as error:
            print(type(error).__name__)
    return 0
app.run = run
main()
"""
    patterns = (("a", "(a+)+b"), ("zq", "(?:(?:zq|zqzq)+)+Q"))
    models = [folder(tmp_path / name, pattern) for name, pattern in patterns]
    (tmp_path / "program.py").write_text(program)
    python = [sys.executable] if verbose else warm  # -v must come before the imports
    done = subprocess.run(
        [*python, str(tmp_path / "program.py"), *models, *(["-v"] * verbose)],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ModelError\nPanicException\n"), done.stderr
    assert done.stderr.count("panicked at") == (2 if verbose else 0)
    assert verbose or done.stderr == ""
