"""Fuzz kvstream: whatever the input, it must answer or refuse in words.

    python tests/support/fuzz.py parsers --cases 1000000
    python tests/support/fuzz.py engine --cases 10000 --seed 3
    python tests/support/fuzz.py archives --only 17 -v

A name is a target or a group of targets. Every case follows from the seed and its number alone, so
`--only` repeats one case. A case fails if it raises an exception other than an error of kvstream or
a usage error of click, if it computes for longer than LIMIT seconds, or if a bound is exceeded. The
script downloads nothing, and writes only to a temporary folder.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click
from fuzz_documents import DOCUMENTS, MISSING
from fuzz_engine import ENGINE
from fuzz_parsers import PARSERS

from kvstream.errors import KvstreamError

LIMIT = 60.0
"""Seconds of processor time that a case may take. On a busy machine it may last longer."""
WAITING = 30
"""Maximum duration of a case, computing or not, as a multiple of LIMIT."""
Target = Callable[[random.Random, Path], None]
TARGETS: dict[str, Target] = {**PARSERS, **DOCUMENTS, **ENGINE}
GROUPS = {
    "parsers": [*PARSERS, *(() if MISSING else DOCUMENTS)],
    "engine": list(ENGINE),
}


class Hang(BaseException):
    """A case took longer than LIMIT."""


def run_case(name: str, number: int, seed: int, folder: Path) -> bool:
    """Run one case; return True if it was refused in words. Raises whatever else goes wrong."""
    rng = random.Random(f"{name} {seed} {number}")
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    signal.setitimer(signal.ITIMER_REAL, WAITING * LIMIT)
    try:
        TARGETS[name](rng, folder)
    except (click.exceptions.Exit, click.Abort):
        return True
    except (KvstreamError, click.ClickException) as error:
        if not str(error):
            raise RuntimeError("a refusal without words") from error
        return True
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


def _hang(_: int, frame: FrameType | None) -> None:
    where = frame.f_code.co_qualname if frame else "?"
    raise Hang(f"after {LIMIT} s of computing, or {WAITING * LIMIT} s, at {where}")


def fuzz(names: list[str], cases: range, seed: int, *, verbose: bool = False) -> int:
    """Run the cases, with targets in turns; return how many failed."""
    alarms = (signal.SIGALRM, signal.SIGPROF)
    previous = [signal.signal(alarm, _hang) for alarm in alarms]
    failed: Counter[str] = Counter()
    refused = 0
    began = told = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="kvstream-fuzz-") as folder:
            for count, number in enumerate(cases, 1):
                name = names[number % len(names)]
                try:
                    refused += run_case(name, number, seed, Path(folder))
                except (Exception, Hang) as error:
                    failed[name] += 1
                    print(f"FAILED {name} --seed {seed} --only {number}: {error!r}", flush=True)
                    if verbose or failed[name] == 1:
                        traceback.print_exc()
                if time.monotonic() - told > 30:
                    told = time.monotonic()
                    print(f"{count:,} of {len(cases):,}, {failed.total()} failed", file=sys.stderr)
    finally:
        for alarm, handler in zip(alarms, previous, strict=True):
            signal.signal(alarm, handler)
    print(
        f"{len(cases):,} cases of {', '.join(names)}: {refused:,} refused in words, "
        f"{failed.total()} failed, {time.monotonic() - began:.0f} s, seed {seed}"
    )
    return failed.total()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="+", choices=[*GROUPS, *TARGETS])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one case")
    parser.add_argument("-v", "--verbose", action="store_true", help="every traceback")
    given = parser.parse_args()
    if MISSING and "parsers" in given.names:
        print("Not tried: PDF, EPUB and HTML, which need kvstream[documents].", file=sys.stderr)
    names = list(dict.fromkeys(t for n in given.names for t in GROUPS.get(n, [n])))
    cases = range(given.cases) if given.only is None else range(given.only, given.only + 1)
    return 1 if fuzz(names, cases, given.seed, verbose=given.verbose) else 0


if __name__ == "__main__":
    sys.exit(main())
