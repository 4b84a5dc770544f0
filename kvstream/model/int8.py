"""8-bit integer products on a CPU: weights quantized once, activations token by token.

Each weight row and each token's vector has one scale. PyTorch's kernels quantize the activations,
multiply, and scale the result in one call. They have one scale for all tokens, so each token is
divided by its largest number before, and multiplied by it after. FBGEMM's kernel has a fixed scale:
what other tokens a pass has does not change a token. Layers with the same input (query, key and
value; the two halves of an MLP) are one product.

A few columns of activations are much larger than the others in all tokens, and would make the scale
coarse (LLM.int8(), arXiv 2208.07339, section 3.2). They stay in float32. Some made-up tokens show
which they are.

Without VNNI, kernels add the products of two neighbors in 16 bits, and the sum can saturate. So no
two neighboring weights of the same sign exceed 128 together: then the sum is exact on every
machine, and the activations keep all of their 8 bits.
"""

from __future__ import annotations

import json
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kvstream.errors import ModelError
from kvstream.model.clock import compared, remembered
from kvstream.model.weights import SINGLE, header

LEAST = 64
"""Minimum width of a quantized layer. Narrower ones, such as routers, cost little and matter much.
"""
COLUMNS = 16
"""Maximum number of activation columns in float32; in narrow layers an eighth of the columns."""
SAMPLE = 128
"""Tokens that show which columns are large."""
LEAST_SHARE = 0.5
"""Minimum share of a model's weights in layers that can be quantized."""
WORTH = 1.3
"""Minimum speed of an 8-bit product relative to float32."""
TRIAL = (256, 768, 3072)
"""Tokens, width and outputs of the product that `problem` tests."""
ERROR = 0.03
"""Maximum relative error of that product; the measured error was 0.012."""
SCALE, SUFFIX = "scale", "-int8"
"""Last part of the name of the tensor with a layer's scales, and of a folder with such tensors."""
LARGE = "large-columns.json"
"""File with the columns of each layer's input that stay in float32."""
LARGEST, PAIR = 127, 128
"""Largest 8-bit number, and the largest sum of two neighboring weights of the same sign."""
ROWS = 16384
"""Most rows that are packed together: to pack an output layer as a whole takes twice as long."""
TEXT, ANSWER = 2400, 40
"""Tokens of a typical text and answer: the kernel that is faster for these is used."""
JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers with the same input, as transformers names them."""

Rows = tuple[Tensor, Tensor, Tensor | None]
"""Weights of a layer as int8 [out, in], the scale of each row [out], and biases [out]."""


def _fixed(rows: Tensor, packed: Any) -> Tensor:
    run = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    out: Tensor = run(rows, 1 / LARGEST, LARGEST + 1, packed)
    return out


def _dynamic(rows: Tensor, packed: Any) -> Tensor:
    out: Tensor = torch.ops.quantized.linear_dynamic(rows, packed, reduce_range=False)
    return out


KERNELS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "fbgemm": _fixed, "onednn": _dynamic, "qnnpack": _dynamic,
}  # fmt: skip
"""Products of rows whose largest number is 1, and packed weights."""


class Int8Linear(nn.Module):
    """A linear layer with 8-bit weights and float32 input and output."""

    scale: Tensor
    bias: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        engine: str,
        columns: Sequence[int] | None = None,
    ) -> None:
        """Pack `weight`, int8 [out, in], with the scale of each row [out] for a kernel.

        The products of these `columns` of the input are computed in float32.
        """
        super().__init__()
        self._kernel = KERNELS[engine]
        parts = zip(weight.split(ROWS), scale.split(ROWS), strict=True)
        self._packed = [_pack(*part, engine) for part in parts]
        own = {"scale": scale, "bias": bias}
        # Not through `register_parameter`: while `opened` builds a model, it makes the parameters
        # of all threads empty.
        self._parameters |= {
            name: None if tensor is None else nn.Parameter(tensor, requires_grad=False)
            for name, tensor in own.items()
        }
        self.out_features, self.in_features = weight.shape
        self.columns: Tensor | None = None
        """Large columns of its input; None: not known yet."""
        self._apart = torch.empty(0)
        if columns is not None:
            self.keep_in_float32(columns, weight)

    def keep_in_float32(self, columns: Sequence[int], weight: Tensor | None = None) -> None:
        """Compute these columns in float32; the layer's `weight` saves a slow unpacking."""
        if weight is None:
            weight = self._unpacked(Tensor.int_repr)
        self.columns = torch.tensor(columns)
        self._apart = (weight[:, self.columns].float() * self.scale[:, None]).t().contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., in] -> [..., out], float32."""
        if x.requires_grad and torch.is_grad_enabled():
            out: Tensor = _Product.apply(x, self)
            return out
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """Compute the same as `forward`, without gradients."""
        rows, columns = x.reshape(-1, x.shape[-1]), self.columns
        sizes = rows.abs()
        if columns is not None:
            sizes.index_fill_(1, columns, 0)
        largest = sizes.amax(1, keepdim=True).clamp_min_(1e-30)
        scaled = torch.div(rows, largest, out=sizes)  # no new memory: it takes as long as the work
        if columns is not None:
            scaled.index_fill_(1, columns, 0)
        outs = [self._kernel(scaled, part) for part in self._packed]
        out = torch.cat(outs, 1) if len(outs) > 1 else outs[0]
        if self.bias is None:
            out.mul_(largest)
        else:
            torch.addcmul(self.bias, out, largest, out=out)
        if columns is not None:
            out.addmm_(rows[:, columns], self._apart)
        return out.view(*x.shape[:-1], -1)

    def wide(self) -> Tensor:
        """Return the weights in float32 [out, in], as rounded."""
        return self._unpacked(Tensor.dequantize)

    def _unpacked(self, form: Callable[[Tensor], Tensor]) -> Tensor:
        unpack = torch.ops.quantized.linear_unpack
        return torch.cat([form(unpack(part)[0]) for part in self._packed])


class _Product(torch.autograd.Function):
    """The product with the gradient of the rounded weights, because rounding has none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Int8Linear) -> Tensor:
        ctx.layer = layer
        return layer.product(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] @ ctx.layer.wide(), None


