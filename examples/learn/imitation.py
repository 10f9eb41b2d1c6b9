"""The warm start: imitation of a clumsy player, on episodes that it really played.

The player knows the format of a cell and repeats the colour that it was asked for. All else it
draws blindly: one of two looks, one of five parsers, one of two endings. One parser and one ending
belong together and answer; so the player wins one episode in ten, and a model that imitates the
player does no better. Everything above that must be learned from rewards.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from examples.learn.play import Episode, Executor
from examples.learn.task import ColourTask

LOOKS = ("print(context)", "print(len(context))")
PARSERS = (
    "rows = dict(map(str.split, context.splitlines()))",
    "rows = dict(enumerate(context))",
    "rows = context.splitlines()",
    "rows = context.split()",
    "rows = {}",
)
ENDINGS = ('FINAL(rows["{colour}"])', "FINAL(rows[0])")


def fenced(code: str) -> str:
    """A reply that is one cell."""
    return f"```repl\n{code}\n```"


def clumsy_replies(task: ColourTask, rng: random.Random) -> list[str]:
    """The three replies of one episode."""
    cells = (rng.choice(LOOKS), rng.choice(PARSERS), rng.choice(ENDINGS))
    return [fenced(cell.replace("{colour}", task.question)) for cell in cells]


def clumsy_episodes(tasks: Sequence[ColourTask], executor: Executor, seed: int) -> list[Episode]:
    """One episode of the player for each task, with what each cell really printed."""
    rng = random.Random(seed)
    replies = [clumsy_replies(task, rng) for task in tasks]
    episodes = [Episode(task) for task in tasks]
    executor.reset(tasks)
    for turn in range(len(replies[0])):
        said = [
            None if episode.done else reply[turn]
            for episode, reply in zip(episodes, replies, strict=True)
        ]
        for episode, reply, step in zip(episodes, said, executor.step(said), strict=True):
            if reply is not None and step is not None:
                episode.add(reply, step)
    return episodes


def texts_of(episodes: Sequence[Episode]) -> list[str]:
    """The contents of all messages, for the tokenizer to be trained on."""
    return [message["content"] for episode in episodes for message in episode.messages]


def imitate(
    model: Any,
    tokenizer: Any,
    episodes: Sequence[Episode],
    *,
    epochs: int = 6,
    batch: int = 16,
    learning_rate: float = 2e-3,
    seed: int = 0,
) -> float:
    """Train `model` on the replies in `episodes`; returns the mean loss of the last epoch."""
    rows = [_row(tokenizer, episode) for episode in episodes]
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, betas=(0.9, 0.95))
    steps = epochs * -(-len(rows) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=steps, pct_start=0.05
    )
    rng = random.Random(seed)
    model.train()
    loss = 0.0
    for _ in range(epochs):
        rng.shuffle(rows)
        losses = []
        for start in range(0, len(rows), batch):
            part = _padded(rows[start : start + batch], tokenizer.pad_token_id)
            result = model(**part)
            result.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            losses.append(float(result.loss.detach()))
        loss = sum(losses) / len(losses)
    model.eval()
    return loss


def _row(tokenizer: Any, episode: Episode) -> tuple[list[int], list[int]]:
    """The ids of an episode, and its labels: -100 wherever the policy did not write."""
    tokens = tokenizer.apply_chat_template(
        episode.messages, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, mask = tokens["input_ids"], tokens["assistant_masks"]
    return ids, [token if said else -100 for token, said in zip(ids, mask, strict=True)]


def _padded(rows: Sequence[tuple[list[int], list[int]]], pad: int) -> dict[str, torch.Tensor]:
    longest = max(len(ids) for ids, _ in rows)
    padded = {"input_ids": [], "attention_mask": [], "labels": []}  # type: dict[str, list[list[int]]]
    for ids, labels in rows:
        rest = longest - len(ids)
        padded["input_ids"].append([*ids, *[pad] * rest])
        padded["attention_mask"].append([*[1] * len(ids), *[0] * rest])
        padded["labels"].append([*labels, *[-100] * rest])
    return {name: torch.tensor(values) for name, values in padded.items()}
