"""The user's own defaults: a TOML file in the user's config folder.

Keys are the names of the long options (``budget = "8k"``, ``max-tokens = 400``). Keys at the top
hold for every command that has the option, those in a table (``[summarize]``) for that command.
The command line comes before the environment (``KVSTREAM_BUDGET``), which comes before the file.
The table ``[models]`` is for short names of models: ``small = "org/some-model"``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvstream.errors import UsageError, meant
from kvstream.offered import OFFERS

PATH_VARIABLE = "KVSTREAM_CONFIG"
ALIASES = "models"
"""The table of short names; not one of defaults, though there is a command of that name."""
EMBEDDED = "pocket"
"""A name that cannot be given to another model."""


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
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if os.environ.get(PATH_VARIABLE):
            raise UsageError(f"{PATH_VARIABLE} names {path}, but there is no such file.") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The config file {path} cannot be read: {error}.") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"The config file {path} is not valid TOML: {error}.") from error


def aliases(path: Path | None = None) -> dict[str, str]:
    """Short names of models and what they stand for. Raises UsageError for what is neither."""
    path = path or config_path()
    table = load(path).get(ALIASES, {})
    if not isinstance(table, dict):
        raise UsageError(f'{path}: [models] is a table of names, as in small = "org/some-model".')
    for name, target in table.items():
        if not isinstance(target, str) or not target:
            raise UsageError(
                f"{path}: {name} in [models] must be a hub id or a path in quotes, not {target!r}."
            )
        if name == EMBEDDED:
            raise UsageError(f"{path}: {name} is the embedded model; give yours another name.")
    return table


def model_name(name: str) -> str:
    """What a model's name stands for: its alias in the config file, or itself.

    Raises UsageError for what is almost a name that there is: the hub, where the few names without
    an owner are old ones, would be asked for it several times.
    """
    known = {name: name for name in (EMBEDDED, *OFFERS)} | aliases()
    if name not in known and "/" not in name and not Path(name).exists():
        close = meant(name, known, 0.8)
        if close:
            raise UsageError(f"There is no model {name!r}.{close}")
    return known.get(name, name)


def for_command(
    values: Mapping[str, Any], command: str, known: Mapping[str, Iterable[str]], path: Path
) -> dict[str, Any]:
    """The defaults of one command, keyed by parameter name.

    ``known`` gives the parameter names of every command: a key that none of them has is a typing
    error that would otherwise be ignored without a word.
    """
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
                    f"{path}: [{key}] is no command.{close} There are {_listed(known)}."
                )
            continue
        name = key.replace("-", "_")
        if name not in anywhere:
            raise UsageError(f"{path}: {key!r} is no option of any command.{_like(key, anywhere)}")
        if name in own:
            defaults[name] = value
    table = {} if command == ALIASES else values.get(command, {})
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in own:
            raise UsageError(
                f"{path}: {key!r} is no option of kvstream {command}.{_like(key, own)}"
            )
        defaults[name] = value
    return defaults


def _like(key: str, names: Iterable[str]) -> str:
    return meant(key.replace("_", "-"), (name.replace("_", "-") for name in names))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
