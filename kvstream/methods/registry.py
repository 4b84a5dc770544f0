"""Methods by name: built-in ones, and those that other packages add by entry points.

A package adds a method with an entry point in the group ``kvstream.methods`` whose value is a
subclass of `Method`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint
from inspect import getattr_static, isfunction
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from kvstream.errors import KvstreamError, UsageError, hint, is_out_of_memory
from kvstream.methods import base
from kvstream.methods.automatic import AUTO
from kvstream.methods.base import EntryTensor, Evidence, HeadTensor, Method, Preset, Step
from kvstream.methods.names import CLASSES, NAMES, plugins
from kvstream.methods.scored import ScoredMethod
from kvstream.streams import printing_to_stderr

BUILT_IN: tuple[type[Method], ...] = tuple(
    getattr(import_module(f"kvstream.methods.{module}"), kind)
    for module, _, kind in (place.partition(":") for place in CLASSES.values())
)
NAME = re.compile(r"[A-Za-z][\w-]{0,39}", re.ASCII)
"""A name that --method takes."""
OPTIONS = {"schedule", "chunk", "start"}
"""Options that a preset may set."""
FAULTS: dict[str, str] = {}
"""Why methods of other packages are left out, by the names of their entry points. `available` fills
it."""
KINDS: Mapping[str, type] = {
    "absorb": type(None), "catalyst": Sequence, "evidence": Evidence, "fitted": Method,
    "head_tensors": tuple, "layer_sizes": Sequence, "mix": Tensor, "newest": int,
    "score": Tensor, "select": Tensor, "settings": dict, "sized": Method, "target": int,
    "tensors": tuple,
}  # fmt: skip
"""What some functions of a method return: `available` has other packages' methods checked for it.
"""


@cache
def available() -> Mapping[str, type[Method]]:
    """Return all methods by name, built-in ones first. Leave out those of broken packages."""
    methods = {method.name: method for method in BUILT_IN}
    points, problems = plugins()
    FAULTS.clear()
    FAULTS.update({problem: problem for problem in problems})
    for point in points:
        method: Any = None
        fault: str | None = f"has the entry point {point.value!r}, which is not MODULE:CLASS"
        if point.pattern.match(point.value):
            try:
                with printing_to_stderr():
                    method = point.load()
                    fault = _fault(method)
                    if fault is None:
                        title = f"The method {method.name!r} of {_origin(point)}"
                        guarded = _answerable(method, title)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # an import may even end the program
                fault = f"does not load ({_text_of(error)})"
        if fault is None and (method.name in methods or method.name == AUTO):
            fault = f"has the name {method.name!r}, which exists already"
        if fault is None:
            methods[method.name] = guarded
        else:
            FAULTS[point.name] = (
                f"The method {point.name!r} of {_origin(point)} {fault}; repair or uninstall the "
                "package."
            )
    return methods


def _answerable(method: type[Method], title: str) -> type[Method]:
    """Return a subclass whose errors and values of a wrong type become errors with its `title`."""

    def answering(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        kind: Any = KINDS.get(name, object)

        def call(self: Method, *values: Any, **more: Any) -> Any:
            try:
                bound = own.__get__(self) if hasattr(own, "__get__") else own
                value: Any = bound(*values, **more)
                fits = isinstance(value, kind)
                check = WRONG.get(name) if fits else None
                wrong = check(value, *values, **more) if check else None
            except (KvstreamError, KeyboardInterrupt):
                raise
            except BaseException as error:  # some would end the program without a message
                if is_out_of_memory(error):
                    raise
                raise KvstreamError(f"{title} fails in {name} ({_text_of(error)}).") from error
            if not fits:
                raise KvstreamError(
                    f"{title} returns {_repr_of(value)} from {name}, not a {kind.__name__}."
                )
            if wrong:
                raise KvstreamError(f"{title} returns {wrong} from {name}.")
            if name != "compressive_memory" or value is None:
                return value
            calls = {each: answering(each, _later(value, each)) for each in ("fold", "mix")}
            return type("Guarded", (), {**calls, "trained": property(lambda _: value.trained)})()

        return call

    own = _functions(ScoredMethod if issubclass(method, ScoredMethod) else Method)
    calls: dict[str, Any] = {
        name: answering(name, getattr_static(method, name)) for name in (*own, "__init__")
    }
    needs_keys: Any = method.needs_keys
    if isinstance(needs_keys, property) and needs_keys.fget is not None:
        calls["needs_keys"] = property(answering("needs_keys", needs_keys.fget))
    return type(method.__name__, (method,), {**calls, "__doc__": method.__doc__})


def _functions(kind: type[Method]) -> list[str]:
    """Return the names of the functions of a method that the engine calls."""
    values = {**vars(Method), **vars(kind)}
    return [name for name, value in values.items() if isfunction(value) and name[0] != "_"]


def _later(memory: Any, name: str) -> Callable[..., Any]:
    return lambda self, *values: getattr(memory, name)(*values)


def _text_of(error: BaseException) -> str:
    """Return the type and the text of an error, whose text may be an error itself."""
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        text = ""
    return type(error).__name__ + (f": {_line(text, 200)}" if text else "")


def _line(text: str, most: int) -> str:
    """Return a text as one line of at most `most` characters; dots mark a cut."""
    text = " ".join(text[: 10 * most].split())
    return text if len(text) <= most else text[: most - 3] + "..."


def _repr_of(value: Any) -> str:
    try:
        return _line(repr(value), 60)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def _wrong_evidence(evidence: Evidence) -> str | None:
    for field in dataclasses.fields(Evidence):
        value = getattr(evidence, field.name)
        kind = type(field.default)
        fits = isinstance(value, int | float if kind is float else kind)
        most = 1 if kind is float else sys.maxsize
        if not fits or (kind in (int, float) and not 0 <= value <= most):
            return f"the {field.name} {_repr_of(value)}"
    return None


def _wrong_scores(scores: Tensor, step: Step) -> str | None:
    layers, heads, count = step.origin.shape
    if scores.shape not in ((layers, heads, count), (layers, 1, count)):
        return f"scores of the shape {list(scores.shape)}, not {[layers, heads, count]},"
    return "scores that are not numbers (NaN)" if bool(scores.isnan().any()) else None


def _wrong_choice(choice: Tensor, step: Step, keep: int) -> str | None:
    """Return what is wrong with the candidates that a method chose, or None."""
    groups, heads, count = step.origin.shape
    if choice.dtype not in (torch.int64, torch.int32):
        return f"numbers of the type {choice.dtype}, not int64,"
    if choice.shape != (groups, heads, keep):
        return f"the shape {list(choice.shape)}, not {[groups, heads, keep]},"
    if choice.is_meta or not bool(((choice >= 0) & (choice < count)).all()):
        return f"places that are not from 0 to {count - 1}"
    return None if bool((choice.diff() > 0).all()) else "places that are out of order, or twice,"


def _unless(fits: bool, value: Any, rule: str) -> str | None:
    return None if fits else f"{_repr_of(value)}, {rule},"


def _all(values: Any, *kinds: type) -> bool:
    return all(isinstance(value, kinds) for value in values)


def _has_shape(tensor: HeadTensor) -> bool:
    try:
        sizes = tensor.shape(64, 64)
    except Exception:
        return False
    return isinstance(sizes, tuple) and _all(sizes, int) and min(sizes, default=0) >= 0


def _wrong_tensors(tensors: tuple[Any, ...], kind: type) -> str | None:
    fit = _all(tensors, kind) and _all((tensor.name for tensor in tensors), str)
    fit = fit and len({tensor.name for tensor in tensors}) == len(tensors)
    fit = fit and (kind is EntryTensor or all(map(_has_shape, tensors)))
    with_shapes = ", with shapes" * (kind is HeadTensor)
    return _unless(fit, tensors, f"not a tuple of {kind.__name__} of different names{with_shapes}")


def _wrong_state(nothing: None, step: Step) -> str | None:
    states = step.state.values()
    if not all(_all((t,), Tensor) and t.shape == step.origin.shape for t in states):
        return f"step.state of another shape than {list(step.origin.shape)}"
    if not _all(step.head_state.values(), Tensor):
        return "step.head_state that is not of tensors"
    finite = all(bool((t.abs() <= base.LARGEST).all()) for t in states)
    return None if finite else "step.state with numbers that no memory file can hold"


def _wrong_settings(method: Method, *about: Any) -> str | None:
    hints = get_type_hints(type(method))
    for name, value in Method.settings(method).items():
        if not isinstance(value, (int, float) if hints[name] is float else hints[name]):
            return f"a method with the setting {name}={_repr_of(value)}"
    return None


WRONG: Mapping[str, Callable[..., str | None]] = {
    "absorb": _wrong_state,
    "catalyst": lambda texts, questions: _unless(
        not isinstance(texts, str) and _all(texts, str), texts, "not a tuple of texts"
    ),
    "compressive_memory": lambda memory, model, **more: _unless(
        memory is None or (hasattr(memory, "fold") and hasattr(memory, "mix")
                           and isinstance(getattr(memory, "trained", None), nn.Module)),
        memory, "which has no fold, mix and trained",
    ),
    "evidence": _wrong_evidence,
    "fitted": _wrong_settings,
    "head_tensors": partial(_wrong_tensors, kind=HeadTensor),
    "layer_sizes": lambda value, sizes: _unless(
        len(value) == len(sizes) and _all(value, int)
        and min(value) >= 0 and max(value) <= max(sizes),
        value, f"not {len(sizes)} sizes from 0 to {max(sizes)}",
    ),
    "learned": lambda learned, model: _unless(
        learned is None or isinstance(learned, nn.Module), learned, "not an nn.Module or None"
    ),
    "mix": lambda mixed, layer, query, out, *more: _unless(
        (mixed.shape, mixed.dtype) == (out.shape, out.dtype),
        mixed, f"not {out.dtype} of the shape {list(out.shape)}",
    ),
    "score": _wrong_scores,
    "select": _wrong_choice,
    "settings": lambda value: _unless(
        _all(value, str) and _all(value.values(), int, float, str)
        and all(math.isfinite(each) for each in value.values() if isinstance(each, float)),
        value, "not numbers and texts by name",
    ),
    "shorten": lambda ends, head, free: _unless(
        ends is None or (
            isinstance(ends, tuple) and [*map(type, ends)] == [int, int] and min(ends) >= 0
        ),
        ends, "not two numbers of tokens or None",
    ),
    "sized": _wrong_settings,
    "target": lambda target, size, present: _unless(
        0 <= target <= min(size, present), target, f"not a number from 0 to {min(size, present)}"
    ),
    "tensors": partial(_wrong_tensors, kind=EntryTensor),
    "votes": lambda votes, step: _unless(
        votes is None or (isinstance(votes, Tensor) and votes.shape == step.origin.shape),
        votes, f"not a Tensor of the shape {list(step.origin.shape)}",
    ),
}  # fmt: skip
"""What is wrong with a value of the right type, from the value and the arguments."""


def _origin(point: EntryPoint) -> str:
    """Return the class of an entry point, with the package that pip can uninstall."""
    with suppress(Exception):  # its metadata may be damaged
        if point.dist:
            return f"{point.value!r} in the package {point.dist.name}"
    return repr(point.value)


def _fault(method: Any) -> str | None:
    """Return why an object of another package is not a method; None: it is one."""
    if not (isinstance(method, type) and issubclass(method, Method)):
        return "is not a kvstream Method"
    for text in ("name", "source"):
        if not isinstance(getattr(method, text, None), str):
            return f"has no {text}"
    if not NAME.fullmatch(method.name):
        return f"has the name {method.name!r:.60}, which --method does not take"
    if missing := getattr(method, "__abstractmethods__", None):
        return f"does not define {', '.join(sorted(missing))}"
    if any(isinstance(value, dataclasses.Field) for value in vars(method).values()):
        return "has settings, but is not decorated with @dataclass(frozen=True)"
    if not isinstance(method.evicts, bool):
        return "has evicts that is not True or False"
    if method.evicts and method.select is Method.select:
        return "does not define select"
    if method.__new__ is not object.__new__:
        return "defines __new__"
    paper = method.paper
    if paper is not None and not (isinstance(paper, Preset) and {*paper.run} <= OPTIONS):
        return f"has paper that is not a Preset of {', '.join(sorted(OPTIONS))}"
    hints = get_type_hints(method)
    for field in dataclasses.fields(method):
        kind = hints[field.name]
        if field.name in _functions(ScoredMethod):
            return f"has a setting {field.name!r} with the name of a function of methods"
        if kind not in (int, float, bool, str):
            return f"has a setting {field.name!r} that is not an int, a float, a bool or a str"
        if field.default is dataclasses.MISSING:
            return f"has a setting {field.name!r} without a default"
        if not isinstance(field.metadata.get("help", ""), str):
            return f"has a setting {field.name!r} whose help is not a str"
        if type(field.default) is not kind and (type(field.default), kind) != (int, float):
            return f"has a setting {field.name!r} whose default is not a {kind.__name__}"
        try:
            _parse(field.name, str(field.default), kind, field)
        except UsageError as error:
            return f"has a wrong default of a setting ({str(error).rstrip('.')})"
    return None


def by_name(name: str, also: Sequence[str] = ()) -> type[Method]:
    """Return the method of a name. Raise UsageError with the known names, which include `also`."""
    if name in NAMES:  # without a look at other packages, which may be broken
        return BUILT_IN[NAMES.index(name)]
    methods = available()
    if name in methods:
        return methods[name]
    if name in FAULTS:
        raise UsageError(FAULTS[name])
    if name == AUTO:
        raise UsageError(
            f"{AUTO} is not a method: it chooses one when a text is read. Name one of "
            f"{', '.join(methods)}."
        )
    names = (*also, *methods)
    close = hint(name, names) or " If a plugin adds it, install the plugin."
    reasons = "".join(f" {reason}" for reason in FAULTS.values())
    raise UsageError(f"Unknown method {name!r}.{close} There are: {', '.join(names)}.{reasons}")


def remade(name: str, settings: Mapping[str, str], path: object) -> Method:
    """Return the method that made a memory file. Raise UsageError if it is not installed."""
    if name not in NAMES and name not in available():
        raise UsageError(
            FAULTS.get(name)
            or f"{path} was made by the method {name!r}, which is not installed here; install the "
            "package that adds it, or read the sources again."
        )
    return make(name, settings)


def preset(name: str) -> Preset:
    """Return what ``--preset paper`` sets for a method. Raise UsageError if it has no preset."""
    paper = by_name(name).paper
    if paper is None:
        having = ", ".join(n for n, method in available().items() if method.paper is not None)
        raise UsageError(f"--preset paper has no settings for {name}, only for {having}.")
    return paper


def make(name: str, settings: Mapping[str, str] | None = None) -> Method:
    """Return a method with its settings parsed from text. Raise UsageError if one is wrong."""
    kind = by_name(name)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, text in (settings or {}).items():
        if key not in fields:
            raise UsageError(
                f"--set {name}.{key}: {name} has no setting {key!r}.{hint(key, fields)} "
                f"It has: {', '.join(fields) or 'none'}."
            )
        values[key] = _parse(f"--set {name}.{key}", text, hints[key], fields[key])
    return kind(**values)


def _parse(label: str, text: str, kind: Any, field: dataclasses.Field[Any]) -> Any:
    choices = field.metadata.get("choices") or ()
    if choices and text not in choices:
        raise UsageError(f"{label} cannot be {text!r}; choose one of {', '.join(choices)}.")
    try:
        if kind is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[
                text.lower()
            ]
        value = kind(text)
    except (ValueError, KeyError):
        kinds = {int: "a whole number", float: "a number", bool: "true or false"}
        raise UsageError(f"{label}={text!r:.80} is not {kinds.get(kind, kind)}.") from None
    if (limits := base.limits(field)) is not None:
        least, most = limits
        if not (least <= value <= most and value < math.inf):
            raise UsageError(f"{label} must be {base.in_words(limits)}, not {text}.")
    return value
