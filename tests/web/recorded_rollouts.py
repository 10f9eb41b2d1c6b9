"""Rollouts of a training, recorded in groups by the interface that trainers' integrations use."""

from __future__ import annotations

import random
from pathlib import Path

from repl_env.env.rollouts import RolloutNote
from repl_env.env.rows import EpisodeRows

LOOK = "I count the words.\n```repl\nn = len(context.split())\nprint(n)\n```"
SLIP = "```repl\nprint(context.wrods())\n```"
RIGHT, WRONG, LOST = "```repl\nFINAL(n)\n```", "```repl\nFINAL(0)\n```", "I cannot tell."
GROUP = 8


def record_training(folder: Path, groups: int = 12) -> None:
    """Record one batch for each of `groups`, whose policy becomes better from batch to batch."""
    chance = random.Random(5)
    with EpisodeRows(GROUP, record=folder) as rows:
        for batch in range(groups):
            words = chance.randint(3, 40)
            request = {
                "context": " ".join(["word"] * words),
                "task_prompt": "How many words has `context`?",
                "expected_answer": str(words),
                "max_iterations": 3,
            }
            note = RolloutNote(None, {"task_id": f"words-{words}", "split": "train"})
            rows.reset([request] * GROUP, notes=[note] * GROUP)
            skill = [(row + 1) / (groups + GROUP) * (batch + 2) for row in range(GROUP)]
            rows.step([LOOK if good > 0.3 else SLIP for good in skill])
            rows.step([RIGHT if good > 0.7 else WRONG if good > 0.3 else LOST for good in skill])
            rows.step([SLIP] * GROUP)
