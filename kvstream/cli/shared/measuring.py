"""Options and model loading for the commands that train or measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvstream.cli.options.option import option
from kvstream.cli.options.table import refuse_revision
from kvstream.cli.options.types import SEED
from kvstream.cli.shared import libraries
from kvstream.settings import ModelSettings, table

if TYPE_CHECKING:
    from kvstream.api.model import Session


def quiet_option(section: str) -> Callable[[Any], Any]:
    """Return the option -q of a command."""
    return option("-q", "--quiet", is_flag=True, section=section, help="Hide progress.")


def verbose_option(section: str, help: str = "Show tracebacks.") -> Callable[[Any], Any]:
    """Return the option -v of a command."""
    return option("-v", "--verbose", is_flag=True, section=section, help=help)


def seed_option(section: str, help: str) -> Callable[[Any], Any]:
    """Return the option --seed of a command."""
    return option(
        "--seed", type=SEED, default=0, show_default=True, metavar="N", section=section,
        help=help,
    )  # fmt: skip


def model_settings(values: dict[str, Any]) -> ModelSettings:
    """Move the shared model options from `values` to settings."""
    refuse_revision(values["model"])
    return ModelSettings(**{name: values.pop(name) for name in table(ModelSettings)})


def open_session(settings: ModelSettings, *, verbose: bool) -> Session:
    """Load the model once for all measurements, with quiet libraries unless -v was given."""
    libraries.quiet(offline=settings.offline, verbose=verbose)
    from kvstream.api.model import Model

    return Model.open(settings).session
