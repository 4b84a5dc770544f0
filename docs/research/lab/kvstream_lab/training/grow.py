"""Turn idle heads of a trained model into heads that can copy.

After 5.8 million tokens, 16% of the first tokens of names in answers were right, and 99% of the
tokens after them. Only the induction circuit's heads in layer 1 had values and outputs that raise
the logit of the attended token (73%; 0% for every head of the later layers). So a later layer could
not output what it had found. But some KV heads of the later layers could be removed without a loss.
This module gives them values that read, and outputs that write, one half of the directions in which
the embeddings differ most. It draws their queries and keys at random and leaves them to training.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvstream_lab.training.initial import initial_model, pocket_config
from kvstream_lab.training.rows import ANSWER

HEAD = 64
QUERIES = 2  # query heads per KV head


@torch.no_grad()
def make_copying(
    weights: dict[str, Tensor],
    heads: list[tuple[int, int]],
    scales: list[float],
    strength: float = 0.15,
) -> dict[str, tuple[int, slice]]:
    """Overwrite KV heads in place with copying heads whose attention is nearly uniform.

    Args:
        weights: float32 weights by name.
        heads: (layer, KV head) pairs.
        scales: norm of the residual stream before each layer, relative to a normalized one; the
            outputs are proportional to it.
        strength: scale of the outputs.

    Returns:
        The overwritten parts: name to (dimension, slice).
    """
    generator = torch.Generator().manual_seed(0)
    embedding = weights["model.embed_tokens.weight"]
    width = embedding.shape[1]
    centered = embedding[:, 1:] - embedding[:, 1:].mean(0)
    directions = torch.zeros(2 * HEAD, width)
    directions[:, 1:] = torch.linalg.svd(centered, full_matrices=False)[2][: 2 * HEAD]
    touched: dict[str, tuple[int, slice]] = {}
    for index, (layer, head) in enumerate(heads):
        prefix = f"model.layers.{layer}.self_attn."
        norm = weights[f"model.layers.{layer}.input_layernorm.weight"]
        read = directions[HEAD * (index % 2) :][:HEAD]
        queries = slice(head * QUERIES * HEAD, (head + 1) * QUERIES * HEAD)
        keys = slice(head * HEAD, (head + 1) * HEAD)
        drawn = torch.randn(3 * HEAD, width, generator=generator) * width**-0.5
        weights[prefix + "q_proj.weight"][queries] = drawn[: QUERIES * HEAD]
        weights[prefix + "k_proj.weight"][keys] = drawn[QUERIES * HEAD :]
        weights[prefix + "v_proj.weight"][keys] = read / norm
        out = strength * scales[layer] * read.T
        weights[prefix + "o_proj.weight"][:, queries] = torch.cat([out] * QUERIES, dim=1)
        touched[prefix + "q_proj.weight"] = (0, queries)
        touched[prefix + "k_proj.weight"] = (0, keys)
        touched[prefix + "v_proj.weight"] = (0, keys)
        touched[prefix + "o_proj.weight"] = (1, queries)
    return touched


def refit(state: dict[str, Any], heads: list[tuple[int, int]], scales: list[float]) -> None:
    """Turn heads of a saved training state into copying heads, in place, and reset their momentum.

    The state counts as a finished run, so the next run continues from it with its own schedule.
    """
    optimizer = state["optimiser"]
    for name, (dimension, part) in make_copying(optimizer["masters"], heads, scales).items():
        moment = optimizer["momentum"][name]
        moment.narrow(dimension, part.start, part.stop - part.start).zero_()
    state["progress"] = 1.0


def parse_heads(text: str) -> list[tuple[int, int]]:
    """Parse ``"2:0,5:1"`` into (layer, KV head) pairs."""
    pairs = [part.split(":") for part in text.split(",")]
    return [(int(layer), int(head)) for layer, head in pairs]


@torch.no_grad()
def idle_heads(
    state: dict[str, Any], ids: np.ndarray, codes: np.ndarray
) -> tuple[list[float], dict[str, float]]:
    """Measure the loss without each KV head, to find heads that can be removed.

    Args:
        state: a saved training state.
        ids: rows of tokens, [rows, length].
        codes: the codes of the tokens, as in :mod:`kvstream_lab.training.rows`.

    Returns:
        The norm of the residual stream before each layer, relative to a normalized one; and the
        loss on answers, with all heads (``"all"``) and without each head (``"layer:head"``).
    """
    weights = state["optimiser"]["masters"]
    recipe = state["recipe"]
    shape = [recipe[name] for name in ("layers", "width", "heads", "inner")]
    model = initial_model(pocket_config(*shape)).eval()
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    tokens = torch.from_numpy(ids.astype(np.int64))
    wanted = torch.from_numpy(codes[:, 1:] == ANSWER)

    def loss() -> float:
        logits = model(tokens).logits[:, :-1]
        return float(torch.nn.functional.cross_entropy(logits[wanted], tokens[:, 1:][wanted]))

    streams = model(tokens[:4], output_hidden_states=True).hidden_states or ()
    scales = [float(h.norm(dim=-1).mean()) / h.shape[-1] ** 0.5 for h in streams[:-1]]
    losses = {"all": loss()}
    for number, layer in enumerate(model.model.layers):
        out = layer.self_attn.o_proj.weight
        for head in range(out.shape[1] // (QUERIES * HEAD)):
            columns = slice(head * QUERIES * HEAD, (head + 1) * QUERIES * HEAD)
            kept = out[:, columns].clone()
            out[:, columns] = 0.0
            losses[f"{number}:{head}"] = loss()
            out[:, columns] = kept
    return scales, losses
