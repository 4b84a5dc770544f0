"""Run Triton kernels without a GPU, in Triton's interpreter, which needs a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")

_PATCH = """
from triton.runtime import interpreter

patch = interpreter._patch_lang_tensor

def patched(tensor, *scope):
    # NumPy 2.4 converts no array of one element to a number, as the interpreter does.
    patch(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data.item())

interpreter._patch_lang_tensor = patched
"""


def interpreted(script: str, folder: Path) -> str:
    """Run a script that can import the modules in `folder`; return what it prints."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(folder), *filter(None, sys.path)])
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    command = [sys.executable, "-c", _PATCH + script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
