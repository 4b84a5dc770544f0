"""Measure whether pocket can tell questions without an answer from those that have one.

    python docs/research/lab/refusals.py MODEL_FOLDER DATA_FOLDER [TRIALS]

For every task the script takes the log-odds of a refusal's first token against the best other one.
For each pair of tasks it prints the area under the ROC curve, and the share of questions without an
answer that are recognized where a tenth of the answerable ones would be refused. This is what a
threshold could reach, wherever the model itself puts it.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from kvstream.run.prompt import REFUSAL
from kvstream_lab.training.evaluate import TASKS, Trials

UNANSWERABLE = ("refusal-human", "refusal-facts")
ANSWERABLE = ("squadshifts", "fairytale", "rules", "facts")
LENGTH = 1024


@torch.inference_mode()
def odds(model: torch.nn.Module, data: Path, task: str, trials: int) -> np.ndarray:
    """Return the log-odds of a refusal [trials]."""
    maker, found = Trials(data, seed=0), []
    encode, bos = maker.maker.encode, maker.maker.bos
    refusal = encode(f" {REFUSAL}")[0]
    for _ in range(trials):
        document, question, _accepted = TASKS[task](maker, LENGTH)
        prompt = [bos, *encode(document), *encode(f"\nQuestion: {question}\nAnswer:")]
        logits = model(torch.tensor([prompt])).logits[0, -1]
        refusing = logits[refusal].item()
        logits[refusal] = -torch.inf
        found.append(refusing - logits.max().item())
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("data", type=Path)
    parser.add_argument("trials", nargs="?", type=int, default=100)
    options = parser.parse_args()
    folder, data, trials = options.folder, options.data, options.trials
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = {task: odds(model, data, task, trials) for task in UNANSWERABLE + ANSWERABLE}
    for absent in UNANSWERABLE:
        for present in ANSWERABLE:
            area = (found[absent][:, None] > found[present][None]).mean()
            limit = np.quantile(found[present], 0.9)
            recognized = (found[absent] > limit).mean()
            print(f"{absent} / {present}: area {area:.2f}, recognized at 10% {recognized:.0%}")


if __name__ == "__main__":
    main()
