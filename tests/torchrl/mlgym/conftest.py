"""Environments of the MLGym pipeline over a small task."""

from __future__ import annotations

import pytest

from repl_sandbox import Sandbox
from tests.torchrl.mlgym.mlgym_tasks import EVALUATE, TOML


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as made:
        yield made


@pytest.fixture
def write(tmp_path):
    def writing(name="double", evaluate=EVALUATE, **values):
        given = {"metric": "share", "direction": "maximize", "baseline": 10.0, "reference": 20.0}
        folder = tmp_path / name
        (folder / "starter").mkdir(parents=True, exist_ok=True)
        (folder / "starter" / "number.txt").write_text("10")
        (folder / "task.toml").write_text(TOML.format(name=name, **given | values))
        if evaluate is not None:
            (folder / "evaluator").mkdir(exist_ok=True)
            (folder / "evaluator" / "evaluate.py").write_text(evaluate)
        return folder

    return writing


@pytest.fixture
def make(write, sandbox):
    from repl_env.integrations.torchrl.mlgym import make_mlgym

    made = []

    def making(evaluate=EVALUATE, task=None, **arguments):
        task = task or write(evaluate=evaluate)
        made.append(make_mlgym(task=task, sandbox=sandbox, **arguments))
        return made[-1]

    yield making
    for env in made:
        env.close()
