"""`REPLAdapter`: serves the episodes of a `REPLEnvironment`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel

from repl_env.concurrency.thread_pool import capture_error_async, check_carried
from repl_env.env.environment import REPLEnvironment
from repl_env.errors import NotReset
from repl_env.models import REPLAction, REPLObservation
from repl_sandbox.errors import SandboxError
from repl_sandbox.session.files.async_session_files import AsyncSessionFiles
from repl_sandbox.session.session_operations import MAX_CODE

from ...protocol.error_mapping import request_error_of, safe_message
from ...protocol.request_error import RequestError
from ...protocol.request_models import FollowUpArguments, REPLResetArguments, ResetArguments
from ...protocol.validation import validate, validation_error
from ...settings import Settings
from ...subcalls.model_endpoints import llm_of
from ...subcalls.session_subcalls import SessionSubcalls
from ...uploads.tenant_uploads import TenantUploads

# A code of so many characters may exceed MAX_CODE bytes.
_LONG = MAX_CODE // 4
_TOO_LONG = f"must be at most {MAX_CODE:,} bytes; put data into a context, or upload it"


class REPLAdapter:
    """A `REPLEnvironment`. `calls` answers sub-calls; None: the environment's own provider."""

    def __init__(
        self,
        environment: REPLEnvironment,
        settings: Settings,
        uploads: TenantUploads,
        calls: SessionSubcalls | None = None,
    ) -> None:
        self._environment = environment
        self._settings = settings
        self._calls = calls
        self._uploads = uploads
        if calls is not None:
            environment.use_subcall_provider(calls)

    @property
    def scored(self) -> bool:
        """As `EnvironmentAdapter.scored`."""
        return self._environment.scored

    async def reset(self, data: ResetArguments | dict[str, Any]) -> REPLObservation:
        """As `EnvironmentAdapter.reset`."""
        arguments: REPLResetArguments = validate(REPLResetArguments, data, ("data",))
        given = arguments.given()
        named = {name: given.pop(name) for name in _OF_LLM & given.keys()}
        llm = llm_of(self._settings, **named)
        try:
            given["llm"] = llm if llm.answers else None
            return await capture_error_async(self._uploads.reset(self._environment, given))
        except (TypeError, ValueError) as error:
            raise _misfit(error) from None
        except OSError as error:
            raise _not_written(error) from None
        finally:
            self._settle()

    async def step(
        self,
        action: REPLAction,
        timeout_s: float | None,
        on_output: Callable[[str, str], None] | None,
    ) -> REPLObservation:
        """As `EnvironmentAdapter.step`."""
        if len(action.code) > _LONG and len(action.code.encode(errors="replace")) > MAX_CODE:
            raise validation_error("code", _TOO_LONG)
        try:
            return await self._environment.step_async(action, timeout_s, on_output=on_output)
        # Like `capture_error_async`, without a coroutine of its own.
        except BaseException as error:
            check_carried(error)
            raise

    async def state(self) -> BaseModel:
        """As `EnvironmentAdapter.state`."""
        return self._environment.state

    async def variables(self) -> list[str]:
        """As `EnvironmentAdapter.variables`."""
        return self._environment.variables

    async def follow_up(self, arguments: FollowUpArguments) -> REPLObservation:
        """As `EnvironmentAdapter.follow_up`."""
        try:
            following = self._environment.follow_up_async(
                arguments.task_prompt,
                max_iterations=arguments.max_iterations,
                expected_answer=arguments.expected_answer,
                answer_schema=arguments.answer_schema,
                variables=arguments.variables,
            )
            return await capture_error_async(following)
        except (TypeError, ValueError) as error:
            raise _misfit(error) from None

    async def draft(self) -> Any:
        """As `EnvironmentAdapter.draft`."""
        return await self._environment.draft_async()

    async def rollback(self, cells: int) -> Sequence[str]:
        """As `EnvironmentAdapter.rollback`."""
        try:
            return await self._environment.rollback_async(cells)
        except (SandboxError, ValueError) as error:
            raise RequestError("EXECUTION_ERROR", f"no rollback: {safe_message(error)}") from None

    async def branch(self, seed: int | None) -> REPLAdapter:
        """As `EnvironmentAdapter.branch`."""
        try:
            other = await self._environment.branch_async(seed=seed)
        except (SandboxError, ValueError) as error:
            raise RequestError("EXECUTION_ERROR", f"no branch: {safe_message(error)}") from None
        calls = None if self._calls is None else self._calls.branch()
        return REPLAdapter(other, self._settings, self._uploads, calls)

    @property
    def files(self) -> AsyncSessionFiles:
        """As `EnvironmentAdapter.files`."""
        files: AsyncSessionFiles = self._environment.files
        return files

    async def interrupt(self) -> bool:
        """As `EnvironmentAdapter.interrupt`: raises KeyboardInterrupt in the cell."""
        try:
            await self._environment.session.interrupt()
        except (NotReset, SandboxError):
            pass  # nothing is running
        return True

    @property
    def cpu_seconds(self) -> float | None:
        """As `EnvironmentAdapter.cpu_seconds`."""
        try:
            return float(self._environment.session.cpu_seconds)
        except (NotReset, SandboxError):
            return None

    async def cut_off(self) -> None:
        """As `EnvironmentAdapter.cut_off`."""
        await self.close()

    async def close(self) -> None:
        """As `EnvironmentAdapter.close`."""
        try:
            await self._environment.close_async()
        finally:
            self._settle()

    def _settle(self) -> None:
        if self._calls is not None:
            self._calls.settle()


# Arguments that select the model for sub-calls. Secret: never in an error, a log or a state.
_OF_LLM = frozenset({"llm", "hf_token", "llm_model"})


def _misfit(error: Exception) -> RequestError:
    place, _, rest = str(error).partition(" ")
    name = place.rstrip(":")
    known = name.partition(".")[0] in {
        *REPLResetArguments.model_fields,
        *FollowUpArguments.model_fields,
    }
    return validation_error(f"data.{name}", rest) if known else validation_error("data", str(error))


def _not_written(error: OSError) -> RequestError:
    """A client sees errors about its own workspace files; the operator sees others in the log."""
    name = error.filename
    if isinstance(name, str) and not name.startswith("/"):
        return validation_error("data.files", f"{name!r}: {error.strerror}")
    return request_error_of(error)
