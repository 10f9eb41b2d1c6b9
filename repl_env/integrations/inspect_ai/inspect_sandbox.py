"""`REPLSandboxEnvironment`: Inspect's sandbox "repl-env", one session for each sample."""

from __future__ import annotations

import base64
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NoReturn, overload

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
from pydantic import BaseModel, ConfigDict

from repl_env import AsyncLocalREPLEnv, EpisodeAborted, Limits, SandboxError
from repl_env.common.set_module import set_module
from repl_sandbox import TimedOut

# Seconds of a command without a time-out of its own. Inspect limits samples by itself.
_PATIENCE = 24 * 3600.0
# Bytes of a file in one message of a session, which has a limit.
_PIECE = 8 * 1024 * 1024
_ERRORS: dict[str, type[OSError]] = {
    each.__name__: each
    for each in (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, OSError)
}


@set_module("repl_env.integrations.inspect_ai")
class REPLSandboxConfig(BaseModel):
    """The sessions of samples; see `LocalREPLEnv` and `Limits`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    isolation: str = "auto"
    require: str | None = None
    memory: str = "1GiB"
    processes: int = 256
    workspace: str = "1GiB"


@set_module("repl_env.integrations.inspect_ai")
@sandboxenv(name="repl-env")
class REPLSandboxEnvironment(SandboxEnvironment):
    """Commands and files in a session, which no container engine is needed for.

    The file view is that of every session: this system's programs, read only, and a working
    directory of the sample's own. There is no network, and one user.
    """

    def __init__(self, episode: AsyncLocalREPLEnv) -> None:
        super().__init__()
        self._episode = episode

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        """A session for a sample."""
        sandbox_config = _config(config)
        limits = Limits(
            memory=sandbox_config.memory,
            processes=sandbox_config.processes,
            workspace=sandbox_config.workspace,
            file_size=sandbox_config.workspace,
            output="64MiB",
            timeout=_PATIENCE,
        )
        episode = AsyncLocalREPLEnv(
            isolation=sandbox_config.isolation, require=sandbox_config.require, limits=limits
        )
        await episode.reset()
        return {"default": cls(episode)}

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
            await environment.as_type(REPLSandboxEnvironment)._episode.close()

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
        """Run a command; see `SandboxEnvironment.exec`."""
        if user is not None:
            raise SandboxUserUnsupportedError(f"a session has one user, and no {user!r}")
        try:
            ran = await self._ask(
                timeout,
                operation="run",
                cmd=cmd,
                stdin=_encoded(input or b""),
                cwd=cwd,
                env=env or {},
            )
        except FileNotFoundError as error:
            return ExecResult(False, 127, "", f"{cmd[0]}: {error}")
        out, err = base64.b64decode(ran["out"]), base64.b64decode(ran["err"])
        max_bytes = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        for stream in (out, err):
            if len(stream) > max_bytes:
                output = stream[-max_bytes:].decode("utf-8", "replace")
                raise OutputLimitExceededError(
                    SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, output
                )
        texts = [stream.decode("utf-8", "replace") for stream in (out, err)]
        return ExecResult(ran["code"] == 0, ran["code"], *texts)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file; folders are made for it."""
        data = contents.encode() if isinstance(contents, str) else contents
        for begin in range(0, max(len(data), 1), _PIECE):
            piece = _encoded(data[begin : begin + _PIECE])
            await self._ask(None, operation="write", path=file, data=piece, begin=begin == 0)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file, as text of UTF-8 unless `text` is False."""
        data, ended = b"", False
        while not ended:
            offset = len(data)
            read = await self._ask(None, operation="read", path=file, offset=offset, most=_PIECE)
            if read["size"] > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
                raise OutputLimitExceededError(limit, None)
            piece = base64.b64decode(read["data"])
            data, ended = data + piece, len(piece) < _PIECE
        return data.decode() if text else data

    async def _ask(self, timeout: float | None, **request: Any) -> Any:
        """The result of a request that the session carries out.

        Raises:
            TimeoutError, OSError: as the request does.
            SandboxUnavailableError: the session is lost.
        """
        try:
            session = self._episode.session
            await session.set("request", request)
            outcome = await session.run(_commands(), timeout=timeout or _PATIENCE)
            if outcome.ok:
                return await session.get("result")
        except (EpisodeAborted, SandboxError) as error:
            raise SandboxUnavailableError(str(error)) from error
        _raise(outcome)


def _raise(outcome: Any) -> NoReturn:
    error = outcome.error
    name, message = (error.type, error.message) if error is not None else ("", "")
    if isinstance(outcome, TimedOut):
        raise TimeoutError("the command has used up its time")
    if name in _ERRORS:
        raise _ERRORS[name](message)
    raise SandboxUnavailableError(f"{type(outcome).__name__}: {name}: {message}")


def _config(value: SandboxEnvironmentConfigType | None) -> REPLSandboxConfig:
    if value is None or isinstance(value, REPLSandboxConfig):
        return value or REPLSandboxConfig()
    raise ValueError(f"the sandbox repl-env takes a REPLSandboxConfig, not {value!r}")


@cache
def _commands() -> str:
    inside = files("repl_env.integrations.inspect_ai").joinpath("session_code", "commands.py")
    return inside.read_text(encoding="utf-8")


def _encoded(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
