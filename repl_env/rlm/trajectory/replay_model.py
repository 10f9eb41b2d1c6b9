"""`ReplayModel`: the answers of a recorded run, given again, so that it runs without a model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from repl_env.common.json_values import replace_surrogates
from repl_env.common.replay_diff import normalized
from repl_env.errors import ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import ChatModel, Completion, ModelRequest
from repl_env.rlm.events import CANCELLED, CallEnded
from repl_env.rlm.trajectory.trajectory import Trajectory

_QUESTIONS = ("query", "repair")

# How a run ends that is not over: by its own time, or with whoever waits for it.
_GIVEN_UP = ("timeout", "cancelled")
# Seconds more than a question was waited for when it was recorded, after which nobody gives it up.
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """A recorded answer: which run asked, its number there, what was asked.

    `asked` is a form to compare; `shown` the same for people.
    """

    run: str
    number: int
    asked: str
    shown: Sequence[Message] | str
    completion: Completion | None
    error: str | None = None
    waited: float | None = None  # seconds, if whoever asked gave up before there was an answer

    async def given(self) -> Completion:
        """The answer, or the recorded failure again, or nothing until whoever asks gives up."""
        if self.completion is not None:
            return self.completion
        if self.waited is not None:
            await asyncio.sleep(self.waited + _PATIENCE)
            raise ModelError("script", f"given up after {self.waited:.1f} s then, and not now")
        kind, _, message = (self.error or "").partition(": ")
        raise ModelError(kind, message)


class ReplayModel(ChatModel):
    """Answers each request as it was answered in `trajectory`, failures included.

    A request is known by who asks it (`ModelRequest.origin`) if what it asks is what was recorded
    there, addresses of objects aside. Calls of one run that go on side by side may have other
    numbers in another run, and so may the runs that they begin; such a request is known by what it
    asks alone, the same run's first, and of several the one that was given the fewest times.

    A recorded call has only the last of what the model answered to it. With a schema that was
    answered in two rounds this is the second, given in the first. What an answer cost is as it was
    recorded. A question that was given up before it was answered has no answer here either: it is
    waited for until it is given up again, or for a minute more than it was.

    Args:
        trajectory: what to answer from.
        loose: answer by who asks if nothing that was asked is the same. So a run goes on after an
            output that differs, such as of a clock.
        name: as of any model; None: that of the first run.
    """

    bounded = False  # a recorded answer is as long as it is

    def __init__(
        self, trajectory: Trajectory, *, loose: bool = False, name: str | None = None
    ) -> None:
        self.name = name if name is not None else _name_of(trajectory)
        self._loose = loose
        self._lock = threading.Lock()
        self._given: dict[tuple[bool, str, int], int] = {}
        self._forms = _Forms()
        self._turns = _Answers(_turns(trajectory, self._forms), _cut_turns(trajectory))
        self._calls = _Answers(_calls(trajectory))

    async def complete(self, request: ModelRequest) -> Completion:
        """The recorded answer.

        Raises:
            ModelError: there is none, of kind "script"; or it was a failure, as recorded.
        """
        with self._lock:
            answer = self._find(request)
            key = self._key(answer, request)
            self._given[key] = self._given.get(key, 0) + 1
        return await answer.given()

    def _find(self, request: ModelRequest) -> _Answer:
        is_call = request.origin.purpose in _QUESTIONS
        answers = self._calls if is_call else self._turns
        asked = _question(request.messages) if is_call else self._forms.of(request.messages)
        own = answers.by_origin.get((request.origin.run, request.origin.number))
        if own is not None and own.asked == asked:
            return own
        found: Sequence[_Answer] = answers.by_text.get(asked, ())
        if is_call and not found:
            if own is not None and _begins(asked, own.asked):
                return own
            found = answers.beginning(asked)
        if found:
            return min(found, key=lambda answer: self._order(answer, request))
        cut = answers.cut.get((request.origin.run, request.origin.number))
        if cut is not None:
            return cut
        if own is not None and self._loose:
            return own
        raise ModelError("script", _missing(request, own))

    def _order(self, answer: _Answer, request: ModelRequest) -> tuple[bool, int]:
        times = self._given.get(self._key(answer, request), 0)
        return answer.run != request.origin.run, times

    @staticmethod
    def _key(answer: _Answer, request: ModelRequest) -> tuple[bool, str, int]:
        return request.origin.purpose in _QUESTIONS, answer.run, answer.number


class _Answers:
    """Recorded answers, found by who asked and by what was asked.

    `cut` has the questions that a run was at when it was given up; of them only who asked is known.
    """

    def __init__(
        self, answers: Iterator[_Answer], cut: Mapping[tuple[str, int], _Answer] | None = None
    ) -> None:
        self.cut = cut or {}
        self.by_origin: dict[tuple[str, int], _Answer] = {}
        self.by_text: dict[str, list[_Answer]] = {}
        for answer in answers:
            self.by_origin[answer.run, answer.number] = answer
            self.by_text.setdefault(answer.asked, []).append(answer)

    def beginning(self, asked: str) -> Sequence[_Answer]:
        """The answers to the longest question that `asked` begins with."""
        known = (text for text in self.by_text if _begins(asked, text))
        longest = max(known, key=len, default=None)
        return () if longest is None else self.by_text[longest]


def _turns(trajectory: Trajectory, forms: _Forms) -> Iterator[_Answer]:
    for run in trajectory.runs():
        for turn in run.turns:
            asked = forms.of(turn.messages)
            yield _Answer(run.id, turn.number, asked, turn.messages, turn.completion)


def _cut_turns(trajectory: Trajectory) -> dict[tuple[str, int], _Answer]:
    """For each run that was given up, the turn that it would have taken next."""
    found = {}
    for run in trajectory.runs():
        if run.ended is not None and run.ended.stop_reason in _GIVEN_UP:
            number = max((turn.number for turn in run.turns), default=0) + 1
            waited = run.ended.seconds
            found[run.id, number] = _Answer(run.id, number, "", "", None, waited=waited)
    return found


def _calls(trajectory: Trajectory) -> Iterator[_Answer]:
    """The calls that a model answered, and not a run."""
    for run in trajectory.runs():
        for call in run.calls:
            if call.ended is not None and not call.ended.child:
                prompt = replace_surrogates(call.prompt)
                completion = _completion(call.ended)
                error = call.ended.error
                waited = call.ended.seconds if error == CANCELLED else None
                asked = normalized(prompt)
                yield _Answer(run.id, call.number, asked, prompt, completion, error, waited)


def _completion(ended: CallEnded) -> Completion | None:
    if ended.error is not None:
        return None
    reason = "length" if ended.truncated else None
    return Completion(ended.text, ended.usage, reason, ended.model)


class _Forms:
    """Messages in a form to compare, of fixed length.

    A conversation has the messages of the turn before, so most were seen a moment ago.
    """

    def __init__(self) -> None:
        self._digest = lru_cache(maxsize=4096)(_digest)

    def of(self, messages: Sequence[Message]) -> str:
        whole = hashlib.sha256()
        for message in messages:
            rest = {name: item for name, item in message.items() if name not in ("role", "content")}
            extra = json.dumps(rest, sort_keys=True) if rest else ""
            whole.update(self._digest(message["role"], _text(message), extra))
        return whole.hexdigest()


def _digest(role: str, text: str, extra: str) -> bytes:
    form = json.dumps([role, normalized(text), extra])
    return hashlib.sha256(form.encode()).digest()


def _question(messages: Sequence[Message]) -> str:
    """What a call asks, in a form to compare; in a second round, what was asked in the first."""
    return str(normalized(_text(messages[0]))) if messages else ""


def _begins(asked: str, prompt: str) -> bool:
    """Whether `asked` is `prompt` with more: a context, a schema. Only the prompt is recorded."""
    return asked.startswith(prompt) and asked[len(prompt) : len(prompt) + 2] == "\n\n"


def _text(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else json.dumps(content)


def _missing(request: ModelRequest, own: _Answer | None) -> str:
    origin = request.origin
    noun = "call" if origin.purpose in _QUESTIONS else "turn"
    which = f"{noun} {origin.number} of run {origin.run!r}"
    if own is None:
        return f"{which} was not recorded"
    return f"{which} was recorded with other messages: {_first_difference(request, own)}"


def _first_difference(request: ModelRequest, own: _Answer) -> str:
    if isinstance(own.shown, str):
        return _differing(own.shown, _question(request.messages))
    for number, (before, now) in enumerate(zip(own.shown, request.messages, strict=False), 1):
        if normalized(dict(before)) != normalized(dict(now)):
            return f"message {number} was {_differing(_text(before), _text(now))}"
    return f"{len(own.shown)} messages and not {len(request.messages)}"


def _differing(before: str, now: str) -> str:
    """Two texts from a little before the place where they part."""
    pairs = zip(before, now, strict=False)
    place = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(before), len(now)))
    start = max(0, place - 20)
    return f"{_short(before[start:])} and not {_short(now[start:])}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _name_of(trajectory: Trajectory) -> str | None:
    return trajectory.roots[0].model if trajectory.roots else None
