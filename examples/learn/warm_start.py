"""The start of both learning scripts: a tokenizer and a model that imitates a clumsy player."""

from __future__ import annotations

from typing import Any

from examples.learn.imitation import clumsy_episodes, imitate, texts_of
from examples.learn.model import make_model, train_tokenizer
from examples.learn.play import Sessions, mean_reward
from examples.learn.task import draw_tasks

EPISODES = 1024
# Seeds of the tasks of the imitation, apart from those of the updates.
_APART = 100_000


def warm_start(seed: int, sessions: Sessions) -> tuple[Any, Any]:
    """The model and its tokenizer after imitation of episodes that are played in `sessions`."""
    tasks = draw_tasks(EPISODES, seed + _APART)
    episodes = []
    for start in range(0, EPISODES, sessions.most):
        part = tasks[start : start + sessions.most]
        episodes += clumsy_episodes(part, sessions, seed + start)
    tokenizer = train_tokenizer(texts_of(episodes))
    model = make_model(tokenizer)
    print(f"imitation of {EPISODES} episodes, of which {mean_reward(episodes):.1%} were won")
    loss = imitate(model, tokenizer, episodes, seed=seed)
    print(f"loss {loss:.3f} at the end of the imitation")
    return model, tokenizer
