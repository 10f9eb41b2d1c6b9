"""The task that the learning examples share: the number of a colour in five lines of text.

The prompt names a colour and nothing else; the lines are the variable `context` of the session, so
that only code that runs can find the number.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any
from zlib import crc32

COLOURS = ("red", "blue", "green", "black", "white", "brown", "pink", "gold", "grey", "lime")
LINES = 5
TURNS = 3  # cells of an episode
# One context in four is held out: no update sees it.
_HELD_OUT = 4


@dataclass(frozen=True, slots=True)
class ColourTask:
    """A question, the text it is about, and the answer."""

    question: str
    context: str
    answer: str

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The messages that the policy is shown."""
        return [{"role": "user", "content": self.question}]

    @property
    def request(self) -> dict[str, Any]:
        """The arguments of `LocalREPLEnv.reset`."""
        return {"context": self.context, "expected_answer": self.answer, "max_iterations": TURNS}


def draw_tasks(count: int, seed: int, *, held_out: bool = False) -> list[ColourTask]:
    """`count` tasks, the same for the same seed. Held-out contexts are never drawn otherwise."""
    # Each seed has two streams of its own, because `held_out` must not repeat the others' numbers.
    rng = random.Random(2 * seed + held_out)
    tasks: list[ColourTask] = []
    while len(tasks) < count:
        colours = rng.sample(COLOURS, LINES)
        numbers = rng.sample(range(10, 100), LINES)
        context = "\n".join(
            f"{colour} {number}" for colour, number in zip(colours, numbers, strict=True)
        )
        if (crc32(context.encode()) % _HELD_OUT == 0) == held_out:
            asked = rng.randrange(LINES)
            tasks.append(ColourTask(colours[asked], context, str(numbers[asked])))
    return tasks
