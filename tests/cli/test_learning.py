"""``kvstream methods train|measure``: of every method that learns something."""

from __future__ import annotations

import sys
import types

import click
import pytest

from kvstream.methods import registry


@pytest.mark.parametrize("action", ["train", "measure"])
def test_gate_is_the_old_name_of_what_edgeinfinite_learns(cli, action: str) -> None:
    assert "gate" not in cli("--help").stdout
    old = cli("gate", action, "--help")
    new = cli("methods", action, "edgeinfinite", "--help")
    assert (old.code, new.code) == (0, 0)
    assert [*old.stdout.splitlines()[1:]] == [*new.stdout.splitlines()[1:]]
    assert cli("gate", action).code == 2  # --data is missing


def test_a_method_of_another_package_brings_its_training(
    cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("elsewhere_training")

    @click.command()
    @click.option("--data")
    def train(data: str) -> None:
        click.echo(f"learning from {data}")

    module.train = train  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class Learner(registry.named("streaming")):  # type: ignore[misc]
        learning = module.__name__

    known = {**registry.available(), "learner": Learner}
    monkeypatch.setattr(registry, "available", lambda: known)
    assert cli("methods", "train", "learner", "--data", "d").stdout == "learning from d\n"
    assert "learner" not in cli("methods", "measure", "--help").stdout
    assert "kvstream methods train learner" in cli("methods", "learner").stdout
