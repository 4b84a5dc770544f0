"""``kvstream gate``: the name of ``kvstream methods train|measure edgeinfinite`` in 0.1."""

from __future__ import annotations

from kvstream.cli.commands.methods.edgeinfinite import measure, train
from kvstream.cli.groups import Group

command = Group(
    "gate",
    commands={"train": train, "measure": measure},
    hidden=True,
    help="The name of 0.1 for kvstream methods train|measure edgeinfinite.",
)
