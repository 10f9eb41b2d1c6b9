"""Final answers: which one counts, and whether it has the form that was asked for.

An answer comes as a message from the session, at the moment the cell gives it. The first valid one
wins and stands whatever becomes of the cell. Three forms differ in when they are judged:

    calls (FINAL, FINAL_VAR, SUBMIT, final_answer)   at once; a refusal is an error in the cell
    the `answer` dict                                at the end of the cell, as it then stands
    printed text ("compatible" only)                 at the end, if the output has it line by line
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from repl_env.json_schemas import CHECK_S, by_json_schema
from repl_env.type_schemas import type_adapter
from repl_env.values import clean, json_or_none
from repl_sandbox.types import JSON, Answer

# A validator returns the value to keep, or raises ValueError with a text for the policy.
Validator: TypeAlias = Callable[[JSON], JSON]

# Code can offer printed answers in a loop. Honest code offers one, and its output shows it.
MOST_OFFERED = 64

# CPU seconds for all answers of a cell together, and for the last as long as one may take: code can
# offer refused ones in a loop, and a server stands still while it checks each.
CHECKS_S = CHECK_S


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """An answer that counts: its text, and its value if JSON can carry that."""

    text: str
    value: JSON


class AnswerSheet:
    """The answers that one cell has offered so far. Calls come from one thread at a time."""

    def __init__(self, validator: Validator | None = None) -> None:
        self._validator = validator
        self._offers: list[Answer | FinalAnswer] = []
        self._dict_place: int | None = None
        self._closed = False
        self._checking_s = 0.0
        self.refusal: str | None = None

    def offer(self, answer: Answer) -> None:
        """Take an answer of the running cell; ValueError refuses it, with a text for the policy."""
        if answer.form == "answer" and self._dict_place is not None:
            self._offers[self._dict_place] = answer
        elif self._closed or len(self._offers) >= MOST_OFFERED:
            return
        elif answer.form == "answer":
            self._dict_place = len(self._offers)
            self._offers.append(answer)
        elif answer.form == "printed":
            self._offers.append(answer)
        else:
            self._offers.append(self._judge(answer))
            self._closed = True

    def judge(self, text: str, value: JSON) -> FinalAnswer:
        """An answer in the form that was asked for; ValueError says what is wrong with it."""
        carried = json_or_none(value)
        if self._validator is not None:
            try:
                carried = self._validator(carried)
            except ValueError as error:
                self.refusal = str(error)
                raise
        return FinalAnswer(clean(text), carried)

    def settle(self, stdout: str) -> FinalAnswer | None:
        """The answer of the cell that has ended with this output, if any; empties the sheet."""
        offers, self._offers = self._offers, []
        self._dict_place, self._closed = None, False
        try:
            late = (
                offer if isinstance(offer, FinalAnswer) else self._late(offer, stdout)
                for offer in offers
            )
            return next((final for final in late if final is not None), None)
        finally:
            self._checking_s = 0.0

    @property
    def waiting(self) -> bool:
        """Whether an answer was offered that no step has taken yet."""
        return bool(self._offers)

    def take_refusal(self) -> str | None:
        """Why the last refused answer was refused, once; None if none was."""
        refusal, self.refusal = self.refusal, None
        return refusal

    def _late(self, answer: Answer, stdout: str) -> FinalAnswer | None:
        """The verdict on a form that is judged at the end of its cell."""
        if answer.printed is not None and not starts_a_line(answer.printed, stdout):
            return None
        try:
            return self._judge(answer)
        except ValueError:
            return None

    def _judge(self, answer: Answer) -> FinalAnswer:
        """`judge`, in the time that the answers of a cell have together."""
        if self._checking_s > CHECKS_S:
            self.refusal = f"the answers took too long to check: more than {CHECKS_S:g} s in a cell"
            raise ValueError(self.refusal)
        began = time.thread_time()
        try:
            return self.judge(answer.text, answer.value)
        finally:
            self._checking_s += time.thread_time() - began


def starts_a_line(text: str, output: str) -> bool:
    """Whether `text` stands at the beginning of a line of `output`."""
    return output.startswith(text) or f"\n{text}" in output


def validator(schema: Any) -> Validator | None:
    """The validator for an `answer_schema`: None, a JSON schema as a dict, or any type of pydantic.

    A type also converts, as pydantic does: the answer "42" to `int` becomes 42.

    Raises:
        TypeError: `schema` is none of these.
        ValueError: `schema` is a dict but no JSON schema, or none that is checked in bounded time.
    """
    if schema is None:
        return None
    return by_json_schema(schema) if isinstance(schema, dict) else _by_type(schema)


def _by_type(schema: Any) -> Validator:
    from pydantic import ValidationError

    adapter = type_adapter(schema)

    def validate(value: JSON) -> JSON:
        try:
            return json_or_none(adapter.dump_python(adapter.validate_python(value), mode="json"))
        except ValidationError as error:
            raise ValueError(_as_text(error.errors(include_url=False))) from None

    return validate


def _as_text(problems: list[Any]) -> str:
    lines = []
    for problem in problems:
        path = ".".join(str(step) for step in problem["loc"])
        lines.append(f"{path}: {problem['msg']}" if path else problem["msg"])
    return "the answer does not fit: " + "; ".join(lines)
