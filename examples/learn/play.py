"""Episodes of a policy on many tasks at once, in sessions or with an executor that runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch

from examples.learn.task import TURNS, ColourTask
from repl_env.env.rows import EpisodeRows
from repl_env.rubrics import ExactMatchRubric

MAX_NEW_TOKENS = 24  # of one reply; the longest cell of the warm start has fewer


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one reply: the message for the policy, the reward, whether it was the last."""

    message: str
    reward: float
    done: bool


@dataclass(slots=True)
class Episode:
    """One task as far as it was played."""

    task: ColourTask
    messages: list[dict[str, str]] = field(default_factory=list)
    reward: float = 0.0
    done: bool = False

    def __post_init__(self) -> None:
        self.messages = list(self.task.prompt)

    def add(self, reply: str, step: Step) -> None:
        """Add a reply and what it came to."""
        self.messages.append({"role": "assistant", "content": reply})
        self.reward += step.reward
        self.done = step.done
        if not step.done:
            self.messages.append({"role": "tool", "content": step.message})


class Executor(Protocol):
    """The environments that take replies."""

    def reset(self, tasks: Sequence[ColourTask]) -> None:
        """Begin an episode for each task."""

    def step(self, replies: Sequence[str | None]) -> list[Step | None]:
        """Take each reply; None is no reply."""


class Sessions:
    """Runs the cells of replies: one session for each task, all stepped side by side."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.rows = EpisodeRows(most, rubric=ExactMatchRubric())
        self._used = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rows.close()

    def reset(self, tasks: Sequence[ColourTask]) -> None:
        """Begin an episode for each task, in a new session."""
        self._used = len(tasks)
        self.rows.reset([task.request for task in tasks], only=range(len(tasks)))

    def step(self, replies: Sequence[str | None]) -> list[Step | None]:
        """Run the cells of each reply."""
        idle = [None] * (len(self.rows) - self._used)
        results = self.rows.step([*replies, *idle])[: self._used]
        return [
            None if result is None else Step(result.message, result.reward, result.done)
            for result in results
        ]


class NothingRuns:
    """Takes replies and runs nothing: an answer that stands in the reply itself counts."""

    def __init__(self) -> None:
        self._tasks: list[ColourTask] = []
        self._turns = 0

    def reset(self, tasks: Sequence[ColourTask]) -> None:
        """Begin an episode for each task."""
        self._tasks, self._turns = list(tasks), 0

    def step(self, replies: Sequence[str | None]) -> list[Step | None]:
        """Compare a literal answer, as in `FINAL("42")`, and print nothing."""
        self._turns += 1
        last = self._turns == TURNS
        return [
            None if reply is None else Step("", float(f'FINAL("{task.answer}")' in reply), last)
            for task, reply in zip(self._tasks, replies, strict=True)
        ]


def play(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[ColourTask],
    executor: Executor,
    *,
    sample: bool = False,
) -> list[Episode]:
    """An episode of the policy for each task; greedy, unless `sample`."""
    episodes = [Episode(task) for task in tasks]
    executor.reset(tasks)
    for _ in range(TURNS):
        going = [number for number, episode in enumerate(episodes) if not episode.done]
        if not going:
            break
        written = generate(model, tokenizer, [episodes[n].messages for n in going], sample=sample)
        replies: list[str | None] = [None] * len(tasks)
        for number, reply in zip(going, written, strict=True):
            replies[number] = reply
        for episode, said, step in zip(episodes, replies, executor.step(replies), strict=True):
            if said is not None and step is not None:
                episode.add(said, step)
    return episodes


def mean_reward(episodes: Sequence[Episode]) -> float:
    """The mean reward of episodes."""
    return sum(episode.reward for episode in episodes) / len(episodes)


def generate(
    model: Any, tokenizer: Any, conversations: Sequence[Any], *, sample: bool
) -> list[str]:
    """The policy's reply to each conversation."""
    prompts = [
        tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True)
        for each in conversations
    ]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        ids = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=sample,
            **({"top_k": 0} if sample else {}),  # of all tokens, not of the likeliest 50
        )
    written = ids[:, batch["input_ids"].shape[1] :]
    replies: list[str] = tokenizer.batch_decode(written, skip_special_tokens=True)
    return replies
