"""`Trajectory`: the record of a tree of runs, from its events or from a file."""

from __future__ import annotations

import base64
import codecs
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, overload

from repl_env.common.display import Displayed, set_module
from repl_env.common.files import read_regular
from repl_env.errors import INFRASTRUCTURE_KINDS
from repl_env.interfaces import Message
from repl_env.llm.base import Completion
from repl_env.models import Ending, REPLObservation
from repl_env.rlm.budget import Spent
from repl_env.rlm.model_call import (
    AnyEvent,
    CallEnded,
    CallKind,
    CallStarted,
    CellRan,
    CellStarted,
    ContextNote,
    ModelReplied,
    RunEnded,
    RunStarted,
    TaskNote,
)
from repl_env.rlm.trajectory_events import FORMAT, VERSION, parents_of, parsed, read
from repl_env.rlm.trajectory_writer import TrajectoryWriter

if TYPE_CHECKING:
    from repl_sandbox.types import JSON


# The tree of runs in a list of events: runs, their turns and calls, and child runs.


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cell(Displayed):
    """A block of code. `observation` and `seconds` are None if it is not known to have ended."""

    number: int
    turn: int
    code: str
    began: float | None
    observation: REPLObservation | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Turn(Displayed):
    """A turn of a run's model.

    `messages` are its whole prompt, of which the last `added` were new; `completion` is the reply,
    the only sampled part.
    """

    number: int
    messages: tuple[Message, ...]
    added: int
    completion: Completion
    cells: tuple[Cell, ...]
    time: float
    seconds: float
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Call(Displayed):
    """A sub-call from the code of cell number `cell`.

    `ended` is None if the answer is not known. `child` is the run that the call began, if any.
    """

    id: str
    kind: CallKind
    cell: int
    model: str | None
    prompt: str
    began: float | None
    ended: CallEnded | None = None
    child: Run | None = None

    @property
    def number(self) -> int:
        """The number of the call in its run, from 1."""
        return _number_of(self.id)

    @property
    def text(self) -> str | None:
        """The result for the code."""
        return None if self.ended is None else self.ended.text

    @property
    def error(self) -> str | None:
        """Why there is no answer."""
        return None if self.ended is None else self.ended.error


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run(Displayed):
    """A run. `ended` is None if its end is not known; `began` likewise, of a run with calls only.

    `parent` is the run that began it with its call of the same `id`; None for a root.
    """

    id: str
    parent: str | None
    depth: int
    question: str
    model: str | None
    max_iterations: int | None
    contexts: tuple[ContextNote, ...]
    began: float | None
    turns: tuple[Turn, ...]
    calls: tuple[Call, ...]
    ended: RunEnded | None = None
    task: TaskNote | None = None

    @property
    def cells(self) -> Iterator[Cell]:
        """The cells of all turns, in order."""
        return (cell for turn in self.turns for cell in turn.cells)

    @property
    def children(self) -> Iterator[Run]:
        """The child runs, in the order of their calls."""
        return (call.child for call in self.calls if call.child is not None)

    @property
    def final_answer(self) -> str | None:
        """The answer as text."""
        return None if self.ended is None else self.ended.final_answer

    @property
    def error_kind(self) -> str | None:
        """The kind of failure; "cancelled" for an interrupted run, which has no end."""
        return "cancelled" if self.ended is None else self.ended.error_kind

    @property
    def reward(self) -> float | None:
        """The reward of its own episode."""
        return None if self.ended is None else self.ended.reward

    @property
    def task_reward(self) -> float | None:
        """The task's part of the reward."""
        return None if self.ended is None else self.ended.task_reward

    @property
    def ending(self) -> Ending | None:
        """ "terminated" by an answer, or "truncated"; None if unknown.

        An interrupted run, without an end, is "truncated" as well.
        """
        return "truncated" if self.ended is None else self.ended.ended

    @property
    def total(self) -> Spent | None:
        """The spending with all runs below it."""
        return None if self.ended is None else self.ended.total

    @property
    def failed_by_us(self) -> bool:
        """Whether the run says nothing about the model: infrastructure failure, or interruption."""
        return self.error_kind in INFRASTRUCTURE_KINDS

    def walk(self) -> Iterator[Run]:
        """Yield this run and all below it, each before those below it."""
        left = [self]
        while left:
            run = left.pop()
            yield run
            left += reversed(list(run.children))


