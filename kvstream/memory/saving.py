"""Save a memory to a file and restore it, with all that it needs to answer or to read on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Reader
from kvstream.errors import BudgetError, KvstreamError, ModelError, SourceError, UsageError
from kvstream.memory import file
from kvstream.memory.contents import Beside, Memory
from kvstream.memory.file import Content
from kvstream.memory.header import STORED
from kvstream.memory.packing import beside_of, packed_kept, packed_passages, trace_of
from kvstream.memory.state import cache_state, fill
from kvstream.methods.base import Method
from kvstream.methods.registry import remade
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import Peak
from kvstream.model.fingerprint import fingerprint
from kvstream.run.plan import RunPlan
from kvstream.run.prompt import Task, build_prompt, wording_of
from kvstream.settings import Budget, RunSettings
from kvstream.tokenization.loading import Tokenizer
from kvstream.version import __version__

ROOM = 1.1
"""Maximum size of a file, as a multiple of a full cache; passages and words get what is left."""
WRONG = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RuntimeError,
    ArithmeticError,
)  # fmt: skip
"""Errors that a file can still cause if its fields are valid one by one, but not together."""


@dataclass(frozen=True)
class Position:
    """The position that a reading had reached when its checkpoint was written."""

    tokens: int
    """Number of tokens of its sources that the model has read."""
    sha256: str
    """SHA-256 of their ids."""
    complete: bool
    """Whether the sources had ended."""
    base: str | None
    """Digest of the memory that the reading continues, if any."""


@dataclass(frozen=True)
class Kind:
    """What is known of a memory file before a model is loaded."""

    path: Path
    content: Content

    @property
    def model(self) -> dict[str, Any]:
        """``name``, ``revision``, ``fingerprint``, ``dtype`` and ``kv_dtype``."""
        return self.content.state["model"]

    @property
    def kv_dtype(self) -> torch.dtype:
        """Number type of its keys and values."""
        found: torch.dtype = getattr(torch, self.model.get("kv_dtype") or self.model["dtype"])
        return found

    @property
    def questions(self) -> tuple[str, ...]:
        """Questions that were known when it was read; empty if it was made without a question."""
        return tuple(self.content.state["questions"])

    @property
    def position(self) -> Position | None:
        """Position of the reading, if this is a checkpoint."""
        return position_of(self.content.notes)

    @property
    def begun(self) -> bool:
        """Whether this is the checkpoint of a reading that had not ended."""
        return self.position is not None and not self.position.complete

    @property
    def beside(self) -> Beside | None:
        """What is kept for the answering model, if another model read. Raises SourceError."""
        try:
            return beside_of(self.content.state, self.content.tensors)
        except WRONG as error:
            raise _wrong(self.path, error) from error

    def to_json(self) -> dict[str, Any]:
        """Return the object ``memory`` of ``--json`` for the memory that answers."""
        state = self.content.state
        return {
            "file": str(self.path),
            "kind": "questions" if self.questions else "question-free",
            "questions": list(self.questions),
            "sha256": self.content.digest,
            "sources": state["trace"]["sources"],
            "read_s": self.content.notes.get("read_s"),
        }

    def told(self) -> str:
        """Describe the memory in one line for users."""
        trace = self.content.state["trace"]
        several = len(trace["sources"])
        made = (
            f"for {len(self.questions)} question{'s'[: len(self.questions) > 1]}: "
            f"{' / '.join(self.questions)}"
            if self.questions
            else "without a question"
        )
        return (
            f"Memory of {trace['read']:,} token{'s'[: trace['read'] != 1]} of "
            f"{several} source{'s'[: several > 1]}, "
            f"made {made}{'; the reading had not ended' if self.begun else ''}"
        )


def position_of(notes: Mapping[str, Any]) -> Position | None:
    """Return the position in the notes of a checkpoint; None for another memory file."""
    found = notes.get("position")
    return None if found is None else Position(**found)


def look(path: Path) -> Kind:
    """Read and check a memory file. Raise SourceError if it is wrong."""
    return Kind(path, file.read(path))


def save(memory: Memory, path: Path, *, passages: bool = True, **more: Any) -> str:
    """Write a memory, with `more` in its notes, and return its digest. Raise KvstreamError.

    Without `passages`, the file has no text for citations.
    """
    state, tensors = memory_state(memory, passages=passages)
    notes = {
        "version": __version__,
        "written": int(time.time()),
        "read_s": memory.loaded_s + memory.prefill_s,
        "select_s": memory.reader.select_seconds,
        "peak": asdict(memory.reader.cache.peak),
        "warnings": memory.warnings,
        **more,
    }
    return file.write(path, state, notes, tensors)


def record(memory: Memory) -> dict[str, Any]:
    """Return the record of ``remember --json`` after a reading, without the file."""
    reader, run = memory.reader, memory.run
    questions = memory.plan.questions
    return {
        "command": "remember",
        "model": memory.model,
        "method": run.method,
        "memory": {
            "kind": "questions" if questions else "question-free",
            "questions": list(questions),
            "sources": [vars(source) for source in memory.trace.records],
        },
        "budget": {"tokens": reader.sizes.budget, "bytes": reader.cache.capacity_bytes},
        "peak": {
            "kv_tokens": reader.cache.peak.tokens,
            "kv_bytes": reader.cache.peak.bytes,
            "scratch_bytes": reader.cache.peak.scratch,
        },
        "tokens": {
            "read": memory.trace.read,
            "retained": memory.retained,
            "evicted": memory.trace.read - memory.retained,
        },
        "schedule": {"memory": run.schedule, "chunk": run.chunk, "steps": reader.steps},
        "timing": {
            "load_s": memory.load_s,
            "prefill_s": memory.prefill_s,
            "select_s": reader.select_seconds,
            "tokens_per_s": memory.tokens_per_s,
        },
        **({} if memory.shards is None else {"shards": memory.shards.to_json()}),
        **({} if memory.beside is None else {"answering": memory.beside.to_json()}),
        "warnings": list(memory.warnings),
    }


def digest(memory: Memory) -> str:
    """Return the SHA-256 that a file of this memory would have."""
    return file.digest_of(*memory_state(memory))


def memory_state(
    memory: Memory, *, passages: bool = True
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return all of a memory: a state in types that JSON has, and tensors by name."""
    reader, plan, trace = memory.reader, memory.plan, memory.trace
    trace.prune(reader.retained())
    numbers, tensors = reader.state()
    cache, entries = cache_state(reader)
    tensors = {f"reader.{name}": tensor for name, tensor in tensors.items()} | entries
    ordinals, starts = trace.origins.known()
    tensors["trace.ordinals"] = torch.from_numpy(ordinals.astype(np.int64))
    tensors["trace.starts"] = torch.from_numpy(starts.astype(np.int64))
    if memory.beside is not None and passages:
        tensors["trace.kept"] = packed_kept(memory.beside)
    room = ROOM * reader.cache.capacity_bytes - sum(t.nbytes for t in tensors.values())
    dropped = 0
    if trace.passages is not None and passages:
        packed, dropped = packed_passages(trace.passages, starts, int(room))
        tensors["trace.passages"] = packed
        room -= packed.nbytes
    counts = trace.line_counts
    words = trace.words.packed() if trace.words is not None and passages else b""
    if 0 < len(words) <= room:  # otherwise only the passages are there to check answers
        tensors["trace.words"] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
    state = {
        "format": file.FORMAT,
        "model": {
            "name": memory.model,
            "revision": getattr(reader.model.model.config, "_commit_hash", None),
            "fingerprint": reader.model.fingerprint,
            "dtype": reader.model.weights_dtype,
            "kv_dtype": str(reader.model.kv_dtype).removeprefix("torch."),
            "rounded": reader.model.rounded,
        },
        "method": {
            "name": plan.method.name,
            "typed": dict(memory.run.set),
            "settings": plan.method.settings(),
            "trained": _trained(reader),
        },
        "run": {name: getattr(memory.run, row.name) for name, row in STORED.items()},
        "sizes": asdict(reader.sizes),
        "system": plan.system,
        "task": plan.prompt.task,
        "questions": list(plan.questions),
        "head": [int(i) for i in reader.head],
        "catalysts": [[int(i) for i in c] for c in reader.catalysts],
        "measure_always": reader.extract,
        "reader": numbers,
        "cache": cache,
        "trace": {
            "sources": [asdict(record) for record in trace.records],
            "ended_line": trace.ended_line,
            "read": trace.read,
            "end": trace.end,
            "passages_left_out": dropped,
            **({} if counts is None else {"lines": [counts.lines, counts.thinned]}),
        },
    }
    if memory.beside is not None and passages:
        own = ("fingerprint", "budget", "by", "room", "peak", "dropped", "words")
        told = {name: getattr(memory.beside, name) for name in own}
        state["answering"] = {"name": memory.beside.model, **told}
    return state, tensors


