"""The examples of docs/torchrl.md, and of TorchRL in docs/training.md, run as the pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "torchrl.md").read_text(encoding="utf-8")
TRAINING = (DOCS / "training.md").read_text(encoding="utf-8")
# Each example with the text that follows it at once, if one does.
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", PAGE, re.MULTILINE | re.DOTALL
)


@pytest.fixture(scope="module")
def names(tokenizer, model):
    """What the examples share, as their reader does who goes from one to the next."""
    return {"tokenizer": tokenizer, "model": model, "__name__": "page"}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_prints_what_the_page_says(number, names, capsys):
    code, text = EXAMPLES[number]
    exec(compile(code, f"example {number}", "exec"), names)
    env = names.get("env")
    if env is not None and not env.is_closed:
        env.close()
    if text:
        assert capsys.readouterr().out == text


def test_example_of_the_page_on_training_makes_a_rollout(names):
    section = TRAINING.partition("\n## TorchRL\n")[2].partition("\n## ")[0]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    exec(compile(code, "example", "exec"), names)
    assert names["rollout"].batch_size[0] == 4
    names["env"].close()
