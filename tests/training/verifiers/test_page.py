"""The example of verifiers in docs/training.md runs."""

import ast

import verifiers.v1 as vf

from tests.pages.blocks import blocks_run_by
from tests.training.replies import code


async def test_the_example_runs(endpoint, capsys):
    served = endpoint([code("1/0"), code("FINAL(3)")])
    client = vf.EvalClientConfig(base_url=served.base_url, api_key_var="NO_SUCH_KEY")
    (example,) = blocks_run_by("tests/training/verifiers")
    made = compile(example.code, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(made, {"client": client})
    assert capsys.readouterr().out == "0.95 [-0.05, 1.0]\n"
