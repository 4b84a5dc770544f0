"""Initial weights that can already copy: an induction circuit in a plain Llama.

A small model that trains for an hour needs most of it to discover "find an earlier occurrence of
this token, and predict the token after it". The circuit needs two heads (Olsson et al. 2022,
"In-context Learning and Induction Heads"), so it is written into the weights before the first step:

* dimension 0 of every embedding is the same constant: a bias that attention can read;
* layer 0, first KV head: keys and one query head read only that constant, on the fast rotary pairs
  and one position apart, so the head attends to the token before; its value goes into the
  subspace ``Q`` of the residual stream (``before`` in the code);
* layer 1, every KV head: queries read the current token (``P``, ``own``), keys read the token
  before (``Q``), on the slow rotary pairs, which depend little on distance; the value, the entry's
  own token (``P2``, ``copy``), is written to where the tied embeddings read it as the next token.

All other weights start small, as usual. No weight is frozen: training changes all of them.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

FAST_PAIRS = 10
SLOW_PAIRS = 16
ROPE_THETA = 5e5


def pocket_config(
    layers: int = 6, width: int = 256, heads: int = 4, inner: int = 768, vocabulary: int = 8192
) -> LlamaConfig:
    """Return pocket's shape: head dimension 64, two query heads per KV head, tied embeddings."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=64,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
        pad_token_id=vocabulary - 1,
        architectures=["LlamaForCausalLM"],
    )


@torch.no_grad()
def initial_model(config: LlamaConfig, seed: int = 0) -> LlamaForCausalLM:
    """Return a float32 model with the circuit in its weights."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).float()
    width, head = config.hidden_size, int(config.head_dim or 64)
    layers = model.model.layers

    embedding = model.get_input_embeddings().weight  # [vocabulary, width]
    embedding.normal_(0.0, 0.2)
    embedding[:, 0] = 0.8
    model.model.norm.weight.fill_(0.15)
    for layer in layers:
        for matrix in layer.parameters():
            if matrix.dim() == 2:
                matrix.normal_(0.0, matrix.shape[1] ** -0.5)
        layer.self_attn.o_proj.weight.mul_(0.2)
        layer.mlp.down_proj.weight.mul_(0.2)

    # Three orthonormal projections [head, width] that ignore the constant dimension.
    basis = torch.zeros(3 * head, width)
    basis[:, 1:] = torch.linalg.qr(torch.randn(width - 1, 3 * head))[0].T
    own, before, copy = basis.split(head)

    pairs = torch.arange(FAST_PAIRS)
    speed = ROPE_THETA ** (-2.0 * pairs / head)  # radians per position
    strength = 1.5
    first = layers[0].self_attn
    first.k_proj.weight[:head] = 0.0
    first.k_proj.weight[pairs, 0] = strength
    first.q_proj.weight[:head] = 0.0
    first.q_proj.weight[pairs, 0] = strength * speed.cos()
    first.q_proj.weight[pairs + head // 2, 0] = -strength * speed.sin()
    first.v_proj.weight[:head] = own
    first.o_proj.weight[:, :head] = 0.5 * before.T

    beta = 2.5
    slow = torch.arange(head // 2 - SLOW_PAIRS, head // 2)
    slow = torch.cat([slow, slow + head // 2])
    second = layers[1].self_attn
    kv_heads = int(config.num_key_value_heads or config.num_attention_heads)
    queries_per_head = config.num_attention_heads // kv_heads
    for index in range(kv_heads):
        rows = slice(index * head, (index + 1) * head)
        query_rows = slice(index * queries_per_head * head, (index * queries_per_head + 1) * head)
        key, query = torch.zeros(head, width), torch.zeros(head, width)
        key[slow] = 2 * beta * before[slow]
        query[slow] = beta * own[slow]
        second.k_proj.weight[rows] = key
        second.q_proj.weight[query_rows] = query
        second.v_proj.weight[rows] = copy
        second.o_proj.weight[:, query_rows] = 2.5 * copy.T / kv_heads
    return model
