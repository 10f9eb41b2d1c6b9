"""Needles: facts that stand somewhere in a long text, among others that look the same.

A single needle is one fact. Of several needles, an answer has to name all: nothing in the text says
how many there are.
"""

from __future__ import annotations

from repl_env.tasks.generators import filler_text, word_lists
from repl_env.tasks.generators.generated_task import GeneratedTask
from repl_env.tasks.generators.seeded_random import SeededRandom

# One fact of the same form, about something else, in about this many characters; at least 2.
_BESIDES = 5_000
_MAX_BESIDES = 400
_MAX_NEEDLES = 12


def single_needle(size: int, seed: int) -> GeneratedTask:
    """The code of one thing in one town."""
    rng = SeededRandom("single_needle", size, seed)
    thing, town = _thing(rng), rng.pick(word_lists.TOWNS)
    answer = _code(rng)
    facts = {(thing, town): answer}
    # The nearest misses: the thing elsewhere, and another thing there.
    facts.setdefault((thing, _other(rng, word_lists.TOWNS, town)), _code(rng))
    while len(facts) < 1 + _besides(size):
        there = town if len(facts) == 2 else rng.pick(word_lists.TOWNS)
        facts.setdefault((_thing(rng), there), _code(rng))
    sentences = [f"The code of the {what} in {at} is {code}." for (what, at), code in facts.items()]
    return GeneratedTask(
        id=f"single_needle-{size}-{seed}",
        kind="single_needle",
        question=f"What is the code of the {thing} in {town}? Answer with the code alone.",
        context=filler_text.hide(rng, sentences, size),
        answer=answer,
        size=size,
        seed=seed,
        rubric="exact",
    )


def multi_needle(size: int, seed: int) -> GeneratedTask:
    """All who hold a key to one room."""
    rng = SeededRandom("multi_needle", size, seed)
    rooms = [f"{quality} {room}" for quality in word_lists.QUALITIES for room in word_lists.ROOMS]
    room, *others = rng.some(rooms, 41)
    max_needles = min(_MAX_NEEDLES, 2 + size // 1_000)
    holders = _people(rng, 2 + rng.below(max_needles - 1))
    sentences = [_holds(person, room) for person in holders]
    sentences += [_holds(each, rng.pick(others)) for each in _people(rng, _besides(size))]
    return GeneratedTask(
        id=f"multi_needle-{size}-{seed}",
        kind="multi_needle",
        question=f"Who holds a key to the {room}? Answer with a list of the full names of all.",
        context=filler_text.hide(rng, sentences, size),
        answer=[*sorted(holders)],
        size=size,
        seed=seed,
        rubric="list",
    )


def _holds(person: str, room: str) -> str:
    return f"{person} holds a key to the {room}."


def _besides(size: int) -> int:
    return max(2, min(_MAX_BESIDES, size // _BESIDES))


def _thing(rng: SeededRandom) -> str:
    return f"{rng.pick(word_lists.QUALITIES)} {rng.pick(word_lists.THINGS)}"


def _other(rng: SeededRandom, items: list[str], excluded: str) -> str:
    return rng.pick([item for item in items if item != excluded])


def _code(rng: SeededRandom) -> str:
    letters = "".join(rng.pick("BCDFGHJKLMNPQRSTVWXZ") for _ in range(3))
    return f"{letters}-{10_000 + rng.below(90_000)}"


def _people(rng: SeededRandom, count: int) -> list[str]:
    names = [
        f"{first} {last}" for first in word_lists.FIRST_NAMES for last in word_lists.LAST_NAMES
    ]
    return rng.some(names, count)
