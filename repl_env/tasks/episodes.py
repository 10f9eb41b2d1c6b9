"""`TaskEnv`: episodes of a task, its environment, and the rewards (`EvaluationRuns`)."""

from __future__ import annotations

import base64
import binascii
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, TypeAlias

from repl_env.common.display import Closeable, set_module
from repl_env.common.threads import BlockingCall
from repl_env.common.values import one_of
from repl_env.env.current_episode import CurrentEpisode, EpisodeSlot, Mode
from repl_env.env.environment import REPLEnvironment
from repl_env.env.operations import EpisodeOperations
from repl_env.env.options import EpisodeEquipment
from repl_env.episode.effects import CellEffect, Effects, OnOutput, lost_by_code
from repl_env.errors import EpisodeAborted, NotReset, REPLError
from repl_env.models import (
    DEFAULT_MAX_OUTPUT_LENGTH,
    REPLAction,
    REPLObservation,
    REPLState,
    StepResult,
    action_of,
    result_of,
)
from repl_env.rubrics import Rubric
from repl_env.tasks.submission import MAX_FILE, Evaluator, SubmissionEvaluation
from repl_sandbox import Sandbox
from repl_sandbox.errors import SandboxError
from repl_sandbox.types import JSON

if TYPE_CHECKING:
    from repl_env.tasks.task import Task


# `EvaluationRuns`: one episode's evaluations, and the rewards for them.
#
# Nothing here is in the session. A policy reaches it by `validate()` and `submit()`, whose
# arguments are the files of a submission and nothing else.

RewardMode: TypeAlias = Literal["submit", "improvement"]
REWARD_MODES: tuple[RewardMode, ...] = ("submit", "improvement")


class EvaluationRuns:
    """The evaluations of one episode of a task.

    `reward_mode`: "submit" rewards the end, with the gain of the submission; "improvement" rewards
    each step, with its increase of the best gain so far, which begins at the baseline's, 0.
    """

    def __init__(self, evaluator: Evaluator, reward_mode: RewardMode) -> None:
        self.task: Task = evaluator.task
        self._evaluator, self._reward_mode = evaluator, reward_mode
        self._lock = threading.Lock()  # cells may have threads
        self._validations = 0
        self._best = 0.0
        self._pending_reward = 0.0
        self.last: SubmissionEvaluation | None = None
        self.submitted: SubmissionEvaluation | None = None
        self.infrastructure_error: Exception | None = None

    def validate(self, files: Mapping[str, str]) -> dict[str, JSON]:
        """Evaluate the files that a cell sends; what it is told of that."""
        with self._lock:
            self._check_open()
            if self._validations >= self.task.limits.validations:
                raise ValueError(f"validate() was called {self._validations} times: no more")
            self._validations += 1
            return self._report(self._evaluated(_decoded(files, self.task)))

    def submit(self, files: Mapping[str, str]) -> dict[str, JSON]:
        """Hand in the files that a cell sends; the first ones count."""
        with self._lock:
            self._check_open()
            self.submitted = self._evaluated(_decoded(files, self.task))
            return self._report(self.submitted)

    def end(self, files: Mapping[str, bytes]) -> None:
        """The episode is over; without `submit()`, the files in its workspace are handed in."""
        with self._lock:
            if self.submitted is None and self.infrastructure_error is None:
                with suppress(RuntimeError):  # `infrastructure_error` says why
                    self.submitted = self._evaluated(files)
            if self._reward_mode == "submit" and self.submitted is not None:
                self._pending_reward = self.submitted.gain

    def take_due_reward(self) -> float:
        """Return the rewards that became due since the last step."""
        with self._lock:
            reward, self._pending_reward = self._pending_reward, 0.0
            return reward

    @property
    def evaluation(self) -> SubmissionEvaluation | None:
        """The evaluation of what was handed in, else of what was validated last."""
        return self.submitted or self.last

    def facts(self) -> dict[str, Any]:
        """The evaluation so far, for metadata: what the policy has been told."""
        last = self.evaluation
        return {
            "validations": self._validations,
            "score": None if last is None else last.score,
            "gain": None if last is None else last.gain,
            "failure": None if last is None else last.failure,
            "submitted": self.submitted is not None,
        }

    def _check_open(self) -> None:
        if self.submitted is not None:
            raise ValueError("a submission was handed in already; the first one counts")
        if self.infrastructure_error is not None:
            raise RuntimeError("the evaluation failed by no fault of the submission")

    def _evaluated(self, files: Mapping[str, bytes]) -> SubmissionEvaluation:
        try:
            evaluation = self._evaluator.evaluate(files)
        # Boundary: whatever it is, it is no fault of the submission's, and no score.
        except Exception as error:  # noqa: BLE001
            self.infrastructure_error = error
            # The cell learns nothing of the evaluator's; the caller of the step gets the error.
            raise RuntimeError("the evaluation failed by no fault of the submission") from None
        self.last = evaluation
        if self._reward_mode == "improvement" and evaluation.ok and evaluation.gain > self._best:
            self._pending_reward += evaluation.gain - self._best
            self._best = evaluation.gain
        return evaluation

    def _report(self, evaluation: SubmissionEvaluation) -> dict[str, JSON]:
        report: dict[str, JSON] = {
            "score": evaluation.score,
            "metric": self.task.metric,
            "direction": self.task.direction,
            "baseline": self.task.baseline,
            "validations_left": self.task.limits.validations - self._validations,
        }
        return (
            report
            if evaluation.ok
            else report | {"failure": evaluation.failure, "message": evaluation.told}
        )


