"""The schema of what a memory file says in JSON, checked before anything is built from it.

msgspec checks while it parses: a wrong type ends the parsing, so nothing large is built from it.
An unknown field is an error, too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0, lt=2**31)]
"""Of tokens or entries."""
Some = Annotated[int, Meta(ge=1, lt=2**31)]
Size = Annotated[int, Meta(ge=0, lt=2**53)]
"""Of bytes, or a place in a text."""
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Seconds = Annotated[float, Meta(ge=0, le=1e300)]
NumberType = Literal["float64", "float32", "bfloat16", "float16"]
Share = Annotated[float, Meta(ge=0, le=1)]
Decoded = TypeVar("Decoded")


class Model(Struct, forbid_unknown_fields=True):
    """The model that made the memory."""

    name: str
    revision: str | None
    fingerprint: str
    dtype: NumberType
    """Of the weights."""
    kv_dtype: NumberType | None = None
    """Of keys and values; files of 0.1 have none, and `dtype` holds."""
    rounded: str | None = None
    """The fingerprint of the weights in bfloat16."""


class Method(Struct, forbid_unknown_fields=True):
    """The method, its settings as typed and as they were settled."""

    name: str
    typed: dict[str, str]
    settings: dict[str, bool | int | Number | str | None]
    trained: str | None


class Run(Struct, forbid_unknown_fields=True):
    """Settings of the reading; RunSettings knows which words there are."""

    keep: Some | None
    start: Some | Literal["paper"] | None
    growth: str
    chunk: str
    chunk_size: Some | None
    seed: Annotated[int, Meta(ge=-(2**63))]
    thin: Literal["auto", "off"] = "auto"
    """Files of 0.1 do not say, and ``auto`` is the default of the command line."""


class BudgetSplit(Struct, forbid_unknown_fields=True):
    """How the budget is shared out."""

    budget: Some
    prompt: Count
    catalyst: Count
    question: Count
    answer: Count


class Reader(Struct, forbid_unknown_fields=True):
    """How far the reading had come. The schedule checks its own numbers."""

    seen: Count
    steps: Count
    sinks: Count | None
    ratios: list[Share] | None
    begun: bool
    planned: Count | None
    schedule: dict[str, bool | Size | Number | list[Count] | None]


class Layer(Struct, forbid_unknown_fields=True):
    """Entries of a layer."""

    used: Count
    """All of them, those of the prompt included."""
    raw: Count
    """Those whose keys are unrotated."""
    prefix: Count
    """Those of the prompt."""


class Cache(Struct, forbid_unknown_fields=True):
    """Entries of all layers."""

    base: Count
    layers: Annotated[list[Layer], Meta(min_length=1)]


class Source(Struct, forbid_unknown_fields=True):
    """A source that was read."""

    name: str
    bytes: Size
    sha256: str


class Trace(Struct, forbid_unknown_fields=True):
    """Where the entries came from."""

    sources: list[Source]
    ended_line: bool
    read: Count
    end: Size
    passages_left_out: Count
    parts: list[Count] = []
    """Of joined memories in the first files of 0.2; nothing needs it."""
    lines: tuple[Size, Size] | None = None
    """Of logs: all lines, and those that were not read."""


class Answering(Struct, forbid_unknown_fields=True):
    """The model that answers from passages which are kept beside the memory."""

    name: str
    fingerprint: str
    budget: Some
    by: Literal["memory", "words", "both"]
    room: Size
    peak: Size
    dropped: Size
    words: list[Annotated[list[Count], Meta(min_length=2)]] = []
    """Of each known question; files of earlier versions have none."""


class State(Struct, forbid_unknown_fields=True):
    """What the memory is."""

    format: int
    model: Model
    method: Method
    run: Run
    sizes: BudgetSplit
    system: str | None
    task: Literal["ask", "summarize"]
    questions: list[str]
    head: list[Count]
    catalysts: list[list[Count]]
    measure_always: bool
    """`RunPlan.extract`; files keep the name that it had in 0.1."""
    reader: Reader
    cache: Cache
    trace: Trace
    answering: Answering | None = None
    """Only in the files of two models."""


class Position(Struct, forbid_unknown_fields=True):
    """How far the reading had come, in a checkpoint."""

    tokens: Count
    sha256: str
    complete: bool
    base: str | None


class Peak(Struct, forbid_unknown_fields=True):
    """The most that the cache ever held."""

    tokens: Count
    bytes: Size
    scratch: Size


class Notes(Struct, forbid_unknown_fields=True):
    """What it took to make the memory."""

    version: str
    written: Size
    read_s: Seconds
    select_s: Seconds
    peak: Peak
    warnings: list[str]
    position: Position | None = None


class _Format(Struct):
    format: int


class _Metadata(Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


class Row(Struct, array_like=True, forbid_unknown_fields=True):
    """A passage."""

    source: Size
    start: Size
    """First byte."""
    end: Size
    """The byte behind the last."""
    line_start: Size
    line_end: Size
    reach: Size
    """The byte behind the passage before."""
    text: str
    place: Count | str | None = None
    """Page or chapter of a document. Files of 0.1 have none."""
    page_end: Count | None = None
    """The page of the last character, where it is another one."""


def metadata_of(data: bytes) -> dict[str, str]:
    """The metadata in the header of a safetensors file. Raises ValueError."""
    return _decoded(data, _Metadata, "header is").metadata


def format_of(state: str) -> int:
    """The format of a memory, whatever else its state says. Raises ValueError."""
    return _decoded(state, _Format, "state is").format


def checked(text: str, schema: type[Any], title: str) -> None:
    """Raises ValueError where `text` is no JSON of the `schema`; `title` says what it is."""
    _decoded(text, schema, f"{title} is")


def _decoded(text: bytes | str, schema: type[Decoded], what_is: str) -> Decoded:
    """JSON of a schema. Raises ValueError, which begins like ``its header is``."""
    try:
        return msgspec.json.decode(text, type=schema)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ValueError(f"its {what_is} wrong ({error})") from error


class KeptRow(Struct, array_like=True, forbid_unknown_fields=True):
    """A passage for the model that answers."""

    excerpt: Size
    """Its number: passages of one number are read together."""
    source: Size
    start: Size
    """First byte."""
    end: Size
    """The byte behind the last."""
    line_start: Size
    line_end: Size
    text: str
    place: Count | str | None = None
    """Page or chapter of a document."""
    page_end: Count | None = None
    """The page of the last character, where it is another one."""


def kept(data: bytes) -> list[KeptRow]:
    """The passages for the model that answers. Raises ValueError."""
    return _decoded(data, list[KeptRow], "kept passages are")


def passages(data: bytes) -> list[Row]:
    """The passages of a memory. Raises ValueError."""
    return _decoded(data, list[Row], "passages are")