class MisplacedEvent(ValueError):
    """Event number `number`, from 1, is at an impossible position."""

    def __init__(self, number: int, reason: str) -> None:
        self.number, self.reason = number, reason
        super().__init__(f"event {number}: {reason}")


def grow(events: Iterable[AnyEvent]) -> tuple[Run, ...]:
    """Return the root runs in `events`, in the order of their first events.

    Runs with recorded calls only are included, such as those of an episode that a trainer steps.

    Raises:
        MisplacedEvent: the events cannot be of one tree.
    """
    growing: dict[str, _Growing] = {}
    for number, event in enumerate(events, 1):
        try:
            _place_of(event.run, growing).take(event)
        except ValueError as error:
            raise MisplacedEvent(number, f"run {event.run!r}: {error}") from None
    grown: dict[str, Run] = {}
    # From the leaves up, because a run is made with those below it.
    for path in sorted(growing, key=lambda path: -path.count(".")):
        grown[path] = growing[path].grown(grown)
    return tuple(grown[path] for path in growing if "." not in path)


def _place_of(path: str, growing: dict[str, _Growing]) -> _Growing:
    """Return the run of this path, made together with its parents if missing."""
    if path in growing:
        return growing[path]
    if not all(part.isdecimal() and part.isascii() for part in path.split(".")):
        raise ValueError("a run is named by numbers with dots between them")
    place = growing[path] = _Growing(path)
    parent, call = parents_of(path)
    while parent is not None and call is not None:
        known = parent in growing
        growing.setdefault(parent, _Growing(parent)).children.add(call)
        parent, call = (None, None) if known else parents_of(parent)
    return place