def _decoded(files: object, task: Task) -> dict[str, bytes]:
    """The files that a session sent, which may be anything."""
    if not isinstance(files, Mapping):
        raise TypeError("the files of a submission must be a dict of texts in base64")
    decoded: dict[str, bytes] = {}
    for path in task.submission:
        content = files.get(path)
        if isinstance(content, str) and len(content) <= 2 * MAX_FILE:
            try:
                decoded[path] = base64.b64decode(content, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ValueError(f"{path} is no base64: {error}") from None
    return decoded


# `TaskOperations`: the episodes of a task, whose rewards an evaluator finds.

_SESSION_FUNCTIONS = Path(__file__).with_name("session_code") / "task_functions.py"


class TaskOperations:
    """Episodes with the starter files of the task of `evaluator`, and with its rewards.

    Each observation tells in its metadata the task, the evaluation so far and the `group_id`; the
    files in the workspace at the end are the submission, if none was handed in.
    """

    def __init__(
        self, episodes: EpisodeOperations, evaluator: Evaluator, reward_mode: RewardMode
    ) -> None:
        self._episodes, self._evaluator, self._reward_mode = episodes, evaluator, reward_mode
        self.run: EvaluationRuns | None = None
        self._group = ""
        episodes.scorer.before_scoring = self._settle_step
        self.give_up, self.close_current = episodes.give_up, episodes.close_current

    @property
    def slot(self) -> EpisodeSlot:
        """The slot of the current episode."""
        return self._episodes.slot

    @property
    def running(self) -> EvaluationRuns:
        """The evaluations of this episode; NotReset if none has begun."""
        if self.run is None:
            raise NotReset
        return self.run

    def begin_episode(self, mode: Mode, arguments: Mapping[str, Any]) -> Effects[REPLObservation]:
        """Begin an episode; `arguments` may have a `group_id`."""
        options = dict(arguments)
        group = _group(options.pop("group_id", None))
        options["files"] = self._evaluator.task.starter_files()
        observation = yield from self._episodes.begin_episode(mode, options)
        self.run, self._group = EvaluationRuns(self._evaluator, self._reward_mode), group
        current = self.slot.require_current()
        try:
            yield from _define_functions(current, self._evaluator.task)
        except BaseException:
            yield from self.slot.abandon(current)
            raise
        self._note(observation)
        return observation

    def take_step(
        self,
        mode: Mode,
        action: REPLAction,
        timeout_s: float | None,
        extra_arguments: Mapping[str, Any],
        on_output: OnOutput | None = None,
    ) -> Effects[REPLObservation]:
        """Take an action, for at most as long as the task allows."""
        limit = self._evaluator.task.limits.cell if timeout_s is None else timeout_s
        return (
            yield from self._episodes.take_step(mode, action, limit, extra_arguments, on_output)
        )

    def _settle_step(self, current: CurrentEpisode, observation: REPLObservation) -> Effects[None]:
        """Note the reward of a step, before it is scored."""
        if observation.done:
            current.record_end(observation)
            yield from self._submit_workspace(current)
        infrastructure_error = self.running.infrastructure_error
        if isinstance(infrastructure_error, SandboxError):
            yield from self.slot.abandon(current)
            raise EpisodeAborted(
                "sandbox", f"an evaluation was lost: {infrastructure_error}"
            ) from infrastructure_error
        if infrastructure_error is not None:
            raise infrastructure_error
        observation.metadata["task_reward"] = self.running.take_due_reward()
        self._note(observation)

    def _submit_workspace(self, current: CurrentEpisode) -> Effects[None]:
        files: dict[str, bytes] = {}
        if self.running.submitted is None and current.episode.stop_reason != "crash":
            paths = self._evaluator.task.submission
            max_bytes = (MAX_FILE + 1) * max(len(paths), 1)
            found: Mapping[str, bytes | OSError]
            try:
                found = yield partial(current.session.files.get_all, paths, limit=max_bytes)
            except SandboxError as error:
                found = yield from self._without_files(current, error)
            # One that is missing, or no regular file, is a failure of the submission's.
            files = {path: each for path, each in found.items() if isinstance(each, bytes)}
        yield BlockingCall(self.running.end, files)

    def _without_files(
        self, current: CurrentEpisode, error: SandboxError
    ) -> Effects[Mapping[str, bytes | OSError]]:
        """Return no files if the code is to blame that they cannot be read, else abort."""
        provider, plain = self._evaluator.sandbox_provider, current.mode == "plain"
        if (yield from lost_by_code(provider, error, plain=plain)):
            return {}
        yield from self.slot.abandon(current)
        raise EpisodeAborted("sandbox", f"a submission was lost: {error}") from error

    def _note(self, observation: REPLObservation) -> None:
        observation.metadata |= {
            "task": self._evaluator.task.facts,
            "evaluation": self.running.facts(),
            "group_id": self._group,
        }

    def follow_up(self, *_: object) -> Never:
        """Refused."""
        raise _refusal("is followed by another")

    def save(self, *_: object) -> Never:
        """Refused."""
        raise _refusal("is saved")

    def load(self, *_: object) -> Never:
        """Refused."""
        raise _refusal("is loaded")

    def rollback(self, *_: object) -> Never:
        """Refused."""
        raise _refusal("rolls back")

    def branch(self, *_: object) -> Never:
        """Refused."""
        raise _refusal("branches")


def _refusal(operation: str) -> REPLError:
    return REPLError(f"no episode of a task {operation}: its evaluations are counted once")


def _define_functions(current: CurrentEpisode, task: Task) -> Effects[None]:
    """Make the two functions that a policy calls."""
    session = current.session
    yield partial(session.set, "_task_paths", list(task.submission))
    yield partial(session.set, "_task_max_bytes", MAX_FILE)
    outcome = yield CellEffect(
        session.run, _SESSION_FUNCTIONS.read_text(encoding="utf-8"), timeout=None
    )
    if not outcome.ok:
        raise RuntimeError(f"{task.name}: the session does not begin: {outcome.error}")


def _group(positional: object) -> str:
    if not (positional is None or isinstance(positional, str)):
        raise TypeError(f"group_id must be a str, not {type(positional).__name__}")
    return positional or uuid.uuid4().hex


# `TaskEnvironment`: the environment of the episodes of one task.

_TASK_COMPONENT = "task"  # of the reward


class TaskEnvironment(REPLEnvironment):
    """Episodes of the task of `evaluator`; the arguments are those of `TaskEnv`.

    A reset takes `group_id` besides, and begins with the task's starter files.
    """

    def __init__(
        self, evaluator: Evaluator, *, reward_mode: RewardMode, max_output_length: int
    ) -> None:
        task = self.task = evaluator.task
        self._evaluator = evaluator
        self._reward_mode: RewardMode = reward_mode
        super().__init__(
            task_prompt=task.prompt,
            max_iterations=task.limits.steps,
            max_output_length=max_output_length,
            rubric=_TaskRubric(),
            tools={"validate_files": self._validate, "submit_files": self._submit},
            answers="strict",
        )
        self.use_sandbox_provider(evaluator.sandbox_provider)

    def _operations_with(self, equipment: EpisodeEquipment) -> TaskOperations:
        episodes = self._basic_operations_with(equipment)
        self._task = TaskOperations(episodes, self._evaluator, self._reward_mode)
        return self._task

    @property
    def running(self) -> EvaluationRuns:
        """The evaluations of this episode; NotReset if none has begun."""
        return self._task.running

    @property
    def run(self) -> EvaluationRuns | None:
        """Likewise; None if no episode has begun."""
        return self._task.run

    def _validate(self, files: Any) -> Any:
        return self.running.validate(files)

    def _submit(self, files: Any) -> Any:
        return self.running.submit(files)


class _TaskRubric(Rubric):
    """The task's reward, which the host has noted in the metadata."""

    def forward(self, action: Any, observation: Any) -> float:
        return float(observation.metadata.pop("task_reward", 0.0))

    def components(self) -> dict[str, float]:
        return {} if self.last_score is None else {_TASK_COMPONENT: self.last_score}


# `TaskEnv`: episodes of a task. The policy writes files, validates them and hands them in.


@set_module("repl_env.tasks")
class TaskEnv(Closeable):
    """Episodes of one task, each in a session of its own.

    `reset` puts the starter files and the data into the workspace and tells the instruction. In a
    cell, `validate()` returns the score of the submission's files as they are; `submit()` hands
    them in and ends the episode. An episode that ends otherwise hands in what is in the workspace.

    Each observation's metadata have `task` (name, metric, direction, group, split, difficulty),
    `evaluation` and `group_id`, which `reset` takes, or makes anew.

    Args:
        task: what `repl_env.tasks.load` returns.
        reward_mode: "submit": the reward is 0 until the end, and then the gain of the submission;
            "improvement": the reward of a step is its increase of the best gain so far.
        sandbox, isolation, require: as for `LocalREPLEnv`.
        max_output_length: characters of each output that are shown.

    Raises:
        TaskError: the task has no evaluator, its packages are not there, or sessions would see it.
        IsolationError: this system cannot give the isolation that was asked for.
    """

    def __init__(
        self,
        task: Task,
        *,
        reward_mode: RewardMode = "submit",
        sandbox: Sandbox | None = None,
        isolation: str = "auto",
        require: str | None = None,
        max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH,
    ) -> None:
        one_of(reward_mode, REWARD_MODES, "reward_mode")
        self.task = task
        self.reward_mode: RewardMode = reward_mode
        evaluator = Evaluator(task, sandbox=sandbox, isolation=isolation, require=require)
        self._env = TaskEnvironment(
            evaluator, reward_mode=reward_mode, max_output_length=max_output_length
        )

    def reset(
        self,
        *,
        seed: int | None = None,
        episode_id: str | None = None,
        group_id: str | None = None,
        max_iterations: int | None = None,
    ) -> StepResult[REPLObservation]:
        """Begin an episode. `group_id` names the group of samples that the episode is one of."""
        observation = self._env.reset(
            seed=seed, episode_id=episode_id, group_id=group_id, max_iterations=max_iterations
        )
        return result_of(observation)

    def step(
        self, action: REPLAction, *, timeout_s: float | None = None
    ) -> StepResult[REPLObservation]:
        """Run the action's code; an answer hands in what is in the workspace.

        Raises:
            EvaluatorError: the task's evaluator failed; nothing was scored.
            EpisodeAborted: a session was lost, by no fault of the policy.
            NotReset, EpisodeDone: as `LocalREPLEnv.step`.
        """
        return result_of(self._env.step(action, timeout_s))

    def execute(self, code: str, *, timeout_s: float | None = None) -> StepResult[REPLObservation]:
        """One step that runs `code`."""
        return self.step(action_of(code), timeout_s=timeout_s)

    def submit(self) -> StepResult[REPLObservation]:
        """One step that hands in what is in the workspace."""
        return self.step(REPLAction(is_final=True, final_answer="submitted"))

    def state(self) -> REPLState:
        """The episode so far; NotReset if none has begun."""
        return self._env.state

    @property
    def session(self) -> Any:
        """The engine's session of this episode; NotReset if none has begun."""
        return self._env.session

    @property
    def evaluation(self) -> SubmissionEvaluation | None:
        """The evaluation of what was handed in, else of what was validated last."""
        return self._env.running.evaluation

    def close(self) -> None:
        """Close the session. A sandbox that was given or is shared stays open."""
        self._env.close()

    def __repr__(self) -> str:
        return f"<TaskEnv {self.task.name} {self._env._condition}>"
