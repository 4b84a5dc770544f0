"""``offline=True`` keeps every library off the network, whatever was imported before."""

import os
import subprocess
from pathlib import Path

PROGRAM = """
import os
import socket
import huggingface_hub.constants  # reads HF_HUB_OFFLINE now, and never again
import kvstream

asked = []

def refused(*address, **more):
    asked.append(address)
    if not offline:  # one is enough: the library would try again for a minute
        print("asked", flush=True)
        os._exit(0)
    raise OSError("no network here")

socket.getaddrinfo = socket.create_connection = socket.socket.connect = refused
for offline in (True, False):
    try:
        kvstream.load("nobody/nothing", offline=offline, device="cpu")
    except kvstream.ModelError as error:
        assert "nobody/nothing" in str(error), error
    else:
        raise AssertionError("there is no such model")
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    print(len(asked))
"""


def test_no_request_is_made(warm: list[str], tmp_path: Path) -> None:
    """The same process makes one without ``offline``, so the test would see it."""
    unset = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}
    (tmp_path / "main.py").write_text(PROGRAM)
    done = subprocess.run(
        [*warm, str(tmp_path / "main.py")],
        capture_output=True,
        text=True,
        timeout=200,
        env={name: value for name, value in os.environ.items() if name not in unset},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "asked"]
