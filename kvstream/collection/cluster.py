"""Ray: a cluster of this machine alone or one that runs, and how many workers have room there."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvstream.errors import KvstreamError, UsageError

AUTO = "auto"
ANSWERS_IN = 3.0
"""Seconds in which an address has to answer; Ray itself would try for over a minute."""
TRIES = 3
"""Starts of a cluster of this machine alone."""
OBJECTS = 80 * 1024**2
"""Bytes of shared memory of a cluster of this machine alone: little more than Ray's least. Paths
and numbers go through it."""
_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS


@dataclass(frozen=True)
class Need:
    """What one worker declares."""

    cpus: int = 1
    """Threads of the reading."""
    memory: int = 0
    """Bytes for the process: weights, KV cache, libraries; 0 declares nothing."""
    gpus: float = 0.0

    def options(self) -> dict[str, Any]:
        """As Ray's ``options`` take them."""
        found: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        return {**found, "memory": self.memory} if self.memory else found

    def fit(self, resources: dict[str, float]) -> int:
        """How many such workers a machine with these resources holds."""
        rooms = [resources.get("CPU", 0) / self.cpus]
        if self.memory:
            rooms.append(resources.get("memory", 0) / self.memory)
        if self.gpus:
            rooms.append(resources.get("GPU", 0) / self.gpus)
        return int(min(rooms) + 1e-9)

    def __str__(self) -> str:
        parts = [f"{self.cpus} CPU{'s'[: self.cpus > 1]}"]
        parts += [f"{self.memory / 1024**3:.1f} GiB of memory"] if self.memory else []
        parts += [f"{self.gpus:g} GPU"] if self.gpus else []
        return ", ".join(parts)


def need_ray() -> None:
    """Raises UsageError where Ray is not installed. Imports nothing."""
    if find_spec("ray") is None:
        raise UsageError("Workers need the extra ray: pip install 'kvstream[ray]'.")


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[Any]:
    """The module ``ray``, connected to a cluster until the end.

    Without an address a cluster with `cpus` is started on this machine and ended; the driver takes
    none of them. A connection that the caller has is used and left. Raises KvstreamError,
    UsageError.
    """
    need_ray()
    if address is not None:
        address = _checked(address)
    # Read when it is imported: without it, Ray sends statistics of its use to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray gives workers the niceness 15: beside other programs they would hardly ever run.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    if ray.is_initialized():
        yield ray
        return
    how: dict[str, Any] = {"address": address}
    if address is None:
        how = {"address": "local", "num_cpus": cpus, "object_store_memory": OBJECTS}
        how["include_dashboard"] = False
    before = signal.getsignal(signal.SIGTERM)
    try:
        _start(ray, how)
    except (Exception, SystemExit) as error:
        raise _refused(address, error) from error
    finally:
        # Ray sets a handler of its own, which would end us without a word.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, how: dict[str, Any]) -> None:
    """Connect; a cluster of our own is tried again, as Ray gives a busy machine but 30 seconds.

    What a start that failed leaves behind ends with this process.
    """
    for attempt in range(TRIES):
        try:
            ray.init(**how, logging_level=logging.ERROR, log_to_driver=False)
            return
        except Exception as error:
            last = attempt == TRIES - 1 or how["address"] != "local"
            if last or "timed out" not in str(error):
                raise
            ray.shutdown()


