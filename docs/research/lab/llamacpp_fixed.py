"""Measure llama.cpp on one text in one setting: its GGUF file, flash attention, `ubatch` 128.

See docs/research/performance.md.

    python docs/research/lab/llamacpp_fixed.py FILE 2048 --llamacpp-python PATH

The script prints the measurements and the tokens per second of processor time.
`kvstream bench speed --against llamacpp` finds the best setting first, which takes a minute of
processor time.
"""

import argparse
from pathlib import Path

from kvstream.evaluation.speed.llamacpp import FULL, LLAMACPP, SPARE, gguf_of
from kvstream.evaluation.speed.outside import Process
from kvstream.session.session import Session
from kvstream.settings import ModelSettings

UBATCH = 128
WRITTEN = 12


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("tokens", type=int)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--llamacpp-python", required=True)
    args = parser.parse_args()
    session = Session.open(ModelSettings(args.model, device="cpu", threads=1))
    ids = [int(i) for i in session.tokenizer.encode(args.text.read_text("utf-8"))[: args.tokens]]
    process = Process(LLAMACPP, args.llamacpp_python)
    try:
        setting = {"threads": 1, "ubatch": UBATCH, "flash": True}
        context = len(ids) + 16 + WRITTEN + SPARE
        path = str(gguf_of(session.model))
        print(process.ask(model={"path": path, "context": context, **setting}))
        read = {"ids": ids, "question": ids[:16], "tokens": WRITTEN, "mode": FULL, "budget": None}
        found = process.ask(read=read)
    finally:
        process.close()
    print(found)
    print(f"{len(ids) / found['cpu_s']:.0f} tokens/s of processor time")


if __name__ == "__main__":
    main()
