"""Whether sessions can work on a task: its packages are there, and its own folder is not.

A folder of a task holds the solution and the evaluator. Sessions may see it because it is below the
interpreter's packages, as the shipped tasks are; then another folder is shown in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from repl_env.episode.sandbox_provider import SandboxProvider, SandboxSettings
from repl_env.tasks.task_errors import TaskError
from repl_sandbox import Limits, Sandbox
from repl_sandbox.errors import SandboxError
from repl_sandbox.types import JSON

if TYPE_CHECKING:
    from repl_env.tasks.task import Task

_HIDDEN = Path(__file__).with_name("hidden")
_READY = Path(__file__).with_name("session_code") / "check_packages.py"
_WAITING = 60.0  # seconds of an evaluation beside its calls and the evaluator's own execution


def provider_for(
    task: Task,
    sandbox: Sandbox | None = None,
    *,
    isolation: str = "auto",
    require: str | None = None,
) -> SandboxProvider:
    """The sandbox of this task's sessions, checked by one session.

    Raises:
        TaskError: a package is not there, or sessions see the folder of the task.
        IsolationError: this system cannot give the isolation that was asked for.
        TypeError, ValueError: naming the argument.
    """
    settings = SandboxSettings()
    if sandbox is None:
        settings = SandboxSettings.of(isolation, require, _limits(task), ())
    sandbox_provider = SandboxProvider(sandbox, settings)
    folder = (task.hidden or task.directory).resolve()
    seen = _sees(task, sandbox_provider, folder)
    if seen and sandbox is None:
        sandbox_provider = SandboxProvider(
            None, replace(settings, mounts=((str(folder), str(_HIDDEN)),))
        )
        try:
            seen = _sees(task, sandbox_provider, folder)
        except SandboxError as error:
            raise _visible(task, folder) from error
    if seen:
        raise _visible(task, folder)
    return sandbox_provider


def _sees(task: Task, sandbox_provider: SandboxProvider, folder: Path) -> bool:
    shown: Mapping[str, str] = {}
    if isinstance(sandbox_provider.given, Sandbox):
        shown = sandbox_provider.given.mounts
    places: list[JSON] = [str(folder)]
    for inside, outside in shown.items():
        host = Path(outside).resolve()
        if host.is_relative_to(folder):
            return True  # a part of it
        if folder.is_relative_to(host):
            places.append(str(inside / folder.relative_to(host)))
    session = sandbox_provider.make(lambda sandbox: sandbox.session())
    with session:
        session.set("_wanted", list(task.packages))
        session.set("_folders", places)
        outcome = session.run(_READY.read_text(encoding="utf-8"))
        if not outcome.ok:
            raise TaskError(f"{task.name}: a session cannot be looked into: {outcome.error}")
        absent, seen = session.get("_absent"), session.get("_seen")
    if isinstance(absent, list) and absent:
        missing = ", ".join(map(str, absent))
        raise TaskError(f"{task.name}: packages that sessions do not have: {missing}")
    return bool(seen)


def _limits(task: Task) -> Limits:
    memory = task.limits.memory or Limits().memory
    wait = 2 * task.limits.evaluation + _WAITING
    return Limits(
        timeout=task.limits.cell, host_timeout=wait * task.limits.validations, memory=memory
    )


def _visible(task: Task, folder: Path) -> TaskError:
    return TaskError(
        f"{task.name}: sessions would see {folder}, which holds the solution and the evaluator. "
        "Put the tasks where sessions see nothing, outside the interpreter's folders, or let "
        'repl-env start the sandbox of tier "jailed" itself, which hides them'
    )
