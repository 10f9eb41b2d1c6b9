"""Models of prepared or recorded answers, and reruns of a recorded tree without its models."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import math
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Any, TypeAlias

from repl_env.common.display import set_module
from repl_env.common.files import RESULT, normalized
from repl_env.common.threads import RUNS
from repl_env.common.values import replace_surrogates
from repl_env.episode.contexts import measured
from repl_env.errors import EpisodeAborted, ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import (
    PROBE_RUN,
    ChatModel,
    Completion,
    ModelRequest,
    ModelUsage,
    as_completion,
)
from repl_env.models import REPLObservation
from repl_env.rlm.budget import Budget
from repl_env.rlm.model_call import CANCELLED, AnyEvent, CallEnded, ContextNote
from repl_env.rlm.runner import RLM
from repl_env.rlm.trajectory import Cell, Run, Trajectory
from repl_env.rlm.trajectory_writer import digest
from repl_sandbox.tables import Table

# `ScriptedModel`: a model with prepared answers, for tests, demos and replays.

Script: TypeAlias = (
    "Iterable[str | Completion]"
    " | Callable[[ModelRequest], str | Completion | Awaitable[str | Completion]]"
)


@set_module("repl_env.rlm")
class ScriptedModel(ChatModel):
    """Answers from a list, in order, or from a function of the request.

    ```python
    ScriptedModel(["```repl\\nn = len(context)\\n```", "```repl\\nFINAL(n)\\n```"])
    ```
    For answers and messages in plain text, tokens are words. `requests` are those made so far. A
    function may be asynchronous; a plain one must not block.

    Args:
        script: the answers, or a function that makes them.
        name: as of any model.
        delay: seconds before each answer, as an endpoint would take.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(self, script: Script, *, name: str | None = "scripted", delay: float = 0) -> None:
        if not callable(script) and (isinstance(script, str) or not isinstance(script, Iterable)):
            kind = type(script).__name__
            raise TypeError(f"script must be a list of answers or a function, not {kind}")
        if isinstance(delay, bool) or not isinstance(delay, (int, float)):
            raise TypeError(f"delay must be a number of seconds, not {type(delay).__name__}")
        if not 0 <= delay < math.inf:
            raise ValueError(f"delay must be a finite number of seconds from 0 on, not {delay}")
        self.name = name
        self.requests: list[ModelRequest] = []
        self._delay = delay
        self._answer = script if callable(script) else None
        self._left = iter(()) if callable(script) else iter(list(script))
        self._lock = threading.Lock()

    @staticmethod
    def of(trajectory: Trajectory, *, allow_changed_prompts: bool = False) -> ReplayModel:
        """Return a model that repeats recorded answers: `repl_env.rlm.ReplayModel`."""

        return ReplayModel(trajectory, allow_changed_prompts=allow_changed_prompts)

    async def complete(self, request: ModelRequest) -> Completion:
        """Return the next answer.

        Raises:
            ModelError: the list is used up; exceptions of the function are passed on.
        """
        self.requests.append(request)
        if self._delay:
            await asyncio.sleep(self._delay)
        answer = self._next() if self._answer is None else self._answer(request)
        if inspect.isawaitable(answer):
            answer = await answer
        completion = as_completion(answer)
        if completion.usage == ModelUsage():
            return _counted(request, completion, self.name)
        return completion

    def _next(self) -> str | Completion:
        with self._lock:
            for answer in self._left:
                return answer
        raise ModelError("script", f"the script has no answer number {len(self.requests)}")


def _counted(request: ModelRequest, completion: Completion, name: str | None) -> Completion:
    """Return `completion` with words as tokens, cut at the limit as an endpoint would do."""
    words, limit = completion.text.split(), request.max_output_tokens
    prompt_words = sum(len(str(message["content"]).split()) for message in request.messages)
    cut = limit is not None and len(words) > limit
    text = " ".join(words[:limit]) if cut else completion.text
    usage = ModelUsage(prompt_words, min(len(words), limit) if limit is not None else len(words))
    reason = "length" if cut else completion.finish_reason or "stop"
    return Completion(text, usage, reason, completion.model or request.model or name)


