"""What libraries write on stderr on their own, and whether they may use the network."""

from __future__ import annotations

import os
import warnings


def quiet(*, offline: bool, verbose: bool, bars: bool = True) -> None:
    """Keep what libraries say off stderr, unless -v asks for it; to be called before their import.

    `bars`: the hub's progress bars may show.
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
