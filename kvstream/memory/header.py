"""The schema of the JSON in a memory file, checked before anything is built from it.

msgspec checks while it parses: a wrong type ends the parsing, so nothing large is built from it.
An unknown field is an error too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, Union

import msgspec
from msgspec import Meta, Struct

from kvstream.settings import RunSettings, table

Count = Annotated[int, Meta(ge=0, lt=2**31)]
"""A number of tokens or entries."""
Some = Annotated[int, Meta(ge=1, lt=2**31)]
Size = Annotated[int, Meta(ge=0, lt=2**53)]
"""A number of bytes, or a position in a text."""
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Seconds = Annotated[float, Meta(ge=0, le=1e300)]
NumberType = Literal["float64", "float32", "bfloat16", "float16"]
Share = Annotated[float, Meta(ge=0, le=1)]
Decoded = TypeVar("Decoded")


class Model(Struct, forbid_unknown_fields=True):
    name: str
    revision: str | None
    fingerprint: str
    dtype: NumberType | Literal["int8"]
    """Number type of the weights."""
    kv_dtype: NumberType
    """Number type of keys and values."""
    rounded: str
    """Fingerprint of the weights in bfloat16."""


class Method(Struct, forbid_unknown_fields=True):
    """The method, its settings as typed and as used."""

    name: str
    typed: dict[str, str]
    settings: dict[str, bool | int | Number | str | None]
    trained: str | None


def _stored(row: Any) -> Any:
    """Return the type that an option has in a file."""
    if row.choices:
        return Literal[row.choices] if row.name == "thin" else str  # RunSettings checks the words
    number = Annotated[int, Meta(ge=-(2**63))] if row.name == "seed" else Some
    kinds = {"int": number, "str": Literal["paper"], "None": None}
    return Union[tuple(kinds[each] for each in row.kind.split(" | "))]  # noqa: UP007


STORED = {row.stored: row for row in table(RunSettings).values() if row.stored}
"""The options that determine a memory, by their names in a file."""
Run = msgspec.defstruct(
    "Run", [(name, _stored(row)) for name, row in STORED.items()], forbid_unknown_fields=True
)


class BudgetSplit(Struct, forbid_unknown_fields=True):
    budget: Some
    prompt: Count
    catalyst: Count
    question: Count
    answer: Count


class Reader(Struct, forbid_unknown_fields=True):
    """The state of the reader. The schedule checks its own numbers."""

    seen: Count
    steps: Count
    sinks: Count | None
    ratios: list[Share] | None
    begun: bool
    planned: Count | None
    schedule: dict[str, bool | Size | Number | list[Count] | None]


class Layer(Struct, forbid_unknown_fields=True):
    used: Count
    """All entries, including those of the prompt."""
    raw: Count
    """Entries with unrotated keys."""
    prefix: Count
    """Entries of the prompt."""


class Cache(Struct, forbid_unknown_fields=True):
    base: Count
    layers: Annotated[list[Layer], Meta(min_length=1)]


class Source(Struct, forbid_unknown_fields=True):
    name: str
    bytes: Size
    sha256: str
    part: Size | None = None


class Trace(Struct, forbid_unknown_fields=True):
    sources: list[Source]
    ended_line: bool
    read: Count
    end: Size
    passages_left_out: Count
    parts: list[Count] = []
    """Unused. The first files of 0.2 have it for joined memories."""
    lines: tuple[Size, Size] | None = None
    """For logs: number of lines, and of lines that were not read."""


class Answering(Struct, forbid_unknown_fields=True):
    name: str
    fingerprint: str
    budget: Some
    by: Literal["memory", "words", "both"]
    room: Size
    peak: Size
    dropped: Size
    words: list[Annotated[list[Count], Meta(min_length=2)]] = []
    """`QuestionWords.totals` of each known question; files of earlier versions have none."""


class State(Struct, forbid_unknown_fields=True):
    """The memory, without its tensors."""

    format: int
    model: Model
    method: Method
    run: Run  # type: ignore[valid-type]
    sizes: BudgetSplit
    system: str | None
    task: Literal["ask", "summarize"]
    questions: list[str]
    head: list[Count]
    catalysts: list[list[Count]]
    measure_always: bool
    """`RunPlan.extract`, under the name that it had in 0.2."""
    reader: Reader
    cache: Cache
    trace: Trace
    answering: Answering | None = None


class Position(Struct, forbid_unknown_fields=True):
    """The position that a reading had reached when its checkpoint was written."""

    tokens: Count
    """Number of tokens of its sources that the model has read."""
    sha256: str
    """SHA-256 of their ids."""
    complete: bool
    """Whether the sources had ended."""
    base: str | None
    """Digest of the memory that the reading continues, if any."""


class Peak(Struct, forbid_unknown_fields=True):
    tokens: Count
    bytes: Size
    scratch: Size


class Notes(Struct, forbid_unknown_fields=True):
    """How the memory was made."""

    version: str
    written: Size
    read_s: Seconds
    select_s: Seconds
    peak: Peak
    warnings: list[str]
    position: Position | None = None


class Versions(Struct):
    """The version of the format in a state, or of the program in notes, whatever else they have."""

    format: int | None = None
    version: str = ""


class _Metadata(Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


class Row(Struct, array_like=True, forbid_unknown_fields=True):
    source: Size
    start: Size
    end: Size
    """The byte after the last."""
    line_start: Size
    line_end: Size
    reach: Size
    """The byte after the previous passage."""
    text: str
    place: Count | str | None = None
    """Page or chapter of a document."""
    page_end: Count | None = None
    """Page of the last character, if it is another one."""


def metadata_of(data: bytes) -> dict[str, str]:
    """Return the metadata in the header of a safetensors file. Raise ValueError if it is wrong."""
    return decoded(data, _Metadata, "header is").metadata


def decoded(text: bytes | str, schema: type[Decoded], what_is: str) -> Decoded:
    """Decode JSON of a schema. Raise ValueError, with a message such as ``its header is wrong``."""
    try:
        return msgspec.json.decode(text, type=schema)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ValueError(f"its {what_is} wrong ({error})") from error


class KeptRow(Struct, array_like=True, forbid_unknown_fields=True):
    """A passage for the answering model."""

    excerpt: Size
    """Number of its excerpt; the passages of an excerpt are read together."""
    source: Size
    start: Size
    end: Size
    """The byte after the last."""
    line_start: Size
    line_end: Size
    text: str
    place: Count | str | None = None
    page_end: Count | None = None
    """Page of the last character, if it is another one."""
