"""A session: a loaded model that reads sources, answers questions and yields events."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from kvstream.answer.answering import answers, refusal_limit
from kvstream.engine.prefill import schedule_for
from kvstream.errors import ModelError, UsageError
from kvstream.events import Answered, Event, Started, returned
from kvstream.input.source import Replay, RereadableSource, Source
from kvstream.memory.checkpoint import Checkpoint
from kvstream.memory.contents import Memory
from kvstream.memory.memory_file import MemoryFile
from kvstream.memory.saving import recall
from kvstream.methods.registry import make
from kvstream.model.ahead import returning_memory
from kvstream.model.bounded import BoundedModel
from kvstream.model.folders import POCKET, folder, must_be_cached
from kvstream.model.loading import load
from kvstream.passages.excerpts import Excerpts
from kvstream.passages.judge import Judge
from kvstream.run.plan import RunPlan, budget_tokens, cache_bytes
from kvstream.run.prompt import Layout
from kvstream.run.request import Request
from kvstream.session.reading import FIRST_LOOK, STOPPED, Reading, as_read, started
from kvstream.settings import INT8, Budget, ModelSettings, RunSettings, table
from kvstream.store.hub import offline
from kvstream.tokenization.loading import Tokenizer, TokenStream, WordForms, load_tokenizer

TIMED = 64
"""Tokens whose reading is timed."""
SMALL = 106_000_000, 256
"""Parameters of SmolLM2-135M without its embedding, and the tokens of passages it reads best."""
GROWTH, MOST = 0.67, 4096
"""How the tokens of passages grow with the parameters, and their maximum."""
JUDGES = 300_000_000
"""Parameters without embedding below which a model judges passages. A larger one reads more of
them, and judging does not change what it answers."""


def enough(parameters: int) -> int:
    """Return how many tokens of passages a model of so many parameters should read.

    More text resembles what a small model looks for and misleads it; a larger one finds more
    answers in more text (docs/research/answers.md). The last passage may exceed this number.
    """
    size, tokens = SMALL
    return max(tokens, min(MOST, round(tokens * (parameters / size) ** GROWTH)))


@dataclass(eq=False, repr=False)
class Session:
    model: BoundedModel
    tokenizer: Tokenizer
    load_s: float = 0.0
    settings: ModelSettings = field(default_factory=ModelSettings)

    @classmethod
    @returning_memory()
    def open(cls, settings: ModelSettings) -> Session:
        """Load tokenizer and model and probe them. Raises ModelError, UnsupportedModelError."""
        began = time.perf_counter()
        where = folder(settings)
        with offline(must_be_cached(settings, where) or settings.offline):
            tokenizer = load_tokenizer(
                where,
                revision=settings.revision,
                offline=settings.offline,
                trust_remote_code=settings.trust_remote_code,
            )
            model = load(settings, where)
        rows = model.model.get_input_embeddings().weight.shape[0]
        # Special tokens beyond the embedding are common and harmless: no text gives their ids.
        most = tokenizer.highest + 1
        if most > rows and settings.quantize in (None, INT8):
            raise ModelError(
                f"The tokenizer of {settings.model} has ids up to {most - 1:,}, and its embedding "
                f"has {rows:,} rows; they belong to different models: download both again."
            )
        return cls(model, tokenizer, time.perf_counter() - began, settings)

    @property
    def model_name(self) -> str:
        return self.model.name

    @cached_property
    def speed(self) -> float:
        """Tokens per second of reading, measured once with a short text."""
        budget = Budget(tokens=min(1024, self.model.trained_length))
        run = RunSettings(budget, "full", max_tokens=8)
        plan = self.settle(Request(run=run))
        ids = list(range(100, 100 + TIMED))
        seconds = []
        for _ in range(2):  # the first pass also fetches weights into caches
            reader = plan.reader(self.model, run, TIMED)
            began = time.perf_counter()
            next(reader.answer(ids, lambda logits: 0, frozenset((0,)), 1), None)
            seconds.append(time.perf_counter() - began)
            reader.release()
        return TIMED / min(seconds)

    @property
    def default_extract(self) -> bool:
        """Whether summaries are extracts by default: `pocket` cannot write one."""
        return self.model.name == POCKET

    foresees = default_extract
    """Whether the model comes with weights that the method `foresight` learned for it."""

    def settle(self, request: Request) -> RunPlan:
        """Make the plan of a run. Raises BudgetError, UsageError."""
        return RunPlan.of(self.model, self.tokenizer, request)

    def kv_bytes(self, run: RunSettings) -> int:
        """Return the bytes of a full KV cache. Raises BudgetError, UsageError."""
        method = make(run.method, run.set)
        return cache_bytes(self.model, method, budget_tokens(self.model, run.budget, method))

    def fits(self, sources: Replay, request: Request) -> bool:
        """Return whether memory can hold all of a text; reads only as much as that needs."""
        plan = self.settle(request)
        sources.looking = True
        stream = TokenStream(self.tokenizer, sources)
        most = plan.sizes.budget + 1
        count = len(stream.read(most))
        while stream.paused and not request.interrupted():
            count += len(stream.read(most - count))
        sources.looking = False
        trained = self.model.trained_length
        return schedule_for(plan.method, request.run, plan.sizes, 1, count, trained).whole

    def whole(self, request: Request, question: str) -> Request:
        """Return the request for an answer from passages; without eviction there is no catalyst."""
        plan = self.settle(replace(request, questions=(question,)))
        rows = table(RunSettings).items()
        run = RunSettings(
            Budget(tokens=plan.sizes.budget),
            "full",
            **{n: getattr(request.run, n) for n, row in rows if row.per_answer},
        )
        return Request((question,), run, request.command, system=request.system)

    def passage_sizes(self, whole: Request) -> tuple[int, int]:
        """Return the most tokens of passages for such a request, and enough of them."""
        sizes = self.settle(whole).sizes
        return min(sizes.free, sizes.final), enough(self.model.parameters)

    @property
    def calibrated(self) -> bool:
        """Whether the model has a refusal limit, so that its answers can be compared."""
        return refusal_limit(self.model, self.tokenizer) is not None

    def judge(self, whole: Request, question: str, room: int) -> Judge | None:
        """Return a judge of passages of up to `room` tokens; None: large or uncalibrated model."""
        refusal = refusal_limit(self.model, self.tokenizer)
        if refusal is None or self.model.parameters >= JUDGES:
            return None
        plan = self.settle(whole)
        tail = plan.prompt.tail(question, brief=whole.run.brief)
        reader = plan.reader(self.model, whole.run, None)
        return Judge(reader, self.tokenizer, tail, list(refusal.tokens), room)

    def plan(self, sources: Source, request: Request) -> Started:
        """Return the sizes, steps and memory of a run without running it.

        The length is estimated from the first block of the text, as at the start of the run. That
        of a long log is unknown, because it is thinned. Raises BudgetError, UsageError.
        """
        plan = self.settle(request)
        at_once = sources.size_hint() is not None  # a pipe may have no text yet
        stream = TokenStream(self.tokenizer, as_read(sources, request, plan))
        feed = plan.feed(stream, request.interrupted)
        if at_once:
            feed.look_ahead(FIRST_LOOK)
        return started(plan.reader(self.model, request.run, feed.estimate()), request.run)

    def ask(self, sources: RereadableSource, request: Request) -> Iterator[Event]:
        """Read the sources under the budget, then answer every question from memory.

        A complete checkpoint is removed after the last answer. Raises BudgetError, UsageError, and
        SourceError if nothing could be read.
        """
        checkpoint = _checkpoint(request)
        memory = yield from self.reading(
            sources, self.settle(request), request, checkpoint=checkpoint,
            on_the_way=partial(answers, request=request, may_compress=False),
        )  # fmt: skip
        yield from _saved_as(checkpoint, answers(memory, request))
        if checkpoint is not None and checkpoint.digest is not None:
            checkpoint.path.unlink(missing_ok=True)  # nothing is left to resume

    def read(
        self, sources: RereadableSource, request: Request, after: Memory | None = None, **more: Any
    ) -> Generator[Event, None, Memory]:
        """Read the sources under the budget and return the memory. Raises UsageError, SourceError.

        With `after`, read them into that memory, behind the text that it has read and with the plan
        of its first reading. The caller has to remove a checkpoint. `more`: fields of `Reading`.
        """
        checkpoint = _checkpoint(request, None if after is None else after.digest)
        plan = self.settle(request) if after is None else after.plan
        if after is not None:
            if plan.shortens:
                raise UsageError(
                    f"{after.run.method} reads the two ends of a text, so no text can be added; "
                    "read all sources at once."
                )
            sources.follow_on(after.trace.records, ended_line=after.trace.ended_line)
            request = replace(request, run=after.run)
        return self.reading(sources, plan, request, after=after, checkpoint=checkpoint, **more)

    def recall(self, file: MemoryFile, answer: RunSettings) -> Memory:
        """Load the memory of a file. Raises ModelError, UsageError, SourceError."""
        memory = recall(file, self.model, self.tokenizer, answer)
        memory.load_s, memory.loaded_s = self.load_s, memory.prefill_s
        memory.prefill_s = memory.reader.select_seconds = 0.0  # nothing was read now
        memory.loaded = memory.trace.read
        memory.trace.interrupted = any(text.startswith(STOPPED) for text in memory.warnings)
        return memory

    def read_excerpts(
        self, excerpts: Excerpts, request: Request, words: WordForms | None
    ) -> Memory:
        """Read excerpts into memory, whole; `words` are those of the text."""
        plan, passages = self.settle(request), excerpts.passages
        return returned(self.reading(excerpts, plan, request, passages=passages, words=words))

    def write(self, run: RunSettings, system: str, text: str) -> tuple[str, float]:
        """Return the likeliest answer to a prompt outside of any memory, and the mean
        log-probability of its tokens. The budget of `run` holds all of the prompt. Raises
        BudgetError if it cannot.
        """
        run = replace(run, method="full", set={})
        plan = self.settle(Request((text,), run, system=system, layout=Layout("")))
        shares: list[float] = []

        def choose(logits: Tensor) -> int:
            best, token = logits.log_softmax(-1).max(-1)
            shares.append(float(best))
            return int(token)

        reader, stops = plan.reader(self.model, run, 0), frozenset(plan.prompt.stop_ids)
        try:
            tokens = [*reader.answer(plan.prompt.tail(text), choose, stops, run.max_tokens)]
        finally:
            reader.release()
        return self.tokenizer.decode(tokens), sum(shares) / max(1, len(shares))

    def reading(
        self, sources: Source, plan: RunPlan, request: Request, **more: Any
    ) -> Generator[Event, None, Memory]:
        """Yield the events of a reading with `more` of the fields of `Reading`."""
        reading = Reading(self.model, self.tokenizer, sources, plan, request, self.load_s, **more)
        return reading.events()


def _checkpoint(request: Request, base: str | None = None) -> Checkpoint | None:
    """Return the checkpoint of a request, or None; `base`: digest of the memory to read into."""
    if request.checkpoint is None:
        return None
    return Checkpoint(request.checkpoint, request.checkpoint_every, base)


def _saved_as(checkpoint: Checkpoint | None, events: Iterator[Event]) -> Iterator[Event]:
    for event in events:
        if isinstance(event, Answered) and checkpoint is not None and checkpoint.digest:
            event = Answered(replace(event.result, memory={"sha256": checkpoint.digest}))
        yield event
