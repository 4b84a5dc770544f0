"""Run ``kvstream bench`` with kept entries at the positions where they were read.

See docs/research/methods.md.

    python docs/research/lab/positions.py bench needle --lengths 4k,8k --budget 1k

InfiniPot resets positions: kept entries move to 0, 1, 2, ... and the chunk follows. Here every
entry keeps its position in the text instead, so positions pass the trained length of the model.
Everything else is the program as it is, and so is what it prints.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvstream.cli import main
from kvstream.model.cache import BoundedCache
from kvstream.model.layer_store import LayerStore
from kvstream.model.rotary import Rotary


def places(store: LayerStore) -> Tensor:
    """Return positions in the whole text [K, raw]: the prompt's own, then those of the source."""
    origin = store.origin[:, : store.unrotated]
    prompt = int((origin[0] < 0).sum())
    own = torch.arange(store.unrotated, device=origin.device).expand_as(origin)
    return torch.where(origin < 0, own, origin + prompt).long()


def turned(rotary: Rotary, keys: Tensor, where: Tensor) -> Tensor:
    cos, sin = (table[where] for table in rotary.angles.at(0, int(where.max()) + 1))
    part = keys[..., : rotary.width].float()
    # The model's function takes one row of angles for all heads, so pass each head as a sequence.
    out = rotary.apply(part[:, None], part[:, None], cos, sin)[1][:, 0].to(keys.dtype)
    return torch.cat((out, keys[..., rotary.width :]), dim=-1)


def rotated_keys(self: LayerStore, base: int, scratch: Tensor | None) -> Tensor:
    keys = self.keys[:, : self.used]
    if scratch is not None:  # to the type that the model computes in
        keys = keys.to(scratch.dtype)
    if not self.turns:
        return keys
    assert self.spec.rotary is not None
    old = turned(self.spec.rotary, keys[:, : self.unrotated], places(self))
    return torch.cat((old, keys[:, self.unrotated :]), dim=1)


def rebase(self: BoundedCache) -> None:
    self.base = max(int(places(s).max()) + 1 if s.unrotated else 0 for s in self.stores)


LayerStore.rotated_keys = rotated_keys  # type: ignore[method-assign]
BoundedCache.rotate = lambda self: None  # type: ignore[method-assign]  # `rotated_keys` does it
BoundedCache.rebase = rebase  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
