"""Output of libraries on stderr, and their use of the network."""

from __future__ import annotations

import os
import warnings


def quiet(*, offline: bool, verbose: bool, bars: bool = True) -> None:
    """Silence libraries on stderr unless `verbose`. Call before they are imported.

    `bars`: the hub may show progress bars.
    """
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    if verbose:
        return
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not bars:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