# `ReplayModel`: repeats the answers of a recorded run, so that it runs without a model.

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
    recorded one except for object addresses. Concurrent calls of one run may have other numbers in
    another run, and so may the child runs that they begin; such a request is identified by its
    content alone, preferring the same run, and among several the least used answer.

    A call's record has only the last answer of the model. With a schema that took two rounds, this
    is the second answer, given in the first round. Costs are the recorded ones. A request that was
    given up
    before its answer has none here either: it waits until it is given up again, or for a minute
    more than recorded.

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
        self._outage = any(run.error_kind == "llm" for run in trajectory.runs())

    async def complete(self, request: ModelRequest) -> Completion:
        """Return the recorded answer.

        Raises:
            ModelError: there is none, of kind "script"; or a recorded failure.
        """
        if request.origin.run.startswith(PROBE_RUN):
            return self._probed()
        with self._lock:
            answer = self._find(request)
            key = self._key(answer, request)
            self._given[key] = self._given.get(key, 0) + 1
        return await answer.given()

    def _probed(self) -> Completion:
        """Answer the host's check of the endpoint, which fails if a recorded run was masked."""
        if self._outage:
            raise ModelError("connection", "the endpoint failed for everybody then")
        return Completion("OK")

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


# Reruns of a recorded tree without its models, and the differences.

_END = ("final_answer", "answer_value", "stop_reason", "error_kind")
_NO_LIMIT = Budget(calls=None)
# Arguments of `RLM` that a replay takes unchanged from the settings of a trajectory.
_SHARED = ("max_depth", "blocks", "prompts", "examples", "prefix")
# Seconds for a run that is to be given up; the recorded time may be 0.
_LEAST = 0.001


@dataclass(frozen=True, slots=True)
class RunDifference:
    """A difference in run `run`.

    `cell` is the number of the cell; 0: the end of the run, or the run itself. `field` is a dotted
    path; "cell" or "run" if one side lacks it.
    """

    run: str
    cell: int
    field: str
    recorded: Any
    replayed: Any


@set_module("repl_env.rlm")
def rerun(
    trajectory: Trajectory, contexts: Mapping[str, Any] | None = None, **arguments: Any
) -> Trajectory:
    """Run a recorded tree again, in new sessions, with the recorded answers of its models.

    If outputs differ, the model answers by origin, so that all differences become visible.

    Args:
        contexts: those of the root run that are not in the file, by variable.
        arguments: of `RLM`; they override the settings of the file.

    Raises:
        ValueError: a context is missing, or differs from the recorded one; the question is not
            recorded.
    """
    if any(each.began is None for each in trajectory.roots):
        raise ValueError("what the root was asked is not recorded")
    all_contexts = given_contexts(trajectory, contexts or {})
    seed: Any = trajectory.settings.get("seed")
    events: list[AnyEvent] = []
    started = asyncio.Event()

    def on_event(event: AnyEvent) -> None:
        events.append(event)
        started.set()

    model = ReplayModel(trajectory, allow_changed_prompts=True)
    rlm = RLM(model, on_event=on_event, **_rlm_arguments(trajectory, arguments))
    try:
        with rlm.conversation(contexts=all_contexts, seed=seed) as talk:
            for each in trajectory.roots:
                with suppress(ModelError):
                    RUNS.wait_for(_ask_again(talk, each, started))
    except EpisodeAborted:
        pass  # a failed question: as recorded, or else a difference
    return Trajectory.of(events)


