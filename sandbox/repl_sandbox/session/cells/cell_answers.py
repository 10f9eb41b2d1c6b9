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
    """The answers of the running cell; `kept` is empty when a cell begins."""

    def __init__(self) -> None:
        self.kept: list[Answered] = []
        # by the number of the host call that brought the answer
        self._undecided: dict[int, Answered] = {}

    def all(self) -> tuple[Answer, ...]:
        """The answers that were kept."""
        return tuple(each.answer for each in self.kept)

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

    def decided(self, call: int, taken: bool) -> None:
        """Keep or drop the answer of host call number `call`, if that call brought an answer."""
        answered = self._undecided.pop(call, None)
        if answered is not None and taken:
            self._keep(answered)

    def leave_undecided(self) -> None:
        """Drop the answers without a decision: the cell is over."""
        self._undecided.clear()

    def _check_room(self, new: Answered) -> None:
        held = [*self.kept, *self._undecided.values(), new]
        many = self._place(new) + len(self._undecided) >= _MAX_ANSWERS
        if many or sum(len(each.answer.text) for each in held) > _MAX_CHARACTERS:
            raise ValueError(
                f"a cell may give {_MAX_ANSWERS} answers of {_MAX_CHARACTERS:,} characters"
            )
        if sum(each.values for each in held) > _MAX_VALUES:
            raise ValueError(f"the answers of a cell may have {_MAX_VALUES:,} values together")

    def _keep(self, answered: Answered) -> None:
        place = self._place(answered)
        self.kept[place:] = [answered, *self.kept[place + 1 :]]

    def _place(self, answered: Answered) -> int:
        if answered.answer.form == "answer":
            for place, kept in enumerate(self.kept):
                if kept.answer.form == "answer":
                    return place
        return len(self.kept)
