"""Inspect: a provider of sandboxes whose commands run in a session.

Needs `pip install 'repl-env[inspect]'`. Inspect finds the provider by its entry point, as
`sandbox="repl-env"`.
"""

from __future__ import annotations

import asyncio
import base64
import errno
from functools import cache
from itertools import count
from typing import Any, Literal, NoReturn, overload

from pydantic import BaseModel, ConfigDict

from repl_env import Limits, SandboxError
from repl_env.episode.sandboxes import SandboxProvider, SandboxSettings
from repl_env.integrations import needing, session_code
from repl_sandbox import AsyncSandbox, AsyncSession, Killed, TimedOut

with needing("Inspect: pip install 'repl-env[inspect]'", "inspect_ai"):
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentConfigType,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandboxenv,
    )

__all__ = ["REPLSandboxConfig", "REPLSandboxEnvironment"]

# Seconds that a session takes for one request. A request never waits for a command to end.
_REQUEST_TIMEOUT = 300.0
# Seconds that the request which starts a command waits for its end: most commands need no other.
_FIRST_WAIT = 0.25
# Seconds between two looks at a command: from the shortest, doubled, up to the longest.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
# Bytes of a file in one message of a session, which has a limit.
_PIECE = 8 * 1024 * 1024
# The system is mounted read-only, which Inspect's contract calls a want of permission.
_READ_ONLY = f"[Errno {errno.EROFS}]"
_ERRORS: dict[str, type[OSError]] = {
    each.__name__: each
    for each in (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, OSError)
}


class REPLSandboxConfig(BaseModel):
    """The sessions of samples; see `LocalREPLEnv` and `Limits`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    isolation: str = "auto"
    require: str | None = None
    memory: str = "1GiB"
    processes: int = 256
    workspace: str = "1GiB"


@sandboxenv(name="repl-env")
class REPLSandboxEnvironment(SandboxEnvironment):
    """Commands and files in a session, which no container engine is needed for.

    The file view is that of every session: this system's programs, read only, and a working
    directory of the sample's own. There is no network, and one user. Commands run side by side. A
    command that kills the session's interpreter ends all commands with status 137; files stay.
    """

    def __init__(self, session: AsyncSession) -> None:
        super().__init__()
        self._session = session
        self._one_request = asyncio.Lock()  # a session runs one cell at a time
        self._numbers = count()
        self._stopping = set[asyncio.Task[Any]]()

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        """Open a session for a sample."""
        sandbox_config = _config(config)
        limits = Limits(
            memory=sandbox_config.memory,
            processes=sandbox_config.processes,
            workspace=sandbox_config.workspace,
            file_size=sandbox_config.workspace,
            output="64MiB",
            timeout=_REQUEST_TIMEOUT,
        )
        # Nothing but files has to outlive the interpreter, and these would go back with a snapshot.
        settings = SandboxSettings(
            sandbox_config.isolation, sandbox_config.require, limits, recovery="restart"
        )

        async def session(sandbox: AsyncSandbox) -> AsyncSession:
            return await sandbox.session()

        return {"default": cls(await SandboxProvider(None, settings).make_async(session))}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End the sessions of a sample."""
        for environment in environments.values():
            await environment.as_type(REPLSandboxEnvironment)._close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """The configuration that was written into a log."""
        return REPLSandboxConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; see `SandboxEnvironment.exec`.

        The `TimeoutError` of a command that was stopped has its output so far, as the attribute
        `truncated_output`.
        """
        if user is not None:
            raise SandboxUserUnsupportedError(f"a session has one user, and no {user!r}")
        max_bytes = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        number = next(self._numbers)
        request = {
            "number": number,
            "cmd": cmd,
            "stdin": _encoded(input or b""),
            "cwd": cwd,
            "env": env or {},
            "limit": max_bytes,
        }
        try:
            ended = await self._finished(request, timeout)
        except FileNotFoundError as error:
            return ExecResult(False, 127, "", f"{cmd[0]}: {error}")
        except BaseException:  # the caller was cancelled, or the session is lost
            self._stop_later(number)
            raise
        out, err = _texts(ended)
        if ended["over"]:
            limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
            raise OutputLimitExceededError(limit, max(out, err, key=len))
        return ExecResult(ended["code"] == 0, ended["code"], out, err)

    async def _finished(self, request: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        """Start a command and return its result once it has ended.

        Raises:
            TimeoutError: the command was stopped after `timeout` seconds.
        """
        number, limit = request["number"], request["limit"]
        clock = asyncio.get_running_loop().time
        first = _FIRST_WAIT if timeout is None else min(_FIRST_WAIT, timeout)
        ended = await self._ask(operation="start", **request, wait=first)
        stop_at = None if timeout is None else clock() + timeout - first
        pause = _SHORTEST_PAUSE
        while ended is None:
            left = None if stop_at is None else stop_at - clock()
            if left is not None and left <= 0:
                stopped = await self._ask(operation="stop", number=number, limit=limit)
                raise _timeout(stopped)
            await asyncio.sleep(pause if left is None else min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
            ended = await self._ask(operation="poll", number=number, wait=0, limit=limit)
        return dict(ended)

    def _stop_later(self, number: int) -> None:
        """Stop a command whose caller no longer waits; a task of its own outlives the caller's."""
        task = asyncio.get_running_loop().create_task(self._stop(number))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _stop(self, number: int) -> None:
        try:
            await self._ask(operation="stop", number=number, limit=0)
        except SandboxUnavailableError:
            pass  # the session is gone, and the command with it

    async def _close(self) -> None:
        for task in (*self._stopping,):
            await task
        await self._session.close()

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file; folders are made for it."""
        data = contents.encode() if isinstance(contents, str) else contents
        for begin in range(0, max(len(data), 1), _PIECE):
            piece = _encoded(data[begin : begin + _PIECE])
            await self._ask(operation="write", path=file, data=piece, begin=begin == 0)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file, as text of UTF-8 unless `text` is False."""
        data, ended = b"", False
        while not ended:
            offset = len(data)
            read = await self._ask(operation="read", path=file, offset=offset, most=_PIECE)
            if read["size"] > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
                raise OutputLimitExceededError(limit, None)
            piece = base64.b64decode(read["data"])
            data, ended = data + piece, len(piece) < _PIECE
        return data.decode() if text else data

    async def _ask(self, **request: Any) -> Any:
        """Return the result of a request that the session carries out.

        Raises:
            TimeoutError, OSError: as the request does.
            SandboxUnavailableError: the session is lost.
        """
        async with self._one_request:
            try:
                await self._session.set("request", request)
                outcome = await self._session.run(_commands())
                if outcome.ok:
                    return await self._session.get("result")
            except SandboxError as error:
                raise SandboxUnavailableError(str(error)) from error
        if isinstance(outcome, Killed) and "number" in request:
            return _killed(outcome)
        _raise(outcome)