def room(ray: Any, need: Need) -> int:
    """How many workers the machines of the cluster hold. Raises KvstreamError where none does."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = sum(need.fit(machine) for machine in machines)
    if fitting:
        return fitting
    most = {
        name: max((machine.get(name, 0) for machine in machines), default=0)
        for name in ("CPU", "memory", "GPU")
    }
    raise NoRoomError(
        f"A worker needs {need}, and no machine has that: the largest figures are "
        f"{most['CPU']:g} CPUs, {most['memory'] / 1024**3:.1f} GiB and {most['GPU']:g} GPUs. "
        "Choose a smaller model, --budget or --threads, or set --worker-memory to what a worker "
        "needs."
    )


def is_lost(ray: Any, node: str) -> bool:
    """Whether a machine is gone, by its id.

    Ray notices that seconds after the machine's workers have ended, so the machine is asked too.
    """
    known = next((each for each in ray.nodes() if each["NodeID"] == node), None)
    if known is None or not known["Alive"]:
        return True
    try:
        with socket.create_connection(
            (known["NodeManagerAddress"], known["NodeManagerPort"]), ANSWERS_IN
        ):
            return False
    except OSError:
        return True


class NoRoomError(KvstreamError):
    """No machine of a cluster has what a worker needs."""

    exit_code = 5


def gpus_of(ray: Any, device: str, workers: int) -> float:
    """GPUs of a worker: one for ``cuda``; of ``auto`` a share of those there are, or none.

    Raises UsageError for a device with a number: Ray decides which one a worker gets.
    """
    if device.startswith("cuda"):
        if device != "cuda":
            raise UsageError(
                f"--device {device} names one GPU, and Ray gives each worker its own; use "
                "--device cuda."
            )
        return 1.0
    there = int(ray.cluster_resources().get("GPU", 0)) if device == "auto" else 0
    return 1.0 / math.ceil(workers / there) if there else 0.0


def _checked(address: str) -> str:
    """The address, if something like Ray answers there. Raises UsageError, KvstreamError."""
    if address.startswith("ray://"):
        raise UsageError(
            f"{address} is an address of Ray Client. Run kvstream on a machine of the cluster, "
            "with --ray auto."
        )
    place = _of_this_machine() if address == AUTO else address
    if place is None:
        raise KvstreamError(
            "No Ray cluster runs here. Start one (ray start --head), give its address with --ray "
            "HOST:PORT, or use --workers N without --ray."
        )
    host, colon, port = place.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(
            f"{address!r} is not the address of a Ray cluster; write HOST:6379, or auto."
        )
    if not os.environ.get("RAY_USE_TLS", "0").strip("0"):
        problem = _silence(host.strip("[]"), int(port))
        if problem:
            raise KvstreamError(
                f"No Ray cluster answers at {place}: {problem}. Check the address (ray status), "
                "or start one there: ray start --head --port=6379."
            )
    return place


def _of_this_machine() -> str | None:
    """Where the cluster is that this machine belongs to, as Ray's own ``auto`` finds it."""
    named = os.environ.get("RAY_ADDRESS", "").strip()
    if named and named != AUTO:
        return named
    own = os.environ.get("TMPDIR") if sys.platform == "linux" else None
    folder = Path(os.environ.get("RAY_TMPDIR") or own or "/tmp", "ray")
    try:
        return (folder / "ray_current_cluster").read_text("utf-8").strip() or None
    except OSError:
        return None


def _silence(host: str, port: int) -> str:
    """Why nothing that speaks gRPC is there; empty where it answers with a SETTINGS frame."""
    try:
        with socket.create_connection((host, port), ANSWERS_IN) as stream:
            stream.settimeout(ANSWERS_IN)
            stream.sendall(_PREFACE)
            head = stream.recv(len(_SETTINGS))
    except TimeoutError:
        return f"it says nothing for {ANSWERS_IN:.0f} seconds"
    except OSError as error:
        return error.strerror or str(error)
    return "" if head[3:4] == _SETTINGS[3:4] else "something else listens there"


def _refused(address: str | None, error: BaseException) -> KvstreamError:
    told = " ".join(str(error).split())
    if "ersion mismatch" in told:
        return KvstreamError(
            f"The cluster at {address} has another version of Ray or Python than this machine. "
            f"Install the same version on both. ({told[:300]})"
        )
    where = f"The cluster at {address}" if address else "A cluster on this machine"
    verb = "refuses the connection" if address else "does not start"
    return KvstreamError(f"{where} {verb}: {type(error).__name__}: {told[:300]}")
