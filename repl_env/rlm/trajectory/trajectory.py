"""`Trajectory`: the record of a tree of runs, from its events or from a file.

`docs/trajectories.md` describes the file format.
"""

from __future__ import annotations

import base64
import codecs
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, overload

from repl_env.common.displayed import Displayed
from repl_env.common.set_module import set_module
from repl_env.interfaces import Message
from repl_env.rlm.events import AnyEvent, TaskNote
from repl_env.rlm.trajectory.event_codec import FORMAT, VERSION, parsed, read
from repl_env.rlm.trajectory.trajectory_tree import (
    Call,
    Cell,
    MisplacedEvent,
    Run,
    Turn,
    grow,
    reply_message,
)
from repl_env.rlm.trajectory.trajectory_writer import TrajectoryWriter

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

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
        that a later
        release has added to the same version of the format are skipped.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is not a trajectory, or of another version, or broken; with the line
                number.
        """
        try:
            return cls._read(Path(path).read_bytes().removeprefix(codecs.BOM_UTF8))
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
        of the one
        reply), the form of conversational trainers, with "run", "parent", "depth", "turn", "reward"
        (of the
        root, the purpose of the whole tree), "own_reward", "masked", "truncated" and, of the root,
        "task",
        "group_id", "split", "difficulty", "ended" and "task_reward". With a tokenizer they are
        `repl_env.rlm.trajectory.training_samples.TrainingSample`, with token ids and a loss mask,
        and the
        root's reward.

        "masked" samples should not be trained on: their run or its root failed through no fault of
        the model,
        or was cut off. Answers to plain sub-calls are no samples: their prompts, with the contexts
        that code
        passed, are not in a trajectory.

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
        from repl_env.rlm.trajectory.training_samples import sample

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


_CONTENTS = frozenset({"text", "base64", "json"})


def _content(note: Mapping[str, Any]) -> Any:
    if "base64" in note:
        return base64.b64decode(note["base64"])
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
