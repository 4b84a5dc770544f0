"""Questions to a cluster, without a cluster."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kvstream.collection.cluster import connected, is_lost


def cluster(alive: bool, port: int) -> Any:
    node = {
        "NodeID": "a", "Alive": alive, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port,
    }  # fmt: skip
    return SimpleNamespace(nodes=lambda: [node])


def test_a_machine_is_lost_before_ray_says_so() -> None:
    """Ray reports the machine alive for some more seconds, but nothing listens there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert not is_lost(cluster(True, port), "a")
        assert is_lost(cluster(False, port), "a")
        assert is_lost(cluster(True, port), "b")
    assert is_lost(cluster(True, port), "a")


def test_messages_of_ray_do_not_go_to_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'kvstream[ray]'")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **how: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    message = {"lines": ["A worker died."], "pid": "raylet", "is_err": False}
    with connected(None, 1) as found:
        found._private.worker.print_to_stdstream(message, ignore_prefix=False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("raised", "ends_with"), [(15, 143), (143, 143), (129, 129)])
def test_a_signal_while_a_cluster_starts_is_no_failure_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, raised: int, ends_with: int
) -> None:
    """Ray's own handler of SIGTERM exits with the number of the signal."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'kvstream[ray]'")

    def init(**how: Any) -> None:
        sys.exit(raised)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(SystemExit) as ended, connected(None, 1):
        pass
    assert ended.value.code == ends_with
