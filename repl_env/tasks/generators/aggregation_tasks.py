"""Aggregation: questions whose answer takes every line of a register.

After the tasks of OOLONG (arXiv 2511.02817), with labels that are written down, so that an answer
is exact. Made anew: nothing of its text is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from repl_env.tasks.generators import word_lists
from repl_env.tasks.generators.generated_task import GeneratedTask
from repl_env.tasks.generators.register_text import Register, register, users
from repl_env.tasks.generators.seeded_random import SeededRandom

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

QuestionAndAnswer: TypeAlias = "tuple[str, JSON]"

_TIES = "If several are equal, the first of them by alphabet."


def aggregation(size: int, seed: int) -> GeneratedTask:
    """One of `QUESTIONS` about a register."""
    rng = SeededRandom("aggregation", size, seed)
    # Labels differ in frequency, or every answer about it would hang on a handful of lines.
    slots = [label for label in word_lists.LABELS for _ in range(3 + rng.below(5))]
    user_ids = users(rng, size, lines_each=10, min_users=3, max_users=200)
    lines = register(rng, size, user_ids, lambda _: rng.pick(slots))
    question, answer = rng.pick(QUESTIONS)(rng, lines)
    return GeneratedTask(
        id=f"aggregation-{size}-{seed}",
        kind="aggregation",
        question=question,
        context=lines.text,
        answer=answer,
        size=size,
        seed=seed,
        rubric="exact",
    )


def _most_frequent(rng: SeededRandom, lines: Register) -> QuestionAndAnswer:
    label = min(word_lists.LABELS, key=lambda label: (-lines.of_label(label), label))
    return f"Which label has the most lines? {_TIES} Answer with the label alone.", label


def _least_frequent(rng: SeededRandom, lines: Register) -> QuestionAndAnswer:
    present = [label for label in word_lists.LABELS if lines.of_label(label)]
    label = min(present, key=lambda label: (lines.of_label(label), label))
    return (
        f"Of the labels that occur, which has the fewest lines? {_TIES} "
        "Answer with the label alone."
    ), label


def _of_user(rng: SeededRandom, lines: Register) -> QuestionAndAnswer:
    user, label = rng.pick(sorted(lines.counts))
    question = f"How many lines of user {user} have the label {label}? Answer with the number."
    return question, lines.counts[user, label]


def _of_label(rng: SeededRandom, lines: Register) -> QuestionAndAnswer:
    label = rng.pick(word_lists.LABELS)
    return (
        f"How many lines have the label {label}? Answer with the number.",
        lines.of_label(label),
    )


def _compared(rng: SeededRandom, lines: Register) -> QuestionAndAnswer:
    one, other = rng.some(word_lists.LABELS, 2)
    difference = lines.of_label(one) - lines.of_label(other)
    answer = "more" if difference > 0 else "fewer" if difference < 0 else "equal"
    return (
        f"Does the label {one} have more lines than the label {other}, fewer, or an equal number? "
        'Answer "more", "fewer" or "equal".'
    ), answer


def _busiest(rng: SeededRandom, lines: Register) -> QuestionAndAnswer:
    label = rng.pick(word_lists.LABELS)
    present = {user for user, _ in lines.counts}
    user = min(present, key=lambda user: (-lines.counts[user, label], user))
    return (
        f"Which of the users in the register has the most lines with the label {label}? If several "
        "are equal, the one with the lowest number. Answer with the user's number."
    ), user


QUESTIONS: tuple[Callable[[SeededRandom, Register], QuestionAndAnswer], ...] = (
    _most_frequent,
    _least_frequent,
    _of_user,
    _of_label,
    _compared,
    _busiest,
)
