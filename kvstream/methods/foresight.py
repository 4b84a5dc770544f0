"""Foresight: a small network, trained for the model, predicts what questions will ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from kvstream.methods.base import EntryTensor, ModelFacts, Step, setting
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scorer import LayerScorers, Scorer, load_scorers
from kvstream.methods.tools.scoring import pool, pooling_width

POSITIVE = 16.0
"""Added to every score, so that a token that fewer layers hold has a smaller sum."""


@dataclass(frozen=True)
class Foresight(ScoredMethod):
    """Keeps what a small network expects questions to ask for; needs no question.

    After KVzap (arXiv 2601.07891), which predicts the scores of another method. Here the network
    learned from questions: it predicts how much a question and its answer attend to a token, the
    maximum over all questions about a text. Its input is the unrotated keys of a token and its
    neighbors in a layer; the sum over the layers is the score. An entry gets its score once, when
    its chunk is read. Depending on the network, all heads of all layers keep the same tokens, or
    all heads of a layer do.

    ``foresight.py`` of the lab trains the network for a model. Without a network, kvstream refuses
    the method.
    """

    name: ClassVar[str] = "foresight"
    source: ClassVar[str] = "after KVzap"

    recent: int = setting(0, "newest tokens that always stay")
    pool: int = pooling_width(7)
    scorers: str = setting(
        "",
        "file with the trained network; foresight.safetensors in the folder of the model if not "
        "given",
    )

    def learned(self, model: ModelFacts) -> nn.ModuleDict:
        return load_scorers(model, self.scorers)

    @property
    def needs_keys(self) -> bool:
        return True

    def tensors(self) -> tuple[EntryTensor, ...]:
        return (EntryTensor("worth"),)

    def absorb(self, step: Step) -> None:
        if not step.new:
            return
        assert isinstance(step.learned, nn.ModuleDict)
        (layer,) = step.layers
        scorer = step.learned[str(layer)]
        assert isinstance(scorer, Scorer)
        keys = step.keys()[0, :, -step.new :]
        step.state["worth"][..., -step.new :] = scorer.in_blocks(keys) + POSITIVE

    def votes(self, step: Step) -> Tensor | None:
        return None if isinstance(step.learned, LayerScorers) else step.state["worth"]

    def score(self, step: Step) -> Tensor:
        found = step.state["worth"] if step.agreed is None else step.agreed
        return pool(found, step.origin, self.pool)
