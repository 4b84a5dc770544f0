"""The digest of a memory, without a file."""

from __future__ import annotations

from kvstream.memory import file
from kvstream.memory.contents import Memory
from kvstream.memory.saving import memory_state


def digest_of(memory: Memory) -> str:
    """Return the SHA-256 that a file of this memory would have."""
    state, tensors = memory_state(memory)
    return file._digest(file._json(state), tensors, aside=False)
