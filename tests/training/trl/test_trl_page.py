"""The examples of TRL on the pages run."""

from __future__ import annotations

from repl_env.rlm import Trajectory
from tests.pages.blocks import blocks_run_by, own_task

EXAMPLES = blocks_run_by("tests/training/trl")


def test_the_examples_run_one_after_another(model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"model": model, "tokenizer": tokenizer, "folder": "training", "__name__": "page"}
    exec(own_task(), names)
    assert len(EXAMPLES) == 3
    for example in EXAMPLES:
        exec(compile(example.code, example.page, "exec"), names)
        assert names["trainer"].state.global_step == 1
    by_hand, trained = (list(tmp_path.glob(f"{place}/*/*.jsonl")) for place in PLACES)
    assert len(by_hand) == 2 and len(trained) == 4
    assert all(Trajectory.load(file).complete for file in [*by_hand, *trained])


PLACES = ("rollouts", "training/rollouts")
