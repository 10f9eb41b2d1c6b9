"""Pairs: all pairs of users for which something holds, which takes looking at each with each.

After OOLONG-Pairs of the paper on recursive language models (arXiv 2512.24601), made anew. How many
pairs there are does not grow with the size of the context: users are at most 40, and write under a
few labels each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from repl_env.tasks.generators import word_lists
from repl_env.tasks.generators.generated_task import GeneratedTask
from repl_env.tasks.generators.register_text import Register, register, users
from repl_env.tasks.generators.seeded_random import SeededRandom

_INTRODUCTION = "List all pairs of different users for which this holds: "
_FORM = (
    " Answer with a list of pairs [a, b] of the users' numbers, the lower number first in each; "
    "no pair twice."
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on two users, in words and as a symmetric function."""

    text: str
    satisfies: Callable[[int, int], bool]


def pairs(size: int, seed: int) -> GeneratedTask:
    """One of `CONDITIONS` about the users of a register."""
    rng = SeededRandom("pairs", size, seed)
    user_ids = users(rng, size, lines_each=4, min_users=4, max_users=40)
    common = rng.pick(word_lists.LABELS)
    labels = {user: rng.some(word_lists.LABELS, 1 + rng.below(3)) for user in user_ids}
    # Two users with a label in common, so that no answer is empty.
    first = [(user, common) for user in user_ids[:2]]
    lines = register(rng, size, user_ids, lambda user: rng.pick(labels[user]), first)
    condition = rng.pick(CONDITIONS)(rng, lines)
    found = [pair for pair in combinations(sorted(user_ids), 2) if condition.satisfies(*pair)]
    return GeneratedTask(
        id=f"pairs-{size}-{seed}",
        kind="pairs",
        question=_INTRODUCTION + condition.text + _FORM,
        context=lines.text,
        answer=[[*pair] for pair in found],
        size=size,
        seed=seed,
        rubric="list",
    )


def _both(rng: SeededRandom, lines: Register) -> Condition:
    label = _label_of_two(rng, lines)
    return Condition(
        f"both users have at least one line with the label {label}.",
        lambda one, other: min(lines.counts[one, label], lines.counts[other, label]) > 0,
    )


def _both_often(rng: SeededRandom, lines: Register) -> Condition:
    label = _label_of_two(rng, lines)
    counts = sorted((lines.counts[user, label] for user in lines.users), reverse=True)
    # As many as the third most have, so that some users with the label are not enough.
    least = max(1, counts[2], counts[len(counts) // 8]) if counts[2] else counts[1]
    return Condition(
        f"both users have at least {least} lines with the label {label}.",
        lambda one, other: min(lines.counts[one, label], lines.counts[other, label]) >= least,
    )


def _one_and_other(rng: SeededRandom, lines: Register) -> Condition:
    label = _label_of_two(rng, lines)
    # Another label that a user has: with the two users of the first, there is a pair.
    second = rng.pick(sorted({each for _, each in lines.counts if each != label} or {label}))

    def holds(one: int, other: int) -> bool:
        counts = lines.counts
        return bool(
            (counts[one, label] and counts[other, second])
            or (counts[other, label] and counts[one, second])
        )

    return Condition(
        f"one of the users has at least one line with the label {label}, and the other has at "
        f"least one line with the label {second}.",
        holds,
    )


def _label_of_two(rng: SeededRandom, lines: Register) -> str:
    """A label that at least two users have."""
    owners = {
        label: sum((u, label) in lines.counts for u in lines.users) for label in word_lists.LABELS
    }
    return rng.pick([label for label, count in owners.items() if count >= 2])


Asking: TypeAlias = Callable[[SeededRandom, Register], Condition]
CONDITIONS: tuple[Asking, ...] = (_both, _both_often, _one_and_other)
