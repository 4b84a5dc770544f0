"""``python docs/research/lab/train.py``: see ``--help``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvstream.store import pocket
from kvstream_lab.synthetic.corpus import Corpus
from kvstream_lab.training.rows import Mixture
from kvstream_lab.training.shards import make_shards
from kvstream_lab.training.shipping import add_tokenizer, card
from kvstream_lab.training.train import Recipe, parse_lengths, train


def _of(options: argparse.Namespace, made: type[Mixture] | type[Recipe]) -> dict[str, Any]:
    """Return the options that are fields of ``made``."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(made)}


def _finish(
    options: argparse.Namespace, recipe: Recipe, mixture: Mixture, totals: dict[str, float]
) -> None:
    """Complete the folder of the weights: add tokenizer, scores and card."""
    from kvstream_lab.training.evaluate import evaluate

    folder = options.out / "model"
    add_tokenizer(folder)
    trials = options.trials
    scores = list(evaluate(folder, options.data, (256, 1024), trials)) if trials else []
    log = [json.loads(line) for line in (options.out / "log.jsonl").read_text().splitlines()]
    start = str(options.resume or options.start or "initial weights with an induction circuit")
    text = card(recipe, mixture, totals, start, Corpus(options.data).hashes(), log, scores)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _tokenizer(options: argparse.Namespace) -> None:
    from kvstream_lab.training.tokenizer import train_ranks, training_texts, write

    write(train_ranks(training_texts(options.data)), options.out, context=4096)


def _train(options: argparse.Namespace) -> None:
    """Train in this process on shards that others make."""
    recipe, mixture = Recipe(**_of(options, Recipe)), Mixture(**_of(options, Mixture))
    shards = options.shards or options.out / "shards"
    lengths = sorted({**parse_lengths(recipe.lengths), **parse_lengths(recipe.late_lengths)})
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(
            target=make_shards,
            args=(options.data, shards, recipe.seed + 1 + i, tuple(lengths), mixture),
            daemon=True,
        )
        for i in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    totals = train(recipe, shards, options.out, options.resume, options.start)
    for worker in workers:
        worker.terminate()
    _finish(options, recipe, mixture, totals)
    print(json.dumps(totals))


def _evaluate(options: argparse.Namespace) -> None:
    from kvstream_lab.training.evaluate import evaluate

    lengths = tuple(int(part) for part in options.lengths.split(","))
    tasks = tuple(filter(None, options.tasks.split(",")))
    asked = lengths, options.trials, options.seed, tasks, options.show
    for row in evaluate(options.model, options.data, *asked):
        print(json.dumps(row), flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands and return the exit status."""
    parser = argparse.ArgumentParser(description="Make the embedded model pocket.")
    commands = parser.add_subparsers(required=True)

    def add(name: str, text: str, act: Callable[[Any], None]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--data", type=Path, default=Path("../shared/data"))
        command.set_defaults(act=act)
        return command

    tokenizer = add("tokenizer", "learn the tokenizer and write its files to --out", _tokenizer)
    training = add("pocket", "train: data folder in, weights out", _train)
    for command in (tokenizer, training):
        command.add_argument("--out", type=Path, required=True)
    training.add_argument("--resume", type=Path, help="a state.pt to go on from")
    training.add_argument("--start", type=Path, help="a model folder to start from")
    training.add_argument("--shards", type=Path, help="folder of shards (default: OUT/shards)")
    training.add_argument("--trials", type=int, default=100, help="of each score of the card")
    training.add_argument("--workers", type=int, default=1, help="processes that make shards")
    for field in (*dataclasses.fields(Mixture), *dataclasses.fields(Recipe)):
        option = "--" + field.name.replace("_", "-")
        training.add_argument(option, type=type(field.default), default=field.default)
    score = add("evaluate", "score a model on held-out books and documents", _evaluate)
    score.add_argument("--model", type=Path, default=pocket.path())
    score.add_argument("--trials", type=int, default=100)
    score.add_argument("--lengths", default="256,1024")
    score.add_argument("--seed", type=int, default=0)
    score.add_argument("--tasks", default="", help="comma-separated; all when empty")
    score.add_argument("--show", type=int, default=0, help="print so many answers a task")
    options = parser.parse_args(arguments)
    options.act(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
