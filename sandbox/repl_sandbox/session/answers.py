"""The answers that one cell gives: bounded, in order, the answer dict's latest alone."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ..types import Answer

# One answer is enough; a loop that gives them must not fill the host's memory.
_MOST = 64
_MOST_CHARACTERS = 16 << 20

# Who says whether an answer is taken: refuses by a ValueError, at once or once it was awaited.
Accept: TypeAlias = Callable[[Answer], Awaitable[None] | None]


class AnswersOfCell:
    """`kept`: in order; empty when a cell begins."""

    def __init__(self) -> None:
        self.kept: list[Answer] = []
        self._undecided: dict[int, Answer] = {}  # by the numbers of the calls that brought them

    def all(self) -> tuple[Answer, ...]:
        """What was kept."""
        return tuple(self.kept)

    def offer(self, call: int, answer: Answer, accept: Accept | None) -> Awaitable[None] | None:
        """Keep `answer`, which came as number `call`, if there is room and it is accepted.

        Returns what is to be awaited before that is said by `decided`, if anything.

        Raises:
            ValueError: it is refused; the words for the cell.
        """
        self._check_room(answer)
        verdict = None if accept is None else accept(answer)
        if inspect.isawaitable(verdict):
            self._undecided[call] = answer
            return verdict
        self._keep(answer)
        return None

    def decided(self, call: int, taken: bool) -> None:
        """What came as number `call`, if that was an answer, is taken or refused."""
        answer = self._undecided.pop(call, None)
        if answer is not None and taken:
            self._keep(answer)

    def leave_undecided(self) -> None:
        """The cell is over: what is not decided is not kept."""
        self._undecided.clear()

    def _check_room(self, answer: Answer) -> None:
        held = [*self.kept, *self._undecided.values()]
        size = len(answer.text) + sum(len(each.text) for each in held)
        if self._place(answer) + len(self._undecided) >= _MOST or size > _MOST_CHARACTERS:
            raise ValueError(f"a cell may give {_MOST} answers of {_MOST_CHARACTERS:,} characters")

    def _keep(self, answer: Answer) -> None:
        place = self._place(answer)
        self.kept[place:] = [answer, *self.kept[place + 1 :]]

    def _place(self, answer: Answer) -> int:
        if answer.form == "answer":
            for place, kept in enumerate(self.kept):
                if kept.form == "answer":
                    return place
        return len(self.kept)
