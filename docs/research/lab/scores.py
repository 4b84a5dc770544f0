"""Measure scores that need no question and are not built in, compared with the built-in methods.

See docs/research/tried.md.

    python docs/research/lab/scores.py --save scores.jsonl --qa ... --text ... \
        --cases keydiff:pool=15 trial:score_of=expected,values=out

The script takes the options of `later_questions.py`, prints its table and adds the method `trial`,
which has these settings:

    score_of keydiff; expected (Expected Attention: the softmax of mu k / sqrt d + k Sigma k / 2d
             with the mean and the covariance of the chunk's queries under the mean rotation of the
             next 512 positions); catalyst (the attention of `infinipot`'s general catalyst);
             repeat (KVzip, chunk by chunk: the model repeats each chunk in blocks, and the score of
             an entry is the maximum attention of a repeated token, among prompt, sinks, block and
             repetition, measured once)
    values   none; norm: times |v|; out: times |W_O v| (CriticalKV)
    ahead    positions by which the catalyst's queries move forward
    pool     width of the max pooling
    block    tokens that the model repeats at once, at most an eighth of the budget
    recent   newest tokens that always stay
    shared   share of memory that all heads fill with the same entries, by the sum of their scores
             (as `infinipot`)
    each     whether the scores of each head are standardized before this sum
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AttentionInterface

import later_questions
from kvstream.engine.chunks import Chunk
from kvstream.engine.prefill import Prefill, StepPlan
from kvstream.methods import registry
from kvstream.methods.base import EntryTensor, Evidence, Step, setting
from kvstream.methods.infinipot import GENERAL
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scoring import best, pool, pooling_width, unlikeness
from kvstream.model import hook
from kvstream.model.attention import AttentionRequest, Shape

COMING = 512
"""Number of later positions over which a rotation is averaged."""
REPEAT = "Repeat the previous context exactly."
OVERLAP = 8
"""Tokens in front of a block that its repetition begins with."""
SCORES, VALUES = ("keydiff", "expected", "catalyst", "repeat"), ("none", "norm", "out")


@dataclass(frozen=True)
class Tried(ScoredMethod):
    """A method with the score that `score_of` names."""

    name: ClassVar[str] = "trial"

    score_of: str = setting("keydiff", "", choices=SCORES)
    values: str = setting("none", "", choices=VALUES)
    ahead: int = setting(0, "")
    pool: int = pooling_width(15, "")
    shared: float = setting(0.0, "", most=1)
    each: bool = setting(False, "standardize the scores of each head before they are summed")
    recent: int = setting(0, "")
    block: int = setting(128, "", least=16)

    def sized(self, budget: int) -> Tried:
        return dataclasses.replace(self, block=max(16, min(self.block, budget // 8)))

    def tensors(self) -> tuple[EntryTensor, ...]:
        return (EntryTensor("repeated"),) if self.score_of == "repeat" else ()

    def absorb(self, step: Step) -> None:
        if step.new and step.window_attention is not None:
            new = slice(-step.new, None)
            step.state["repeated"][..., new] = step.window_attention[..., new]

    @property
    def needs_keys(self) -> bool:
        return self.score_of == "keydiff" and not self.shared

    def evidence(self) -> Evidence:
        Measured.method = self
        return Evidence(window_attention=1)

    def catalyst(self, questions: Any) -> tuple[str, ...]:
        if self.score_of == "repeat":  # never read: it reserves room for a repetition
            return (" a" * (self.block + OVERLAP),)
        return (GENERAL,) if self.score_of == "catalyst" else ()

    def score(self, step: Step) -> Tensor:
        found = step.window_attention
        if self.score_of == "repeat":
            found = step.state["repeated"]
        if self.score_of == "keydiff":
            unlike = unlikeness(step.keys())
            if found is None or self.values == "none":
                found = unlike
            else:  # CriticalKV needs nonnegative scores
                apart = (unlike - unlike.mean(-1, keepdim=True)) / unlike.std(-1, keepdim=True)
                found = (apart + 3).clamp_min(0) * found
        assert found is not None
        return pool(found, step.origin, self.pool)

    def votes(self, step: Step) -> Tensor | None:
        if not self.shared:
            return None
        scores = self.score(step)
        if not self.each:
            return scores
        return (scores - scores.mean(-1, keepdim=True)) / scores.std(-1, keepdim=True)

    def newest(self, keep: int) -> int:
        return self.recent

    def select(self, step: Step, keep: int) -> Tensor:
        if step.agreed is None or step.votes is None:
            return super().select(step, keep)
        scores, recent = step.votes, min(self.recent, keep)
        common = int(self.shared * (keep - recent))
        ranked = step.agreed[..., : scores.shape[-1] - recent]
        chosen = ranked.topk(common, dim=-1, sorted=False).indices
        return best(scores.scatter(-1, chosen, torch.inf), keep, recent=recent)


class Measured:
    """Replaces the window attention of a layer by what `method` measures in its pass."""

    method: ClassVar[Tried | None] = None
    attention: ClassVar[Any] = None
    values: ClassVar[Tensor]
    repeated: ClassVar[tuple[int, int, int, int] | None] = None
    """Set while a pass repeats a block: the number of entries of prompt and sinks, how far in front
    of the pass the block begins, its length, and how many queries repeat it."""
    plain = staticmethod(hook.evidence)
    attending = staticmethod(hook.attend)

    @classmethod
    def attend(cls, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **more: Any) -> Any:
        cls.values = v
        return cls.attending(q, k, v, *rest, **more)

    @classmethod
    def run(cls, module: Any, *rest: Any, **more: Any) -> Any:
        cls.attention = module
        return hook.bounded_attention(module, *rest, **more)

    @classmethod
    def evidence(
        cls, q: Tensor, k: Tensor, lse: Tensor | None, shape: Shape, request: AttentionRequest
    ) -> tuple[Tensor | None, Tensor | None]:
        method = cls.method
        if method is None or not request.segments or method.score_of == "repeat":
            if cls.repeated is not None:
                return cls.repetition(q, k, shape.scale), None
            return cls.plain(q, k, lse, shape, request)
        if method.score_of == "catalyst":
            count = sum(request.segments)
            asking = q[:, -count:].clone() if method.ahead == 0 else cls.moved(q[:, -count:])
            scores = asking.float().unflatten(0, (k.shape[0], -1)) @ k.float()[:, None].mT
            hidden = torch.arange(k.shape[1]) > (k.shape[1] - count) + torch.arange(count)[:, None]
            scores = (scores * shape.scale).masked_fill(hidden, -torch.inf)
            found = scores.softmax(-1).sum(2).mean(1)
        elif method.score_of == "expected":
            found = cls.expected(q, k, shape.scale)
        else:
            found = torch.ones(k.shape[:2])
        if method.values != "none":
            found = found * cls.weight(method.values, q.shape[0])
        return found, None

    @classmethod
    def repetition(cls, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """Return [K, N]: the maximum attention of a repeating query to each entry of the block.

        It is 0 for all other entries.
        """
        assert cls.repeated is not None
        protected, back, length, asking = cls.repeated
        own = k.shape[1] - q.shape[1]
        first = own - back
        protected = min(protected, first)
        keys = torch.cat((k[:, :protected], k[:, first : first + length], k[:, own:]), 1).float()
        scores = q[:, -asking:].float().unflatten(0, (k.shape[0], -1)) @ keys[:, None].mT
        behind, place = torch.arange(q.shape[1]), torch.arange(q.shape[1] - asking, q.shape[1])
        scores[..., protected + length :].masked_fill_(behind > place[:, None], -torch.inf)
        paid = (scores * scale).softmax(-1)[..., protected : protected + length]
        found = torch.zeros(k.shape[:2])
        found[:, first : first + length] = paid.amax((1, 2))
        return found

    @classmethod
    def rotary(cls) -> tuple[Any, int]:
        cache, _ = hook._running.passes[-1]
        assert cache is not None
        store = cache.store(int(cls.attention.layer_idx))
        return store.spec.rotary, cache.next_position

    @classmethod
    def moved(cls, q: Tensor) -> Tensor:
        """Rotate queries to positions `ahead` further on."""
        assert cls.method is not None
        rotary, _ = cls.rotary()
        cos, sin = rotary.angles.at(cls.method.ahead, 1)
        return rotary._turn(q, cos.expand(q.shape[1], -1), sin.expand(q.shape[1], -1), None)

    @classmethod
    def expected(cls, q: Tensor, k: Tensor, scale: float) -> Tensor:
        rotary, end = cls.rotary()
        count = q.shape[1]
        plain = rotary.unrotate(q, end - count)
        first = min(end, rotary.angles._limit - COMING)
        cos, sin = (t.mean(0, keepdim=True) for t in rotary.angles.at(first, COMING))
        coming = rotary._turn(plain, cos.expand(count, -1), sin.expand(count, -1), None)
        mean = coming.mean(1, keepdim=True)  # [H, 1, D]
        apart = (coming - mean) / max(1, count - 1) ** 0.5
        keys = k.float()[:, None]  # [K, 1, N, D]
        mean, apart = (t.unflatten(0, (k.shape[0], -1)) for t in (mean, apart))
        covariance = apart.mT @ apart
        scores = (keys @ mean.mT)[..., 0] * scale
        scores = scores + ((keys @ covariance) * keys).sum(-1) * (scale**2 / 2)
        return scores.softmax(-1).mean(1) + 1e-4 / k.shape[1]

    @classmethod
    def weight(cls, how: str, query_heads: int) -> Tensor:
        """Return [K, N]: the size of what an entry adds to the layer's output."""
        v = cls.values.float()
        if how == "norm":
            return v.norm(dim=-1)
        out = cls.attention.o_proj.weight.float()
        out = out.unflatten(1, (query_heads, -1)).transpose(0, 1)  # [H, d, E]
        square = (out.mT @ out).unflatten(0, (v.shape[0], -1)).mean(1)
        return ((v @ square) * v).sum(-1).clamp_min(0).sqrt()


