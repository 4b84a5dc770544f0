"""The user's own defaults: a TOML file in the user's config folder.

Keys are the names of the long options (``budget = "8k"``, ``max-tokens = 400``). Keys at the top
hold for every command that has the option, those in a table (``[summarize]``) for that command.
The command line comes before the environment (``KVSTREAM_BUDGET``), which comes before the file.
The table ``[models]`` is for short names of models: ``small = "org/some-model"``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kvstream.errors import UsageError, meant

PATH_VARIABLE = "KVSTREAM_CONFIG"
ALIASES = "models"
"""The table of short names; not one of defaults, though there is a command of that name."""
EMBEDDED = "pocket"
"""A name that cannot be given to another model."""
LONGEST_NAME = 4096
"""Characters of a model's name; no system has longer paths."""
MOST_LINES = 1000
"""Of a config file, among which the line of a mistake is looked for."""


def config_path() -> Path:
    """Where the file is, whether it exists or not; ``KVSTREAM_CONFIG`` names another one."""
    named = os.environ.get(PATH_VARIABLE)
    if named:
        return Path(named)
    from platformdirs import user_config_path

    return user_config_path("kvstream", appauthor=False) / "config.toml"


def load(path: Path | None = None) -> dict[str, Any]:
    """What the file says; nothing if there is none. Raises UsageError if it is no valid TOML."""
    path = path or config_path()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        if os.environ.get(PATH_VARIABLE):
            raise UsageError(f"{PATH_VARIABLE} names {path}, but there is no such file.") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The config file {path} cannot be read: {error}.") from error
    import tomllib  # help pages have no use for it

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UsageError(
            f"The config file {path} nests tables or lists too deeply; no option needs any."
        ) from None
    except ValueError as error:  # TOMLDecodeError, and Python's own for numbers of 5,000 digits
        reason = str(error).partition(";")[0]
        raise UsageError(f"The config file {path} is not valid TOML: {reason}.") from error


def place(path: Path, *keys: str) -> str:
    """``PATH, line N``: where the file sets the value of nested keys, for an error message.

    tomllib tells no lines. The lines before a key are valid TOML without it, and so are those up
    to the end of its value, with it.
    """
    import tomllib

    text = path.read_text(encoding="utf-8-sig")
    lines, without = text.splitlines(keepends=True), 0
    for number in range(1, min(len(lines), MOST_LINES) + 1):
        try:
            found: Any = tomllib.loads("".join(lines[:number]))
        except ValueError:
            continue  # in the middle of a value
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        if found is not None:
            return f"{path}, line {without + 1}"
        without = number
    return str(path)


def aliases(path: Path | None = None) -> dict[str, str]:
    """Short names of models and what they stand for. Raises UsageError for what is neither."""
    path = path or config_path()
    table = load(path).get(ALIASES, {})
    if not isinstance(table, dict):
        raise UsageError(
            f'{place(path, ALIASES)}: [models] is a table of names, as in small = "org/some-model".'
        )
    for name, target in table.items():
        if not isinstance(target, str) or not target:
            raise UsageError(
                f"{place(path, ALIASES, name)}: {name} in [models] must be a hub id or a path in "
                f"quotes, not {shown(target)}."
            )
        if len(target) > LONGEST_NAME:
            raise UsageError(
                f"{place(path, ALIASES, name)}: {name} in [models] has {len(target)} characters; "
                "no path or hub id is that long."
            )
        if name == EMBEDDED:
            raise UsageError(
                f"{place(path, ALIASES, name)}: {name} is the embedded model; give yours another "
                "name."
            )
    return table


def model_name(name: str) -> str:
    """What a model's name stands for: its alias in the config file, or itself.

    Raises UsageError for what is almost a name that there is, and ModelError for what names no
    model that can be loaded here.
    """
    from kvstream.store.offered import (  # help pages have no use for it
        OFFERS,
        refuse_misspelt,
        refuse_unsupported,
    )

    known = {name: name for name in (EMBEDDED, *OFFERS)} | aliases()
    refuse_misspelt(name, known)
    found = known.get(name, name)
    refuse_unsupported(found)
    return found


def shown(value: Any) -> str:
    """A value of the file for an error message, cut where it is long."""
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a number beyond 64 bits"  # too long to be printed, even
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def for_command(
    values: Mapping[str, Any],
    command: str,
    known: Mapping[str, Iterable[str]],
    path: Path,
    convert: Callable[[str, Any], Any] = lambda name, value: value,
) -> dict[str, Any]:
    """The defaults of one command, keyed by parameter name.

    ``known`` gives the parameter names of every command: a key that none of them has is a typing
    error that would otherwise be ignored without a word. ``convert`` makes the value of the
    parameter of a name; the message of its UsageError gets the file, the line and the key.
    """

    def converted(name: str, value: Any, *keys: str) -> Any:
        try:
            return convert(name, value)
        except UsageError as error:
            raise UsageError(f"{place(path, *keys)}: {keys[-1]}: {error}") from None

    own = set(known[command])
    anywhere = set().union(*known.values())
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        if key == ALIASES:
            continue
        if isinstance(value, dict):
            if key not in known:
                close = meant(key, known)
                raise UsageError(
                    f"{place(path, key)}: [{key}] is not a command.{close} There are "
                    f"{_listed(known)}."
                )
            continue
        name = key.replace("-", "_")
        if name not in anywhere:
            raise UsageError(
                f"{place(path, key)}: {key!r} is not an option of any "
                f"command.{_like(key, anywhere)}"
            )
        if name in own:
            defaults[name] = converted(name, value, key)
    table = {} if command == ALIASES else values.get(command, {})
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in own:
            raise UsageError(
                f"{place(path, command, key)}: {key!r} is not an option of kvstream {command}."
                f"{_like(key, own)}"
            )
        defaults[name] = converted(name, value, command, key)
    return defaults


def _like(key: str, names: Iterable[str]) -> str:
    return meant(key.replace("_", "-"), (name.replace("_", "-") for name in names))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