class _Newest(threading.local):
    """The newest product of this thread, until all layers of the group have taken their part."""

    def __init__(self, whole: Int8Linear, parts: int) -> None:
        self.whole, self._parts = whole, parts
        self._of: Callable[[], Tensor | None] = lambda: None
        self._out: Tensor | None = None
        self._rest = 0

    def product(self, x: Tensor) -> Tensor:
        """Return the product of `x`, which each of the layers asks for once."""
        if self._of() is not x or self._out is None:
            self._of, self._out, self._rest = weakref.ref(x), self.whole(x), self._parts
        out, self._rest = self._out, self._rest - 1
        if not self._rest:
            self._out = None
        return out


class Part(nn.Module):
    """One of several layers with the same input. Their product is computed once."""

    def __init__(self, newest: _Newest, first: int, end: int) -> None:
        super().__init__()
        self.whole = newest.whole
        self._newest, self._columns = newest, slice(first, end)
        self.in_features, self.out_features = self.whole.in_features, end - first

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., in] -> [..., out], float32."""
        return self._newest.product(x)[..., self._columns]


class Int8Embedding(nn.Module):
    """A table of token vectors in 8 bits."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        """Take `weight`, int8 [tokens, width], and the scale of each row [tokens]."""
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.num_embeddings, self.embedding_dim = weight.shape

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors of tokens in float32."""
        return self.weight[ids].float() * self.scale[ids].unsqueeze(-1)


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [n, d] as int8, and the scale of each row [n] float32."""
    first, second = rows[:, : rows.shape[1] // 2 * 2].unflatten(1, (-1, 2)).unbind(2)
    together = (first + second).abs_().mul_(first * second > 0).amax(1)
    scale = torch.maximum(rows.abs().amax(1) / LARGEST, together / (PAIR - 1))
    return (rows / scale.clamp_min_(1e-30)[:, None]).round_().to(torch.int8), scale


def _pack(weight: Tensor, scale: Tensor, engine: str) -> Any:
    _hide_warning()
    torch.backends.quantized.engine = engine
    return torch.ops.quantized.linear_prepack(_per_row(weight, scale), None)


def _per_row(weight: Tensor, scale: Tensor) -> Tensor:
    none = torch.zeros(len(scale), dtype=torch.int64)
    return torch._make_per_channel_quantized_tensor(weight, scale.double(), none, 0)


@cache
def _hide_warning() -> None:
    """Hide the warning that PyTorch prints once: version 2.14 replaces such tensors.

    Threads share the filters of warnings, so `_Packing` calls this before its threads start.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        _per_row(torch.zeros(1, 1, dtype=torch.int8), torch.ones(1))


