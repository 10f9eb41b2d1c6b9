"""The answers that one cell gives: bounded, in order, the answer dict's latest alone."""

from __future__ import annotations

from collections.abc import Callable

from ..types import Answer

# One answer is enough; a loop that gives them must not fill the host's memory.
_MOST = 64
_MOST_CHARACTERS = 16 << 20


class AnswersOfCell:
    """`kept`: in order; empty when a cell begins."""

    def __init__(self) -> None:
        self.kept: list[Answer] = []

    def all(self) -> tuple[Answer, ...]:
        """What was kept."""
        return tuple(self.kept)

    def keep(self, answer: Answer, accept: Callable[[Answer], None] | None) -> None:
        """Keep `answer` if `accept` does not refuse it by a ValueError, and if there is room.

        Raises:
            ValueError: the words for the cell.
        """
        place = len(self.kept)
        if answer.form == "answer":
            forms = [kept.form for kept in self.kept]
            place = forms.index("answer") if "answer" in forms else place
        size = len(answer.text) + sum(len(kept.text) for kept in self.kept)
        if place >= _MOST or size > _MOST_CHARACTERS:
            raise ValueError(f"a cell may give {_MOST} answers of {_MOST_CHARACTERS:,} characters")
        if accept is not None:
            accept(answer)
        self.kept[place:] = [answer, *self.kept[place + 1 :]]
