"""Save a memory to a file and restore it, with all that it needs to answer or to read on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Reader
from kvstream.errors import BudgetError, KvstreamError, ModelError, UsageError
from kvstream.memory import file
from kvstream.memory.contents import Memory
from kvstream.memory.header import STORED, Answering, Source
from kvstream.memory.memory_file import MemoryFile
from kvstream.memory.packing import beside_of, packed_kept, packed_passages, trace_of
from kvstream.memory.state import cache_state, fill
from kvstream.methods.base import Method
from kvstream.methods.registry import remade
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import Peak
from kvstream.model.fingerprint import fingerprint
from kvstream.run.plan import RunPlan
from kvstream.run.prompt import Task, build_prompt, wording_for
from kvstream.settings import INT8, Budget, RunSettings
from kvstream.tokenization.loading import Tokenizer
from kvstream.version import __version__

ROOM = 1.1
"""Maximum size of a file, as a multiple of a full cache; passages and words get what is left."""


def look(path: Path) -> MemoryFile:
    """Read and check a memory file. Raise SourceError if it is wrong."""
    return MemoryFile(path, file.read(path))


def save(memory: Memory, path: Path, *, passages: bool = True, **more: Any) -> str:
    """Write a memory, with `more` in its notes; return its digest. Raise KvstreamError.

    Without `passages`, the file has no text for citations.
    """
    state, tensors = memory_state(memory, passages=passages)
    if why := file.wild(tensors):
        raise KvstreamError(
            f"Cannot write {path}: {why}, which no memory file can hold. Read the sources again "
            "with another number type, such as --dtype float32, or another method."
        )
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
            "sources": [source.to_json() for source in memory.trace.records],
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
            "sources": [
                {name: v for name, v in each.to_json().items() if name in Source.__struct_fields__}
                for each in trace.records
            ],
            "ended_line": trace.ended_line,
            "read": trace.read,
            "end": trace.end,
            "passages_left_out": dropped,
            **({} if counts is None else {"lines": [counts.lines, counts.thinned]}),
        },
    }
    if memory.beside is not None and passages:
        names = {name: name for name in Answering.__struct_fields__} | {"name": "model"}
        state["answering"] = {name: getattr(memory.beside, own) for name, own in names.items()}
    return state, tensors


def recall(
    saved: MemoryFile, model: BoundedModel, tokenizer: Tokenizer, answer: RunSettings | None = None
) -> Memory:
    """Restore the memory of a file. `model` must be the model that made it.

    The settings of answers (length, temperature, ...) come from `answer`. Raises ModelError if the
    model, its prompt or its trained weights differ, UsageError if the method is not installed or
    has other settings, SourceError if the file is broken.
    """
    state, tensors = saved.content.state, saved.content.tensors
    try:
        check_model(saved, model)
        run = _run_of(state, answer or RunSettings())
        plan = _plan_of(saved, run, model, tokenizer)
        reader = plan.reader(model, run, state["reader"]["planned"])
        _check_trained(saved, reader)
        trace = trace_of(state["trace"], tensors)
        memory = Memory(model.name, tokenizer, reader, plan, run, trace, digest=saved.digest)
        memory.beside = beside_of(state, tensors)
        memory.warnings += saved.warnings
        if saved.begun:
            memory.warnings.append(
                f"{saved.path} is the checkpoint of a reading that had not ended: only "
                f"{trace.read:,} tokens of its text were read."
            )
        restored(saved, memory)
        if not np.isin(reader.retained().numpy(), trace.origins.known()[0]).all():
            raise ValueError("it does not say where all of its entries came from")
    except BudgetError as error:  # these sizes cannot be combined, so no memory has them
        raise file.unusable(saved.path, str(error).rstrip(".")) from error
    except KvstreamError:
        raise
    except file.WRONG as error:
        raise file.unusable(saved.path, error) from error
    return memory


def _plan_of(
    saved: MemoryFile, run: RunSettings, model: BoundedModel, tokenizer: Tokenizer
) -> RunPlan:
    """Return the plan of the first reading. Raises UsageError, ModelError or ValueError."""
    state = saved.content.state
    method = remade(run.method, run.set, saved.path)
    if method.settings() != state["method"]["settings"]:
        raise UsageError(
            f"{saved.path} was made by {run.method} with {_text(state['method']['settings'])}, "
            f"and here its settings are {_text(method.settings())}."
        )
    task: Task = "summarize" if state["task"] == "summarize" else "ask"
    wording = wording_for(model.facts.folder)
    prompt = build_prompt(tokenizer, system=state["system"], task=task, wording=wording)
    if prompt.head != state["head"]:
        raise ModelError(
            f"{saved.path} was made with another tokenizer or chat template than that of "
            f"{model.name}: its prompt has {len(state['head'])} other tokens. Use the model "
            "files that made it."
        )
    sizes = BudgetSplit(**state["sizes"])
    catalysts = tuple(tuple(c) for c in state["catalysts"])
    _check_sizes(sizes, state, method, model)
    return RunPlan(
        method, prompt, saved.questions, catalysts, sizes, state["system"],
        extract=state["measure_always"],
    )  # fmt: skip


def _check_trained(saved: MemoryFile, reader: Reader) -> None:
    """Raise ModelError if the method has other trained weights than when the file was made."""
    method, here = saved.content.state["method"], _trained(reader)
    if (there := method["trained"]) != here:
        what = "other scorers" if reader.evictor.compressive_memory is None else "another gate"
        raise ModelError(
            f"{saved.path} was made by {method['name']} with {what} (fingerprint {there}) than "
            f"the present ({here}); restore what made it, or read the sources again."
        )


def _check_sizes(
    sizes: BudgetSplit, state: Mapping[str, Any], method: Method, model: BoundedModel
) -> None:
    """Raise ValueError if the sizes are not those of the prompt and the catalysts."""
    ids = [i for c in state["catalysts"] for i in c]
    vocabulary = model.model.get_input_embeddings().num_embeddings
    if any(i >= vocabulary for i in ids):
        raise ValueError(f"a catalyst has the token {max(ids)}, and the model knows {vocabulary}")
    size = len(ids) if method.evicts else 0
    if (sizes.prompt, sizes.catalyst) != (len(state["head"]), size):
        raise ValueError(
            f"its prompt and catalysts take {len(state['head'])} and {size} entries, not "
            f"{sizes.prompt} and {sizes.catalyst}"
        )


def _trained(reader: Reader) -> str | None:
    """Return the fingerprint of the weights of the method that were trained for the model."""
    memory = reader.evictor.compressive_memory
    learned = reader.evictor.learned if memory is None else memory.trained
    return None if learned is None else fingerprint(learned)


def restored(saved: MemoryFile, memory: Memory) -> None:
    """Restore the reader of a memory with the same parameters. Raise SourceError if it fails."""
    state, tensors, notes = saved.content.state, saved.content.tensors, saved.content.notes
    reader, part = memory.reader, "reader."
    own = {n.removeprefix(part): t for n, t in tensors.items() if n.startswith(part)}
    try:
        reader.restore(state["reader"], own)
        fill(reader, state, tensors, saved.kv_dtype)
        reader.cache.peak = Peak(**notes["peak"])
        if saved.kv_dtype != reader.model.kv_dtype:  # the saved bytes are of another number type
            reader.cache.peak.bytes = reader.cache.bytes
        here = reader.model.kv_dtype
        if torch.promote_types(saved.kv_dtype, here) != here:
            old, now = (str(t).removeprefix("torch.") for t in (saved.kv_dtype, here))
            memory.warnings.append(
                f"The KV cache in {saved.path} is in {old}, and was rounded to {now}; "
                f"--kv-dtype {old} keeps it as it is."
            )
        if reader.cache.peak.tokens > reader.sizes.budget:
            raise ValueError(f"its peak of {reader.cache.peak.tokens} is over its budget")
        # For joined files an earlier version wrote the bytes of a larger budget.
        reader.cache.peak.bytes = min(reader.cache.peak.bytes, reader.cache.capacity_bytes)
        reader.cache.note_peak()  # the peak is at least what is held, whatever the file says
        memory.prefill_s = float(notes["read_s"]) - memory.loaded_s
        reader.select_seconds = float(notes["select_s"])
    except file.WRONG as error:
        raise file.unusable(saved.path, error) from error


def check_model(saved: MemoryFile, model: BoundedModel) -> None:
    """Raise ModelError if another model made a memory; its number type does not matter."""
    facts = saved.model
    revision = f" at {facts['revision']}" if facts.get("revision") else ""
    if not _same_weights(facts, model):
        dtype = facts["dtype"]
        loaded = f"--quantize {dtype}" if dtype == INT8 else f"--dtype {dtype}, --quantize"
        raise ModelError(
            f"{saved.path} was made by {facts['name']}{revision} (weights {facts['fingerprint']}), "
            f"and this is {model.name} (weights {model.fingerprint}); give the model that made it "
            f"with -m, loaded with the same options ({loaded})."
        )


def _same_weights(facts: Mapping[str, Any], model: BoundedModel) -> bool:
    if facts["dtype"] == model.weights_dtype:
        return bool(facts["fingerprint"] == model.fingerprint)
    # Weights stored in 16 bits do not change when they are converted to float32 and back.
    there = fingerprint(model.model, getattr(torch, facts["dtype"]))
    return facts["fingerprint"] == there or facts["rounded"] == model.rounded


def _run_of(state: Mapping[str, Any], answer: RunSettings) -> RunSettings:
    run = {row.name: state["run"][name] for name, row in STORED.items()}
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


def _text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
