"""Ray: connect to a running cluster or start a local one, and count the workers that fit."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstream.errors import KvstreamError, UsageError

AUTO = "auto"
ANSWERS_IN = 3.0
"""Seconds in which an address has to answer. Ray itself would try for over a minute."""
TRIES = 3
OBJECTS = 80 * 1024**2
"""Bytes of shared memory of a local cluster: little more than Ray's minimum, because only paths and
numbers go through it."""
_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS


@dataclass(frozen=True)
class Need:
    """The resources that one worker reserves."""

    cpus: int = 1
    """Number of threads of a reading."""
    memory: int = 0
    """Bytes of RAM for the process: weights, KV cache, libraries; 0 reserves nothing."""
    gpus: float = 0.0

    def options(self) -> dict[str, Any]:
        """Return the arguments of Ray's ``options``."""
        options: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        return {**options, "memory": self.memory} if self.memory else options

    def fit(self, resources: dict[str, float]) -> int:
        """Return how many such workers fit on a machine with these resources."""
        needs = {"CPU": self.cpus, "memory": self.memory, "GPU": self.gpus}
        rooms = (resources.get(name, 0) / need for name, need in needs.items() if need)
        return int(min(rooms) + 1e-9)

    def __str__(self) -> str:
        parts = [f"{self.cpus} CPU{'s'[: self.cpus > 1]}"]
        parts += [f"{self.memory / 1024**3:.1f} GiB of memory"] if self.memory else []
        parts += [f"{self.gpus:g} GPU"] if self.gpus else []
        return ", ".join(parts)


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[Any]:
    """Yield the module ``ray``, connected to a cluster for the time of this context.

    Without an address, start a cluster with `cpus` on this machine, and end it afterwards; the
    driver uses none of the CPUs. If the caller has a connection, use it and keep it open. Raises
    KvstreamError, UsageError.
    """
    if address is not None:
        address = _checked(address)
    # Ray reads this on import. Without it, Ray sends usage statistics to its developers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # By default Ray's workers have niceness 15, and would hardly run beside other programs.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    if ray.is_initialized():
        yield ray
        return
    how: dict[str, Any] = {"address": address or "local"}
    if address is None:
        how |= {"num_cpus": cpus, "object_store_memory": OBJECTS, "include_dashboard": False}
    before = signal.getsignal(signal.SIGTERM)
    try:
        _start(ray, how)
    except (Exception, SystemExit) as error:
        code = getattr(error, "code", None)
        if code in (15, 143, 129):  # SIGTERM, by Ray's handler or ours, and SIGHUP
            raise SystemExit(128 + code % 128) from error
        raise _refusal(address, error) from error
    finally:
        # Ray installs its own handler, which would end this process silently.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
    # Ray reports each lost worker on stdout, which only gets answers. No public option stops that.
    logs = ray._private.worker
    logs._worker_logs_enabled = False
    try:
        yield ray
    finally:
        ray.shutdown()
        logs._worker_logs_enabled = True


def _start(ray: Any, how: dict[str, Any]) -> None:
    """Connect; retry a local cluster, for which Ray waits only 30 seconds."""
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
    """Return how many workers fit in the cluster. Raises NoRoomError if none fits."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = sum(need.fit(machine) for machine in machines)
    if fitting:
        return fitting
    cpus, memory, gpus = (
        max((machine.get(name, 0) for machine in machines), default=0)
        for name in ("CPU", "memory", "GPU")
    )
    raise NoRoomError(
        f"A worker needs {need}, and no machine has that: the largest figures are "
        f"{cpus:g} CPUs, {memory / 1024**3:.1f} GiB and {gpus:g} GPUs. "
        "Choose a smaller model, --budget or --threads, or set --worker-memory to what a worker "
        "needs."
    )


def is_lost(ray: Any, node: str) -> bool:
    """Return whether the machine of a node is lost; ask it, as Ray notices that late."""
    row = next((each for each in ray.nodes() if each["NodeID"] == node), None)
    if row is None or not row["Alive"]:
        return True
    try:
        with socket.create_connection(
            (row["NodeManagerAddress"], row["NodeManagerPort"]), ANSWERS_IN
        ):
            return False
    except OSError:
        return True


class NoRoomError(KvstreamError):
    """No machine of a cluster has the resources that a worker needs."""

    exit_code = 5


def gpus_of(ray: Any, device: str, workers: int) -> float:
    """Return the GPUs of a worker: 1, a share for ``auto``, or 0. Raises UsageError."""
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
    """Return the address at which a gRPC server answers. Raises UsageError, KvstreamError."""
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
    """Return the address of this machine's cluster, as Ray's own ``auto`` finds it, or None."""
    address = os.environ.get("RAY_ADDRESS", "").strip()
    if address and address != AUTO:
        return address
    own = os.environ.get("TMPDIR") if sys.platform == "linux" else None
    folder = Path(os.environ.get("RAY_TMPDIR") or own or "/tmp", "ray")
    with suppress(OSError):
        return (folder / "ray_current_cluster").read_text("utf-8").strip() or None
    return None


def _silence(host: str, port: int) -> str:
    """Return why no gRPC server answers; empty if one answers with a SETTINGS frame."""
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


def _refusal(address: str | None, error: BaseException) -> KvstreamError:
    message = " ".join(str(error).split())
    if "ersion mismatch" in message:
        return KvstreamError(
            f"The cluster at {address} has another version of Ray or Python than this machine. "
            f"Install the same version on both. ({message[:300]})"
        )
    where = f"The cluster at {address}" if address else "A cluster on this machine"
    verb = "refuses the connection" if address else "does not start"
    return KvstreamError(f"{where} {verb}: {type(error).__name__}: {message[:300]}")
