"""``kvstream doctor``: what this machine can run; exit code 1 if something needed is broken."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain

import click

from kvstream.api.doctor import Finding, diagnose
from kvstream.cli import config
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.shared.saying import columns, say
from kvstream.errors import KvstreamError
from kvstream.reporters.format import counted, hanging, json_text, visible

WIDTH = 80
"""Maximum columns of a line."""


@click.command("doctor", cls=SectionedCommand)
@click.option("--json", is_flag=True, help="Print one JSON object per finding.")
def command(json: bool) -> int:
    """Report what this machine can run: versions, devices, RAM, attention backends, and whether
    pocket and a fetched reader load.

    The exit code is 1 if something is missing or broken, also in the config file, else 0.
    """
    problems, width = 0, min(WIDTH, columns())
    for finding in chain(diagnose(), _config()):
        problems += not finding.ok
        if json:
            click.echo(json_text(vars(finding)))
            continue
        mark = "ok" if finding.ok else "!!"
        head = f"{mark}  {finding.name:18}"
        click.echo(hanging(head, visible(finding.value), width))
        if not finding.ok and finding.remedy:
            click.echo(hanging(" " * len(head), visible(finding.remedy), width))
    if problems:
        say(f"{counted(problems, 'problem')} found.")
    return 1 if problems else 0


def _config() -> Iterator[Finding]:
    path = config.config_path()
    try:
        values = config.load(path)
    except KvstreamError as error:
        yield Finding("config file", str(error), False, "Repair or remove it.")
        return
    yield Finding("config file", f"{path}" + ("" if values else " (none)"))
    variables = sorted(name for name in os.environ if name.startswith("KVSTREAM_"))
    if variables:
        yield Finding("environment", ", ".join(variables))
