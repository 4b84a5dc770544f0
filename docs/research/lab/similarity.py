"""Measure whether `bumblebee` is better with other similarities than cosines cut at 0.

See docs/research/papers.md.

    python docs/research/lab/similarity.py bumblebee:algorithm=fast --kind fact \\
        --text ../shared/data/books/*.gz --heldout --trials 10

Documents and losses are those of `likelihood.py`, for the first case alone. Each similarity of
appendix D of the paper replaces the cosine in facility location: ``ReLU(cos)``, ``|cos|`` and
``(1 + cos) / 2``. This works only for `algorithm=fast` and `stochastic`: the others compare cosines
directly. The script prints the loss with each similarity, and its difference from ``ReLU(cos)`` on
the same documents, with a 95% interval over documents.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from kvstream.evaluation.intervals import difference_interval
from kvstream.methods.tools.submodular import Mixture
from likelihood import case_of, document, losses, opened, options

SIMILARITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU(cos)": lambda cosines: cosines,  # coverage starts at 0, which is the ReLU
    "|cos|": lambda cosines: cosines.abs(),
    "(1 + cos) / 2": lambda cosines: (1 + cosines) / 2,
}


@contextmanager
def replaced(similarity: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside the context, facility location uses this similarity, computed from the cosines."""
    covers, reach = Mixture.covers, Mixture.reach
    Mixture.covers = lambda g, rows: covers(g, similarity(rows))  # type: ignore[method-assign, assignment]
    Mixture.reach = lambda g, rows: reach(g, similarity(rows))  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Mixture.covers, Mixture.reach = covers, reach  # type: ignore[method-assign]


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--kind", choices=("passkey", "fact", "passage"), default="passage")
    parser.add_argument("--choices", type=int, default=1, help="answers to choose from")
    asked = parser.parse_args()
    session, filler = opened(asked)
    run = case_of(asked.cases[0], asked)
    depths = [float(d) for d in asked.depths.split(",")]
    found: dict[str, list[float]] = {name: [] for name in SIMILARITIES}
    chosen = dict.fromkeys(SIMILARITIES, 0)
    for trial in range(asked.trials):
        doc = document(session, filler, asked.kind, asked.tokens, depths, 1, asked.choices, trial)
        for name, similarity in SIMILARITIES.items():
            with replaced(similarity):
                pairs = losses(session, doc, run)
            found[name].append(statistics.fmean(loss for loss, _ in pairs))
            chosen[name] += sum(likeliest for _, likeliest in pairs)
    print(f"{asked.model}, {asked.kind}, {asked.tokens:,} tokens, {asked.trials} documents")
    base = found["ReLU(cos)"]
    for name, values in found.items():
        line = f"{name:15} {statistics.fmean(values):6.3f} nats a token"
        if values is not base and asked.trials > 1:
            changes = [a - b for a, b in zip(values, base, strict=True)]
            line += "  {:+.3f} ({:+.3f} to {:+.3f})".format(*difference_interval(changes))
        if asked.choices > 1:
            line += f"   chosen {chosen[name]} of {asked.trials * len(depths)}"
        print(line)


if __name__ == "__main__":
    main()
