"""Gates of ``edgeinfinite``: how entries are folded into compressive memory, and how it is read.

A memory is ``M [K, F, E]`` and ``z [K, F]``, the sums of ``f(k)^T v`` and of ``f(k)`` over the
folded entries, where f(k) are F features of a key. A gate computes the features of keys and of
queries, and mixes what it reads from memory with the attention to the present entries. Each layer
has a gate, trained for the model (``python docs/research/lab/edgeinfinite.py train``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, linear

from kvstream.errors import UsageError
from kvstream.methods.base import LayerFacts, ModelFacts
from kvstream.methods.tools.learned import LearnedFile
from kvstream.methods.tools.scoring import grouped, ungrouped

FORMS = ("learned", "paper")


class Gate(nn.Module):
    """The common parts of both forms for one layer: the MLP of eq. 8, shared by the heads, and the
    gating vectors of eq. 9.

    Args:
        heads: query heads, each with a gating vector.
        dim: dimension of a value.
        hidden: width of the MLP.
    """

    file: ClassVar[str]
    """Default name of the file, in the folder of the model's weights."""

    def __init__(self, heads: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(hidden, dim) * (2 / dim) ** 0.5)
        self.b1 = nn.Parameter(torch.zeros(hidden))
        # Starts with almost no effect: memory reads as zero, and little attention is replaced.
        self.w2 = nn.Parameter(torch.zeros(dim, hidden))
        self.b2 = nn.Parameter(torch.zeros(dim))
        self.g = nn.Parameter(torch.full((heads, dim), -3.0))

    def mix(self, out: Tensor, values: Tensor) -> Tensor:
        """Return out [H, T, E] mixed with the MLP of what memory returned (eqs. 8, 9), float32."""
        mlp = linear(linear(values, self.w1, self.b1).relu(), self.w2, self.b2)
        return torch.lerp(out.float(), mlp, self.g.sigmoid()[:, None])

    def features(self, keys: Tensor) -> Tensor:
        """Return the features [K, n, F] of rotated keys [K, n, D]: float32, positive."""
        raise NotImplementedError

    def forward(
        self, query: Tensor, out: Tensor, lse: Tensor, memory: Tensor, norm: Tensor, asked: bool
    ) -> Tensor:
        """Return out [H, T, E] mixed with what rotated queries [H, T, D] read from memory.

        lse [H, T] is the log-sum-exp of the attention `out`. `asked` says whether a question
        selected what is in memory. H is a multiple of K.
        """
        raise NotImplementedError


class PaperGate(Gate):
    """Eqs. 5-9 of EdgeInfinite: features ELU + 1, and the same share of memory for every query."""

    file = "gate-paper.safetensors"

    def features(self, keys: Tensor) -> Tensor:
        return sigma(keys)

    def forward(
        self, query: Tensor, out: Tensor, lse: Tensor, memory: Tensor, norm: Tensor, asked: bool
    ) -> Tensor:
        looking = sigma(grouped(query, len(memory)))
        values = looking @ memory / (looking @ norm[..., None]).clamp_min(TINY)
        return self.mix(out, ungrouped(values, len(query))).to(out.dtype)


