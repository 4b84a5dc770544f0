"""Compare adapters of `reader` on people's questions about held-out paragraphs, in large batches.

    python docs/research/lab/reader_compare.py --model FOLDER build/one build/two

Each RUN is the ``--out`` of `reader`; its adapter is merged into the base model
of FOLDER. The script asks with transformers, without a budget, so that a GPU answers a thousand
questions in seconds. It leaves out the questions that reader_limit.py draws for --apart
(PART:QUESTIONS), so that those can measure the run that this script chooses. For each run and limit
on the log-odds of a refusal, the script prints a line of JSON. See docs/research/reader.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from kvstream.evaluation import metrics
from kvstream.run.prompt import REFUSAL
from kvstream.tokenization.loading import load_tokenizer
from kvstream.tokenization.tokenizer import Tokenizer
from kvstream_lab.synthetic.corpus import Corpus
from kvstream_lab.training.reader_rows import ReaderRows
from reader_limit import SETS, drawn, row
from support import Refusing, area

BATCH = 128
LENGTH = 32
"""Maximum number of tokens of an answer."""


def questions(data: Path, tokenizer: Tokenizer, apart: str, most: int) -> list[dict[str, Any]]:
    """Return a record of each question, with its accepted answers and the ids of its prompt."""
    corpus = Corpus(data, heldout=True)
    maker = ReaderRows(corpus, 0, tokenizer)
    head, maker._tail = maker.wordings[0]
    found = []
    for name in SETS:
        contexts = corpus.human(name)
        others: set[tuple[str, str]] = set()
        for sample in apart.split(","):
            first, end, count = map(int, sample.split(":"))
            for context, some in drawn(contexts, first, end, count):
                others |= {(context.text, question) for question, _ in some}
        for context, some in drawn(contexts, 0, len(contexts), len(contexts)):
            document = [*head, *tokenizer.encode(context.text, continuing=True)]
            some = [qa for qa in some if (context.text, qa[0]) not in others][:most]
            found += [
                {
                    "set": name,
                    "document": context.doc_id,
                    "accepted": context.accepted[question] if answer != REFUSAL else (),
                    "ids": document + maker._asked((question, answer))[0],
                }
                for question, answer in some
            ]
    return found


@torch.inference_mode()
def answer(model: Any, tokenizer: Tokenizer, batch: list[dict[str, Any]]) -> None:
    """Add to each record the log-odds of a refusal and the F1 of the answer without a refusal."""
    first = Refusing(tokenizer).first
    longest = max(len(record["ids"]) for record in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, record in enumerate(batch):
        ids[number, longest - len(record["ids"]) :] = torch.tensor(record["ids"])
        mask[number, longest - len(record["ids"]) :] = 1
    ids, mask = ids.to(model.device), mask.to(model.device)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    seen: Any = model(ids, attention_mask=mask, position_ids=positions, logits_to_keep=1)
    logits: Tensor = seen.logits[:, -1].float()
    refusing = logits[:, first].amax(1)
    logits[:, first] = -torch.inf
    odds = (refusing - logits.amax(1)).tolist()
    begun = logits.argmax(1, keepdim=True)
    more = model.generate(
        torch.cat([ids, begun], 1),
        attention_mask=torch.cat([mask, torch.ones_like(begun)], 1),
        do_sample=False,
        max_new_tokens=LENGTH - 1,
        eos_token_id=list(tokenizer.eos_ids),
        pad_token_id=tokenizer.eos_ids[0],
    )[:, longest:].tolist()
    for record, odd, said in zip(batch, odds, more, strict=True):
        ends = [i for i, token in enumerate(said) if token in tokenizer.eos_ids]
        text = tokenizer.decode(said[: ends[0]] if ends else said).strip()
        record["odds"] = odd
        accepted = record["accepted"]
        record["f1"] = metrics.best(metrics.f1, text, accepted) if accepted else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--apart", default="60:150:1,0:60:2")
    parser.add_argument("--questions", type=int, default=3, help="of a paragraph, at most")
    parser.add_argument("--limits", default="-1,-0.5,0,0.5,1,1.5")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    tokenizer = load_tokenizer(str(asked.model))
    records = questions(asked.data, tokenizer, asked.apart, asked.questions)
    records.sort(key=lambda record: len(record["ids"]))
    adversarial = np.array([not record["accepted"] for record in records])
    for run in asked.runs:
        base = AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32)
        merged: Any = PeftModel.from_pretrained(base, run / "adapter").merge_and_unload()
        model = merged.to(asked.device, torch.bfloat16).eval()
        for start in range(0, len(records), BATCH):
            answer(model, tokenizer, records[start : start + BATCH])
        ranked = area(np.array([record["odds"] for record in records]), adversarial)
        for limit in map(float, asked.limits.split(",")):
            print(json.dumps({"run": run.name, "area": round(ranked, 3)} | row(records, limit)))


if __name__ == "__main__":
    main()
