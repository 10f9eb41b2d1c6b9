"""`CellAnswers`: the answers of one cell, in order and bounded; of `answer[...]` only the
latest.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ...protocol.messages import Answered
from ...protocol.values.json_text import MAX_ANSWER_VALUES
from ...types import Answer

# One answer suffices; a loop of answers must not fill the host's memory.
_MAX_ANSWERS = 64
_MAX_CHARACTERS = 16 << 20
# Some 100 bytes each: the values of the four largest answers.
_MAX_VALUES = 4 * MAX_ANSWER_VALUES

# Accepts an answer, or raises ValueError to refuse it, immediately or when awaited.
Accept: TypeAlias = Callable[[Answer], Awaitable[None] | None]


class CellAnswers:
    """The answers of the running cell; `accepted` is empty when a cell begins."""

    def __init__(self) -> None:
        self.accepted: list[Answered] = []
        # by the number of the host call that brought the answer
        self._undecided: dict[int, Answered] = {}

    def all(self) -> tuple[Answer, ...]:
        """The answers that were kept."""
        return tuple(each.answer for each in self.accepted)

    def offer(self, answered: Answered, accept: Accept | None) -> Awaitable[None] | None:
        """Keep an answer if the limits allow it and `accept` accepts it.

        Returns an awaitable if the decision takes longer; `decided` receives its result.

        Raises:
            ValueError: the answer is refused; the message is for the cell.
        """
        self._check_room(answered)
        verdict = None if accept is None else accept(answered.answer)
        if inspect.isawaitable(verdict):
            self._undecided[answered.call] = answered
            return verdict
        self._keep(answered)
        return None

    def decided(self, call: int, accepted: bool) -> None:
        """Keep or drop the answer of host call number `call`, if that call brought an answer."""
        answered = self._undecided.pop(call, None)
        if answered is not None and accepted:
            self._keep(answered)

    def leave_undecided(self) -> None:
        """Drop the answers without a decision: the cell is over."""
        self._undecided.clear()

    def _check_room(self, new: Answered) -> None:
        answers = [*self.accepted, *self._undecided.values(), new]
        many = self._place(new) + len(self._undecided) >= _MAX_ANSWERS
        if many or sum(len(each.answer.text) for each in answers) > _MAX_CHARACTERS:
            raise ValueError(
                f"a cell may give {_MAX_ANSWERS} answers of {_MAX_CHARACTERS:,} characters"
            )
        if sum(each.values for each in answers) > _MAX_VALUES:
            raise ValueError(f"the answers of a cell may have {_MAX_VALUES:,} values together")

    def _keep(self, answered: Answered) -> None:
        place = self._place(answered)
        self.accepted[place:] = [answered, *self.accepted[place + 1 :]]

    def _place(self, answered: Answered) -> int:
        if answered.answer.form == "answer":
            for place, earlier in enumerate(self.accepted):
                if earlier.answer.form == "answer":
                    return place
        return len(self.accepted)