def recall(
    kind: Kind, model: BoundedModel, tokenizer: Tokenizer, answer: RunSettings | None = None
) -> Memory:
    """Restore the memory of a file. `model` must be the model that made it.

    The settings of answers (length, temperature, ...) come from `answer`. Raises ModelError if the
    model, its prompt or its trained weights differ, UsageError if the method is not installed or
    has other settings, SourceError if the file is broken.
    """
    state, tensors = kind.content.state, kind.content.tensors
    try:
        check_model(kind, model)
        run = _run_of(state, answer or RunSettings())
        method = remade(run.method, run.set, kind.path)
        if method.settings() != state["method"]["settings"]:
            raise UsageError(
                f"{kind.path} was made by {run.method} with {_shown(state['method']['settings'])}, "
                f"and here its settings are {_shown(method.settings())}."
            )
        task: Task = "summarize" if state["task"] == "summarize" else "ask"
        asked: Any = {"system": state["system"], "task": task}
        wording = wording_of(state["head"], tokenizer, model.facts.folder, **asked)
        if wording is None:
            raise ModelError(
                f"{kind.path} was made with another tokenizer or chat template than that of "
                f"{model.name}: its prompt has {len(state['head'])} other tokens. Use the model "
                "files that made it."
            )
        prompt = build_prompt(tokenizer, wording=wording, **asked)
        sizes = BudgetSplit(**state["sizes"])
        catalysts = tuple(tuple(c) for c in state["catalysts"])
        _check_sizes(sizes, state, method, model)
        plan = RunPlan(
            method, prompt, kind.questions, catalysts, sizes, state["system"],
            extract=state["measure_always"],
        )  # fmt: skip
        reader = plan.reader(model, run, state["reader"]["planned"])
        made, here = as_here(state["method"], reader).get("trained"), _trained(reader)
        if made != here:
            what = "other scorers" if reader.evictor.compressive_memory is None else "another gate"
            raise ModelError(
                f"{kind.path} was made by {run.method} with {what} (fingerprint {made}) than "
                f"the present ({here}); restore what made it, or read the sources again."
            )
        trace = trace_of(state["trace"], tensors)
        memory = Memory(model.name, tokenizer, reader, plan, run, trace, digest=kind.content.digest)
        memory.beside = beside_of(state, tensors)
        memory.warnings += kind.content.notes["warnings"]
        if kind.begun:
            memory.warnings.append(
                f"{kind.path} is the checkpoint of a reading that had not ended: only "
                f"{trace.read:,} tokens of its text were read."
            )
        restored(kind, memory)
        if not np.isin(reader.retained().numpy(), trace.origins.known()[0]).all():
            raise ValueError("it does not say where all of its entries came from")
    except BudgetError as error:  # these sizes cannot be combined, so no memory has them
        raise file.unusable(kind.path, str(error).rstrip(".")) from error
    except KvstreamError:
        raise
    except WRONG as error:
        raise _wrong(kind.path, error) from error
    return memory