class LearnedGate(Gate):
    """Features trained to approximate the softmax, and a share of memory for each query.

    With ``f(k) = exp(k W_k + b_k)`` and ``f(q) = exp(q W_q + b_q)``, ``f(q) f(k)`` approximates
    ``exp(scale q k)``. So ``f(q) z`` is the mass that the folded entries would have in the softmax,
    and log-sum-exp merges them with the present entries as if all were attended to together.
    If no question selected them, they count less, by a learned factor per query head, and the MLP
    and the vectors of the paper follow.

    Args:
        kv_heads: K, each with its own features.
        key_dim: D.
        features: F.
    """

    file = "gate.safetensors"

    def __init__(
        self, kv_heads: int, key_dim: int, features: int, heads: int, dim: int, hidden: int
    ) -> None:
        super().__init__(heads, dim, hidden)
        self.offset = nn.Parameter(torch.full((heads,), -1.0))
        # Random features of exp(q k / sqrt(D)), without their norms (Performer, lemma 1).
        start = torch.randn(kv_heads, key_dim, features) / key_dim**0.25
        self.w_query, self.w_key = nn.Parameter(start), nn.Parameter(start.clone())
        self.b_query = nn.Parameter(torch.zeros(kv_heads, 1, features))
        # In place of the norms: at the start memory has little weight.
        self.b_key = nn.Parameter(torch.full((kv_heads, 1, features), -8.0))

    def features(self, keys: Tensor) -> Tensor:
        return self.logs_of_keys(keys).exp()

    def logs_of_keys(self, keys: Tensor) -> Tensor:
        """Return the logarithms [K, n, F] of the features of keys [K, n, D]."""
        return (keys.float() @ self.w_key + self.b_key).clamp_max(HIGHEST)

    def logs_of_queries(self, queries: Tensor) -> Tensor:
        """Return the logarithms [K, n, F] of the features of queries [K, n, D]."""
        return queries.float() @ self.w_query + self.b_query

    def forward(
        self, query: Tensor, out: Tensor, lse: Tensor, memory: Tensor, norm: Tensor, asked: bool
    ) -> Tensor:
        looking = self.logs_of_queries(grouped(query, len(memory)))
        top = looking.amax(-1, keepdim=True)
        looking = (looking - top).exp()
        mass = (looking @ norm[..., None]).clamp_min(TINY)
        values = ungrouped(looking @ memory / mass, len(query))
        share = ungrouped(mass.log() + top, len(query)) - lse[..., None]
        if asked:
            return torch.lerp(out.float(), values, share.sigmoid()).to(out.dtype)
        share = share + self.offset[:, None, None]
        return self.mix(torch.lerp(out.float(), values, share.sigmoid()), values).to(out.dtype)


HIGHEST = 60.0
"""Maximum logarithm of a feature of a key, so that sums over an endless stream stay finite."""
TINY = 1e-30
"""Minimum of a normalizer, so that an empty memory reads as zero."""


def sigma(x: Tensor) -> Tensor:
    """Return ELU + 1 in float32, the feature map of linear attention; always positive."""
    return elu(x.float()) + 1


def new_gate(form: str, layer: LayerFacts, features: int, hidden: int) -> Gate:
    """Return an untrained gate; `features` is for the form ``learned``."""
    of_values = (layer.query_heads, layer.value_dim, hidden)
    if form == "paper":
        return PaperGate(*of_values)
    return LearnedGate(layer.heads, layer.key_dim, features, *of_values)


def load_gates(form: str, file: str, model: ModelFacts, rows: int | None = None) -> dict[int, Gate]:
    """Return the gates of a model by layer. Raise UsageError if they are missing or do not fit.

    `rows`: rows of the memory, to which the number of learned features must be equal; None: any.
    """
    name = (PaperGate if form == "paper" else LearnedGate).file
    option = " --form paper" if form == "paper" else ""
    remedy = (
        f"train one in a clone with `python docs/research/lab/edgeinfinite.py train --model "
        f"{model.name} --data FOLDER --out {name}{option}` and name it with --set "
        f"edgeinfinite.gate={name}."
    )
    weights = LearnedFile(model, "edgeinfinite", "a gate", name, file, remedy)

    def new(layer: LayerFacts, own: Mapping[str, Tensor]) -> Gate:
        if own and ("w_key" in own) != (form == "learned"):
            (other,) = {*FORMS} - {form}
            raise UsageError(
                f"{weights.path} is a gate of the form {other}, and the form {form} was asked for; "
                f"use --set edgeinfinite.form={other}, or {remedy}"
            )
        features, hidden = (_last_size(own.get(name)) for name in ("b_key", "b1"))
        return new_gate(form, layer, features, hidden)

    gates = weights.layers("layers.{}.", new)
    for number, gate in gates.items():
        if isinstance(gate, LearnedGate) and rows not in (None, gate.b_key.shape[-1]):
            features = gate.b_key.shape[-1]
            raise UsageError(
                f"The gate of layer {number} has {features} features, and a memory of {rows} "
                f"rows was asked for; use --set edgeinfinite.features={features}."
            )
    return gates


def _last_size(tensor: Tensor | None) -> int:
    return 1 if tensor is None or tensor.ndim == 0 else max(1, tensor.shape[-1])
