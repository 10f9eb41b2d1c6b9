"""The examples of verifiers in docs/training.md run."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import verifiers.v1 as vf

from tests.pages.blocks import blocks_run_by
from tests.training.replies import code

EXAMPLES = {block.language: block for block in blocks_run_by("tests/training/verifiers")}
TASK = '{"id": "a", "question": "How many words?", "context": "a b c", "answer": "3"}\n'


async def test_the_example_runs(endpoint, capsys):
    served = endpoint([code("1/0"), code("FINAL(3)")])
    client = vf.EvalClientConfig(base_url=served.base_url, api_key_var="NO_SUCH_KEY")
    made = compile(EXAMPLES["python"].code, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(made, {"client": client})
    assert capsys.readouterr().out == "0.95 [-0.05, 1.0]\n"


def test_the_command_evaluates_a_dataset(endpoint, tmp_path):
    (tmp_path / "tasks.jsonl").write_text(TASK)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", EXAMPLES["sh"].code.replace("URL", endpoint(code("FINAL(3)")).base_url)],
        cwd=tmp_path,
        env=os.environ | {"PATH": programs, "OPENAI_API_KEY": "stand-in"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "reward 1.00" in done.stdout
