"""`Submission`: the files of a submission in a session of their own, called from the host.

All that comes from there is hostile. The first failure is kept: nothing after it can mend the
evaluation, and no further call is made.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from repl_env.episode.sandbox_provider import SandboxProvider
from repl_sandbox import Limits
from repl_sandbox.errors import SandboxClosed, SandboxError
from repl_sandbox.types import JSON, AnyOutcome, Killed, TimedOut

if TYPE_CHECKING:
    from repl_env.tasks.task import Task

MAX_REPLY = 4 << 20  # characters of JSON that a call may return
MAX_FILE = 16 << 20  # bytes of a submission's file
_MAX_MESSAGE = 400  # characters of an error of the submission's that is told
_CALL_CODE = (Path(__file__).with_name("session_code") / "call_submission.py").read_text
_CALL = "_reply = _repl_call(*_call)"


@dataclass(frozen=True, slots=True)
class SubmissionFailure:
    """How a submission failed; `kind` is one of "missing", "exception", "timeout", "invalid",
    "memory", "crash", "rejected"."""

    kind: str
    message: str


class SubmissionFailed(Exception):
    """Error that the evaluator's code gets for a failure; it cannot continue after it."""


class Submission:
    """A submission for `task` in a session from `sandbox_provider`. Closed by `close`."""

    def __init__(
        self, task: Task, sandbox_provider: SandboxProvider, files: Mapping[str, bytes]
    ) -> None:
        self._task, self._files = task, files
        self.failure: SubmissionFailure | None = None
        self._seconds_left = task.limits.evaluation
        limits = _limits(task, sandbox_provider)
        self._session = sandbox_provider.make(lambda sandbox: sandbox.session(limits=limits))
        for path in task.submission:
            if path not in files:
                self._fail("missing", f"there is no {path}")
            elif len(files[path]) > MAX_FILE:
                self._fail("invalid", f"{path} has more than {MAX_FILE >> 20} MiB")

    def begin(self) -> None:
        """Put the files there; what the task gives as data is the task's."""
        if self.failure is not None:
            return
        submitted = {path: self._files[path] for path in self._task.submission}
        task_files = {**self._task.starter_files(), **self._task.data_files()}
        self._session.files.put_all({k: v for k, v in task_files.items() if k not in submitted})
        try:
            self._session.files.put_all(submitted)
        except OSError as error:
            self._fail("invalid", f"its files have no room: {error}")
            return
        self._session.run(_CALL_CODE(encoding="utf-8"))

    def call(self, name: str, arguments: list[JSON]) -> JSON:
        """Call the function `name` of the submission with `arguments`.

        Raises:
            SubmissionFailed: now or before.
            SandboxClosed: the sandbox ended, by no fault of the submission.
            TypeError, ValueError: the evaluator's arguments are wrong.
        """
        self._check()
        if self._task.module is None:
            raise ValueError("task.toml names no module, so there is nothing to call")
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"call: {name!r} is not the name of a function")
        if not isinstance(arguments, list):
            raise TypeError(f"call: the arguments must be a list, not {type(arguments).__name__}")
        if self._seconds_left <= 0:
            raise self._fail("timeout", f"its calls took over {self._task.limits.evaluation:g} s")
        try:
            return self._call_function(name, arguments)
        except SandboxClosed:
            raise
        except SandboxError as error:
            # The session runs the submission's code alone, which can keep it from answering.
            raise self._fail("crash", f"{name}() broke its session: {error}") from None

    def read(self, path: str) -> str:
        """The text of a file of the submission.

        Raises:
            SubmissionFailed: now or before; also for a file that is no text.
            ValueError: it is none of the files that `submission` in task.toml names.
        """
        self._check()
        if path not in self._task.submission:
            raise ValueError(f"read: {path!r} is none of the files of a submission")
        try:
            return self._files[path].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._fail("invalid", f"{path} is no UTF-8 text: {error}") from None

    def reject(self, reason: str) -> SubmissionFailed:
        """Note that the evaluator does not take the submission."""
        return self._fail("rejected", str(reason))

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _call_function(self, name: str, arguments: list[JSON]) -> JSON:
        limit = min(self._task.limits.call, self._seconds_left)
        began = time.monotonic()
        try:
            self._session.set("_call", [self._task.module, name, arguments])
            outcome = self._session.run(_CALL, timeout=limit)
            if not outcome.ok:
                raise self._fail(*_failure_of(name, outcome, limit))
            return self._reply(name)
        finally:
            # With what it takes to read the reply, which is an object of the submission's.
            self._seconds_left -= time.monotonic() - began

    def _check(self) -> None:
        if self.failure is not None:
            raise SubmissionFailed(self.failure.message)

    def _reply(self, name: str) -> JSON:
        try:
            reply: JSON = self._session.get("_reply")
        except (TypeError, ValueError, KeyError) as error:
            message = str(error).removeprefix("_reply: ")
            raise self._fail("invalid", f"{name}() returned no JSON: {message}") from None
        if len(json.dumps(reply)) > MAX_REPLY:
            raise self._fail("invalid", f"{name}() returned more than {MAX_REPLY >> 20} MiB")
        return reply

    def _fail(self, kind: str, message: str) -> SubmissionFailed:
        if self.failure is None:
            self.failure = SubmissionFailure(kind, message[:_MAX_MESSAGE])
        return SubmissionFailed(self.failure.message)


def _limits(task: Task, sandbox_provider: SandboxProvider) -> Limits:
    limits = sandbox_provider.limits
    memory = limits.memory if task.limits.memory is None else task.limits.memory
    return replace(limits, memory=memory, timeout=task.limits.call, output="1MiB")


def _failure_of(name: str, outcome: AnyOutcome, limit: float) -> tuple[str, str]:
    """The kind of a failed call, and its message."""
    error = outcome.error
    match outcome:
        case TimedOut():
            return "timeout", f"{name}() did not return within {limit:.3g} s"
        case Killed(reason="memory"):
            return "memory", f"{name}() needed more memory than there is"
        case Killed(reason=reason):
            return "crash", f"{name}() ended its process ({reason})"
        case _ if error is not None:
            return "exception", f"{name}() raised {error.type}: {error.message}"
    return "crash", f"{name}() did not return"
