"""The example of SkyRL in docs/training.md runs and prints what the page says."""

import skyrl_gym

from tests.training.page import example


def test_the_example_prints_what_the_page_says(capsys):
    code, printed = example("Others")
    try:
        exec(compile(code, "page", "exec"), {})
    finally:
        skyrl_gym.envs.deregister("repl-env")
    assert capsys.readouterr().out == printed
