"""The example of SkyRL on the pages runs and prints what the page says."""

import skyrl_gym

from tests.pages.blocks import blocks_run_by


def test_the_example_prints_what_the_page_says(capsys):
    (example,) = blocks_run_by("tests/training/skyrl_gym")
    try:
        exec(compile(example.code, example.page, "exec"), {})
    finally:
        skyrl_gym.envs.deregister("repl-env")
    assert capsys.readouterr().out == example.output
