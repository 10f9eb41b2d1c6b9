"""How long everybody's turn is, and how often it comes.

On a machine whose speed swings within seconds, whoever is measured for long meets another machine
than the next. So turns are short, everyone's follows on everyone else's, and what is compared are
turns of the same round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

ROUNDS = 8
# Of stepping: so many rounds of the same servers, then others are started. Of two of the same code
# one takes up to 1.2 times as long as the other, for as long as it lives. Before these there is one
# that does not count, for what is done for the first time: a session's first copies are forks.
ROUNDS_OF_THE_SAME = 2
# Of stepping: some hundred steps, where clients are so many also a few of each.
SECONDS = 0.4
SECONDS_OF_MANY = 0.8
MANY = 128
# Of opening sessions: a few dozen.
SECONDS_OF_OPENING = 0.6
# Of clients that pause: some twenty steps of each.
SECONDS_OF_PAUSING = 2.0
# After a turn, for what it left behind: copies of sessions, and their ends.
PAUSE = 0.02

TOLD = (
    f"{ROUNDS} rounds of turns of {SECONDS} s ({MANY} clients {SECONDS_OF_MANY} s, openings"
    f" {SECONDS_OF_OPENING} s), one server's after another's in an order that is turned round each"
    f" time, over connections that stay open; of stepping, {ROUNDS_OF_THE_SAME} rounds of each"
    " server after one that is not counted, then of one that is started anew"
)

_T = TypeVar("_T")


def rounds(who: Sequence[_T], count: int = ROUNDS) -> Iterator[Iterable[_T]]:
    """For each of `count` rounds everybody, in the order of their turns."""
    for number in range(count):
        yield who if number % 2 else who[::-1]
