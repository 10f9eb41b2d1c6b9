"""A tiny model learns with TRL: GRPO on sessions, from one episode in ten to nine in ten.

    make learn-trl LEARN_ARGS="--seed 1"

First the model imitates a clumsy player (`imitation.py`), which wins one episode in ten. Then comes
a fixed number of updates. The exit status is 1 if the reward on held-out tasks is below 0.9 at the
end, above 0.12 before the updates, or above 0.1 with an executor that runs nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback

from examples.learn.curve import Curve
from examples.learn.model import make_deterministic, parameters
from examples.learn.play import MAX_NEW_TOKENS, NothingRuns, Sessions, mean_reward, play
from examples.learn.task import TURNS, ColourTask, draw_tasks
from examples.learn.warm_start import warm_start
from repl_env.integrations.trl import episode_reward, rollout_func
from repl_env.rubrics import ExactMatchRubric

GOAL, MOST_BEFORE, MOST_WITHOUT = 0.9, 0.12, 0.1
GROUP, GROUPS = 16, 8  # rollouts of a task, tasks of an update
HELD_OUT = 200


def dataset_of(tasks: Sequence[ColourTask]) -> Dataset:
    """The rows that TRL shuffles, told apart by the number in their prompt."""
    return Dataset.from_list(
        [
            {"prompt": [*before, {**last, "task": str(number)}], **task.request}
            for number, task in enumerate(tasks)
            for *before, last in (task.prompt,)
        ]
    )


class Watch(TrainerCallback):  # type: ignore[misc]  # untyped where the checks run
    """Adds the reward of each update to a curve."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """TRL logs once for each update, and once more at the end."""
        if logs and "reward" in logs:
            self.curve.add(logs["reward"])


def train(model: Any, tokenizer: Any, curve: Curve, seed: int, updates: int, folder: Path) -> Any:
    """The updates of GRPO; returns the rollouts, which know what the environment took."""
    from transformers.trainer_callback import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    dataset = dataset_of(draw_tasks(GROUPS * updates, seed))
    rollouts = rollout_func(dataset, rubric=ExactMatchRubric(), max_iterations=TURNS)
    trainer = GRPOTrainer(
        model,
        reward_funcs=episode_reward,
        rollout_func=rollouts,
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[Watch(curve)],
        args=GRPOConfig(
            str(folder),
            seed=seed,
            max_steps=updates,
            per_device_train_batch_size=GROUP * GROUPS,
            num_generations=GROUP,
            max_completion_length=400,
            generation_kwargs={"max_new_tokens": MAX_NEW_TOKENS},
            temperature=1.0,
            beta=0.0,
            learning_rate=6e-4,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=5,
            adam_beta1=0.9,
            adam_beta2=0.95,
            logging_steps=1,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
            save_strategy="no",
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    rollouts.close()
    return rollouts


def main() -> int:
    """The whole run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the tasks and of the weights")
    parser.add_argument("--updates", type=int, default=80, help="number of updates")
    parser.add_argument("--out", type=Path, default=Path("build/learn"), help="folder of the curve")
    given = parser.parse_args()
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    begun = time.monotonic()
    make_deterministic(given.seed)
    held_out = draw_tasks(HELD_OUT, given.seed, held_out=True)
    curve = Curve(f"GRPO with TRL, seed {given.seed}", GOAL)
    with Sessions(HELD_OUT) as sessions:
        model, tokenizer = warm_start(given.seed, sessions)
        curve.before = mean_reward(play(model, tokenizer, held_out, sessions, sample=True))
        print(f"{parameters(model):,} parameters; {curve.before:.3f} held out after imitation")
        curve.begun = training = time.monotonic()
        rollouts = train(model, tokenizer, curve, given.seed, given.updates, given.out)
        seconds = time.monotonic() - training
        model.eval()
        curve.after = mean_reward(play(model, tokenizer, held_out, sessions))
    without = mean_reward(play(model, tokenizer, held_out, NothingRuns()))
    share = rollouts.environment_seconds / seconds
    print(f"{curve.after:.3f} held out after {given.updates} updates in {seconds:.0f} s")
    print(f"{without:.3f} with an executor that runs nothing")
    print(f"{share:.1%} of the time of the updates was spent in the environment")
    curve.save(
        given.out / f"trl-seed{given.seed}",
        seed=given.seed, seconds=round(time.monotonic() - begun), training_seconds=round(seconds),
        environment_share=round(share, 3), nothing_runs=without,
    )  # fmt: skip
    learned = curve.before <= MOST_BEFORE and curve.after >= GOAL and without <= MOST_WITHOUT
    return 0 if learned else 1


if __name__ == "__main__":
    sys.exit(main())
