"""Rubrics: functions from an action and an observation to a reward. OpenEnv's module path."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Awaitable, Callable, Collection, Generator, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias, TypeGuard

from repl_env.common.display import set_module
from repl_env.common.values import check_callable, finite

# Equality of an answer, which is JSON, and the expected value, which may be of Python's types.


def answers_match(expected: Any, value: Any) -> bool:
    """Return whether two JSON values are equal: 1 equals 1.0 but, unlike in Python, not true.

    `expected` may also contain tuples, numpy arrays, dataclasses, pydantic models, and sets, whose
    items match in any order.
    """
    if isinstance(expected, (set, frozenset)):
        return _same_items(expected, value)
    expected = _as_json(expected)
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    if isinstance(expected, list) and isinstance(value, list):
        return len(expected) == len(value) and all(map(answers_match, expected, value))
    if isinstance(expected, dict) and isinstance(value, dict):
        return expected.keys() == value.keys() and all(
            answers_match(expected[key], value[key]) for key in expected
        )
    return bool(expected == value)


def _as_json(expected: Any) -> Any:
    """Return `expected` in its JSON form; contained values stay as they are."""
    if isinstance(expected, tuple):
        return list(expected)
    if hasattr(expected, "tolist"):  # numpy, pandas, torch; a scalar becomes a number
        return expected.tolist()
    if hasattr(expected, "model_dump") and not isinstance(expected, type):
        return expected.model_dump(mode="json")
    if is_dataclass(expected) and not isinstance(expected, type):
        return {field.name: getattr(expected, field.name) for field in fields(expected)}
    return expected


def _same_items(expected: set[Any] | frozenset[Any], value: Any) -> bool:
    if not isinstance(value, list) or len(value) != len(expected):
        return False
    return {_item(each) for each in expected} == {_item(each) for each in value}


def _item(value: Any) -> Hashable:
    """Return a hashable key, equal for equal items; an unhashable item equals nothing."""
    value = _as_json(value)
    if isinstance(value, bool):
        return "true" if value else "false", bool
    if isinstance(value, (list, tuple)):
        return tuple(map(_item, value))
    return value if isinstance(value, Hashable) else object()


# Rubrics: composable functions from an action and an observation to a reward.
#
# A `Rubric` registers its children on assignment, like a neural network module, and remembers its
# last score, so that composites can be inspected after a step. Names and behaviour are those of
# OpenEnv's rubrics (RFC 004).

Score: TypeAlias = "float | Awaitable[float]"
ForwardHook: TypeAlias = Callable[["Rubric", Any, Any, float], None]
ForwardPreHook: TypeAlias = Callable[["Rubric", Any, Any], None]


@set_module("repl_env")
class Rubric:
    """Base of rubrics. Subclasses define `forward`, which may be a coroutine function.

    Attributes:
        last_score: the result of the last call; None before the first and after `reset`.
        shaping: names of `components` that are not the task's own reward, such as penalties.
    """

    last_score: float | None = None
    shaping: Collection[str] = ()
    # Class attributes, replaced on first use, so that a subclass may define `__init__` freely.
    _hooks: tuple[ForwardHook, ...] = ()
    _pre_hooks: tuple[ForwardPreHook, ...] = ()

    def forward(self, action: Any, observation: Any) -> Score:
        """Return the reward of this step."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def reset(self) -> None:
        """Forget the last episode."""
        self.last_score = None
        for child in self.children():
            child.reset()

    def components(self) -> dict[str, float]:
        """The parts of the last score, by name; their sum is the score."""
        return {} if self.last_score is None else {type(self).__name__: self.last_score}

    def __call__(self, action: Any, observation: Any) -> Any:
        """Score a step; the result is awaitable if `forward`, here or in a child, is
        asynchronous.
        """
        for pre_hook in self._pre_hooks:
            pre_hook(self, action, observation)
        score: Any = self.forward(action, observation)
        if type(score) is not float and is_pending(score):
            return PendingScore(score, lambda known: self._finish(known, action, observation))
        return self._finish(score, action, observation)

    def _finish(self, score: float, action: Any, observation: Any) -> float:
        self.last_score = score
        for hook in self._hooks:
            hook(self, action, observation, score)
        return score

    def register_forward_hook(self, hook: ForwardHook) -> None:
        """Register `hook(rubric, action, observation, score)` to be called after each scoring."""
        check_callable(hook, "hook")
        self._hooks = (*self._hooks, hook)

    def register_forward_pre_hook(self, hook: ForwardPreHook) -> None:
        """Register `hook(rubric, action, observation)` to be called before each scoring."""
        check_callable(hook, "hook")
        self._pre_hooks = (*self._pre_hooks, hook)

    def named_children(self) -> Iterator[tuple[str, Rubric]]:
        """Yield the rubrics assigned to attributes of this one, by name, in order of assignment."""
        for name, value in vars(self).items():
            if isinstance(value, Rubric):
                yield name, value

    def children(self) -> Iterator[Rubric]:
        """Yield the children without their names."""
        return (child for _, child in self.named_children())

    def named_rubrics(self, prefix: str = "") -> Iterator[tuple[str, Rubric]]:
        """Yield every rubric below this one, depth first, with its dotted path."""
        for name, child in self.named_children():
            path = f"{prefix}.{name}" if prefix else name
            yield path, child
            yield from child.named_rubrics(path)


