"""Final answers: which one counts, and whether it has the requested form.

An answer arrives as a message from the session, when the cell gives it. The first valid one wins
and stands even if the cell then fails. Three forms are judged at different times:

    calls (FINAL, FINAL_VAR, SUBMIT, final_answer)   at once; a refusal is an error in the cell
    the `answer` dict                                at the end of the cell, by its last content
    printed text ("compatible" only)                 at the end, if the output has it line by line
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from repl_env.common.json_values import json_or_none, replace_surrogates
from repl_env.concurrency.offload import check_size, offload
from repl_env.episode.answer_schemas.answer_fields import AnswerSchema, arranged
from repl_env.episode.answer_schemas.json_schema import CHECK_S, by_json_schema
from repl_env.episode.answer_schemas.type_schema import type_adapter
from repl_sandbox.types import JSON, Answer

# A validator returns the value to keep, or raises ValueError with a text for the policy.
Validator: TypeAlias = Callable[[JSON], JSON]

# Code can offer printed answers in a loop. Honest code offers one, and its output shows it.
MAX_OFFERED = 64

# CPU seconds for all answers of a cell together, plus one check for the last answer: code can offer
# invalid answers in a loop.
CHECKS_S = CHECK_S


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """An accepted answer: its text, and its value if JSON can carry it."""

    text: str
    value: JSON


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of all offers: the accepted answer, if any, and the reason of the last refusal, if
    any.

    `seconds`: CPU time of the checks.
    """

    final: FinalAnswer | None
    refusal: str | None = None
    seconds: float = 0.0


NO_ANSWER: Final = Verdict(None)


class AnswerSheet:
    """The answers that one cell has offered so far. Calls come from one thread at a time.

    The checks have no side effects, may raise OffloadRequired, and can be offloaded
    (`repl_env.concurrency.offload`).
    """

    def __init__(self, validator: Validator | None = None) -> None:
        self._validator = validator
        self._offers: list[Answer | FinalAnswer] = []
        self._dict_index: int | None = None
        self._closed = False
        self._checking = False
        self._checked_s = 0.0
        self._refusal: str | None = None

    def offer(self, answer: Answer) -> None:
        """Take an answer of the running cell.

        A refusal is a ValueError with a text for the policy.
        """
        if not self._record_unjudged(answer):
            self._record(self._judged(answer, self._checked_s))

    async def offer_async(self, answer: Answer) -> None:
        """`offer` on an event loop, without blocking it."""
        if self._record_unjudged(answer):
            return
        if self._checking:
            raise ValueError("another answer of this cell is being checked")
        self._checking = True
        try:
            verdict = await offload(partial(self._judged, answer, self._checked_s))
        finally:
            self._checking = False
        self._record(verdict)

    def verdict(self, stdout: str) -> Verdict:
        """Return the verdict after the cell has ended with this output."""
        refusal, seconds = self._refusal, self._checked_s
        for offer in self._offers:
            if isinstance(offer, FinalAnswer):
                return Verdict(offer, refusal)
            if offer.printed is not None and not starts_a_line(offer.printed, stdout):
                continue
            judged = self._judged(offer, seconds)
            if judged.final is not None:
                return Verdict(judged.final, refusal)
            refusal, seconds = judged.refusal, seconds + judged.seconds
        return Verdict(None, refusal)

    def clear(self) -> None:
        """Start anew: the cell is over."""
        self._offers.clear()
        self._dict_index, self._closed = None, False
        self._checked_s, self._refusal = 0.0, None

    def judge(self, text: str, value: JSON) -> FinalAnswer:
        """Return an answer in the requested form; ValueError says why it is refused."""
        check_size([text, value])
        carried = json_or_none(value)
        if self._validator is not None:
            carried = self._validator(carried)
        return FinalAnswer(replace_surrogates(text), carried)

    @staticmethod
    def judges_at_once(answer: Answer) -> bool:
        """Return whether `answer` is judged when it is offered, which may take long."""
        return answer.form not in ("answer", "printed")

    @property
    def has_offers(self) -> bool:
        """Whether the cell has offered an answer, accepted or refused."""
        return bool(self._offers) or self._refusal is not None

    @property
    def waiting(self) -> bool:
        """Whether an offered answer waits for the next step."""
        return bool(self._offers)

    def _record_unjudged(self, answer: Answer) -> bool:
        """Take an answer that is judged at the end of its cell, or never; False for others."""
        if answer.form == "answer" and self._dict_index is not None:
            self._offers[self._dict_index] = answer
        elif self._closed or len(self._offers) >= MAX_OFFERED:
            return True
        elif self.judges_at_once(answer):
            return False
        else:
            if answer.form == "answer":
                self._dict_index = len(self._offers)
            self._offers.append(answer)
        return True

    def _judged(self, answer: Answer, before: float) -> Verdict:
        """Run `judge` within the time limit of the cell's answers."""
        if before > CHECKS_S:
            limit = f"more than {CHECKS_S:g} s in a cell"
            return Verdict(None, f"the answers took too long to check: {limit}")
        began = time.thread_time()
        try:
            text, value = answer.text, answer.value
            if answer.form == "arguments":
                text, value = self._arranged(value)
            final, refusal = self.judge(text, value), None
        except ValueError as error:
            final, refusal = None, str(error)
        return Verdict(final, refusal, time.thread_time() - began)

    def _arranged(self, arguments: JSON) -> tuple[str, JSON]:
        """Return the answer of several SUBMIT arguments, as text and as value."""
        check_size(arguments)
        schema = self._validator
        value = arranged(arguments, schema.shape if isinstance(schema, AnswerSchema) else None)
        try:
            return str(value), value
        except RecursionError:
            raise ValueError("the answer is nested too deep") from None

    def _record(self, verdict: Verdict) -> None:
        self._checked_s += verdict.seconds
        if verdict.final is None:
            self._refusal = verdict.refusal
            raise ValueError(verdict.refusal)
        self._offers.append(verdict.final)
        self._closed = True


def starts_a_line(text: str, output: str) -> bool:
    """Return whether `text` begins a line of `output`."""
    return output.startswith(text) or f"\n{text}" in output


def validator(schema: Any) -> Validator | None:
    """Return the validator for an `answer_schema`: None, a JSON schema as a dict, or a pydantic
    type.

    A type also converts, as pydantic does: the answer "42" to `int` becomes 42.

    Raises:
        TypeError: `schema` is none of these.
        ValueError: `schema` is a dict but not a JSON schema that can be checked in bounded time.
    """
    if schema is None:
        return None
    if isinstance(schema, dict):
        return AnswerSchema(by_json_schema(schema), lambda: schema)
    return _by_type(schema)


def _by_type(schema: Any) -> Validator:
    from pydantic import ValidationError

    adapter = type_adapter(schema)

    def validate(value: JSON) -> JSON:
        try:
            return json_or_none(adapter.dump_python(adapter.validate_python(value), mode="json"))
        except ValidationError as error:
            raise ValueError(_as_text(error.errors(include_url=False))) from None

    return AnswerSchema(validate, adapter.json_schema)


def _as_text(problems: list[Any]) -> str:
    lines = []
    for problem in problems:
        path = ".".join(str(step) for step in problem["loc"])
        lines.append(f"{path}: {problem['msg']}" if path else problem["msg"])
    return "the answer does not fit: " + "; ".join(lines)