@dataclass(slots=True)
class _Growing:
    """A run as far as it is recorded."""

    path: str
    started: RunStarted | None = None
    ended: RunEnded | None = None
    turns: list[ModelReplied] = field(default_factory=list)
    cells: dict[int, Cell] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    children: set[str] = field(default_factory=set)
    shown: list[tuple[Message, ...]] = field(default_factory=list)

    def take(self, event: AnyEvent) -> None:
        match event:
            case RunStarted():
                if self.started is not None:
                    raise ValueError("it has begun before; a trajectory is of one tree")
                self.started = event
            case ModelReplied():
                self._take_turn(event)
            case CellStarted() | CellRan():
                self._take_cell(event)
            case CallStarted() | CallEnded():
                self._take_call(event)
            case RunEnded():
                if self.ended is not None:
                    raise ValueError("it has ended before")
                self.ended = event

    def _take_turn(self, event: ModelReplied) -> None:
        before: tuple[Message, ...] = ()
        if self.turns:
            before = (*self.shown[-1], reply_message(self.turns[-1].completion))
            if event.turn <= self.turns[-1].turn:
                raise ValueError(f"turn {event.turn} after turn {self.turns[-1].turn}")
        if event.kept > len(before):
            raise ValueError(f"turn {event.turn} kept {event.kept} of {len(before)} messages")
        self.turns.append(event)
        self.shown.append((*before[: event.kept], *event.added))

    def _take_cell(self, event: CellStarted | CellRan) -> None:
        if not any(turn.turn == event.turn for turn in reversed(self.turns)):
            raise ValueError(f"cell {event.cell} is of turn {event.turn}, which is not there")
        known = self.cells.get(event.cell)
        ran = isinstance(event, CellRan)
        if known is not None and not (ran and known.observation is None):
            raise ValueError(f"cell {event.cell} is there twice")
        began = event.time if isinstance(event, CellStarted) else known.began if known else None
        self.cells[event.cell] = Cell(
            number=event.cell,
            turn=event.turn,
            code=event.code,
            began=began,
            observation=event.observation if isinstance(event, CellRan) else None,
            seconds=event.seconds if isinstance(event, CellRan) else None,
        )

    def _take_call(self, event: CallStarted | CallEnded) -> None:
        if parents_of(event.call)[0] != self.path or not event.call.rpartition(".")[2].isdecimal():
            raise ValueError(f"call {event.call!r} is of another run")
        known = self.calls.get(event.call)
        if known is not None and (known.ended is not None or isinstance(event, CallStarted)):
            raise ValueError(f"call {event.call} is there twice")
        began = event.time if isinstance(event, CallStarted) else known.began if known else None
        self.calls[event.call] = Call(
            id=event.call,
            kind=event.kind,
            cell=event.cell,
            model=event.model,
            prompt=event.prompt,
            began=began,
            ended=event if isinstance(event, CallEnded) else None,
        )

    def grown(self, below: dict[str, Run]) -> Run:
        started = self.started
        return Run(
            id=self.path,
            parent=parents_of(self.path)[0],
            depth=self.path.count(".") if started is None else started.depth,
            question="" if started is None else started.question,
            model=None if started is None else started.model,
            max_iterations=None if started is None else started.max_iterations,
            contexts=() if started is None else started.contexts,
            began=None if started is None else started.time,
            turns=tuple(self._turns()),
            calls=tuple(self._calls(below)),
            ended=self.ended,
            task=None if started is None else started.task,
        )

    def _turns(self) -> Iterator[Turn]:
        cells: dict[int, list[Cell]] = {}
        for cell in self.cells.values():
            cells.setdefault(cell.turn, []).append(cell)
        for event, messages in zip(self.turns, self.shown, strict=True):
            yield Turn(
                number=event.turn,
                messages=messages,
                added=len(event.added),
                completion=event.completion,
                cells=tuple(sorted(cells.get(event.turn, ()), key=lambda cell: cell.number)),
                time=event.time,
                seconds=event.seconds,
                last=event.last,
            )

    def _calls(self, below: dict[str, Run]) -> Iterator[Call]:
        for path in sorted({*self.calls, *self.children}, key=_number_of):
            call, child = self.calls.get(path), below.get(path)
            if call is None and child is not None:
                # The call itself is not recorded, only the run that it began.
                call = Call(
                    id=path, kind="rlm", cell=0, model=None, prompt=child.question, began=None
                )
            if call is not None:
                yield call if child is None else _with_child(call, child)


def reply_message(completion: Completion) -> Message:
    """Return an answer as the message of the conversation."""
    return {"role": "assistant", "content": completion.text}


def _with_child(call: Call, child: Run) -> Call:
    return replace(call, child=child)


def _number_of(path: str) -> int:
    return int(path.rpartition(".")[2])


# `Trajectory`.
#
# `docs/trajectories.md` describes the file format.

__all__ = ["Call", "Cell", "Run", "Trajectory", "TrajectoryWriter", "Turn"]


