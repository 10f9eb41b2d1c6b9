"""The examples of docs/torchrl.md, and of TorchRL in docs/training.md, run as the pages say."""

from __future__ import annotations

import pytest

from tests.pages.blocks import blocks_run_by, own_task

EXAMPLES = [block for block in blocks_run_by("tests/torchrl") if block.page == "docs/torchrl.md"]


@pytest.fixture(scope="module")
def names(tokenizer, model):
    """The namespace that consecutive examples share, as for a reader of the page."""
    return {"tokenizer": tokenizer, "model": model, "__name__": "page"}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_prints_what_the_page_says(number, names, capsys):
    example = EXAMPLES[number]
    exec(compile(example.code, f"example {number}", "exec"), names)
    env = names.get("env")
    if env is not None and not env.is_closed:
        env.close()
    if example.output is not None:
        assert capsys.readouterr().out == example.output


@pytest.mark.parametrize("side", ["code", "before"])
def test_the_two_sides_of_the_page_on_moving_print_the_same(side, capsys):
    (example,) = [
        block for block in blocks_run_by("tests/torchrl") if block.page == "docs/migrating.md"
    ]
    exec(compile(getattr(example, side), side, "exec"), {})
    assert "\n3\n" in f"\n{capsys.readouterr().out}"


def test_examples_of_the_page_on_training_make_rollouts(names, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own, plain = [
        block for block in blocks_run_by("tests/torchrl") if block.page == "docs/training.md"
    ]
    names["folder"] = "training"
    for code in (own_task(), own.code):
        exec(compile(code, "example", "exec"), names)
    assert names["rollout"].batch_size[0] == 4 and "tensor(" in capsys.readouterr().out
    names["env"].close()
    assert len(list(tmp_path.glob("training/rollouts/*/*.jsonl"))) == 4
    exec(compile(plain.code, "example", "exec"), names)
    assert names["rollout"].batch_size[0] == 4
    names["env"].close()
