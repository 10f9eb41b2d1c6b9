"""Rubrics that compare the final answer with the expected one.

Matching ignores case and surrounding space.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from repl_env.common.argument_checks import check_callable
from repl_env.common.set_module import set_module
from repl_env.rewards.answer_match import answers_match
from repl_env.rewards.rubric import Rubric


@set_module("repl_env.rubrics")
class OutcomeRubric(Rubric):
    """Base of rubrics that compare the final answer with the expected one at the end.

    The score is 0.0 before the end, without an expected answer and without a final one. Subclasses
    define `compare`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._expected: Any = None

    def set_expected(self, expected: Any) -> None:
        """Set the expected answer: text or a JSON value; None for none."""
        self._expected = expected

    def reset(self) -> None:
        """Forget the last episode and its expected answer."""
        super().reset()
        self._expected = None

    def compare(self, expected: Any, text: str, value: Any) -> float:
        """Return the score of an answer, given as text and as JSON value (None if it has none)."""
        raise NotImplementedError(f"{type(self).__name__} does not define compare")

    def forward(self, action: Any, observation: Any) -> float:
        """Return the score of the observation's final answer."""
        answer = observation.metadata.get("final_answer")
        if self._expected is None or not observation.done or answer is None:
            return 0.0
        return self.compare(self._expected, str(answer), observation.metadata.get("answer_value"))


@set_module("repl_env")
class ExactMatchRubric(OutcomeRubric):
    """1.0 if the answer equals the expected one, else 0.0.

    Texts are compared without case and surrounding space unless `normalize` is False. An expected
    value that is not text also matches by value: `[1, 2]`, a tuple or an array of these matches the
    answer `(1, 2)`, a set matches in any order, and a dataclass or model matches a dict of its
    fields.
    """

    def __init__(self, normalize: bool = True) -> None:
        super().__init__()
        self._normalize = normalize

    def compare(self, expected: Any, text: str, value: Any) -> float:
        """Return 1.0 or 0.0."""
        if not isinstance(expected, str) and answers_match(expected, value):
            return 1.0
        if self._normalize:
            return float(_normal(text) == _normal(str(expected)))
        return float(text == str(expected))


@set_module("repl_env")
class FuzzyMatchRubric(OutcomeRubric):
    """1.0 for the expected answer, 0.5 if one text contains the other, else 0.0.

    Only whole words count as contained, and a part must be at least half of the expected answer: an
    empty answer or a single letter earns nothing.
    """

    def compare(self, expected: Any, text: str, value: Any) -> float:
        """Return 1.0, 0.5 or 0.0."""
        given_text, expected_text = _normal(text), _normal(str(expected))
        if given_text == expected_text or (
            not isinstance(expected, str) and answers_match(expected, value)
        ):
            return 1.0
        if _has_words(given_text, expected_text):
            return 0.5
        return (
            0.5
            if 2 * len(given_text) >= len(expected_text) and _has_words(expected_text, given_text)
            else 0.0
        )


@set_module("repl_env")
class CustomMetricRubric(OutcomeRubric):
    """`metric_fn(expected, predicted)`, both as text, as the outcome.

    Raises:
        TypeError: `metric_fn` is not callable.
    """

    def __init__(self, metric_fn: Callable[[str, str], float]) -> None:
        super().__init__()
        check_callable(metric_fn, "metric_fn")
        self._metric_fn = metric_fn

    def compare(self, expected: Any, text: str, value: Any) -> float:
        """Return the score that `metric_fn` computes."""
        return self._metric_fn(str(expected), text)


def _normal(text: str) -> str:
    return text.strip().lower()


# Limits on the positions where words are found inside longer ones, and on the characters compared
# there: repetitive texts have so many that checking all would take hours.
_MAX_CUT, _MAX_COMPARED = 1_000_000, 10_000_000


def _has_words(text: str, words: str) -> bool:
    """Return whether `words` occurs in `text` outside a longer word or number.

    The search gives up after too many occurrences inside longer words.
    """
    if not words:
        return False
    start = -1
    for _ in range(min(_MAX_CUT, _MAX_COMPARED // len(words) + 1)):
        start = text.find(words, start + 1)
        if start < 0:
            return False
        end = start + len(words)
        if not (_joined(text, start) or _joined(text, end)):
            return True
    return False


def _joined(text: str, index: int) -> bool:
    """Return whether the characters on both sides of `index` belong to one word."""
    if not 0 < index < len(text):
        return False
    return all(_in_word(character) for character in text[index - 1 : index + 1])


def _in_word(character: str) -> bool:
    # Scripts from U+2E80 on are written without spaces between words.
    return character.isalnum() and character < "\u2e80"
