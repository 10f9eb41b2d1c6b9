"""A small pretrained model learns on one GPU, in hundreds of sessions at once.

    python -m examples.learn.learn_gpu --model FOLDER --minutes 6

FOLDER is a model and a tokenizer as `save_pretrained` writes them, with a chat template; the script
was made for SmolLM2-135M-Instruct. The prompt has two examples as turns. The model is to look at
`context` in one cell and to answer in the next. Printed are the rewards, and the shares of the wall
time that the environment and the generation took.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from examples.learn.curve import Curve
from examples.learn.imitation import fenced
from examples.learn.learn_trl import Watch, dataset_of
from examples.learn.task import ColourTask, draw_tasks
from repl_env import Sandbox
from repl_env.integrations.trl import Rollouts, episode_reward, rollout_func
from repl_env.rubrics import ExactMatchRubric

TURNS = 2
GROUP = 16
# Of tasks that are in no update.
EXAMPLES = draw_tasks(2, seed=1, held_out=True)


def turns_of(task: ColourTask) -> list[dict[str, str]]:
    """A question, and for an example the two cells that answer it."""
    return [
        *asked(task),
        {"role": "assistant", "content": fenced("print(context)")},
        {"role": "user", "content": task.context},
        {"role": "assistant", "content": fenced(f"FINAL({task.answer})")},
    ]


def asked(task: ColourTask) -> list[dict[str, str]]:
    """The question alone."""
    return [{"role": "user", "content": f"Which number is beside {task.question} in `context`?"}]


class GpuTask(ColourTask):
    """The task with a prompt for a pretrained model: words, and two examples."""

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The question behind the examples; the last message is the one that tells tasks apart."""
        shown = [message for example in EXAMPLES for message in turns_of(example)]
        system = {"role": "system", "content": "Write one Python cell. FINAL(...) answers."}
        return [system, *shown, *asked(self)]

    @property
    def request(self) -> dict[str, Any]:
        """The arguments of the reset."""
        return {"context": self.context, "expected_answer": self.answer, "max_iterations": TURNS}


class Clock(TrainerCallback):  # type: ignore[misc]  # untyped where the checks run
    """Ends the training when its minutes are over, and prints the shares of each update."""

    def __init__(self, rollouts: Rollouts, minutes: float) -> None:
        self.rollouts, self.seconds = rollouts, 60 * minutes
        self.begun = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After each update."""
        gone = time.monotonic() - self.begun
        print(f"     {told(self.shares(gone))}", flush=True)
        control.should_training_stop = gone > self.seconds

    def shares(self, gone: float) -> dict[str, float]:
        """The share of each activity in the time."""
        environment = self.rollouts.environment_seconds / gone
        rollouts = self.rollouts.seconds / gone
        return {
            "environment": environment,
            "generation": rollouts - environment,
            "rest": 1 - rollouts,
        }


def told(shares: dict[str, float]) -> str:
    """Shares as text."""
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items())


def settings(given: argparse.Namespace, tokenizer: Any) -> Any:
    """The arguments of the trainer: one update for each batch of rollouts."""
    from trl import GRPOConfig

    parts = given.sessions // given.batch
    return GRPOConfig(
        str(given.out),
        seed=given.seed,
        max_steps=given.updates,
        per_device_train_batch_size=given.batch,
        gradient_accumulation_steps=parts,
        steps_per_generation=parts,
        num_generations=GROUP,
        max_completion_length=192,
        generation_kwargs={"max_new_tokens": given.new_tokens},
        beta=0.0,
        learning_rate=given.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        logging_steps=1,
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
    )


def main() -> None:
    """The whole run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of the pretrained model")
    parser.add_argument("--sessions", type=int, default=512, help="rollouts of one update")
    parser.add_argument("--batch", type=int, default=32, help="rollouts of one pass of the model")
    parser.add_argument("--minutes", type=float, default=6, help="no update begins later")
    parser.add_argument("--updates", type=int, default=60, help="the most updates")
    parser.add_argument("--new-tokens", type=int, default=24, help="the most tokens of one reply")
    parser.add_argument("--learning-rate", type=float, default=4e-5, help="of AdamW")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tasks and of the sampling")
    parser.add_argument("--out", type=Path, default=Path("build/learn"), help="folder of the curve")
    given = parser.parse_args()
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    run(given)


def run(given: argparse.Namespace) -> None:
    """Train, and write the curve and the shares."""
    from transformers.trainer_callback import PrinterCallback
    from trl import GRPOTrainer

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    torch.set_float32_matmul_precision("high")
    # Weights in float32: updates at this rate are smaller than a step of bfloat16.
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(given.model, padding_side="left")
    drawn = draw_tasks(given.updates * given.sessions // GROUP, given.seed)
    tasks = [GpuTask(each.question, each.context, each.answer) for each in drawn]
    dataset = dataset_of(tasks)
    # Without snapshots: an episode of two cells has little to go back to.
    sandbox = Sandbox(recovery="restart")
    rollouts = rollout_func(
        dataset, role="user", sandbox=sandbox, rubric=ExactMatchRubric(), max_iterations=TURNS
    )
    curve = Curve(f"GRPO of {Path(given.model).name}, {given.sessions} sessions, {device}", 0.9)
    clock = Clock(rollouts, given.minutes)
    trainer = GRPOTrainer(
        model,
        reward_funcs=episode_reward,
        rollout_func=rollouts,
        train_dataset=dataset,
        processing_class=tokenizer,
        args=settings(given, tokenizer),
        callbacks=[Watch(curve), clock],
    )
    trainer.remove_callback(PrinterCallback)
    print(f"{device}, {given.sessions} sessions at once", flush=True)
    clock.begun = curve.begun = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - clock.begun
    shares = clock.shares(seconds)
    episodes = len(curve.rewards) * given.sessions
    print(f"{len(curve.rewards)} updates, {episodes} episodes in {seconds:.0f} s: {told(shares)}")
    curve.save(given.out / "gpu", device=device, seconds=round(seconds), **shares)
    print(json.dumps({"rewards": curve.rewards, "seconds": seconds, **shares}))
    rollouts.close()
    sandbox.close()


if __name__ == "__main__":
    main()
