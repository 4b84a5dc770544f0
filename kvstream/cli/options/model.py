"""Options of models: the models to use, and how they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kvstream.api.options import AUTO
from kvstream.cli.options.option import option, stack, typed
from kvstream.cli.options.types import BytesType, ModelType, SkimType, ThreadsType
from kvstream.settings import BACKENDS, QUANTIZED


def model_help(default: str) -> str:
    """Return the help of --model, with the model that a command uses by default."""
    return (
        "A model of the Hugging Face hub, a local folder, a GGUF file, a short name of the config "
        f"file, reader, or pocket (the embedded model). [default: {default}]"
    )


def model_option(default: str) -> Callable[[Any], Any]:
    """Return the option --model; `default` is as in `model_help`."""
    return option(
        "-m", "--model", type=ModelType(), default="pocket", metavar="ID_OR_PATH", section="Model",
        help=model_help(default),
    )  # fmt: skip


skim_options = stack(
    option(
        "--skim", type=SkimType(), default=AUTO, show_default=True, metavar="MODEL",
        section="Model", advanced=True,
        help="Who reads a long text first and keeps passages; --model then reads the best ones and "
        "answers. A small model; self: --model itself; words: no model, the words of the question "
        "(BM25); none: --model answers from what --method keeps. auto: self if --model reads the "
        "text within a minute, else pocket or words, whichever is quick; none for pocket.",
    ),
)  # fmt: skip

loading_options = stack(
    option(
        "--device", default="auto", show_default=True, metavar="NAME",
        advanced=True, section="Model", help="auto, cpu, cuda, cuda:1 or mps.",
    ),
    option(
        "--dtype", default="auto", show_default=True, advanced=True, section="Model",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        help="Number type for computing. auto: the type of the stored weights, or float32 if the "
        "CPU has no instructions for that type.",
    ),
    option(
        "--kv-dtype", default="auto", show_default=True, advanced=True, section="Model",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        help="Number type of the KV cache. auto: that of --dtype, or the 16-bit type of the stored "
        "weights if --dtype auto computes in float32.",
    ),
    option(
        "--attn", default="auto", show_default=True, advanced=True, section="Model",
        type=click.Choice(BACKENDS),
        help="Attention backend. split: for a CPU, attends to memory and chunk separately; flash: "
        "for CUDA, needs the package flash-attn; sdpa: for CUDA, a kernel that PyTorch has; "
        "reference: slow, for any device, holds every score; auto: the first of them that works.",
    ),
    option(
        "--quantize", type=click.Choice(QUANTIZED), advanced=True,
        section="Model",
        help="Quantize the weights while loading: int8 on a CPU; 8bit and 4bit need bitsandbytes.",
    ),
    option(
        "--max-weights", type=BytesType(), metavar="SIZE", advanced=True, section="Model",
        help="Maximum memory for weights; kvstream reads the other weights from disk for every "
        "chunk, which is slow.",
    ),
    option(
        "--threads", type=ThreadsType(), metavar="N", advanced=True, section="Model",
        help="CPU threads. [default: as PyTorch chooses]",
    ),
    option(
        "--revision", metavar="NAME", advanced=True, section="Model",
        help="Branch, tag or commit on the hub.",
    ),
    option(
        "--offline", is_flag=True, advanced=True, section="Model",
        help="Use only files that are already on this machine.",
    ),
    option(
        "--trust-remote-code", is_flag=True, advanced=True, section="Model",
        help="Run Python code of the model.",
    ),
)  # fmt: skip

model_options = stack(model_option("pocket"), loading_options)

ONE_MODEL = dict.fromkeys(("skim",), "one model reads here.")
"""Options without effect in commands where no second model skims."""

LOADING = (
    "device", "dtype", "kv_dtype", "attn", "quantize", "max_weights", "threads", "revision",
    "offline", "trust_remote_code", "quiet",
)  # fmt: skip
"""Names of the options that are passed to `kvstream.load`."""


def refuse_revision(model: str) -> None:
    """Raise click's UsageError if --revision was given for a model that is not on the hub."""
    ctx = click.get_current_context(silent=True)
    if ctx is None or not typed(ctx, "revision"):
        return
    from kvstream.store.offered import is_local

    if is_local(model):
        raise click.UsageError(
            f"--revision is for models of the hub, and {model} is none; leave --revision out.", ctx
        )