@set_module("repl_env.rlm")
@dataclass(frozen=True, repr=False)
class Trajectory(Displayed):
    """The record of a tree of runs.

    ```python
    trajectory = Trajectory.load("run.jsonl")
    for turn in trajectory.root.turns:
        print(turn.completion.text)
    ```

    Attributes:
        events: in the order of the reports.
        cut: the file ends in half a line: its writer did not finish it.
        header: the first line of the file; empty without a file.
    """

    _DISPLAYED_TOO: ClassVar[tuple[str, ...]] = ("complete", "roots")

    events: tuple[AnyEvent, ...] = field(repr=False)
    cut: bool = False
    header: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[AnyEvent]) -> Trajectory:
        """Return the trajectory of these events; ValueError if they cannot be of one tree."""
        trajectory = cls(tuple(events))
        _ = trajectory.roots
        return trajectory

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trajectory:
        """Read a file.

        A last line that was cut is left out, and `complete` is False. Kinds of events and fields
        that a later release has added to the same version of the format are skipped.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is not a trajectory, or of another version, or broken; with the line
                number.
        """
        try:
            return cls._read(read_regular(path).removeprefix(codecs.BOM_UTF8))
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    @classmethod
    def _read(cls, data: bytes) -> Trajectory:
        *lines, last = data.split(b"\n")
        cut = bool(last)
        if cut and _is_whole(last):  # an editor removed the final newline
            lines, cut = [*lines, last], False
        header = _header(lines[0] if lines else last)
        numbered = list(_events(lines[1:]))
        trajectory = cls(tuple(event for _, event in numbered), cut, header)
        try:
            _ = trajectory.roots
        except MisplacedEvent as error:
            raise ValueError(f"line {numbered[error.number - 1][0]}: {error.reason}") from None
        return trajectory

    @cached_property
    def roots(self) -> tuple[Run, ...]:
        """The runs without a parent: one, or one for each question of a conversation."""
        return grow(self.events)

    @property
    def root(self) -> Run:
        """The first root; ValueError if nothing has begun."""
        if not self.roots:
            raise ValueError("the trajectory has no run")
        return self.roots[0]

    @property
    def complete(self) -> bool:
        """Whether the record is complete: each run that began has ended, and the file is not
        cut.
        """
        runs = list(self.runs())
        return bool(runs) and not self.cut and all(run.ended is not None for run in runs)

    def runs(self) -> Iterator[Run]:
        """Yield all runs of the tree, each before those below it."""
        return (run for root in self.roots for run in root.walk())

    def run(self, path: str) -> Run:
        """Return the run of this path, as "0.3"; KeyError if there is none."""
        for run in self.runs():
            if run.id == path:
                return run
        raise KeyError(f"the trajectory has no run {path!r}")

    # ── messages ─────────────────────────────────────────────────────────────────────────────────

    def messages(self, run: str = "0") -> list[Message]:
        """Return the conversation of a run as its model saw it last, with the last reply.

        Older turns may be shortened or missing in it; `messages_at` returns the prompt of each
        turn.
        """
        turns = self.run(run).turns
        if not turns:
            return []
        return [*turns[-1].messages, reply_message(turns[-1].completion)]

    def messages_at(self, run: str, turn: int) -> list[Message]:
        """Return the exact prompt of a turn, without its reply; KeyError if there is none."""
        for each in self.run(run).turns:
            if each.number == turn:
                return list(each.messages)
        raise KeyError(f"run {run!r} has no turn {turn}")

    # ── training ─────────────────────────────────────────────────────────────────────────────────

    @overload
    def samples(self, tokenizer: None = None) -> list[dict[str, Any]]: ...
    @overload
    def samples(
        self, tokenizer: Any, *, template: Mapping[str, Any] | None = None
    ) -> list[Any]: ...
    def samples(
        self, tokenizer: Any = None, *, template: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return each turn of each run as a training sample, in the order of `runs`.

        Without a tokenizer they are JSON dictionaries: "prompt" (messages) and "completion" (a list
        of the one reply), the form of conversational trainers, with "run", "parent", "depth",
        "turn", "reward" (of the root, the purpose of the whole tree), "own_reward", "masked",
        "truncated" and, of the root, "task", "group_id", "split", "difficulty", "ended" and
        "task_reward". With a tokenizer they are `repl_env.rlm.samples.TrainingSample`, with token
        ids and a loss mask, and the root's reward.

        "masked" samples should not be trained on: their run or its root failed through no fault of
        the model, or was cut off. Answers to plain sub-calls are no samples: their prompts, with
        the contexts that code passed, are not in a trajectory.

        Args:
            tokenizer: one of `transformers`, with a chat template.
            template: arguments of that template.

        Raises:
            ValueError: the tokens of a reply cannot be separated from those of the template.
        """
        turns = [
            (root, run, turn) for root in self.roots for run in root.walk() for turn in run.turns
        ]
        if tokenizer is None:
            return [_as_dict(root, run, turn) for root, run, turn in turns]
        from repl_env.rlm.samples import sample

        return [
            sample(
                turn.messages,
                turn.completion,
                tokenizer,
                template=template,
                reward=root.reward,
                run=run.id,
                turn=turn.number,
                depth=run.depth,
                parent=run.parent,
                masked=_masked(root, run),
                **_facts(root),
            )
            for root, run, turn in turns
        ]

    # ── what the writer was told besides ─────────────────────────────────────────────────────────

    @property
    def settings(self) -> Mapping[str, JSON]:
        """The `settings` of the `TrajectoryWriter`."""
        settings = self.header.get("settings")
        return settings if isinstance(settings, dict) else {}

    @property
    def contexts(self) -> dict[str, Any]:
        """The contexts of the root run that are in the file: those that were given and short."""
        return {
            name: _content(note)
            for name, note in self._context_notes.items()
            if not _CONTENTS.isdisjoint(note)
        }

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each context of the writer, by name."""
        return {name: str(note.get("sha256")) for name, note in self._context_notes.items()}

    @property
    def _context_notes(self) -> dict[str, Any]:
        notes = self.header.get("contexts")
        return notes if isinstance(notes, dict) else {}


_CONTENTS = frozenset({"text", "base64", "table", "json"})


def _content(note: Mapping[str, Any]) -> Any:
    if "base64" in note:
        return base64.b64decode(note["base64"])
    if "table" in note:
        from repl_sandbox.tables import Table  # imported here: most trajectories need no engine

        return Table.from_bytes(base64.b64decode(note["table"]))
    return note["text"] if "text" in note else note["json"]


def _header(line: bytes) -> dict[str, Any]:
    """Return the first line; ValueError if the file is invalid."""
    try:
        header = parsed(line)
    except ValueError as error:
        raise ValueError(f"line 1: this is no trajectory: {error}") from None
    if header.get("format") != FORMAT:
        raise ValueError(f"line 1: this is no trajectory: its format is {header.get('format')!r}")
    if header.get("version") != VERSION or isinstance(header["version"], bool):
        version = header.get("version")
        raise ValueError(f"line 1: version {version!r}; this release reads version {VERSION}")
    notes = header.get("contexts", {})
    if not isinstance(notes, dict) or not all(isinstance(note, dict) for note in notes.values()):
        raise ValueError("line 1: contexts: objects by name were expected")
    return header


def _events(lines: Iterable[bytes]) -> Iterator[tuple[int, AnyEvent]]:
    """Yield the events with their line numbers; the header is line 1."""
    for number, line in enumerate(lines, 2):
        try:
            event = read(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if event is not None:
            yield number, event


def _is_whole(line: bytes) -> bool:
    try:
        parsed(line)
    except ValueError:
        return False
    return True


def _masked(root: Run, run: Run) -> bool:
    return root.failed_by_us or run.failed_by_us


def _as_dict(root: Run, run: Run, turn: Turn) -> dict[str, Any]:
    return {
        "prompt": [dict(message) for message in turn.messages],
        "completion": [dict(reply_message(turn.completion))],
        "run": run.id,
        "parent": run.parent,
        "depth": run.depth,
        "turn": turn.number,
        "reward": root.reward,
        "own_reward": run.reward,
        "masked": _masked(root, run),
        "truncated": turn.completion.truncated,
        **_facts(root),
    }


def _facts(root: Run) -> dict[str, Any]:
    """Return the facts of a tree's task and its end for each sample."""
    task = root.task or TaskNote()
    return {
        "task": task.name,
        "group_id": task.group_id,
        "split": task.split,
        "difficulty": task.difficulty,
        "ended": root.ending,
        "task_reward": root.task_reward,
    }
