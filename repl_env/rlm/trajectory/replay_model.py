"""`ReplayModel`: repeats the answers of a recorded run, so that it runs without a model."""

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
from repl_env.common.set_module import set_module
from repl_env.errors import ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import ChatModel, Completion, ModelRequest
from repl_env.rlm.events import CANCELLED, CallEnded
from repl_env.rlm.trajectory.trajectory import Trajectory

_QUESTIONS = ("query", "repair")

# The ends of an interrupted run: its own time limit, or cancellation by its caller.
_GIVEN_UP = ("timeout", "cancelled")
# Seconds beyond the recorded wait, after which a request counts as never given up.
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """A recorded answer: its run, its number there, and its request.

    `text` is a form to compare; `shown` the same for people.
    """

    run: str
    number: int
    text: str
    shown: Sequence[Message] | str
    completion: Completion | None
    error: str | None = None
    waited: float | None = None  # seconds, if the caller gave up before there was an answer

    async def given(self) -> Completion:
        """Return the answer, or raise the recorded failure, or wait until the caller gives up."""
        if self.completion is not None:
            return self.completion
        if self.waited is not None:
            await asyncio.sleep(self.waited + _PATIENCE)
            raise ModelError("script", f"given up after {self.waited:.1f} s then, and not now")
        kind, _, message = (self.error or "").partition(": ")
        raise ModelError(kind, message)


@set_module("repl_env.rlm")
class ReplayModel(ChatModel):
    """Answers each request as in `trajectory`, including failures.

    A request is identified by its origin (`ModelRequest.origin`), if its content equals the
    recorded one
    except for object addresses. Concurrent calls of one run may have other numbers in another run,
    and so
    may the child runs that they begin; such a request is identified by its content alone,
    preferring the
    same run, and among several the least used answer.

    A call's record has only the last answer of the model. With a schema that took two rounds, this
    is the
    second answer, given in the first round. Costs are the recorded ones. A request that was given
    up
    before its answer has none here either: it waits until it is given up again, or for a minute
    more than
    recorded.

    Args:
        trajectory: the source of the answers.
        allow_changed_prompts: identify a request by its origin if no recorded content is equal.
            So a run continues after an output that differs, such as a time.
        name: as of any model; None: that of the first run.
    """

    bounded = False  # a recorded answer has its own length

    def __init__(
        self,
        trajectory: Trajectory,
        *,
        allow_changed_prompts: bool = False,
        name: str | None = None,
    ) -> None:
        self.name = name if name is not None else _name_of(trajectory)
        self._allow_changed_prompts = allow_changed_prompts
        self._lock = threading.Lock()
        self._given: dict[tuple[bool, str, int], int] = {}
        self._forms = _Forms()
        self._turns = _Answers(_turns(trajectory, self._forms), _cut_turns(trajectory))
        self._calls = _Answers(_calls(trajectory))

    async def complete(self, request: ModelRequest) -> Completion:
        """Return the recorded answer.

        Raises:
            ModelError: there is none, of kind "script"; or a recorded failure.
        """
        with self._lock:
            answer = self._find(request)
            key = self._key(answer, request)
            self._given[key] = self._given.get(key, 0) + 1
        return await answer.given()

    def _find(self, request: ModelRequest) -> _Answer:
        is_call = request.origin.purpose in _QUESTIONS
        answers = self._calls if is_call else self._turns
        text = _question(request.messages) if is_call else self._forms.of(request.messages)
        own = answers.by_origin.get((request.origin.run, request.origin.number))
        if own is not None and own.text == text:
            return own
        found: Sequence[_Answer] = answers.by_text.get(text, ())
        if is_call and not found:
            if own is not None and _begins(text, own.text):
                return own
            found = answers.beginning(text)
        if found:
            return min(found, key=lambda answer: self._order(answer, request))
        cut = answers.cut.get((request.origin.run, request.origin.number))
        if cut is not None:
            return cut
        if own is not None and self._allow_changed_prompts:
            return own
        raise ModelError("script", _missing(request, own))

    def _order(self, answer: _Answer, request: ModelRequest) -> tuple[bool, int]:
        times = self._given.get(self._key(answer, request), 0)
        return answer.run != request.origin.run, times

    @staticmethod
    def _key(answer: _Answer, request: ModelRequest) -> tuple[bool, str, int]:
        return request.origin.purpose in _QUESTIONS, answer.run, answer.number


class _Answers:
    """Recorded answers, by origin and by content.

    `cut` has the open requests of interrupted runs, of which only the origin is known.
    """

    def __init__(
        self, answers: Iterator[_Answer], cut: Mapping[tuple[str, int], _Answer] | None = None
    ) -> None:
        self.cut = cut or {}
        self.by_origin: dict[tuple[str, int], _Answer] = {}
        self.by_text: dict[str, list[_Answer]] = {}
        for answer in answers:
            self.by_origin[answer.run, answer.number] = answer
            self.by_text.setdefault(answer.text, []).append(answer)

    def beginning(self, request: str) -> Sequence[_Answer]:
        """Return the answers to the longest recorded request that `request` begins with."""
        known = (text for text in self.by_text if _begins(request, text))
        longest = max(known, key=len, default=None)
        return () if longest is None else self.by_text[longest]


def _turns(trajectory: Trajectory, forms: _Forms) -> Iterator[_Answer]:
    for run in trajectory.runs():
        for turn in run.turns:
            text = forms.of(turn.messages)
            yield _Answer(run.id, turn.number, text, turn.messages, turn.completion)


def _cut_turns(trajectory: Trajectory) -> dict[tuple[str, int], _Answer]:
    """Return, for each interrupted run, the turn that it would have taken next."""
    found = {}
    for run in trajectory.runs():
        if run.ended is not None and run.ended.stop_reason in _GIVEN_UP:
            number = max((turn.number for turn in run.turns), default=0) + 1
            waited = run.ended.seconds
            found[run.id, number] = _Answer(run.id, number, "", "", None, waited=waited)
    return found


def _calls(trajectory: Trajectory) -> Iterator[_Answer]:
    """Return the calls that a model answered, rather than a run."""
    for run in trajectory.runs():
        for call in run.calls:
            if call.ended is not None and not call.ended.child:
                prompt = replace_surrogates(call.prompt)
                completion = _completion(call.ended)
                error = call.ended.error
                waited = call.ended.seconds if error == CANCELLED else None
                text = normalized(prompt)
                yield _Answer(run.id, call.number, text, prompt, completion, error, waited)


def _completion(ended: CallEnded) -> Completion | None:
    if ended.error is not None:
        return None
    reason = "length" if ended.truncated else None
    return Completion(ended.text, ended.usage, reason, ended.model)


class _Forms:
    """Hashed forms of messages for comparison.

    A conversation contains the messages of the turn before, so most are already hashed.
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
    """Return the request of a call in comparable form; in a second round, that of the first."""
    return str(normalized(_text(messages[0]))) if messages else ""


def _begins(request: str, prompt: str) -> bool:
    """Return whether `request` begins with `prompt`: only the prompt is recorded, no context or
    schema.
    """
    return request.startswith(prompt) and request[len(prompt) : len(prompt) + 2] == "\n\n"


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
    """Return two texts from shortly before their first difference."""
    pairs = zip(before, now, strict=False)
    place = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(before), len(now)))
    start = max(0, place - 20)
    return f"{_short(before[start:])} and not {_short(now[start:])}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _name_of(trajectory: Trajectory) -> str | None:
    return trajectory.roots[0].model if trajectory.roots else None
