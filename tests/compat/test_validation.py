"""OpenEnv's own checks: of a server that runs, and of this repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.compat.environments import NEWEST, ROOT, run, told, wanted

pytestmark = wanted


def test_the_runtime_graders_pass(our_server: str) -> None:
    graded = told(NEWEST, "grading.py", our_server)

    assert graded.pop("failure") is None
    assert graded.pop("seen") == ["reset", "state", *["step", "state"] * 5]
    assert graded == {
        name: ["pass", "observed runtime contract holds"]
        for name in (
            "runtime.reward_well_formed",
            "runtime.observation_schema",
            "runtime.state_contract",
        )
    }


def test_a_server_that_runs_is_valid(our_server: str) -> None:
    done = run(NEWEST, "openenv", "validate", "--url", our_server)

    assert done.returncode == 0, done.stdout
    assert "Verdict: PASS" in done.stdout
    assert "FAIL" not in done.stdout
    assert "mode: simulation" in done.stdout


def test_a_clean_checkout_is_valid(tmp_path: Path) -> None:
    """A clean one: outside `.venv`, OpenEnv takes no symbolic links, which environments have."""
    tree = tmp_path / "repl-env"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", tree], check=True)
    done = run(NEWEST, "openenv", "validate", "--level", "static", str(tree))

    assert done.returncode == 0, done.stdout
    assert "PASS  static.manifest" in done.stdout
    assert "Verdict: PASS" in done.stdout
