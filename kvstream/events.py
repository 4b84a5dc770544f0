"""What happens during a run, as plain data: the session yields these, reporters show them.

A run is Started, any number of StepDone and Notice, then for every question an AnswerStarted,
its AnswerToken, and an Answered with the whole Result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Started:
    """The sizes are settled; nothing has been read yet."""

    model: str
    method: str
    budget_tokens: int
    budget_bytes: int
    fixed_bytes: int
    """Part of them that is no entry's: of heads as a whole, of recurrent layers and their copy."""
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
    """Expected to fit whole: nothing will be evicted."""
    precision: str = ""
    """Number types of computing and of the KV cache, and why they were chosen."""
    asked_bytes: int | None = None
    """What the reading may take of a budget that was given in bytes; None for one in entries."""

    @property
    def entry_bytes(self) -> float:
        """Bytes of one token's entries in all layers."""
        return (self.budget_bytes - self.fixed_bytes) / self.budget_tokens

    @property
    def unused(self) -> str | None:
        """What to say where a budget in bytes is not used; None where it is, or there is none.

        Only the length that the model was trained for leaves room for another entry unused.
        """
        asked = self.asked_bytes
        if asked is None or asked - self.budget_bytes < self.entry_bytes:
            return None
        return (
            f"The budget is {self.budget_bytes:,} bytes, not {asked:,}: {self.model} was trained "
            f"for {self.budget_tokens:,} positions, so the KV cache holds no more entries."
        )


@dataclass(frozen=True)
class StepDone:
    """One chunk went through the model and memory was cut back to its size."""

    step: int
    chunk: int
    """Source tokens in this chunk."""
    memory: tuple[int, ...]
    """Source entries each head holds after this step, per layer."""
    seen: int
    """Source tokens so far."""
    estimated_tokens: int | None
    kv_tokens: int
    """Entries that the fullest head holds now, prompt included."""
    in_flight_tokens: int
    """The most that a head held during this step (memory, chunk and catalyst together)."""
    peak_tokens: int
    budget_tokens: int
    kv_bytes: int
    seconds: float
    """Time since reading began."""
    coverage: Callable[[int], list[float]] = field(repr=False, compare=False)
    """``coverage(bins)``: share of the tokens seen so far that some head still holds, by place."""
    retained: Callable[[], int] = field(repr=False, compare=False)
    """Distinct source tokens that some head still holds; counted when called."""
    loaded: int = 0
    """Those of the tokens seen that came with a memory file, before reading began."""

    @property
    def speed(self) -> float:
        """Tokens per second since reading began; 0 before time has passed."""
        return (self.seen - self.loaded) / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class PartRead:
    """One part of a text that is read in parts (``--shards``) is in a memory."""

    number: int
    """From 1, by place in the text."""
    count: int
    tokens: int
    seconds: float
    """Of its reading."""


@dataclass(frozen=True)
class Notice:
    """Something that the user should know; it also ends up in the result's warnings."""

    message: str
    note: bool = False
    """It is no reason to doubt an answer, and not among the warnings."""


@dataclass(frozen=True)
class AnswerStarted:
    """Reading is over and a question is being answered."""

    question: str
    number: int
    """0 for the first question of the run."""
    kept: Callable[[], Any] | None = field(default=None, repr=False, compare=False)
    """Which tokens each head holds (`kvstream.memory.kept`); asked for while this is shown."""


@dataclass(frozen=True)
class AnswerToken:
    """The next piece of the answer; ``text`` may be empty while a character is incomplete."""

    text: str
    kv_tokens: int


