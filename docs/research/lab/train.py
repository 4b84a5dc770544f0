"""``python docs/research/lab/train.py``: see ``--help``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

from kvstream.store import pocket
from kvstream_lab.synthetic.corpus import Corpus
from kvstream_lab.training.rows import Mixture
from kvstream_lab.training.shards import make_shards
from kvstream_lab.training.shipping import add_tokenizer, card
from kvstream_lab.training.train import Recipe, parse_lengths, train


def _lengths(recipe: Recipe) -> tuple[int, ...]:
    both = {**parse_lengths(recipe.lengths), **parse_lengths(recipe.late_lengths)}
    return tuple(sorted(both))


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Make the embedded model pocket.")
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, text: str, *, data: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        if data:
            command.add_argument("--data", type=Path, default=Path("../shared/data"))
        return command

    tokenizer = add("tokenizer", "learn the tokenizer and write its files to --out")
    shards = add("shards", "make training rows, always a few shards ahead, until stopped")
    training = add("pocket", "train: data folder in, weights out")
    for command in (tokenizer, shards, training):
        command.add_argument("--out", type=Path, required=True)
    for command in (shards, training):
        for field in dataclasses.fields(Mixture):
            command.add_argument(f"--{field.name}", type=float, default=field.default)
    shards.add_argument("--seed", type=int, default=0)
    shards.add_argument("--lengths", default="128,256,512,1024,2048,4096")
    training.add_argument("--resume", type=Path, help="a state.pt to go on from")
    training.add_argument("--start", type=Path, help="a model folder to start from")
    training.add_argument("--shards", type=Path, help="folder of shards (default: OUT/shards)")
    training.add_argument("--trials", type=int, default=100, help="of each score of the card")
    training.add_argument("--workers", type=int, default=1, help="processes that make shards")
    for field in dataclasses.fields(Recipe):
        option = "--" + field.name.replace("_", "-")
        training.add_argument(option, type=type(field.default), default=field.default)
    score = add("evaluate", "score a model on held-out books and documents")
    score.add_argument("--model", type=Path, default=pocket.path())
    score.add_argument("--trials", type=int, default=100)
    score.add_argument("--lengths", default="256,1024")
    score.add_argument("--seed", type=int, default=0)
    score.add_argument("--tasks", default="", help="comma-separated; all when empty")
    score.add_argument("--show", type=int, default=0, help="print so many answers a task")
    mean = add("average", "write the mean of the weights of several model folders", data=False)
    mean.add_argument("models", type=Path, nargs="+", help="folders of models")
    mean.add_argument("--out", type=Path, required=True, help="a folder to be made")
    return parser


def _train(options: argparse.Namespace) -> None:
    """Train in this process on shards that others make."""
    recipe, mixture = Recipe(**_of(options, Recipe)), Mixture(**_of(options, Mixture))
    shards = options.shards or options.out / "shards"
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(
            target=make_shards,
            args=(options.data, shards, recipe.seed + 1 + i, _lengths(recipe), mixture),
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


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands and return the exit status."""
    options = _parser().parse_args(arguments)
    if options.command == "tokenizer":
        from kvstream_lab.training.tokenizer import train_ranks, training_texts, write

        write(train_ranks(training_texts(options.data)), options.out, context=4096)
    elif options.command == "shards":
        lengths = tuple(int(part) for part in options.lengths.split(","))
        mixture = Mixture(**_of(options, Mixture))
        make_shards(options.data, options.out, options.seed, lengths, mixture)
    elif options.command == "average":
        from kvstream_lab.training.average import average

        average(options.models, options.out)
    elif options.command == "evaluate":
        from kvstream_lab.training.evaluate import evaluate

        lengths = tuple(int(part) for part in options.lengths.split(","))
        tasks = tuple(filter(None, options.tasks.split(",")))
        for row in evaluate(
            options.model, options.data, lengths, options.trials, options.seed, tasks, options.show
        ):
            print(json.dumps(row), flush=True)
    else:
        _train(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
