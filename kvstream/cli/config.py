"""The user's defaults: a TOML file in the user's config folder.

Keys are the names of the long options (``budget = "8k"``, ``max-tokens = 400``). Keys at the top
apply to every command that has the option, keys in a table (``[summarize]``) to that command.
The command line overrides the environment (``KVSTREAM_BUDGET``), which overrides the file.
The table ``[models]`` has short names of models: ``small = "org/some-model"``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kvstream.errors import KvstreamError, UsageError, hint
from kvstream.store.small_files import small_text

PATH_VARIABLE = "KVSTREAM_CONFIG"
ALIASES = "models"
"""Table of short names. It has no defaults, although there is a command of that name."""
LONGEST_NAME = 4096
"""Maximum number of characters of a model's name; no system has longer paths."""
EMBEDDED = "pocket"
"""A name that no other model may have."""


def config_path() -> Path:
    """Return the path of the file, which may not exist. ``KVSTREAM_CONFIG`` overrides it."""
    path = os.environ.get(PATH_VARIABLE)
    if path:
        return Path(path)
    from platformdirs import user_config_path

    return user_config_path("kvstream", appauthor=False) / "config.toml"


def load(path: Path) -> dict[str, Any]:
    """Return the contents of the file, empty if there is none. Raises UsageError if invalid."""
    try:
        text = small_text(path)
    except (FileNotFoundError, NotADirectoryError):
        if os.environ.get(PATH_VARIABLE):
            raise UsageError(f"{PATH_VARIABLE} names {path}, but there is no such file.") from None
        return {}
    except UnicodeDecodeError as error:
        raise UsageError(f"The config file {path} is not UTF-8; save it as UTF-8.") from error
    except OSError as error:
        raise UsageError(f"The config file {path} cannot be read: {error.strerror}.") from error
    import tomllib  # not needed for help pages

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UsageError(
            f"The config file {path} nests tables or lists too deeply; no option needs any."
        ) from None
    except ValueError as error:  # TOMLDecodeError, and Python's error for numbers of 5,000 digits
        reason = str(error).partition(";")[0]
        raise UsageError(f"The config file {path} is not valid TOML: {reason}.") from error


def place(path: Path, *keys: str) -> str:
    """Return ``PATH, line N`` of the value of nested keys, which tomllib does not report."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(small_text(path).splitlines(), 1):
        if header := re.match(r"\s*\[([\w-]+)\]", line):
            table = (header[1],)
        own = re.match(rf"""\s*["']?{re.escape(keys[-1])}["']?\s*=""", line) and table == keys[:-1]
        if own or (header and table == keys):
            return f"{path}, line {number}"
    return str(path)


def aliases() -> dict[str, str]:
    """Return the short names of models and their targets. Raises UsageError if invalid."""
    path = config_path()
    table = load(path).get(ALIASES, {})
    if not isinstance(table, dict):
        raise UsageError(
            f'{place(path, ALIASES)}: [models] is a table of names, as in small = "org/some-model".'
        )
    for name, target in table.items():
        if not isinstance(target, str) or not target:
            raise UsageError(
                f"{place(path, ALIASES, name)}: {name} in [models] must be a hub id or a path in "
                f"quotes, not {short(target)}."
            )
        if name == EMBEDDED:
            raise UsageError(
                f"{place(path, ALIASES, name)}: {name} is the embedded model; give yours another "
                "name."
            )
    return table


def model_name(name: str) -> str:
    """Return the target of a short name, or the name. Raises UsageError for a typing error."""
    from kvstream.store import offered  # not needed for help pages

    names = {name: name for name in (EMBEDDED, *offered.OFFERS)} | aliases()
    offered.refuse_misspelt(name, names)
    target = names.get(name, name)
    offered.refuse_unsupported(target)
    return target


def short(value: Any) -> str:
    """Format a value of the file for an error message, shortened if it is long."""
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a number beyond 64 bits"  # too long even to print
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def for_command(
    values: Mapping[str, Any],
    command: str,
    commands: Mapping[str, Mapping[str, Any]],
    path: Path,
    convert: Callable[[Any, Any], Any] = lambda option, value: value,
) -> dict[str, Any]:
    """Return the defaults of one command by the names of its options, as `convert` makes them.

    `commands` has the options of every command by name. A value that `convert` refuses becomes a
    function that raises the error: what is typed replaces it. Raises UsageError with file and line
    for other keys, which would otherwise be ignored silently.
    """
    own, anywhere = commands[command], set().union(*commands.values())
    of_command = {} if command == ALIASES else values.get(command, {})
    defaults: dict[str, Any] = {}
    for keys, table, options, whose in (
        ((), values, anywhere, "any command"),
        ((command,), of_command, own, f"kvstream {command}"),
    ):
        _refuse_twice(table, path, *keys)
        for key, value in table.items():
            if not keys and (key == ALIASES or isinstance(value, dict)):
                if key not in (ALIASES, *commands):
                    raise UsageError(
                        f"{place(path, key)}: [{key}] is not a command.{hint(key, commands)} There "
                        f"are {', '.join(sorted(commands))}."
                    )
                continue
            name = key.replace("-", "_")
            if name not in options:
                close = hint(key.replace("_", "-"), (o.replace("_", "-") for o in options))
                raise UsageError(
                    f"{place(path, *keys, key)}: {short(key)} is not an option of {whose}.{close}"
                )
            if name in own:
                try:
                    defaults[name] = convert(own[name], value)
                except KvstreamError as error:  # raised only if click needs the default
                    message = f"{place(path, *keys, key)}: {key}: {error}"
                    defaults[name] = partial(_refuse, type(error)(message))
    return defaults


def _refuse(error: KvstreamError) -> None:
    raise error


def _refuse_twice(table: Mapping[str, Any], path: Path, *keys: str) -> None:
    """Raise UsageError if a table has an option both with ``-`` and with ``_``."""
    seen: dict[str, str] = {}
    for key in table:
        earlier = seen.setdefault(key.replace("_", "-"), key)
        if earlier != key:
            raise UsageError(
                f"{place(path, *keys, key)}: {key} and {earlier} are the same option; leave one "
                "out."
            )
