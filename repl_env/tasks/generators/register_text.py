"""Lines of a register: date, user, label, text. Questions are about all of them at once.

The text means nothing, and sometimes names a label that is not the line's: who searches for words
instead of reading the column counts wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repl_env.tasks.generators import filler_text, word_lists
from repl_env.tasks.generators.seeded_random import SeededRandom

HEADER = "date | user | label | text\n"
_LINE = 100  # characters, about: for how many lines, and so users, a size has room
_YEARS = 3
_FIRST_YEAR = 2031
_DAYS = 28  # of each month: dates need not be dense


@dataclass(frozen=True, slots=True)
class Register:
    """A text of such lines, and how many of them each user has with each label."""

    text: str
    users: tuple[int, ...]
    counts: Counter[tuple[int, str]]

    def of_label(self, label: str) -> int:
        """How many lines have `label`."""
        return sum(self.counts[user, label] for user in self.users)


def users(
    rng: SeededRandom, size: int, lines_each: int, min_users: int, max_users: int
) -> tuple[int, ...]:
    """Numbers of users for a register of `size` characters, about `lines_each` lines for each."""
    count = max(min_users, min(max_users, size // (_LINE * lines_each)))
    return tuple(10_000 + place for place in rng.places(count, 90_000))


def register(
    rng: SeededRandom,
    size: int,
    users: tuple[int, ...],
    label_of: Callable[[int], str],
    first: Sequence[tuple[int, str]] = (),
) -> Register:
    """A register of at most `size` characters; `label_of` gives the label of a user's next line.

    Lines of the users and labels in `first` are in it whatever else is.
    """
    lines = [HEADER]
    counts: Counter[tuple[int, str]] = Counter()
    left = size - len(HEADER)
    user_ids = list(first)
    while True:
        user, label = user_ids.pop() if user_ids else _next(rng, users, label_of)
        # The date of this line follows from the share of the text that is written.
        line = f"{_date(1 - left / size)} | user {user} | {label} | {_text(rng, label)}\n"
        left -= len(line)
        if left < 0:
            return Register("".join(lines), users, counts)
        lines.append(line)
        counts[user, label] += 1


def _next(
    rng: SeededRandom, users: tuple[int, ...], label_of: Callable[[int], str]
) -> tuple[int, str]:
    user = rng.pick(users)
    return user, label_of(user)


def _date(progress: float) -> str:
    day = int(progress * _YEARS * len(word_lists.MONTHS) * _DAYS)
    month, day = divmod(day, _DAYS)
    year, month = divmod(month, len(word_lists.MONTHS))
    return f"{day + 1:02} {word_lists.MONTHS[month]} {_FIRST_YEAR + year}"


def _text(rng: SeededRandom, label: str) -> str:
    if rng.below(8):
        return filler_text.sentence(rng)
    return f"{filler_text.sentence(rng)} First noted as {rng.pick(word_lists.LABELS)}."
