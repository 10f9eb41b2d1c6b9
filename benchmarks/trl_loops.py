"""The environment's time of a rollout: TRL's loop, which is serial, beside `rollout_func`.

    python -m benchmarks.trl_loops [--rollouts 64] [--rounds 5]

Runs where TRL is installed. The replies are written down, so that no model takes time, and none
hides a reset. A rollout has two cells. The three ways take turns; printed are medians in
milliseconds for each rollout.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from datasets import Dataset

from examples.learn.imitation import fenced
from examples.learn.model import make_model, train_tokenizer
from repl_env import LocalREPLEnv
from repl_env.integrations.trl import REPLToolEnv, episode_reward, rollout_func, use_fences

REPLIES = [fenced("n = len(context.split())\nprint(n)"), fenced("FINAL(n)"), "Done."]
ROW = {
    "prompt": [{"role": "user", "content": "How many words?"}],
    "context": "a b c",
    "expected_answer": "3",
}


class Stopwatch:
    """The seconds that calls of environments took."""

    seconds = 0.0


def timed(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, whose time counts as the environment's."""

    def call(*arguments: Any, **named: Any) -> Any:
        begun = perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            Stopwatch.seconds += perf_counter() - begun

    call.__annotations__, call.__doc__ = method.__annotations__, method.__doc__
    call.__name__, call.__wrapped__ = method.__name__, method  # type: ignore[attr-defined]
    return call


class PlainEnv:
    """An environment as TRL's documentation shows one: each call waits for its end."""

    def __init__(self) -> None:
        self._env = LocalREPLEnv()
        self._reward = 0.0

    def _begin(self, row: dict[str, Any]) -> None:
        self._reward = 0.0
        self._env.reset(context=row["context"], expected_answer=row["expected_answer"])

    def _run(self, code: str) -> str:
        result = self._env.execute(code)
        self._reward += result.reward or 0.0
        return result.observation.result.stdout

    @timed
    def reset(self, **row: Any) -> None:
        """Begin an episode."""
        self._begin(row)

    @timed
    def python(self, code: str) -> str:
        """Run Python code.

        Args:
            code: The code.
        """
        return self._run(code)

    def get_reward(self) -> float:
        """The reward of the episode."""
        return self._reward


class TimedToolEnv(REPLToolEnv):
    """`REPLToolEnv`, timed."""

    reset = timed(REPLToolEnv.reset)
    python = timed(REPLToolEnv.python)
    get_reward = timed(REPLToolEnv.get_reward)


class Loop:
    """One way to play a batch."""

    def __init__(self, name: str, rollouts: int, folder: str, factory: Any = None) -> None:
        from trl import GRPOConfig, GRPOTrainer

        self.name, self._rollouts = name, rollouts
        tokenizer = train_tokenizer(REPLIES * 3, 300)
        self._ids = [tokenizer(each + tokenizer.eos_token)["input_ids"] for each in REPLIES]
        self._turn = 0
        self._side_by_side = None if factory else rollout_func([ROW])
        way: dict[str, Any] = {"environment_factory": factory}
        if self._side_by_side:
            way = {"rollout_func": self._side_by_side, "reward_funcs": episode_reward}
        self._trainer = GRPOTrainer(
            make_model(tokenizer),
            args=GRPOConfig(
                folder, per_device_train_batch_size=rollouts, num_generations=rollouts,
                max_completion_length=400, report_to="none", use_cpu=True, bf16=False,
            ),
            train_dataset=Dataset.from_list([ROW]),
            processing_class=use_fences(tokenizer) if factory else tokenizer,
            **way,
        )  # fmt: skip
        self._trainer._generate_single_turn = self._write

    def _write(self, prompts: list[Any], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        self._turn += 1
        return [list(self._ids[self._turn - 1]) for _ in prompts], None

    def milliseconds(self) -> float:
        """The environment's time of one rollout, in a batch of them."""
        Stopwatch.seconds, self._turn = 0.0, 0
        if self._side_by_side:
            self._side_by_side.environment_seconds = 0.0
        with torch.no_grad():
            self._trainer._generate_and_score_completions([dict(ROW)] * self._rollouts)
        ours = self._side_by_side
        spent = ours.environment_seconds if ours else Stopwatch.seconds
        name = self._trainer.reward_func_names[0]
        if set(self._trainer._logs["rewards"][name]) != {1.0}:
            raise RuntimeError(f"{self.name}: the rollouts did not answer")
        return 1000 * spent / self._rollouts


def main() -> None:
    """All three ways, in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=64, help="rollouts of a batch")
    parser.add_argument("--rounds", type=int, default=5, help="batches of each way")
    given = parser.parse_args()
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    with tempfile.TemporaryDirectory() as folder:
        loops = [
            Loop("TRL's loop, a plain environment", given.rollouts, folder, PlainEnv),
            Loop("TRL's loop, REPLToolEnv", given.rollouts, folder, TimedToolEnv),
            Loop("rollout_func", given.rollouts, folder),
        ]
        times: dict[str, list[float]] = {loop.name: [] for loop in loops}
        for number in range(given.rounds + 1):
            for loop in loops:
                spent = loop.milliseconds()
                if number:  # the first starts a template
                    times[loop.name].append(spent)
    for name, each in times.items():
        print(f"{statistics.median(each):7.2f} ms   {name}   (from {min(each):.2f})")


if __name__ == "__main__":
    main()
