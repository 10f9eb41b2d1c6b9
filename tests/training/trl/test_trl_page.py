"""The examples of TRL on the pages run."""

from __future__ import annotations

from tests.pages.blocks import blocks_run_by

EXAMPLES = blocks_run_by("tests/training/trl")


def test_the_examples_run_one_after_another(model, tokenizer, tmp_path):
    names = {"model": model, "tokenizer": tokenizer, "folder": str(tmp_path), "__name__": "page"}
    assert len(EXAMPLES) == 2
    for example in EXAMPLES:
        exec(compile(example.code, example.page, "exec"), names)
        assert names["trainer"].state.global_step == 1
