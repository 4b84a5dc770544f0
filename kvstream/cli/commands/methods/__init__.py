"""``kvstream methods``: the methods, their settings, and the training of those that learn."""

from __future__ import annotations

from kvstream.cli.commands.methods.listing import command

__all__ = ["command"]