@dataclass(frozen=True)
class Result:
    """One answer with all that it cost: the JSON of one answer."""

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
    """Those of `warnings` that concern every answer: of the reading, of a memory file."""
    select_s: float = 0.0
    """Part of prefill_s that went into the method's selection and compaction."""
    stopped: str = "end"
    """Why the answer ended: ``end`` (stop token), ``length`` (--max-tokens), ``budget`` (no room
    left), ``repetition`` (it said the same over and over, which was cut) or ``interrupted``."""
    coverage: dict[str, Any] | None = None
    """What of the document memory still represents: ``share`` and a ``map`` by place."""
    reread: dict[str, Any] | None = None
    """The second pass: what was read again, and what the first pass had answered."""
    skim: dict[str, Any] | None = None
    """The small model that read all of the text (None: a word search), what was kept of the text,
    and what the other model read."""
    support: dict[str, float] | None = None
    """How far the answer rests on single passages (``focus``), its ``confidence``, and, where the
    model is calibrated, the ``probability`` that it is right."""
    interrupted: bool = False
    """The user stopped the reading, so the answer is from the beginning of the text."""
    absent: tuple[str, ...] = ()
    """Numbers and names of the answer that are not in the text."""
    withheld: str | None = None
    """The model's answer where it rested on too little to be given (``--strict``)."""

    lines: dict[str, Any] | None = None
    """Of logs: ``lines``, those that were ``read``, those ``thinned`` (counted, as they repeat
    others), and as ``matches`` the lines with the rarest words of the questions."""
    memory: dict[str, Any] | None = None
    """The memory file that was asked or written, its kind and its digest."""
    shards: dict[str, int] | None = None
    """Of a text that was read in parts: their ``count``, and the most ``budgets`` and ``bytes``
    that were held at a time."""
    narrowed: dict[str, Any] | None = None
    """Of a joined memory: the ``sources`` that the answer saw, how many ``entries`` that were, and
    how many are ``held``; None where it saw all."""

    def to_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints; keys as the command line's contract names them."""
        return {
            "command": self.command,
            "model": self.model,
            "method": self.method,
            "question": self.question,
            "answer": self.answer,
            "budget": {"tokens": self.budget_tokens, "bytes": self.budget_bytes},
            "peak": {
                "kv_tokens": self.peak_kv_tokens,
                "kv_bytes": self.peak_kv_bytes,
                "scratch_bytes": self.scratch_bytes,
                "rss_bytes": self.peak_rss_bytes,
                "device_bytes": self.peak_device_bytes,
            },
            "tokens": {
                "read": self.read,
                "retained": self.retained,
                "evicted": self.evicted,
                "generated": self.generated,
            },
            "schedule": {"memory": self.schedule, "chunk": self.chunk, "steps": self.steps},
            "timing": {
                "load_s": self.load_s,
                "prefill_s": self.prefill_s,
                "select_s": self.select_s,
                "answer_s": self.answer_s,
                "tokens_per_s": self.tokens_per_s,
            },
            "citations": list(self.citations),
            "coverage": self.coverage,
            "reread": self.reread,
            "skim": self.skim,
            "support": self._support(),
            "not_in_text": list(self.absent),
            "withheld": self.withheld,
            "stopped": self.stopped,
            "warnings": list(self.warnings),
            **({} if self.lines is None else {"lines": self.lines}),
            **({} if self.memory is None else {"memory": self.memory}),
            **({} if self.shards is None else {"shards": self.shards}),
            **({"interrupted": True} if self.interrupted else {}),
            **({} if self.narrowed is None else {"narrowed": self.narrowed}),
            **({"demonstration": True} if self.model == "pocket" else {}),
        }

    def _support(self) -> dict[str, float | None] | None:
        if self.support is None:
            return None
        return {**self.support, "probability": self.support.get("probability")}


@dataclass(frozen=True)
class Answered:
    """A question has been answered."""

    result: Result


Event = Started | StepDone | PartRead | Notice | AnswerStarted | AnswerToken | Answered


@dataclass(frozen=True)
class CollectionStarted:
    """The documents are known; none has been read yet."""

    documents: int
    bytes: int
    """Of all documents together, unpacked where that can be estimated."""
    workers: int
    """Documents that are read at the same time."""


@dataclass(frozen=True)
class DocumentStarted:
    """The reading of a document begins, or begins again after its worker ended."""

    name: str
    bytes: int
    worker: str
    """Where it is read; empty for this process."""
    process: int
    """Id of the process that reads it, on the machine of the worker."""


@dataclass(frozen=True)
class DocumentStep:
    """A chunk of a document was read in this process."""

    name: str
    tokens: int
    """Tokens of the document so far."""
    share: float = 0.0
    """Part of the document that has been read, over all methods: 0 to 1; 0 if it is not known."""


@dataclass(frozen=True)
class DocumentDone:
    """A document was read, and its result is written where a folder was named."""

    name: str
    records: tuple[dict[str, Any], ...]
    """The JSON objects of its answers, or the one of its memory."""
    file: str | None
    """Where the result is; None where no folder was named."""
    present: bool = False
    """An earlier run wrote it; nothing was read now."""
    seconds: float = 0.0
    """Time of the reading and the answers in the process that made them."""
    cpu_seconds: float = 0.0
    """Processor time of that process."""

    @property
    def tokens(self) -> int:
        """Tokens of the document; several methods read it as often."""
        return max((r["tokens"]["read"] for r in self.records if "tokens" in r), default=0)

    @property
    def support(self) -> float | None:
        """How far the text supports the best of its answers, 0 to 1; None for an extract.

        The probability where the model is calibrated, else the attention to the heaviest passages;
        0 for an answer that says that the text has none.
        """
        found = [
            0.0 if r.get("abstains") else _support(r["support"])
            for r in self.records
            if r.get("support")
        ]
        return max(found, default=None)

    def to_json(self) -> dict[str, Any]:
        """The line that ``--json`` prints of a document."""
        key = "memory" if any(r["command"] == "remember" for r in self.records) else "answers"
        found: Any = list(self.records)
        return {
            "document": self.name,
            "file": self.file,
            "present": self.present,
            key: found[0] if key == "memory" else found,
        }


def _support(found: dict[str, float]) -> float:
    probability = found.get("probability")
    return found.get("focus", 0.0) if probability is None else probability


@dataclass(frozen=True)
class DocumentFailed:
    """A document gave no result; the others go on."""

    name: str
    reason: str
    exit_code: int = 1
    """That of a run on this document alone."""
    records: tuple[dict[str, Any], ...] = ()
    """Answers that were made, and could not be written."""

    def to_json(self) -> dict[str, Any]:
        """The line that ``--json`` prints of a document."""
        made = {"answers": list(self.records)} if self.records else {}
        return {"document": self.name, "error": self.reason, **made}


CollectionEvent = (
    CollectionStarted | DocumentStarted | DocumentStep | DocumentDone | DocumentFailed | Notice
)
Outcome = DocumentDone | DocumentFailed
