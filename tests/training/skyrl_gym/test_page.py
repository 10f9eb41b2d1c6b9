"""The example of SkyRL in docs/training.md runs and prints what the page says."""

from tests.training.page import example


def test_the_example_prints_what_the_page_says(capsys):
    code, printed = example("Others")
    exec(compile(code, "page", "exec"), {})
    assert capsys.readouterr().out == printed
