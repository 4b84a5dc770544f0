"""Events of a run, as plain data. The session yields them, and reporters show them.

A run is a Started, any number of StepDone and Notice, then for each question an AnswerStarted, its
AnswerToken events, and an Answered with the Result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Started:
    """The sizes of the run are set, and nothing has been read."""

    model: str
    method: str
    budget_tokens: int
    budget_bytes: int
    fixed_bytes: int
    """Part of `budget_bytes` that belongs to no entry: tensors of whole heads, and the states of
    recurrent layers with their copy."""
    prompt_tokens: int
    """Entries of the protected prompt in front of the source."""
    reserved_tokens: int
    """Entries kept free at the end for the question and the answer."""
    schedule: str
    chunk: str
    estimated_tokens: int | None
    """Expected length of the source in tokens; None for an open-ended stream."""
    estimated_steps: int | None
    lossless: bool
    """Whether the whole text is expected to fit, so that nothing is evicted."""
    precision: str = ""
    """Number types of the computation and of the KV cache, and why they were chosen."""
    asked_bytes: int | None = None
    """Bytes that the reading may use, if the budget was given in bytes; None for a budget in
    entries."""
    answering: Started | None = None
    """With two models, in a dry run: the sizes of the answering model, which reads passages."""

    @property
    def entry_bytes(self) -> float:
        """Bytes of the entries of one token in all layers."""
        return (self.budget_bytes - self.fixed_bytes) / self.budget_tokens

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--dry-run --json`` and ``--stats`` write."""
        record = {**vars(self)}
        answering: Started | None = record.pop("answering")
        return record if answering is None else {**record, "answering": answering.to_json()}

    @property
    def unused(self) -> str | None:
        """A warning if a budget in bytes is not used up; None if it is, or is not in bytes.

        Room for another entry stays unused only if the model's trained length limits the entries.
        """
        size = self.asked_bytes
        if size is None or size - self.budget_bytes < self.entry_bytes:
            return None
        return (
            f"The budget is {self.budget_bytes:,} bytes, not {size:,}: {self.model} was trained "
            f"for {self.budget_tokens:,} positions, so the KV cache holds no more entries."
        )


@dataclass(frozen=True)
class StepDone:
    """The model has read one chunk, and memory is reduced to its target size."""

    step: int
    chunk: int
    """Source tokens in this chunk."""
    memory: tuple[int, ...]
    """For each layer: entries of the source that a head holds after this step."""
    seen: int
    """Source tokens read so far."""
    estimated_tokens: int | None
    kv_tokens: int
    """Entries that the fullest head holds now, prompt included."""
    in_flight_tokens: int
    """Maximum entries of a head during this step: prompt, memory, chunk and catalyst together."""
    peak_tokens: int
    budget_tokens: int
    kv_bytes: int
    seconds: float
    """Time since reading began, without answers on the way."""
    coverage: Callable[[int], list[float]] = field(repr=False, compare=False)
    """``coverage(bins)``: for each of `bins` equal parts of the text read so far, the share of
    its tokens that at least one head holds."""
    retained: Callable[[], int] = field(repr=False, compare=False)
    """Return the number of distinct source tokens that at least one head holds."""
    loaded: int = 0
    """Tokens of `seen` that come from a memory file and were read before this run."""
    ordinals: Callable[[], dict[int, list[list[int]]]] = field(
        default=dict, repr=False, compare=False
    )
    """Return which tokens of the source each head holds, counted from 0: for each layer with a KV
    cache, by its index in the model, one sorted list per head."""

    @property
    def speed(self) -> float:
        """Tokens per second since reading began; 0 if no time has passed."""
        return (self.seen - self.loaded) / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class PartRead:
    """One part of a text that is read in parts (``--shards``) has been read."""

    number: int
    """Position of the part in the text, from 1."""
    count: int
    tokens: int
    seconds: float
    """Time to read it."""


@dataclass(frozen=True)
class Notice:
    """A message for the user. Without `note` it is also in the warnings of the result."""

    message: str
    note: bool = False
    """Whether the message is no reason to doubt an answer; then it is not in the warnings."""
    loss: bool = False
    """Whether the message, a note, tells that work was not saved; ``-q`` does not hide it."""


@dataclass(frozen=True)
class AnswerStarted:
    """The answer to a question begins."""

    question: str
    number: int
    """0 for the first question of the run."""
    kept: Callable[[], Any] | None = field(default=None, repr=False, compare=False)
    """Return which tokens each head holds (`kvstream.memory.snapshot`). A reporter must call it
    while it handles this event: the answer may change memory."""


