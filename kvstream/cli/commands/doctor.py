"""``kvstream doctor``: what this machine can run; exit code 1 if something needed is broken."""

from __future__ import annotations

import click

from kvstream.cli.shared.options import SectionedCommand
from kvstream.reporters.format import json_text


@click.command("doctor", cls=SectionedCommand)
@click.option("--json", is_flag=True, help="One JSON object a finding.")
@click.pass_context
def command(ctx: click.Context, json: bool) -> None:
    """Tell what this machine can run: versions, devices, memory, attention, the embedded model.

    The exit code is 0 if all that kvstream needs is there, else 1.
    """
    from kvstream.cli.diagnostics import doctor

    broken = 0
    for finding in doctor.findings():
        broken += not finding.ok
        if json:
            click.echo(json_text(vars(finding)))
            continue
        mark = "ok" if finding.ok else "!!"
        click.echo(f"{mark}  {finding.name:18}{finding.value}")
        if not finding.ok and finding.remedy:
            click.echo(f"    {'':18}{finding.remedy}")
    if broken:
        problems = "problem" if broken == 1 else "problems"
        click.echo(f"{broken} {problems} found.", err=True)
        ctx.exit(1)
