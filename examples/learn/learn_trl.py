"""A tiny model learns with TRL: GRPO on sessions, from one episode in ten to nine in ten.

    make learn-trl LEARN_ARGS="--seed 1"

First the model imitates a clumsy player (`imitation.py`), which wins one episode in ten. Then comes
a fixed number of updates. The exit status is 1 if the reward on held-out tasks is below 0.9 at the
end, above 0.12 before the updates, or above 0.1 with an executor that runs nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback

from examples.learn.curve import Curve
from examples.learn.play import MAX_NEW_TOKENS
from examples.learn.task import TURNS, ColourTask, draw_tasks
from examples.learn.whole_run import whole_run
from repl_env.integrations.trl import episode_reward, rollout_func
from repl_env.rubrics import ExactMatchRubric

GROUP, GROUPS = 16, 8  # rollouts of a task, tasks of an update


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


def train(model: Any, tokenizer: Any, curve: Curve, seed: int, updates: int) -> dict[str, float]:
    """The updates of GRPO; returns the seconds that each part of them took."""
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
            "build/learn/trl",
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
    environment = rollouts.environment_seconds
    return {"environment": environment, "generation": rollouts.seconds - environment}


if __name__ == "__main__":
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    sys.exit(whole_run("TRL", train, updates=80))