def _check_sizes(
    sizes: BudgetSplit, state: Mapping[str, Any], method: Method, model: BoundedModel
) -> None:
    """Raise ValueError if the sizes are not those of the prompt and the catalysts."""
    ids = [i for c in state["catalysts"] for i in c]
    vocabulary = model.model.get_input_embeddings().num_embeddings
    if any(i >= vocabulary for i in ids):
        raise ValueError(f"a catalyst has the token {max(ids)}, and the model knows {vocabulary}")
    taken = len(ids) if method.evicts else 0
    if (sizes.prompt, sizes.catalyst) != (len(state["head"]), taken):
        raise ValueError(
            f"its prompt and catalysts take {len(state['head'])} and {taken} entries, not "
            f"{sizes.prompt} and {sizes.catalyst}"
        )


def _trained(reader: Reader) -> str | None:
    """Return the fingerprint of the weights of the method that were trained for the model."""
    memory = reader.evictor.compressive_memory
    learned = reader.evictor.learned if memory is None else memory.trained
    return None if learned is None else fingerprint(learned)


def as_here(method: Mapping[str, Any], reader: Reader) -> Mapping[str, Any]:
    """Return the method of a file. If an earlier version named no scorers, add the present ones."""
    unsaid = "trained" in method and method["trained"] is None
    if unsaid and reader.evictor.compressive_memory is None:
        return {**method, "trained": _trained(reader)}
    return method


