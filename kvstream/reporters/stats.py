"""Every event as one line of JSON (``--stats``), for programs that watch or draw a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from kvstream import events
from kvstream.events import Event, StepDone
from kvstream.reporters.format import Sink, json_text

_SIZES = (
    "seen", "estimated_tokens", "kv_tokens", "in_flight_tokens", "peak_tokens", "budget_tokens",
    "kv_bytes",
)  # fmt: skip


def resident_bytes() -> int:
    """Return the RAM of this process."""
    import psutil  # not for help pages

    return int(psutil.Process().memory_info().rss)


def device_bytes() -> int | None:
    """Return the bytes that torch has on CUDA devices, without importing it; None without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return sum(torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count()))


class Stats:
    """Writes to a stream that it does not own. Each line is flushed, so ``tail -f`` works."""

    def __init__(self, stream: Sink, origin: Mapping[str, Any] | None = None) -> None:
        self.stream, self.origin = stream, origin
        self.memory: tuple[int, ...] = ()

    def show(self, event: Event) -> None:
        self.stream.write(json_text(self.record(event)) + "\n")
        self.stream.flush()

    def record(self, event: Event) -> dict[str, Any]:
        """Return the fields of an event; a step also has its retention since the previous step."""
        match event:
            case StepDone():
                return self._step(event)
            case events.Answered():
                return {"event": "answered", **event.result.to_json(self.origin)}
            case events.AnswerStarted(question=question, number=number):
                return {"event": "answer_started", "question": question, "number": number}
            case events.Notice():
                return {"event": "notice", **vars(event)}
            case events.AnswerToken():
                return {"event": "answer_token", **vars(event)}
        self.memory = ()  # each part begins with empty memory
        if isinstance(event, events.Started):
            return {"event": "started", **event.to_json()}
        return {"event": "part_read", **vars(event)}

    def _step(self, event: StepDone) -> dict[str, Any]:
        before = self.memory or (0,) * len(event.memory)
        self.memory = event.memory
        same = len(set(event.memory)) <= 1
        ratios = [
            round(now / (then + event.chunk), 4) if then + event.chunk else 1.0
            for now, then in zip(event.memory, before, strict=True)
        ]
        return {
            "event": "step",
            "step": event.step,
            "chunk": event.chunk,
            # One number if the layers agree, a list if they differ.
            "memory": event.memory[0] if same and event.memory else list(event.memory),
            "retention": ratios[0] if len(set(ratios)) == 1 else ratios,
            **{name: getattr(event, name) for name in _SIZES},
            "rss_bytes": resident_bytes(),
            "device_bytes": device_bytes(),
            "seconds": round(event.seconds, 4),
            "cpu_s": round(time.process_time(), 4),
        }
