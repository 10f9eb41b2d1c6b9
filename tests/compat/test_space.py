"""A Space by `repl-env space make`, as OpenEnv's tools see it; and the distribution it carries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import repl_env
from repl_env.space.folder import make_space
from repl_env.space.plan import Plan
from tests.compat.environments import ADAPTED, NEWEST, run, told, wanted

pytestmark = wanted


@pytest.mark.parametrize("keyed", [False, True])
def test_its_static_check_passes(tmp_path: Path, keyed: bool) -> None:
    make_space(tmp_path / "space", Plan(keyed=keyed))
    done = run(NEWEST, "openenv", "validate", "--level", "static", str(tmp_path / "space"))

    assert done.returncode == 0, done.stdout
    assert "PASS  static.manifest" in done.stdout
    assert "Verdict: PASS" in done.stdout


@pytest.mark.parametrize("generation", ADAPTED)
def test_its_push_finds_all_that_it_wants(tmp_path: Path, generation: str) -> None:
    make_space(tmp_path, Plan())
    program = (
        "import sys, pathlib\n"
        "from openenv.cli._cli_utils import validate_env_structure\n"
        "print(validate_env_structure(pathlib.Path(sys.argv[1])))"
    )
    done = run(generation, "python", "-c", program, str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("[]", "['Recommended directory missing: outputs/']")


@pytest.mark.parametrize("generation", ADAPTED)
def test_autoenv_finds_what_the_space_installs(
    our_server: str, tmp_path: Path, generation: str
) -> None:
    make_space(tmp_path / "space", Plan())
    site = tmp_path / "site"
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, tmp_path / "space"], check=True
    )
    story = told(generation, "looking_up.py", str(site), str(tmp_path / "cache"), our_server)

    assert story["looked up"] == {
        "client": "repl_env.client.REPLEnv",
        "action": "REPLAction",
        "reward": 1.0,
        "package": "openenv-repl-env",
        "version": repl_env.__version__,
    }
