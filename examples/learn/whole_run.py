"""The run that the learning scripts have in common: warm start, updates, checks, curve."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from examples.learn.curve import Curve
from examples.learn.model import make_deterministic, parameters
from examples.learn.play import NothingRuns, Sessions, mean_reward, play
from examples.learn.task import draw_tasks
from examples.learn.warm_start import warm_start

GOAL, MOST_BEFORE, MOST_WITHOUT = 0.9, 0.12, 0.1
HELD_OUT = 200

# Model, tokenizer, curve, seed, number of updates; returns the seconds of each part.
Train: TypeAlias = Callable[[Any, Any, Curve, int, int], Mapping[str, float]]


def whole_run(trainer: str, train: Train, *, updates: int) -> int:
    """Warm start, updates and checks by the arguments of the command line; the exit status.

    It is 1 if the reward on held-out tasks is above 0.12 before the updates, below 0.9 after them,
    or above 0.1 with an executor that runs nothing.
    """
    parser = argparse.ArgumentParser(description=f"A tiny model learns with {trainer}.")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tasks and of the weights")
    parser.add_argument("--updates", type=int, default=updates, help="number of updates")
    parser.add_argument("--out", type=Path, default=Path("build/learn"), help="folder of the curve")
    given = parser.parse_args()
    begun = time.monotonic()
    make_deterministic(given.seed)
    held_out = draw_tasks(HELD_OUT, given.seed, held_out=True)
    curve = Curve(f"{trainer}, seed {given.seed}", GOAL)
    with Sessions(HELD_OUT) as sessions:
        model, tokenizer = warm_start(given.seed, sessions)
        curve.before = mean_reward(play(model, tokenizer, held_out, sessions, sample=True))
        print(f"{parameters(model):,} parameters; {curve.before:.3f} held out after imitation")
        curve.begun = time.monotonic()
        parts = train(model, tokenizer, curve, given.seed, given.updates)
        seconds = time.monotonic() - curve.begun
        model.eval()
        curve.after = mean_reward(play(model, tokenizer, held_out, sessions))
    without = mean_reward(play(model, tokenizer, held_out, NothingRuns()))
    shares = {part: round(each / seconds, 3) for part, each in parts.items()}
    print(f"{curve.after:.3f} held out after {given.updates} updates in {seconds:.0f} s")
    print(f"{without:.3f} with an executor that runs nothing")
    print("of that time: " + ", ".join(f"{part} {share:.1%}" for part, share in shares.items()))
    curve.save(
        given.out / f"{trainer.lower()}-seed{given.seed}",
        seed=given.seed, seconds=round(time.monotonic() - begun), training_seconds=round(seconds),
        shares=shares, nothing_runs=without,
    )  # fmt: skip
    learned = curve.before <= MOST_BEFORE and curve.after >= GOAL and without <= MOST_WITHOUT
    return 0 if learned else 1
