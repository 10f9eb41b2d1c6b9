"""Rollouts: the facts of an episode for reward functions and logs, and records of episodes."""

from __future__ import annotations

import os
import reprlib
import secrets
import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repl_env.common.display import set_module
from repl_env.common.values import as_path, at_least
from repl_env.errors import INFRASTRUCTURE_KINDS
from repl_env.interfaces import Message
from repl_env.llm.base import Completion, ModelUsage
from repl_env.models import REPLObservation, StepResult
from repl_env.rlm.budget import Spent
from repl_env.rlm.model_call import (
    AnyEvent,
    CellRan,
    CellStarted,
    ContextNote,
    ModelReplied,
    RunEnded,
    RunStarted,
    TaskNote,
)
from repl_env.rlm.trajectory_writer import TrajectoryWriter

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

# `EpisodeSummary`: the one definition of the names that reward functions and logs know.

# The prefix of these names where they stand among columns of a dataset.
PREFIX = "episode_"


@set_module("repl_env")
@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSummary:
    """The facts of an episode so far, by the names that reward functions know in each integration.

    TRL passes them as columns `episode_<name>`, TorchRL has them in the entry "episode".

    Attributes:
        answer: the accepted answer as text; None without one.
        answer_value: the answer as JSON, where JSON can carry it.
        rewards: the reward of each step; `task_rewards`: the task's part of each.
        error_kinds: for each step the kind of its failure, or None.
        components: the sums of the reward components over the steps, by name.
        masked: a failure of the infrastructure touched the episode: no measure of the policy.
        stop_reason: why the episode ended, such as "answer" or "max_iterations"; None before.
    """

    answer: str | None = None
    answer_value: JSON = None
    rewards: tuple[float, ...] = ()
    task_rewards: tuple[float, ...] = ()
    error_kinds: tuple[str | None, ...] = ()
    components: Mapping[str, float] = field(default_factory=dict)
    masked: bool = False
    stop_reason: str | None = None

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.rewards)

    @property
    def reward(self) -> float | None:
        """The sum of the rewards; None for a masked episode."""
        return None if self.masked else sum(self.rewards, 0.0)

    @property
    def task_reward(self) -> float | None:
        """The task's part of `reward`, without penalties; None for a masked episode."""
        return None if self.masked else sum(self.task_rewards, 0.0)

    def after(self, result: StepResult[REPLObservation]) -> EpisodeSummary:
        """Return the summary with one more step."""
        metadata = result.observation.metadata
        components = dict(self.components)
        for name, part in (metadata.get("reward_components") or {}).items():
            components[name] = components.get(name, 0.0) + part
        return replace(
            self,
            answer=result.observation.final_answer,
            answer_value=metadata.get("answer_value"),
            rewards=(*self.rewards, float(result.reward or 0.0)),
            task_rewards=(*self.task_rewards, float(metadata.get("task_reward") or 0.0)),
            error_kinds=(*self.error_kinds, result.observation.error_kind),
            components=components,
            masked=self.masked or bool(metadata.get("mask")),
            stop_reason=metadata.get("stop_reason") if result.done else None,
        )

    def lost(self) -> EpisodeSummary:
        """Return the summary of the episode after the loss of its session, in a step or before."""
        return replace(
            self,
            rewards=(*self.rewards, 0.0),
            task_rewards=(*self.task_rewards, 0.0),
            error_kinds=(*self.error_kinds, "sandbox"),
            masked=True,
            stop_reason="aborted",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the facts by name, as JSON carries them."""
        return {
            "answer": self.answer,
            "answer_value": self.answer_value,
            "steps": self.steps,
            "error_kinds": list(self.error_kinds),
            "components": dict(self.components),
            "reward": self.reward,
            "task_reward": self.task_reward,
            "masked": self.masked,
            "stop_reason": self.stop_reason,
        }


def summary_columns(episodes: Sequence[EpisodeSummary]) -> dict[str, list[Any]]:
    """Return the facts of several episodes as columns `episode_<name>`, in the order given."""
    names = EpisodeSummary().to_dict()
    facts = [episode.to_dict() for episode in episodes]
    return {f"{PREFIX}{name}": [each[name] for each in facts] for name in names}


class EpisodeShares:
    """The shares of a batch that were masked, failed or answered, for the logs of a trainer.

    A kind of failure that occurred once has a share in each later batch, so that the means of
    loggers are those over all batches.
    """

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def of(self, facts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return the shares of episodes, by `to_dict` of each: all are 0 without episodes.

        `failed_share/<kind>` is the share of episodes that have a step with this kind of failure.
        """
        kinds = [{kind for kind in each["error_kinds"] if kind is not None} for each in facts]
        self._kinds.update(*kinds)

        def share(flags: Iterable[bool]) -> float:
            return sum(flags) / max(len(facts), 1)

        return {
            "masked_share": share(each["masked"] for each in facts),
            "answered_share": share(each["stop_reason"] == "answer" for each in facts),
            "failed_share": share(bool(each) for each in kinds),
            **{
                f"failed_share/{kind}": share(kind in each for each in kinds)
                for kind in sorted(self._kinds)
            },
        }


# `RolloutRecorder`: rollouts as trajectory files, some of them, whatever the disk does.

# The stop reason of an episode that its trainer left before its end.
NOT_ENDED = "not ended"

# Requests of one task are recognised by this much of their values: contexts may be large.
_GLANCE = reprlib.Repr()
_GLANCE.maxstring = _GLANCE.maxother = 2000
_GLANCE.maxdict = _GLANCE.maxlist = _GLANCE.maxtuple = 20


# Columns of a dataset that name a task and its groups; "id" is another name of "task_id".
FACTS = ("task_id", "id", "group_id", "split", "difficulty")


@dataclass(frozen=True, slots=True)
class RolloutNote:
    """Facts of a rollout for its recorder, beside the arguments of the reset.

    Args:
        prompt: the conversation before the first reply, as a text or as messages; None: the task
            prompt.
        facts: those of `FACTS` of the task, among others.
        role: of the messages by which the environment answers.
    """

    prompt: str | Sequence[Mapping[str, Any]] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    role: str = "user"

    def messages(self, question: str) -> tuple[Message, ...]:
        """Return the conversation before the first reply."""
        if self.prompt is None or isinstance(self.prompt, str):
            return ({"role": "user", "content": self.prompt or question},)
        return tuple(
            {"role": str(each.get("role")), "content": _text(each.get("content"))}
            for each in self.prompt
            if isinstance(each, Mapping)
        )


@dataclass(slots=True)
class _Group:
    """The rollouts of one task in one batch. It is open until one of them steps or ends."""

    id: str
    number: int
    task: TaskNote
    recorded: bool
    members: int = 0
    is_open: bool = True


class RolloutRecorder:
    """Writes the rollouts of one group in `every` groups below a folder, a file for each rollout.

    A group is the rollouts of one task that begin before one of them takes a step, or those of one
    `group_id`. Groups are recorded as a whole, the first of each `every`, so that the viewer shows
    their rollouts beside each other. Safe to use from several threads.

    An operating system's error, as of a full disk, is a RuntimeWarning, once; nothing else fails.
    """

    def __init__(self, folder: Path, every: int) -> None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        # Several trainings, and the processes of one on several machines, may share the folder.
        self._folder = folder / f"{stamp}-{secrets.token_hex(3)}"
        self._every = every
        self._lock = threading.Lock()
        self._groups: dict[bytes, _Group] = {}
        self._count = 0
        self._warned = False

    @classmethod
    def of(cls, record: str | os.PathLike[str] | None, every: int = 1) -> RolloutRecorder | None:
        """Return the recorder of this process for a folder; None without one.

        Raises:
            TypeError, ValueError: naming the argument.
        """
        every = at_least(every, 1, "record_every")
        if record is None:
            return None
        folder = as_path(record, "record").absolute()
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"record must be a folder, and {folder} is a file")
        return _recorder(folder, every, os.getpid())

    def rollout(self, request: Mapping[str, Any], note: RolloutNote) -> RecordedRollout:
        """Return the record of a rollout that is about to begin with the arguments `request`."""
        with self._lock:
            group = self._group(request, note)
            group.members += 1
            path = self._folder / f"{group.number:06}-{group.members}.jsonl"
        return RecordedRollout(self, group, path, note, str(request.get("task_prompt") or ""))

    def _group(self, request: Mapping[str, Any], note: RolloutNote) -> _Group:
        named = note.facts.get("group_id")
        seen = f"={named}" if named is not None else _GLANCE.repr([request, note.prompt])
        key = blake2b(seen.encode("utf-8", "replace"), digest_size=16).digest()
        group = self._groups.get(key)
        if group is None or not (group.is_open or named is not None):
            number, self._count = self._count, self._count + 1
            identifier = f"{self._folder.name}/{number:06}" if named is None else str(named)
            recorded = number % self._every == 0
            group = self._groups[key] = _Group(
                identifier, number, _task(note, identifier), recorded
            )
        return group

    def write(self, path: Path, events: Sequence[AnyEvent]) -> None:
        """Write a trajectory file; warn, once, if the system does not let it."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with TrajectoryWriter(path) as writer:
                for event in events:
                    writer(event)
        except FileExistsError as error:
            self._warn(error)
        except OSError as error:
            with suppress(OSError):
                path.unlink(missing_ok=True)  # a part of a rollout would look like one under way
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        with self._lock:
            warned, self._warned = self._warned, True
        if not warned:
            warnings.warn(
                f"rollouts are not recorded: {error}. The training goes on; rollouts that can be "
                f"written to {self._folder} later on will be",
                RuntimeWarning,
                stacklevel=2,
            )


@cache
def _recorder(folder: Path, every: int, process: int) -> RolloutRecorder:
    return RolloutRecorder(folder, every)


class RecordedRollout:
    """The record of one rollout; a file is written at its end, if its group is recorded."""

    def __init__(
        self, recorder: RolloutRecorder, group: _Group, path: Path, note: RolloutNote, question: str
    ) -> None:
        self._recorder, self._group, self._path = recorder, group, path
        self._note, self._question = note, question
        self._events: list[AnyEvent] = []
        self._new: tuple[Message, ...] = ()  # messages since the last reply
        self._known = 0  # messages that the policy had seen, with its last reply
        self._turns = self._cells = 0
        self._cpu_seconds = 0.0
        self._start = self._last_time = time.time()
        self._ended = False

    def begun(self, observation: REPLObservation) -> None:
        """Take in the observation of the reset."""
        if not self._group.recorded:
            return
        self._start = self._last_time = time.time()
        self._new = self._note.messages(self._question)
        length = observation.context_length
        self._events.append(
            RunStarted(
                run=_RUN,
                time=self._start,
                depth=0,
                question=self._question or "".join(str(each["content"]) for each in self._new[-1:]),
                model=None,
                max_iterations=observation.max_iterations,
                contexts=(ContextNote("context", "str", length),) if length else (),
                task=self._group.task,
            )
        )

    def step(
        self,
        reply: str,
        code: str,
        message: str,
        observation: REPLObservation,
        *,
        began: float,
    ) -> None:
        """Take in a reply, the code in it, if any, and the message about what the code did.

        `began`: when the step began, in seconds since the epoch.
        """
        self._group.is_open = False
        if not self._events or self._ended:
            return
        self._turns += 1
        self._events.append(
            ModelReplied(
                run=_RUN,
                time=began,
                turn=self._turns,
                kept=self._known,
                added=self._new,
                completion=Completion(reply, ModelUsage()),
                seconds=max(began - self._last_time, 0.0),
            )
        )
        self._known += len(self._new) + 1
        self._new = ({"role": self._note.role, "content": message},)
        self._last_time = time.time()
        if code:
            self._add_cell(code, observation, began)

    def end(self, episode: EpisodeSummary, stop_reason: str | None = None) -> None:
        """Write the file, unless that was done before, or the rollout never began.

        `stop_reason` is why the trainer left an episode that goes on.
        """
        self._group.is_open = False
        if not self._events or self._ended:
            return
        self._ended = True
        self._events.append(self._run_ended(episode, stop_reason))
        self._recorder.write(self._path, self._events)
        self._events = []

    @property
    def turns(self) -> int:
        """The replies so far; 0 for a rollout that is not recorded."""
        return self._turns

    @property
    def task(self) -> TaskNote:
        """The note of its task, with its group."""
        return self._group.task

    def write(self, events: Sequence[AnyEvent]) -> None:
        """Write the file of a rollout that reports its events by itself, as a run of the loop."""
        self._group.is_open = False
        if self._group.recorded:
            self._recorder.write(self._path, events)

    def _add_cell(self, code: str, observation: REPLObservation, began: float) -> None:
        self._cells += 1
        cell: dict[str, Any] = {"turn": self._turns, "cell": self._cells, "code": code}
        usage = observation.metadata.get("usage") or {}
        self._cpu_seconds += usage.get("cpu_seconds", 0.0)
        self._events += [
            CellStarted(run=_RUN, time=began, **cell),
            CellRan(
                run=_RUN,
                time=self._last_time,
                observation=observation,
                seconds=max(self._last_time - began, 0.0),
                **cell,
            ),
        ]

    def _run_ended(self, episode: EpisodeSummary, stop_reason: str | None) -> RunEnded:
        broken = [kind for kind in episode.error_kinds if kind in INFRASTRUCTURE_KINDS]
        # No endpoint tells tokens and prices here.
        spent = Spent(calls=self._turns, unpriced_calls=self._turns, cpu_seconds=self._cpu_seconds)
        now = time.time()
        return RunEnded(
            run=_RUN,
            time=now,
            final_answer=episode.answer,
            answer_value=episode.answer_value,
            stop_reason=episode.stop_reason or stop_reason or NOT_ENDED,
            error_kind=(broken or ["sandbox"])[-1] if episode.masked else None,
            reward=episode.reward,
            iterations=self._turns,
            own=spent,
            total=spent,
            seconds=now - self._start,
            ended="terminated" if episode.stop_reason == "answer" else "truncated",
            task_reward=episode.task_reward,
        )


_RUN = "0"


def _task(note: RolloutNote, group_id: str) -> TaskNote:
    """Return the note of a task; a column that is no text and no number is another thing."""
    facts = {name: note.facts.get(name) for name in FACTS}
    told = {name: str(fact) for name, fact in facts.items() if type(fact) in (str, int, float)}
    return TaskNote(
        name=told.get("task_id", told.get("id")),
        group_id=group_id,
        split=told.get("split"),
        difficulty=told.get("difficulty"),
    )


def _text(content: object) -> str:
    """Return the text of a message, which may consist of parts; others are left out."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, (list, tuple)) else []
    return "".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)