def _killed(outcome: Killed) -> dict[str, Any]:
    """The result of a command during which the session's interpreter died."""
    message = (
        f"killed: the session's interpreter, the parent of every command, ended ({outcome.reason})"
    )
    return {"code": 137, "out": "", "err": _encoded(message), "over": False}


def _raise(outcome: Any) -> NoReturn:
    error = outcome.error
    name, message = (error.type, error.message) if error is not None else ("", "")
    if isinstance(outcome, TimedOut):
        raise TimeoutError(f"the session took over {_REQUEST_TIMEOUT:.0f} s for a request")
    if isinstance(outcome, Killed):
        raise OSError(f"the session's interpreter ended amid the request ({outcome.reason})")
    if name == "OSError" and message.startswith(_READ_ONLY):
        raise PermissionError(message)
    if name in _ERRORS:
        raise _ERRORS[name](message)
    raise SandboxUnavailableError(f"{type(outcome).__name__}: {name}: {message}")


def _timeout(stopped: dict[str, Any]) -> TimeoutError:
    """The error of a command that was stopped; Inspect reads the output from the attribute."""
    error = TimeoutError("the command has used up its time")
    setattr(error, "truncated_output", "".join(_texts(stopped)) or None)  # noqa: B010 (no field of it)
    return error


def _texts(ended: dict[str, Any]) -> list[str]:
    return [base64.b64decode(ended[name]).decode("utf-8", "replace") for name in ("out", "err")]


def _config(value: SandboxEnvironmentConfigType | None) -> REPLSandboxConfig:
    if value is None or isinstance(value, REPLSandboxConfig):
        return value or REPLSandboxConfig()
    raise ValueError(f"the sandbox repl-env takes a REPLSandboxConfig, not {value!r}")


@cache
def _commands() -> str:
    return session_code("inspect_commands.py")


def _encoded(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