def _rlm_arguments(trajectory: Trajectory, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded arguments of `RLM`."""
    settings, root = trajectory.settings, trajectory.root
    known: dict[str, Any] = {name: settings[name] for name in _SHARED if name in settings}
    limits: Any = settings.get("budget")
    if isinstance(limits, Mapping):
        known["budget"] = Budget(**limits)
    own = {"max_depth": _depth(trajectory), "budget": _NO_LIMIT}
    terms: dict[str, Any] = {**own, **known, **arguments}
    if root.max_iterations is not None:
        terms.setdefault("max_iterations", root.max_iterations)
    return terms


async def _ask_again(talk: Any, run: Run, started: asyncio.Event) -> None:
    """Ask the question of `run`; if it was cancelled, cancel it after the same time."""
    task = None if run.task is None else asdict(run.task)
    ended = run.ended
    if ended is None or ended.stop_reason != "cancelled":
        limit = None
        if ended is not None and ended.stop_reason == "timeout":
            limit = max(ended.seconds, _LEAST)
        await talk.ask(run.question, timeout_s=limit, task=task)
        return
    started.clear()
    asking = asyncio.create_task(talk.ask(run.question, task=task))
    asking.add_done_callback(lambda _: started.set())
    try:
        await started.wait()
        await asyncio.wait([asking], timeout=ended.seconds)
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking


def given_contexts(trajectory: Trajectory, contexts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contexts of the root run: those in the file, and `contexts` for the others.

    Raises:
        ValueError: one is missing, or unknown, or differs.
    """
    notes = {note.name: note for note in trajectory.root.contexts}
    if unknown := sorted(contexts.keys() - notes.keys()):
        raise ValueError(f"contexts: the run had no {unknown[0]!r}, but {sorted(notes)}")
    found: dict[str, Any] = {}
    for name, note in notes.items():
        if name in contexts:
            found[name] = contexts[name]
            _check(note, contexts[name], trajectory.digests.get(name))
        elif name in trajectory.contexts:
            found[name] = trajectory.contexts[name]
        elif note.length:
            raise ValueError(f"contexts: {name!r} is needed, a {note.type} of length {note.length}")
    return found


@set_module("repl_env.rlm")
def differences(recorded: Trajectory, replayed: Trajectory) -> tuple[RunDifference, ...]:
    """Return the differences, each run before those below it.

    Compared are the cells of each run with their outputs and exceptions, and the ends of runs; not
    times, costs and rewards. Child runs are matched by their questions, because concurrent calls
    may have other numbers. Parts missing in a cut trajectory do not count as differences.
    """
    found: list[RunDifference] = []
    left: list[tuple[Run | None, Run | None]] = []
    left += zip_longest(recorded.roots, replayed.roots)
    while left:
        before, now = left.pop(0)
        if before is not None and now is not None:
            found += (*_of_cells(before, now), *_of_ends(before, now))
            left += _pairs(before, now)
        elif before is not None:
            found.append(RunDifference(before.id, 0, "run", before.question, None))
        elif now is not None:
            found.append(RunDifference(now.id, 0, "run", None, now.question))
    return tuple(found)


def _of_cells(before: Run, now: Run) -> Iterator[RunDifference]:
    cells = {cell.number: cell for cell in now.cells}
    for cell in before.cells:
        rerun_cell = cells.pop(cell.number, None)
        if cell.observation is None:
            continue
        if rerun_cell is None or rerun_cell.observation is None:
            yield RunDifference(before.id, cell.number, "cell", cell.code, None)
        else:
            yield from _of_cell(before.id, cell, rerun_cell)
    if before.ended is not None:
        for extra in cells.values():
            yield RunDifference(before.id, extra.number, "cell", None, extra.code)


def _of_cell(run: str, cell: Cell, rerun_cell: Cell) -> Iterator[RunDifference]:
    replayed_values = dict(_compared(rerun_cell))
    for field, value in _compared(cell):
        if normalized(value) != normalized(replayed_values[field]):
            yield RunDifference(run, cell.number, field, value, replayed_values[field])


def _compared(cell: Cell) -> Iterator[tuple[str, Any]]:
    observation = cell.observation
    assert isinstance(observation, REPLObservation)
    yield "code", cell.code
    for name in RESULT:
        yield f"result.{name}", getattr(observation.result, name)
    yield "done", observation.done


def _of_ends(before: Run, now: Run) -> Iterator[RunDifference]:
    if before.ended is None or now.ended is None:
        return
    for name in _END:
        was, came = getattr(before.ended, name), getattr(now.ended, name)
        if normalized(was) != normalized(came):
            yield RunDifference(before.id, 0, name, was, came)


def _pairs(before: Run, now: Run) -> Iterator[tuple[Run | None, Run | None]]:
    """Yield each child with the one of the same question, if possible with the same number."""
    left = list(now.children)
    for child in before.children:
        same = [each for each in left if each.question == child.question]
        partner = min(same, key=lambda each: each.id != child.id, default=None)
        if partner is not None:
            left.remove(partner)
        yield child, partner
    if before.ended is not None:
        yield from ((None, each) for each in left)


def _check(note: ContextNote, value: Any, recorded: str | None) -> None:
    table = Table.of(value)
    kind = type(value).__name__ if table is None else table.type
    value = value if table is None else table
    length, _ = measured(value)
    if (kind, length) != (note.type, note.length):
        was = f"a {note.type} of length {note.length}"
        now = f"a {kind} of length {length}"
        raise ValueError(f"contexts: {note.name!r} was {was}, and is {now}")
    if recorded is not None and digest(value) != recorded:
        raise ValueError(f"contexts: {note.name!r} has the recorded length, but another content")


def _depth(trajectory: Trajectory) -> int:
    """Return the allowed levels of runs, as far as the tree shows them."""
    deepest = max(run.depth for run in trajectory.runs())
    has_children = any(call.kind == "rlm" for call in trajectory.root.calls)
    return deepest + 1 if has_children else 2
