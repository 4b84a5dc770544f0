"""Print llama.cpp's token ids of texts.

    PYTHON tests/support/llamacpp_ids.py MODEL.gguf < texts.json > ids.json

PYTHON needs the package xllamacpp and nothing else. Imported as a module, this file finds such a
Python and runs itself in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.request import Request, urlopen

NAMED = os.environ.get("KVSTREAM_TEST_LLAMACPP")


def python() -> str | None:
    """Return a Python with xllamacpp: that of KVSTREAM_TEST_LLAMACPP, or this one; else None."""
    return NAMED or (sys.executable if find_spec("xllamacpp") else None)


def ids(interpreter: str, model: Path, texts: list[str]) -> list[list[int]]:
    """Return llama.cpp's ids of plain texts."""
    done = subprocess.run(
        [interpreter, __file__, str(model)],
        input=json.dumps(texts).encode(),
        capture_output=True,
        timeout=120,
        check=True,
    )
    found: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(model: str) -> None:
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = model
    settings.n_ctx, settings.n_parallel, settings.warmup = 64, 1, False
    settings.cpuparams.n_threads = 1
    server = xllamacpp.Server(settings)
    found = []
    for text in json.load(sys.stdin):
        body = {"content": text, "add_special": False, "parse_special": False}
        request = Request(
            f"{server.listening_address}/tokenize",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urlopen(request) as answer:
            found.append(json.load(answer)["tokens"])
    print(json.dumps(found), flush=True)
    os._exit(0)  # the server's threads do not end


if __name__ == "__main__":
    main(sys.argv[1])