class Repeating:
    """Passes over a chunk, after which the model repeats each block of it."""

    forward = Prefill.forward
    overlap: ClassVar[list[int]] = []
    instruction: ClassVar[list[int]] = []

    @classmethod
    def of(cls, prefill: Prefill, chunk: Chunk, plan: StepPlan) -> Tensor:
        method = prefill.method
        if not (isinstance(method, Tried) and method.score_of == "repeat"):
            return cls.forward(prefill, chunk, plan)
        hidden = cls.forward(prefill, chunk, replace(plan, catalyst=[], request=None))
        if plan.request is not None:
            cls.repeat(prefill, list(chunk.ids), method.block)
        return hidden

    @classmethod
    def repeat(cls, prefill: Prefill, ids: Sequence[int], width: int) -> None:
        evictor = prefill.evictor
        if evictor.seen == 0:
            cls.overlap = []
        known, n = [*cls.overlap, *ids], len(ids)
        highest = [torch.zeros(s.spec.heads, s.used) for s in evictor.layers]
        for begin in range(0, n, width):
            first = max(0, min(begin, n - width))  # gives all blocks the same length
            block, at = ids[first : first + width], len(cls.overlap) + first
            repeated = [*known[max(0, at - OVERLAP) : at], *block]
            Measured.repeated = evictor.first_candidate, n - first, len(block), len(repeated)
            with prefill.cache.passing():
                request = AttentionRequest((1,), queries=1)
                prefill.model.forward([*cls.instruction, *repeated], prefill.cache, request)
            Measured.repeated = None
            for store, best_of in zip(evictor.layers, highest, strict=True):
                assert store.window_attention is not None
                found = store.window_attention[:, : best_of.shape[1]]
                torch.maximum(best_of, found, out=best_of)
        for store, best_of in zip(evictor.layers, highest, strict=True):
            store.window_attention = best_of
        cls.overlap = list(ids[-OVERLAP:])

    @classmethod
    def asked(cls, session: Any, request: Any) -> Any:
        """Settle a run, and set how its prompt asks the model to repeat."""
        plan = cls.settle(session, request)
        parts = replace(plan.prompt._parts, phrase=lambda asked: asked)
        chat = plan.prompt.style == "chat"  # a model that only completes text takes no instruction
        asked = replace(plan.prompt, _parts=parts).tail(REPEAT) if chat else None
        cls.instruction = asked or session.tokenizer.encode("\n", continuing=True)
        return plan

    settle = later_questions.Session.settle


if __name__ == "__main__":
    Prefill.forward = lambda *given: Repeating.of(*given)  # type: ignore[method-assign]
    later_questions.Session.settle = lambda *given: Repeating.asked(*given)  # type: ignore[method-assign]
    registry.BUILT_IN += (Tried,)
    hook.evidence, hook.attend = Measured.evidence, Measured.attend
    AttentionInterface.register(hook.NAME, Measured.run)
    later_questions.main()