def is_pending(score: object) -> TypeGuard[Awaitable[Any]]:
    """Return whether a score must be awaited; floats, the common case, skip the abstract class
    check.
    """
    return type(score) is not float and inspect.isawaitable(score)


class PendingScore(Awaitable[float]):
    """A score that can be awaited, or dropped with `close`."""

    def __init__(self, score: Awaitable[float], finish: Callable[[float], float]) -> None:
        self._score = score
        self._finish = finish

    def __await__(self) -> Generator[Any, None, float]:
        return self._finish((yield from self._score.__await__()))

    def close(self) -> None:
        """Drop the score: the awaitable will not run."""
        close = getattr(self._score, "close", None)
        if close is not None:
            close()


# Rubrics that compare the final answer with the expected one.
#
# Matching ignores case and surrounding space.


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


# `REPLRubric`, the default rubric, and `CodeExecutionRubric`, its score of steps.


@set_module("repl_env")
class CodeExecutionRubric(Rubric):
    """A reward for each step: `success_reward` if its code ran, else `error_penalty`.

    Raises:
        TypeError, ValueError: naming the argument that is not a finite number.
    """

    def __init__(self, success_reward: float = 0.0, error_penalty: float = -0.05) -> None:
        super().__init__()
        self.success_reward = finite(success_reward, "success_reward")
        self.error_penalty = finite(error_penalty, "error_penalty")

    def forward(self, action: Any, observation: Any) -> float:
        """Return the reward of the observation's `result`; 0.0 if it has none."""
        result = getattr(observation, "result", None)
        if result is None:
            return 0.0
        return self.success_reward if result.success else self.error_penalty


