"""Text in which something is hidden: sentences of no weight, with given ones among them."""

from __future__ import annotations

from collections.abc import Sequence

from repl_env.tasks.generators import word_lists
from repl_env.tasks.generators.seeded_random import SeededRandom

_PARAGRAPH = 6  # sentences, on average


def sentence(rng: SeededRandom) -> str:
    """One sentence that no question is about."""
    pick = rng.pick
    return (
        f"{pick(word_lists.SUBJECTS)} {pick(word_lists.VERBS)} {pick(word_lists.OBJECTS)} "
        f"{pick(word_lists.CIRCUMSTANCES)}."
    )


def hide(rng: SeededRandom, sentences: Sequence[str], size: int) -> str:
    """A text of at most `size` characters that has each of `sentences` once, anywhere."""
    # One character each for what separates it from the next; a new paragraph takes two.
    left = size - sum(len(each) + 2 for each in sentences)
    pieces: list[str] = []
    while True:
        piece = sentence(rng) + ("\n\n" if rng.below(_PARAGRAPH) == 0 else " ")
        left -= len(piece)
        if left < 0:
            break
        pieces.append(piece)
    places = rng.places(len(sentences), len(pieces) + len(sentences))
    return "".join(_mixed(pieces, dict(zip(places, sentences, strict=True)))).rstrip()


def _mixed(pieces: list[str], hidden: dict[int, str]) -> list[str]:
    """`pieces` in their order, with `hidden` at the places in the result that are its keys."""
    mixed: list[str] = []
    start = 0
    for before, place in enumerate(sorted(hidden)):
        mixed += pieces[start : place - before]
        mixed.append(hidden[place] + " ")
        start = place - before
    return mixed + pieces[start:]
