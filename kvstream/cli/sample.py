"""``kvstream sample``: a long text with known facts in it, and the questions about them."""

import click


@click.command("sample")
def command() -> None:
    """."""
