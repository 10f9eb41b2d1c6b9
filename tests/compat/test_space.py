"""A Space by `repl-env space make`, as OpenEnv's tools see it; and the distribution it carries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import repl_env
from repl_env.integrations.space import SpaceConfig, make_space
from tests.compat.environments import ADAPTED, NEWEST, run, told, wanted
from tests.space.hub import TOKEN, Hub

pytestmark = wanted

OLDER = ADAPTED[1]


@pytest.mark.parametrize("keyed", [False, True])
def test_openenv_s_static_check_of_a_space_passes(tmp_path: Path, keyed: bool) -> None:
    make_space(tmp_path / "space", SpaceConfig(keyed=keyed))
    done = run(NEWEST, "openenv", "validate", "--level", "static", str(tmp_path / "space"))

    assert done.returncode == 0, done.stdout
    assert "PASS  static.manifest" in done.stdout
    assert "Verdict: PASS" in done.stdout


def test_openenv_s_own_push_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_space(tmp_path / "space", SpaceConfig())
    with Hub() as hub:
        for name, value in {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        done = run(NEWEST, "openenv", "push", str(tmp_path / "space"), "--repo-id", "ann/repl")
        ours = {file.name for file in (tmp_path / "space").iterdir()}

    assert done.returncode == 0, done.stdout
    assert hub.spaces["ann/repl"].files.keys() == ours | {".gitattributes"}


def test_an_older_push_finds_all_required_files(tmp_path: Path) -> None:
    make_space(tmp_path, SpaceConfig())
    program = (
        "import sys, pathlib\n"
        "from openenv.cli._cli_utils import validate_env_structure\n"
        "validate_env_structure(pathlib.Path(sys.argv[1]))"
    )
    done = run(OLDER, "python", "-c", program, str(tmp_path))

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("generation", ADAPTED)
def test_autoenv_finds_what_the_space_installs(
    our_server: str, tmp_path: Path, generation: str
) -> None:
    make_space(tmp_path / "space", SpaceConfig())
    site = tmp_path / "site"
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, tmp_path / "space"], check=True
    )
    story = told(generation, "looking_up.py", str(site), str(tmp_path / "cache"), our_server)

    assert story["looked up"] == {
        "client": "repl_env.REPLEnv",
        "action": "REPLAction",
        "reward": 1.0,
        "package": "openenv-repl-env",
        "version": repl_env.__version__,
    }