@dataclass(frozen=True)
class AnswerToken:
    """The next piece of the answer. ``text`` may be empty, for example while a character is
    incomplete."""

    text: str
    kv_tokens: int


_TIMES = ("load_s", "prefill_s", "select_s", "answer_s", "tokens_per_s")


@dataclass(frozen=True)
class Result:
    """One answer with its costs: the JSON object of one answer."""

    command: str
    model: str
    method: str
    question: str
    answer: str
    budget_tokens: int
    budget_bytes: int
    peak_kv_tokens: int
    peak_kv_bytes: int
    scratch_bytes: int
    peak_rss_bytes: int
    peak_device_bytes: int | None
    read: int
    retained: int
    evicted: int
    generated: int
    schedule: str
    chunk: str
    steps: int
    load_s: float
    prefill_s: float
    answer_s: float
    tokens_per_s: float
    citations: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    of_reading: tuple[str, ...] = ()
    """The part of `warnings` that concerns every answer: about the reading or a memory file."""
    select_s: float = 0.0
    """Part of prefill_s spent in the method's selection and in compaction."""
    stopped: str = "end"
    """Why the answer ended: ``end`` (stop token), ``length`` (--max-tokens), ``budget`` (no room
    left), ``repetition`` (the answer repeated itself, and the repetition was cut) or
    ``interrupted``."""
    coverage: dict[str, Any] | None = None
    """How much of the text memory represents: a ``share``, and a ``map`` of equal parts."""
    skim: dict[str, Any] | None = None
    """The scout that read all of the text (None: no model), the passages that were kept, and what
    the answering model read of them."""
    support: dict[str, float] | None = None
    """How far the answer rests on single passages (``focus``), its ``confidence``, and, if the
    model is calibrated, the ``probability`` that the answer is right."""
    interrupted: bool = False
    """Whether the user stopped the reading, so that the answer uses the beginning of the text."""
    absent: tuple[str, ...] = ()
    """Numbers and names of the answer that are not in the text."""
    withheld: str | None = None
    """The model's answer, if ``--strict`` withheld it for weak support."""

    lines: dict[str, Any] | None = None
    """For logs, the number of ``lines``, of those ``read``, of those ``thinned`` (counted but not
    read, because they repeat others), and in ``matches`` the lines with the rarest words of the
    questions."""
    memory: dict[str, Any] | None = None
    """The memory file that was asked or written, with its kind and digest."""
    shards: dict[str, int] | None = None
    """For a text that was read in parts, their ``count``, and the maximum number of ``budgets``
    and ``bytes`` held at a time."""
    narrowed: dict[str, Any] | None = None
    """For a narrowed memory, the ``sources`` that the answer saw, the number of ``entries`` that
    it saw, and the number ``held``; None if it saw all."""
    news: dict[str, Any] | None = None
    """With ``--follow``: the ``time`` at which the answer changed, and the ``passage`` of new text
    that it attended to most."""
    receipt: dict[str, Any] | None = None
    """What repeats the run: ``kvstream`` (the version), ``input``, ``model_digest``,
    ``precision``, ``settings``, ``notes``."""
    partial: bool = False
    """Whether some heads evicted tokens, though nothing is `evicted`: each is in another head."""
    waiting: int = 0
    """Bytes of its ``input`` that had arrived, but were not read before the answer."""

    @property
    def bytes_read(self) -> tuple[int, int]:
        """Bytes that were read, and those of the whole text; 0 if unknown."""
        text = (self.receipt or {}).get("input", {})
        whole = text.get("bytes", 0)
        return max(0, text.get("part_bytes", whole) - self.waiting), max(0, whole - self.waiting)

    def to_json(self, origin: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the object that ``--json`` prints, with the keys of docs/reference/json.md.

        `origin`: the command line and its options, for the receipt.
        """
        own = {**vars(self), "receipt": {**(self.receipt or {}), **(origin or {})} or None}
        support: dict[str, float | None] | None = None
        if self.support is not None:
            support = {**self.support, "probability": self.support.get("probability")}
        return {
            **{n: own[n] for n in ("command", "model", "method", "question", "answer")},
            "budget": {"tokens": self.budget_tokens, "bytes": self.budget_bytes},
            "peak": {
                "kv_tokens": self.peak_kv_tokens,
                "kv_bytes": self.peak_kv_bytes,
                "scratch_bytes": self.scratch_bytes,
                "rss_bytes": self.peak_rss_bytes,
                "device_bytes": self.peak_device_bytes,
            },
            "tokens": {n: own[n] for n in ("read", "retained", "evicted", "generated")},
            "schedule": {"memory": self.schedule, "chunk": self.chunk, "steps": self.steps},
            "timing": {n: own[n] for n in _TIMES},
            "citations": list(self.citations),
            "coverage": self.coverage,
            "skim": self.skim,
            "support": support,
            "not_in_text": list(self.absent),
            "withheld": self.withheld,
            "stopped": self.stopped,
            "warnings": list(self.warnings),
            **{n: own[n] for n in ("lines", "memory", "shards") if own[n] is not None},
            **({"interrupted": True} if self.interrupted else {}),
            **{n: own[n] for n in ("narrowed", "news", "receipt") if own[n] is not None},
            **({"demonstration": True} if self.model == "pocket" else {}),
        }


@dataclass(frozen=True)
class Answered:
    """A question has been answered."""

    result: Result


Event = Started | StepDone | PartRead | Notice | AnswerStarted | AnswerToken | Answered


@dataclass(frozen=True)
class CollectionStarted:
    """The documents are known, and none has been read."""

    documents: int
    bytes: int
    """Size of all documents together, unpacked if that can be estimated."""
    workers: int
    """Documents that are read at the same time."""


@dataclass(frozen=True)
class DocumentStarted:
    """The reading of a document begins, or begins again because its worker ended."""

    name: str
    bytes: int
    worker: str
    """The machine that reads it; empty for this process."""
    process: int
    """Process id of the worker on its machine; 0 for this process."""


@dataclass(frozen=True)
class DocumentStep:
    """This process has read a chunk of a document."""

    name: str
    tokens: int
    """Tokens of the document so far."""
    share: float = 0.0
    """Share of the document that has been read, over all methods, from 0 to 1; 0 if unknown."""


@dataclass(frozen=True)
class DocumentDone:
    """A document has been read, and its result is written if the run has a result folder."""

    name: str
    records: tuple[dict[str, Any], ...]
    """The JSON objects of its answers, or of its memory."""
    file: str | None
    """Path of the result; None if the run has no result folder."""
    present: bool = False
    """Whether an earlier run wrote the result, so that this run did not read the document."""
    seconds: float = 0.0
    """Time of the reading and the answers in the process that ran them."""

    @property
    def tokens(self) -> int:
        """Tokens of the document, counted once even if several methods read it."""
        return max((r["tokens"]["read"] for r in self.records if "tokens" in r), default=0)

    @property
    def support(self) -> float | None:
        """Support of the best supported answer, from 0 to 1; None for an extract.

        This is the probability if the model is calibrated, else the focus, and 0 for a refusal.
        """
        supports = []
        for record in self.records:
            if support := record.get("support"):
                probability = support.get("probability")
                value = support.get("focus", 0.0) if probability is None else probability
                supports.append(0.0 if record.get("abstains") else value)
        return max(supports, default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the line that ``--json`` prints for a document."""
        content: dict[str, Any] = {"answers": list(self.records)}
        if any(r["command"] == "remember" for r in self.records):
            content = {"memory": self.records[0]}
        return {"document": self.name, "file": self.file, "present": self.present, **content}


@dataclass(frozen=True)
class DocumentFailed:
    """A document has no result. The run continues with the others."""

    name: str
    reason: str
    exit_code: int = 1
    """Exit code of a run on this document alone."""
    records: tuple[dict[str, Any], ...] = ()
    """Answers that were generated but could not be written."""

    def to_json(self) -> dict[str, Any]:
        """Return the line that ``--json`` prints for a document."""
        answers = {"answers": list(self.records)} if self.records else {}
        return {"document": self.name, "error": self.reason, **answers}


CollectionEvent = (
    CollectionStarted | DocumentStarted | DocumentStep | DocumentDone | DocumentFailed | Notice
)
Outcome = DocumentDone | DocumentFailed


def returned(
    events: Generator[Event, None, Value], see: Callable[[Event], object] = lambda event: None
) -> Value:
    """Run a generator of events to its end and return its value; `see` gets every event.

    If `see` raises an error, the generator is closed, so that it frees what it holds.
    """
    with closing(events):
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                return end.value
            see(event)


def changed(
    events: Generator[Event, None, Value], change: Callable[[Event], Event | None]
) -> Generator[Event, None, Value]:
    """Yield the events as `change` returns them, without those for which it returns None."""
    with closing(events):
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                return end.value
            if (now := change(event)) is not None:
                yield now