def product_of(rows: Sequence[Rows], columns: Sequence[int] | None = None) -> Int8Linear:
    """Pack layers with the same input as one product, with the large `columns` of that input."""
    weights, scales, biases = zip(*rows, strict=True)
    bias = None
    if any(b is not None for b in biases):
        pairs = zip(biases, scales, strict=True)
        bias = torch.cat([torch.zeros_like(s) if b is None else b for b, s in pairs])
    return Int8Linear(torch.cat(weights), torch.cat(scales), bias, measured()["engine"], columns)


def groups(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the names of a module's layers: together if they have the same input, else alone."""
    alone = list(names)
    for group in JOINED:
        if set(group) <= set(alone):
            alone = [name for name in alone if name not in group]
            yield group
    yield from zip(alone)


def install(parent: Any, names: Sequence[str], whole: Int8Linear) -> None:
    """Replace linear layers of `parent` by the parts of one product, or a single one by it."""
    if len(names) == 1:
        setattr(parent, names[0], whole)
    else:
        newest = _Newest(whole, len(names))
        ends = accumulate((len(getattr(parent, name).weight) for name in names), initial=0)
        for name, (first, end) in zip(names, pairwise(ends), strict=True):
            setattr(parent, name, Part(newest, first, end))
    if isinstance(getattr(parent, "act_fn", None), nn.SiLU):  # its input is used nowhere else
        parent.act_fn = nn.SiLU(inplace=True)


def takes(module: Any, *, tables: bool = False) -> bool:
    """Return whether a layer, or with `tables` also an embedding, can be quantized."""
    own = nn.Embedding if tables and isinstance(module, nn.Embedding) else nn.Linear
    plain = isinstance(module, own) and type(module).forward is own.forward
    return plain and min(module.weight.shape) >= LEAST


def refuse_other_layers(model: nn.Module, name: str) -> None:
    """Raise ModelError if most weights are in layers that cannot be quantized."""
    # Embedding tables are not counted: they stay for lookup, even if tied to the output layer.
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    weights: dict[int, Any] = {id(m.weight): m.weight for m in model.modules() if takes(m)}
    inside = sum(w.numel() for key, w in weights.items() if key not in tables)
    beside = sum(p.numel() for p in model.parameters() if id(p) not in tables)
    if inside < LEAST_SHARE * beside:
        raise ModelError(
            f"--quantize int8 can replace layers with {inside:,} of the {beside:,} weights of "
            f"{name}; the others are not linear layers, or are narrower than {LEAST}. Leave it "
            "out, or use --quantize 8bit."
        )


@torch.inference_mode()
def keep_large_columns(
    model: Any, run: Callable[[list[int]], Any], known: Path | None = None
) -> None:
    """Keep the largest columns of activations in float32.

    `run` runs the model with token ids, and shows which columns these are. The file `known` stores
    them for `opened`.
    """
    layers = {n: m for n, m in model.named_modules() if isinstance(m, Int8Linear)}
    columns: dict[str, list[int]] = {}

    def note(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sizes = inputs[0].abs().flatten(0, -2).amax(0)
        columns[name] = sizes.topk(min(COLUMNS, len(sizes) // 8)).indices.tolist()

    hooks = [m.register_forward_pre_hook(partial(note, n)) for n, m in layers.items()]
    rows = model.get_input_embeddings().num_embeddings
    run([(11 + 7919 * i) % rows for i in range(SAMPLE)])
    for hook in hooks:
        hook.remove()
    with suppress(OSError):  # without the file, the next start finds them again
        if known:
            known.write_text(json.dumps(columns), "utf-8")
    for name, layer in layers.items():
        layer.keep_in_float32(columns[name])


def quantize(model: nn.Module, name: str) -> None:
    """Quantize a model's linear layers. Raises ModelError if most weights are in other layers."""
    refuse_other_layers(model, name)
    for parent in list(model.modules()):
        for names in groups(key for key, child in parent.named_children() if takes(child)):
            install(parent, names, product_of([_rows(getattr(parent, name)) for name in names]))


def is_quantized(model: nn.Module) -> bool:
    """Return whether layers of a model have 8-bit weights."""
    return any(isinstance(module, (Int8Linear, Int8Embedding)) for module in model.modules())


def opened(folder: Path) -> Any:
    """Open a model folder with weights in 8 bits, as `folders.converted` returns it.

    Weights are read and packed layer by layer, and the table of token vectors stays on disk until
    its rows are needed. So the model is in memory once.
    """
    from accelerate import init_empty_weights  # type: ignore[import-untyped]
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    config = AutoConfig.from_pretrained(folder)
    with init_empty_weights(include_buffers=False), no_init_weights():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.requires_grad_(False)
    try:
        if (begun := _begun.get()) is not None and begun.folder == folder:
            begun.fill(model)
        else:
            with closing(_Packing(folder)) as own:
                own.fill(model)
    except (OSError, ValueError, LookupError) as error:
        raise ModelError(
            f"{folder} is damaged ({error}); `kvstream models clean` removes it."
        ) from error
    model.eval()
    if any(isinstance(m, Int8Linear) and m.columns is None for m in model.modules()):
        keep_large_columns(
            model, lambda ids: model(input_ids=torch.tensor([ids]), use_cache=False), folder / LARGE
        )
    return model


@contextmanager
def packing(folder: Path) -> Iterator[None]:
    """Pack the weights of a folder in the background; `opened` takes them inside."""
    begun = None
    with suppress(OSError, ValueError, LookupError):  # `opened` raises it with the remedy
        begun = _Packing(folder)
        begun.start()
    token = _begun.set(begun)
    try:
        yield
    finally:
        _begun.reset(token)
        if begun:
            begun.close()


def is_packing(folder: Path) -> bool:
    """Return whether this thread is inside `packing` of a folder."""
    begun = _begun.get()
    return begun is not None and begun.folder == folder


class _Packing:
    """The layers of a folder with weights in 8 bits. Threads read and pack them."""

    def __init__(self, folder: Path) -> None:
        """Open the weights of a folder. Raises OSError, ValueError if they are damaged."""
        self.folder, self._file = folder, TensorFile(folder / SINGLE)
        self._columns: dict[str, list[int]] = {}
        with suppress(OSError, ValueError):
            self._columns = json.loads((folder / LARGE).read_text("utf-8"))
        self._scaled = {n.removesuffix(f".{SCALE}") for n in self._file.names if n.endswith(SCALE)}
        self._tied: dict[str, str] = {}
        """The output layer, and the table of token vectors that it shares."""
        self._layers: dict[tuple[str, ...], Future[Int8Linear]] = {}
        self._pool = ThreadPoolExecutor(torch.get_num_threads())
        _hide_warning()

    def start(self) -> None:
        """Begin with the layers that have large columns: after the first load, all of them."""
        first: dict[str, tuple[str, ...]] = {names[0]: names for names in JOINED}
        layers = []
        for key in self._columns:
            parent, dot, name = key.removesuffix(".whole").rpartition(".")
            names = first[name] if key.endswith(".whole") else (name,)
            layers.append(tuple(parent + dot + name for name in names))
        tables = self._scaled.difference(*layers)
        for names in reversed(layers):  # the large output layer before memory has the others
            if names[0] not in self._scaled and len(tables) == 1:
                (self._tied[names[0]],) = tables
            self._layer(names)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def fill(self, model: Any) -> None:
        """Give a model its weights. Raises LookupError for missing ones, OSError, ValueError."""
        file, old, output = self._file, model.get_input_embeddings(), model.get_output_embeddings()
        for name, table in list(model.named_modules()):
            if table is old and name in self._scaled:
                rows = file.get(f"{name}.weight", mapped=True), file.get(f"{name}.{SCALE}")
                model.set_input_embeddings(Int8Embedding(*rows))
                if model.config.get_text_config().tie_word_embeddings:
                    self._tied |= {key: name for key, m in model.named_modules() if m is output}
        own, places = self._scaled | self._tied.keys(), []
        for place, parent in list(model.named_modules()):
            at = f"{place}." if place else ""
            layers = (n for n, m in parent.named_children() if takes(m) and at + n in own)
            for names in groups(layers):
                places.append((parent, names, self._layer(tuple(at + name for name in names))))
        for parent, names, layer in places:
            install(parent, names, layer.result())
        state = model.state_dict()
        rest = {n: file.get(n) for n in file.names & state.keys() if state[n].is_floating_point()}
        model.load_state_dict(rest, strict=False, assign=True)
        missing = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
        if missing:
            raise LookupError(f"it lacks {missing[0]}")

    def _layer(self, names: tuple[str, ...]) -> Future[Int8Linear]:
        """Return the product of layers with the same input; a thread packs it once."""
        if names not in self._layers:
            self._layers[names] = self._pool.submit(self._pack, names)
        return self._layers[names]

    def _pack(self, names: tuple[str, ...]) -> Int8Linear:
        large = self._columns.get(f"{names[0]}.whole", self._columns.get(names[0]))
        return product_of([self._rows(self._tied.get(name, name)) for name in names], large)

    def _rows(self, name: str) -> Rows:
        file, bias, table = self._file, f"{name}.bias", name in self._tied.values()
        weight, scale = file.get(f"{name}.weight", mapped=table), file.get(f"{name}.{SCALE}")
        return weight, scale, file.get(bias) if bias in file.names else None


_begun: ContextVar[_Packing | None] = ContextVar("begun", default=None)


class TensorFile:
    """The tensors of a safetensors file, read without keeping the file in memory."""

    def __init__(self, path: Path) -> None:
        length, self._facts = header(path)
        self.names = self._facts.keys() - {"__metadata__"}
        self._path, self._start = path, 8 + length

    def get(self, name: str, *, mapped: bool = False) -> Tensor:
        """Read a tensor. With `mapped`, its pages are read when they are used."""
        facts = self._facts[name]
        first, _ = facts["data_offsets"]
        kind = {"I8": np.int8, "F32": np.float32}[facts["dtype"]]
        place: Any = {"dtype": kind, "offset": self._start + first}
        shape = tuple(facts["shape"])
        if mapped:
            return torch.from_numpy(np.memmap(self._path, mode="c", shape=shape, **place))
        numbers = np.fromfile(self._path, count=math.prod(shape), **place)
        return torch.from_numpy(numbers.reshape(shape))


def _rows(linear: Any) -> Rows:
    weight, scale = quantized(linear.weight.detach().float())
    return weight, scale, None if linear.bias is None else linear.bias.detach().float()


def problem() -> str | None:
    """Return why 8-bit products are not used on this machine, or None."""
    reason: str | None = measured()["problem"]
    return reason


@cache
def measured() -> dict[str, Any]:
    """Return what was measured of 8-bit products here: once per machine and PyTorch.

    The keys are ``problem``, ``engine``, and ``one`` and ``many``: how many times as fast as
    float32 they are for one and for many tokens, and ``float32``, operations per second of one
    thread.
    """
    return remembered("products", (ERROR, WORTH, 2), _measure)


@torch.inference_mode()
def _measure() -> tuple[dict[str, Any], bool]:
    """Return the facts of `measured` for the fastest kernel, and whether the times are stable.

    Float32 and 8 bits take turns, because the speed of a busy machine changes.
    """
    tokens, width, outputs = TRIAL
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, width, generator=generator)
    plain = nn.Linear(width, outputs, bias=False)
    plain.weight.data = torch.randn(outputs, width, generator=generator)
    right, rows = plain(x), _rows(plain)
    facts: dict[str, Any] = {"problem": "this PyTorch has no kernels for it", "engine": ""}
    best, stable = math.inf, True
    for engine in KERNELS.keys() & set(torch.backends.quantized.supported_engines):
        try:
            layer = Int8Linear(*rows, engine)
            error = float((layer(x) - right).norm() / right.norm())
            one, many = (
                compared(partial(plain, part), partial(layer, part)) for part in (x[:1], x)
            )
        except (RuntimeError, AttributeError) as exception:
            if not facts["engine"]:
                facts["problem"] = f"PyTorch fails ({str(exception).splitlines()[0][:80]})"
            continue
        cost = TEXT / tokens * many[1] + ANSWER * one[1]
        if cost >= best or (facts["engine"] and not error <= ERROR):
            continue
        problem = None
        if not error <= ERROR:
            problem = f"its products are wrong by {error:.0%} on this CPU"
        elif many[0] < WORTH:
            problem = f"8-bit products are {many[0]:.2f} times as fast as float32 on this CPU"
        best, stable = cost, many[2]
        facts = {"problem": problem, "engine": engine, "one": one[0], "many": many[0]}
        facts["float32"] = 2 * tokens * width * outputs / (many[0] * many[1])
    return facts, stable
