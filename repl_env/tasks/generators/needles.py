"""Needles: facts that stand somewhere in a long text, among others that look the same.

A single needle is one fact. Of several needles, an answer has to name all: nothing in the text says
how many there are.
"""

from __future__ import annotations

from repl_env.tasks.generators import prose, words
from repl_env.tasks.generators.chance import Chance
from repl_env.tasks.generators.task import GeneratedTask

# One fact of the same form, about something else, in about this many characters; at least 2.
_BESIDES = 5_000
_MOST_BESIDES = 400
_MOST_NEEDLES = 12


def single_needle(size: int, seed: int) -> GeneratedTask:
    """The code of one thing in one town."""
    chance = Chance("single_needle", size, seed)
    thing, town = _thing(chance), chance.pick(words.TOWNS)
    answer = _code(chance)
    facts = {(thing, town): answer}
    # The nearest misses: the thing elsewhere, and another thing there.
    facts.setdefault((thing, _other(chance, words.TOWNS, town)), _code(chance))
    while len(facts) < 1 + _besides(size):
        there = town if len(facts) == 2 else chance.pick(words.TOWNS)
        facts.setdefault((_thing(chance), there), _code(chance))
    sentences = [f"The code of the {what} in {at} is {code}." for (what, at), code in facts.items()]
    return GeneratedTask(
        id=f"single_needle-{size}-{seed}",
        kind="single_needle",
        question=f"What is the code of the {thing} in {town}? Answer with the code alone.",
        context=prose.hide(chance, sentences, size),
        answer=answer,
        size=size,
        seed=seed,
        rubric="exact",
    )


def multi_needle(size: int, seed: int) -> GeneratedTask:
    """All who hold a key to one room."""
    chance = Chance("multi_needle", size, seed)
    rooms = [f"{quality} {room}" for quality in words.QUALITIES for room in words.ROOMS]
    room, *others = chance.some(rooms, 41)
    most = min(_MOST_NEEDLES, 2 + size // 1_000)
    holders = _people(chance, 2 + chance.below(most - 1))
    sentences = [_holds(person, room) for person in holders]
    sentences += [_holds(each, chance.pick(others)) for each in _people(chance, _besides(size))]
    return GeneratedTask(
        id=f"multi_needle-{size}-{seed}",
        kind="multi_needle",
        question=f"Who holds a key to the {room}? Answer with a list of the full names of all.",
        context=prose.hide(chance, sentences, size),
        answer=[*sorted(holders)],
        size=size,
        seed=seed,
        rubric="list",
    )


def _holds(person: str, room: str) -> str:
    return f"{person} holds a key to the {room}."


def _besides(size: int) -> int:
    return max(2, min(_MOST_BESIDES, size // _BESIDES))


def _thing(chance: Chance) -> str:
    return f"{chance.pick(words.QUALITIES)} {chance.pick(words.THINGS)}"


def _other(chance: Chance, items: list[str], than: str) -> str:
    return chance.pick([item for item in items if item != than])


def _code(chance: Chance) -> str:
    letters = "".join(chance.pick("BCDFGHJKLMNPQRSTVWXZ") for _ in range(3))
    return f"{letters}-{10_000 + chance.below(90_000)}"


def _people(chance: Chance, count: int) -> list[str]:
    names = [f"{first} {last}" for first in words.FIRST_NAMES for last in words.LAST_NAMES]
    return chance.some(names, count)
