"""The answers that one cell gives: bounded, in order, the answer dict's latest alone."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ...protocol.messages import Answered
from ...protocol.values.json_text import MAX_ANSWER_VALUES
from ...types import Answer

# One answer is enough; a loop that gives them must not fill the host's memory.
_MOST = 64
_MOST_CHARACTERS = 16 << 20
# Some 100 bytes each: what the largest four answers may have.
_MOST_VALUES = 4 * MAX_ANSWER_VALUES

# Who says whether an answer is taken: refuses by a ValueError, at once or once it was awaited.
Accept: TypeAlias = Callable[[Answer], Awaitable[None] | None]


class CellAnswers:
    """`kept`: in order; empty when a cell begins."""

    def __init__(self) -> None:
        self.kept: list[Answered] = []
        self._undecided: dict[int, Answered] = {}  # by the numbers of the calls that brought them

    def all(self) -> tuple[Answer, ...]:
        """What was kept."""
        return tuple(each.answer for each in self.kept)

    def offer(self, answered: Answered, accept: Accept | None) -> Awaitable[None] | None:
        """Keep the answer that came if there is room and it is accepted.

        Returns what is to be awaited before that is said by `decided`, if anything.

        Raises:
            ValueError: it is refused; the words for the cell.
        """
        self._check_room(answered)
        verdict = None if accept is None else accept(answered.answer)
        if inspect.isawaitable(verdict):
            self._undecided[answered.call] = answered
            return verdict
        self._keep(answered)
        return None

    def decided(self, call: int, taken: bool) -> None:
        """What came as number `call`, if that was an answer, is taken or refused."""
        answered = self._undecided.pop(call, None)
        if answered is not None and taken:
            self._keep(answered)

    def leave_undecided(self) -> None:
        """The cell is over: what is not decided is not kept."""
        self._undecided.clear()

    def _check_room(self, new: Answered) -> None:
        held = [*self.kept, *self._undecided.values(), new]
        many = self._place(new) + len(self._undecided) >= _MOST
        if many or sum(len(each.answer.text) for each in held) > _MOST_CHARACTERS:
            raise ValueError(f"a cell may give {_MOST} answers of {_MOST_CHARACTERS:,} characters")
        if sum(each.values for each in held) > _MOST_VALUES:
            raise ValueError(f"the answers of a cell may have {_MOST_VALUES:,} values together")

    def _keep(self, answered: Answered) -> None:
        place = self._place(answered)
        self.kept[place:] = [answered, *self.kept[place + 1 :]]

    def _place(self, answered: Answered) -> int:
        if answered.answer.form == "answer":
            for place, kept in enumerate(self.kept):
                if kept.answer.form == "answer":
                    return place
        return len(self.kept)
