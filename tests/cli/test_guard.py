"""Under a limit of address space the program ends with a message, whatever libraries do."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

import pytest

LIMIT = 1 << 30
PROGRAM = """
import os, signal, sys, time
from kvstream.cli.app import crashed
from kvstream.cli.address_space import guarded, stderr_apart
stderr_apart()
def work():
    os.write(2, b"what a library says\\n")
    {work}
sys.exit(guarded(work, lambda noise: crashed(noise, {arguments})))
"""


def started(work: str, arguments: str = "[]", limit: int = LIMIT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(work=work, arguments=arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
@pytest.mark.parametrize(
    ("work", "code"),
    [
        ("os.abort()", 5),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 5),
        ("os._exit(127)", 5),  # as the C library and OpenMP exit
        ("os._exit(1)", 5),
        ("return 0", 0),
        ("return 4", 4),
        ("sys.exit(143)", 143),
        ("os._exit(143)", 143),  # terminated while libraries are imported
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_a_crash_is_lack_of_memory(work: str, code: int) -> None:
    process = started(work)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    if code == 5:
        assert "Error: Out of memory" in err
        assert "Lower --budget" in err
    else:
        assert not err


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
def test_what_libraries_said_is_shown_with_v() -> None:
    process = started("os.abort()", "['-v']")
    assert "what a library says" in process.communicate(timeout=60)[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
def test_signals_reach_the_work() -> None:
    work = """signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print("ready", flush=True); time.sleep(60)"""
    process = started(work)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 7


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
@pytest.mark.parametrize(
    ("error", "found"),
    [
        ("RuntimeError('could not create a primitive')", True),
        ("RuntimeError('pool INTERNAL ASSERT FAILED: Invalid thread pool!')", True),
        ("SystemError('error return without exception set')", True),
        ("ModuleNotFoundError('No module named rank_bm25')", False),
        ("FileNotFoundError(2, 'No such file')", False),
        ("ValueError('a shape')", False),
    ],
)
def test_odd_errors_at_the_limit_are_lack_of_memory(error: str, found: bool) -> None:
    program = f"""
import resource
from kvstream.errors import is_out_of_memory
assert not is_out_of_memory({error})
peak = next(int(x.split()[1]) for x in open('/proc/self/status') if x.startswith('VmPeak')) << 10
resource.setrlimit(resource.RLIMIT_AS, (peak * 11 // 10, peak * 11 // 10))
assert is_out_of_memory({error}) is {found}
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
