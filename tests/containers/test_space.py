"""A Space by `repl-env space make`: its Dockerfile as it is, built and run by a real engine."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from repl_env.integrations.space import SpaceConfig, make_space
from tests.containers import built
from tests.containers.built import Engine
from tests.containers.ready import IMAGE
from tests.waiting import eventually

HERE = Path(__file__).parent
OFFLINE = "repl-env-offline-of-tests"


@pytest.fixture(scope="module")
def engine(client: list[str], tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The engine, with an image of Python for builds without network."""
    made = built.engine(tuple(client), IMAGE, tmp_path_factory.getbasetemp())
    shutil.copy(HERE / "offline.Dockerfile", made.context)
    made.build(OFFLINE, "offline.Dockerfile")
    return made


@pytest.fixture(scope="module")
def space(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of a public Space."""
    folder = tmp_path_factory.mktemp("space")
    make_space(folder, SpaceConfig())
    return replace(engine, context=folder).build("space-of-tests", "Dockerfile", base=OFFLINE)


def test_the_server_runs_as_user_1000_in_the_tier_of_a_space(engine: Engine, space: str) -> None:
    """With the engine's own profile, which forbids user namespaces."""
    host = "--env=SPACE_HOST=ann-repl.hf.space"
    name = engine("run", "--detach", "--network=none", host, space).split()[-1]
    try:
        eventually(
            lambda: "repl-env serves on http://0.0.0.0:8000" in engine("logs", name),
            lambda: engine("logs", name),
        )
        with (HERE / "inside" / "asking.py").open("rb") as program:
            asked = engine("exec", "--interactive", name, "python", "-", stdin=program)
        first = engine("exec", name, "cat", "/proc/1/cmdline")
        engine("exec", "--user=1000", name, "cat", "/proc/1/environ", status=1)
        engine("stop", "--time=100", name)
    finally:
        engine("rm", "--force", name)

    assert json.loads(asked) == {"tier": "confined", "uid": 1000, "value": "42"}
    assert "--origin\0https://ann-repl.hf.space" in first


def test_a_keyed_space_without_its_secret_does_not_start(engine: Engine, tmp_path: Path) -> None:
    make_space(tmp_path, SpaceConfig(keyed=True))
    keyed = replace(engine, context=tmp_path).build("keyed-of-tests", "Dockerfile", base=OFFLINE)

    assert "repl-env keys" in engine("run", "--rm", "--network=none", keyed, status=2)
