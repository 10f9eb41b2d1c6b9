"""The adapter where OpenEnv is not installed, and the files that OpenEnv's tools read.

tests/compat has the tests of the adapter where OpenEnv is installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module, metadata
from pathlib import Path

import pytest

from repl_env import ExactMatchRubric, REPLAction, REPLEnvironment, REPLRubric

ROOT = Path(__file__).parents[2]


def test_without_openenv_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openenv", None)
    monkeypatch.delitem(sys.modules, "repl_env.openenv", raising=False)

    with pytest.raises(ImportError, match=re.escape("pip install 'repl-env[openenv]'")):
        import_module("repl_env.openenv")


def test_no_extra_brings_openenv_beside_the_server() -> None:
    """OpenEnv from 0.4.2 on wants mcp<2, and the server mcp>=2."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    bringing = {name for name, wanted in extras.items() if "openenv" in " ".join(wanted)}

    assert bringing == {"openenv"}


def test_the_manifest_names_this_version_and_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPL_ENV_HOST", "127.0.0.1")
    manifest = (ROOT / "openenv.yaml").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^(\w+): (\S+)$", manifest, re.MULTILINE))

    assert fields["version"] == metadata.version("repl-env")
    module, _, name = fields["app"].partition(":")
    assert callable(getattr(import_module(module), name))


PRINTED = {
    "print('FINAL(42)')": "42",
    "print('FINAL(g(x))')": "g(x)",
    "print('FINAL((1, 2))')": "(1, 2)",
    "print('FINAL(a(b(c(d))) = e)')": "a(b(c(d))) = e",
    "print(\"FINAL({'a': (1, 2)})\")": "{'a': (1, 2)}",
    "print('FINAL(42)\\nrest: (of it)')": "42",
    "found = 'it'\nprint('FINAL_VAR(found)')": "it",
    "print(FINAL(7))": "7",
    "answer['content'] = 'it'\nanswer['ready'] = True": "it",
}


@pytest.mark.parametrize("code", PRINTED)
def test_answers_in_the_forms_that_openenv_s_users_write(code: str, sandbox) -> None:
    env = REPLEnvironment(sandbox=sandbox)
    env.reset()
    seen = env.step(REPLAction(code=code))
    assert (seen.done, seen.metadata["final_answer"]) == (True, PRINTED[code])
    env.close()
    assert (env._state, env._executor) == (None, None)


@pytest.mark.parametrize(
    ("answer", "expected", "reward"), [("done", "done", 1.0), ("wrong", "done", 0.0)]
)
def test_rewards_as_openenv_s(answer: str, expected: str, reward: float, sandbox) -> None:
    env = REPLEnvironment(sandbox=sandbox, rubric=REPLRubric(outcome=ExactMatchRubric()))
    env.reset(expected_answer=expected)
    assert env.step(REPLAction(code="raise ValueError()")).reward == -0.05
    assert env.step(REPLAction(code=f"print('FINAL({answer})')")).reward == reward
    env.close()


def test_the_folder_of_openenv_s_modules_can_be_first_on_the_path() -> None:
    """`server.repl_environment` is a name of its own then, as in OpenEnv's checkout."""
    code = (
        "import server.repl_environment as theirs, repl_env; "
        "assert theirs.REPLEnvironment is repl_env.REPLEnvironment"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "repl_env", check=True)
