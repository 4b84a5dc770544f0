"""Save and restore the state of a run, except the cache, as numbers and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from kvstream.engine.prefill import Prefill


def state(
    prefill: Prefill, steps: int, planned: int | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return numbers in types that JSON has, and tensors. The names are those of memory files."""
    evictor = prefill.evictor
    numbers = {
        "seen": evictor.seen,
        "steps": steps,
        "sinks": evictor.sinks,
        "ratios": evictor.ratios,
        "begun": not prefill.due,
        "planned": planned,
        "schedule": prefill.schedule.state(),
    }
    tensors = {"generator": evictor.generator.get_state()}
    if prefill.before is not None:
        tensors["before"] = prefill.before
    return numbers, tensors


def restore(prefill: Prefill, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Resume from a `state`. The caller fills the cache.

    Raises ValueError, KeyError or RuntimeError if the state does not fit this run.
    """
    evictor, schedule = prefill.evictor, prefill.schedule
    schedule.restore(numbers["schedule"])
    _check(numbers, prefill)
    evictor.seen, evictor.sinks, evictor.ratios = (numbers[n] for n in ("seen", "sinks", "ratios"))
    prefill.due = [] if numbers["begun"] else list(prefill.head)
    try:
        evictor.generator.set_state(tensors["generator"])
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"its random numbers cannot go on: {error}") from error
    before = tensors.get("before")
    if before is not None and (before.dim(), len(before)) != (2, 1):
        raise ValueError(f"what stood before has the shape {list(before.shape)}")
    prefill.before = None if before is None else before.to(prefill.model.device)
    if prefill.before is None:
        return
    try:
        prefill.model.logits(prefill.before)
    except RuntimeError:  # saved in another number type, or by another model
        prefill.before = prefill.before.to(prefill.model.dtype)
        prefill.model.logits(prefill.before)


def _check(numbers: Mapping[str, Any], prefill: Prefill) -> None:
    """Raise ValueError if the numbers cannot be those of a run."""
    for name in ("seen", "steps", "sinks"):
        value = numbers[name]
        if not (type(value) is int and 0 <= value < 2**31) and (name, value) != ("sinks", None):
            raise ValueError(f"{name} cannot be {value!r}")
    held, ratios = prefill.schedule.held, numbers["ratios"]
    if any(h > numbers["seen"] for h in held):
        raise ValueError(f"its layers hold more than the {numbers['seen']} tokens it has seen")
    if (numbers["sinks"] or 0) > min(prefill.method.sinks, *held):
        raise ValueError(f"{numbers['sinks']} sinks cannot be among what its layers hold")
    if ratios is not None and len(ratios) != len(held):
        raise ValueError(f"it has {len(ratios)} ratios, and {len(held)} layers are compressed")
    if numbers["begun"] is not True and (numbers["begun"] is not False or numbers["seen"]):
        raise ValueError("it cannot have seen the text before the prompt")