def restored(kind: Kind, memory: Memory) -> None:
    """Restore the reader of a memory with the same parameters. Raise SourceError if it fails."""
    state, tensors, notes = kind.content.state, kind.content.tensors, kind.content.notes
    part = len("reader.")
    own = {name[part:]: t for name, t in tensors.items() if name.startswith("reader.")}
    reader = memory.reader
    try:
        reader.restore(state["reader"], own)
        fill(reader, state["cache"], tensors, state["trace"]["read"], kind.kv_dtype)
        reader.cache.peak = Peak(**notes["peak"])
        if kind.kv_dtype != reader.model.kv_dtype:  # the saved bytes are of another number type
            reader.cache.peak.bytes = reader.cache.bytes
        if rounds(kind.kv_dtype, reader.model.kv_dtype):
            memory.warnings.append(_rounded(kind, reader.model))
        if reader.cache.peak.tokens > reader.sizes.budget:
            raise ValueError(f"its peak of {reader.cache.peak.tokens} is over its budget")
        # For joined files an earlier version wrote the bytes of a larger budget.
        reader.cache.peak.bytes = min(reader.cache.peak.bytes, reader.cache.capacity_bytes)
        reader.cache.note_peak()  # the peak is at least what is held, whatever the file says
        memory.prefill_s = float(notes["read_s"]) - memory.loaded_s
        reader.select_seconds = float(notes["select_s"])
    except WRONG as error:
        raise _wrong(kind.path, error) from error


def rounds(made: torch.dtype, here: torch.dtype) -> bool:
    """Return whether numbers lose precision when they are converted from `made` to `here`."""
    return torch.promote_types(made, here) != here


def _rounded(kind: Kind, model: BoundedModel) -> str:
    made, here = (str(t).removeprefix("torch.") for t in (kind.kv_dtype, model.kv_dtype))
    return (
        f"The KV cache in {kind.path} is in {made}, and was rounded to {here}; "
        f"--kv-dtype {made} keeps it as it is."
    )


def check_model(kind: Kind, model: BoundedModel) -> None:
    """Raise ModelError if another model made a memory.

    The number type in which the weights are loaded does not matter.
    """
    made = kind.model
    revision = f" at {made['revision']}" if made.get("revision") else ""
    if not _same_weights(made, model):
        raise ModelError(
            f"{kind.path} was made by {made['name']}{revision} (weights {made['fingerprint']}), "
            f"and this is {model.name} (weights {model.fingerprint}); give the model that made it "
            f"with -m, loaded with the same options (--dtype {made['dtype']}, --quantize)."
        )


def _same_weights(made: Mapping[str, Any], model: BoundedModel) -> bool:
    if made["dtype"] == model.weights_dtype:
        return bool(made["fingerprint"] == model.fingerprint)
    # Weights stored in 16 bits do not change when they are converted to float32 and back.
    there = model.fingerprint_in(getattr(torch, made["dtype"]))
    return made["fingerprint"] == there or made.get("rounded") == model.rounded


def _run_of(state: Mapping[str, Any], answer: RunSettings) -> RunSettings:
    stored = {"thin": "auto", **state["run"]}  # files of 0.1 have no such field
    run = {row.name: stored[name] for name, row in STORED.items()}
    if run["seed"] >= 2**64:
        raise ValueError(f"the seed {run['seed']} has more than 64 bits")
    try:
        return replace(
            answer,
            budget=Budget(tokens=state["sizes"]["budget"]),
            method=state["method"]["name"],
            set=state["method"]["typed"],
            **run,
        )
    except UsageError as error:
        raise ValueError(str(error).rstrip(".")) from error


def _shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _wrong(path: Path, error: Exception) -> SourceError:
    told = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return file.unusable(path, told)