@set_module("repl_env")
class REPLRubric(Rubric):
    """The default rubric: `process` scores each step, `outcome` the last one.

    An episode that ends without an answer scores `failure_reward`. A step with `error_kind`
    "format" scores `format_penalty` instead of `process`, in addition to the score of the episode's
    end. The task's own component is "outcome"; "process", "failure" and "format" are shaping.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    shaping = ("process", "failure", "format")

    def __init__(
        self,
        outcome: Rubric | None = None,
        process: Rubric | None = None,
        failure_reward: float = -0.1,
        *,
        format_penalty: float = -0.05,
    ) -> None:
        super().__init__()
        for name, part in (("outcome", outcome), ("process", process)):
            if part is not None:
                check_rubric(part, name)
        self.outcome = ExactMatchRubric() if outcome is None else outcome
        self.process = CodeExecutionRubric() if process is None else process
        self.failure_reward = finite(failure_reward, "failure_reward")
        self.format_penalty = finite(format_penalty, "format_penalty")
        self._component = "process"
        self._unpenalized: float | None = None  # the score before a penalty, if one was added

    def set_expected(self, expected: Any) -> None:
        """Pass the expected answer to the outcome rubric, if it accepts one."""
        take = getattr(self.outcome, "set_expected", None)
        if take is not None:
            take(expected)

    def reset(self) -> None:
        """Forget the last episode, here and in both parts, which may come from another library."""
        self.last_score = None
        self.outcome.reset()
        self.process.reset()

    def components(self) -> dict[str, float]:
        """The last score, by the names of its parts."""
        if self.last_score is None:
            return {}
        if self._unpenalized is None:
            return {self._component: self.last_score}
        return {self._component: self._unpenalized, "format": self.format_penalty}

    def forward(self, action: Any, observation: Any) -> Score:
        """Return the score of the part that this step is for, with the penalty for a wrong
        format.
        """
        self._unpenalized = None
        misformatted = observation.metadata.get("error_kind") == "format"
        if misformatted and not observation.done:
            self._component = "format"
            return self.format_penalty
        score = self._component_score(action, observation)
        if not misformatted:
            return score
        return PendingScore(score, self._penalized) if is_pending(score) else self._penalized(score)

    def _penalized(self, score: Any) -> float:
        self._unpenalized = float(score)
        return self._unpenalized + self.format_penalty

    def _component_score(self, action: Any, observation: Any) -> Score:
        if not observation.done:
            self._component = "process"
            process: Score = self.process(action, observation)
            return process
        if observation.metadata.get("final_answer") is None:
            self._component = "failure"
            return self.failure_reward
        self._component = "outcome"
        outcome: Score = self.outcome(action, observation)
        return outcome


def check_rubric(value: Any, name: str) -> None:
    """Raise TypeError naming the argument, unless `value` is a rubric of this package or
    another.
    """
    if isinstance(value, type) or not (callable(value) and hasattr(value, "reset")):
        kind = getattr(value, "__name__", repr(value))
        hint = "CustomMetricRubric(function) makes one of a function"
        raise TypeError(f"{name} must be a rubric, as ExactMatchRubric() is, not {kind}; {hint}")


# Rubrics known to return at once. Others are the user's, or scan texts repeatedly.
_IMMEDIATE = (ExactMatchRubric, CodeExecutionRubric, REPLRubric)


def returns_at_once(rubric: Any) -> bool:
    """Return whether an event loop may call `rubric`: it is awaited, or known to return at once."""
    if type(rubric) not in _IMMEDIATE:
        return inspect.iscoroutinefunction(getattr(rubric, "forward", None))
    if rubric._hooks or rubric._pre_hooks:
        return False
    if type(rubric) is not REPLRubric:
        return True
    return returns_at_once(rubric.outcome) and returns_at_once(rubric.process)


# An environment's use of its rubric: a private copy, the expected answer, the parts of a reward.
#
# The rubric may come from another library: features that it lacks are skipped.


def own_rubric(rubric: Rubric | None) -> Rubric:
    """Return a copy of `rubric` for one environment; TypeError if it is no rubric or cannot be
    copied.
    """
    if rubric is None:
        return REPLRubric()
    check_rubric(rubric, "rubric")
    try:
        return copy.deepcopy(rubric)
    except Exception as error:
        # Copying runs code of the rubric, which may raise anything.
        raise TypeError(f"rubric must be copyable, one for each environment: {error}") from error


def takes_expected(rubric: Any) -> bool:
    """Return whether the rubric accepts an expected answer."""
    return getattr(rubric, "set_expected", None) is not None


def state_of(rubric: Any) -> Any:
    """Return the rubric's state besides the expected answer; None if it exposes none."""
    state_dict = getattr(rubric, "state_dict", None)
    return None if state_dict is None else state_dict()


def remind(rubric: Any, expected: Any, state: Any = None) -> None:
    """Give a rubric that was reset the expected answer and its saved state."""
    if takes_expected(rubric):
        rubric.set_expected(expected)
    load = getattr(rubric, "load_state_dict", None)
    if load is not None and state is not None:
        load(state)


def task_reward(rubric: Any, parts: Mapping[str, float]) -> float:
    """Return the sum of the parts of a reward that are the task's own."""
    shaping = getattr(rubric, "shaping", ())
    if isinstance(shaping, str):
        shaping = (shaping,)
    if not isinstance(shaping, (tuple, list, set, frozenset)):
        shaping = ()  # of another library, with another meaning
    task = 0.0
    for name, part in parts.items():
        if name not in shaping:
            task += part
    return task


def components(rubric: Rubric | None, reward: float) -> dict[str, float]:
    """Return the named parts of a reward; their sum is the reward."""
    if rubric is None:
        return {}
    read_components = getattr(rubric, "components", None)
    returned = read_components() if callable(read_components) else {}
    if type(returned) is not dict and not isinstance(returned, Mapping):
        name, kind = type(rubric).__name__, type(returned).__name__
        raise TypeError(f"{name}.components() must return parts by their names, not {kind}")
    # numpy and torch scalars are not JSON
    parts = {name: float(part) for name, part in returned.items()}
    if math.isclose(sum(parts.values()), reward, abs_tol=1e-9):
        return parts
    return {type(rubric).__name__: reward}


__all__ = [
    "CodeExecutionRubric",
    "CustomMetricRubric",
    "ExactMatchRubric",
    "FuzzyMatchRubric",
    "OutcomeRubric",
    "REPLRubric",
    "Rubric",
]
