"""The environment of a session: ours or a custom one, admitted, and its metadata and tasks."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel

from repl_env.common.threads import capture_error, capture_error_async, check_carried
from repl_env.env.environment import REPLEnvironment
from repl_env.errors import NotReset
from repl_env.interfaces import EnvironmentMetadata
from repl_env.models import REPLAction, REPLObservation
from repl_sandbox.errors import SandboxError
from repl_sandbox.session.core import MAX_CODE
from repl_sandbox.session.files_api import AsyncSessionFiles

from .contexts import TenantUploads
from .protocol import (
    FollowUpArguments,
    REPLResetArguments,
    ResetArguments,
    request_error_of,
    safe_message,
    server_fault,
    validate,
    validation_error,
)
from .settings import Settings
from .subcalls import SessionSubcalls, llm_of
from .tenants import RequestError

# `AdmissionControl`: bounds the open sessions and the queue of clients that wait for one.


class AdmissionControl:
    """Up to `max_open` open sessions, and `waiting` queued clients, each for `wait_s` seconds."""

    def __init__(self, max_open: int, waiting: int, wait_s: float) -> None:
        self.max_open = max_open
        self.open = 0
        self.max_waiting = waiting
        self._wait_s = wait_s
        self._queue: deque[asyncio.Future[None]] = deque()
        self._closed: RequestError | None = None

    @property
    def free(self) -> int:
        """Sessions that could be opened now."""
        return self.max_open - self.open

    @property
    def waiting(self) -> int:
        """Number of queued clients."""
        return len(self._queue)

    async def acquire(self) -> None:
        """Reserve capacity for a session, waiting in the queue if there is none.

        Raises:
            RequestError: CAPACITY_REACHED, the queue is full or the wait timed out; DRAINING.
        """
        if self._closed is not None or self.free > 0:
            self.acquire_now()
            return
        if len(self._queue) >= self.max_waiting:
            raise self._capacity_error()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except TimeoutError:
            self._abandon(turn)
            raise self._capacity_error() from None
        except BaseException:
            self._abandon(turn)
            raise

    def acquire_now(self) -> None:
        """Reserve capacity for a session, or raise instead of waiting."""
        if self._closed is not None:
            raise RequestError(self._closed.code, self._closed.message)
        if self.free <= 0:
            raise self._capacity_error()
        self.open += 1

    def release(self) -> None:
        """Return the capacity of a session to the first client in the queue."""
        self.open -= 1
        self._admit_next()

    def resize(self, max_open: int, waiting: int) -> None:
        """Change both limits. Clients in the queue stay there, even above the new limit."""
        self.max_open, self.max_waiting = max_open, waiting
        self._admit_next()

    def _admit_next(self) -> None:
        while self._queue and self.free > 0:
            turn = self._queue.popleft()
            if not turn.done():
                self.open += 1
                turn.set_result(None)

    def close(self, refusal: RequestError) -> None:
        """Admit no more sessions; queued clients get `refusal`."""
        self._closed = refusal
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_exception(RequestError(refusal.code, refusal.message))

    def _abandon(self, turn: asyncio.Future[None]) -> None:
        """Leave the queue, or return capacity that was assigned in the meantime."""
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self.release()
        elif turn in self._queue:
            self._queue.remove(turn)

    def _capacity_error(self) -> RequestError:
        return RequestError(
            "CAPACITY_REACHED",
            f"all {self.max_open} sessions are in use",
            active_sessions=self.open,
            max_sessions=self.max_open,
        )


# `DedicatedThread`: a daemon thread that runs calls one after another.
#
# The interpreter waits at exit for threads of `concurrent.futures`: a hanging call of a custom
# environment would keep a server from stopping.

T = TypeVar("T")

_Job: TypeAlias = Callable[[], None]


class DedicatedThread:
    """A daemon thread, started by the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._begun = False

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Queue a call, with errors as in `repl_env.common.threads.capture_error`.

        Cancelling the future does not stop a call that has started.
        """
        result: Future[T] = Future()
        self._jobs.put(partial(_run, work, result))
        if not self._begun:
            self._begun = True
            threading.Thread(
                target=_serve, args=(self._jobs,), name=self._name, daemon=True
            ).start()
        return asyncio.wrap_future(result)

    def end(self) -> None:
        """End the thread after the queued calls, without waiting for it."""
        self._jobs.put(None)


def _run(work: Callable[[], Any], result: Future[Any]) -> None:
    if result.set_running_or_notify_cancel():
        try:
            found = capture_error(work)
        # Boundary: the caller gets every error of the call.
        except BaseException as error:  # noqa: BLE001
            result.set_exception(error)
        else:
            result.set_result(found)


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # a job refers to its result


# `EnvironmentAdapter`: the interface of a session to its environment.


class EnvironmentAdapter(Protocol):
    """One environment, called by one caller at a time.

    Methods raise `RequestError`, errors of `repl_env.errors`, and errors of the environment.
    """

    @property
    def scored(self) -> bool:
        """True if the current episode has an expected answer."""

    async def reset(self, data: ResetArguments | dict[str, Any]) -> Any:
        """Start an episode with the arguments in `data`; returns the first observation."""

    async def step(
        self, action: Any, timeout_s: float | None, on_output: Callable[[str, str], None] | None
    ) -> Any:
        """Perform an action; returns its observation."""

    async def state(self) -> BaseModel:
        """The state of the current episode."""

    async def variables(self) -> list[str]:
        """Names of the variables in the session."""

    async def follow_up(self, arguments: FollowUpArguments) -> Any:
        """Start another episode in the same session."""

    async def draft(self) -> Any:
        """The current draft of the answer, as JSON."""

    async def rollback(self, cells: int) -> Sequence[str]:
        """Undo the last cells; returns what could not be restored."""

    async def branch(self, seed: int | None) -> EnvironmentAdapter:
        """Copy the environment; both go on independently."""

    @property
    def files(self) -> AsyncSessionFiles:
        """The files of the current episode's session."""

    async def interrupt(self) -> bool:
        """Interrupt the running step; False if the environment does not support that."""

    @property
    def cpu_seconds(self) -> float | None:
        """CPU time of all processes of the current episode; None if unknown."""

    async def cut_off(self) -> None:
        """Kill the session under the running step, if supported; `close` follows."""

    async def close(self) -> None:
        """Release the environment's resources. Idempotent."""


def unsupported(name: str) -> RequestError:
    """The error for a request that the environment does not support."""
    return RequestError("UNKNOWN_TYPE", f"this environment does not support {name!r}")


# `CustomAdapter`: environments built on `repl_env.interfaces` or OpenEnv's base class.
#
# An environment with asynchronous methods of its own runs on the event loop. Any other runs in
# the thread that created it, because a blocking call would block the event loop for all sessions.


class CustomAdapter:
    """A custom environment, and the thread that created it."""

    def __init__(self, environment: Any, thread: DedicatedThread, uploads: TenantUploads) -> None:
        self.environment = environment
        self._uploads = uploads
        self._thread = thread
        self._running: asyncio.Future[Any] | None = None  # a call in the thread
        self._closed = False

    @property
    def scored(self) -> bool:
        """False: unknown for a custom environment."""
        return False

    async def reset(self, data: ResetArguments | dict[str, Any]) -> Any:
        """As `EnvironmentAdapter.reset`; unknown arguments are dropped, as in OpenEnv."""
        arguments: ResetArguments = validate(ResetArguments, data, ("data",))
        data = await self._uploads.decode_arguments(arguments.given())
        return _sound(await self._call("reset", given=data))

    async def step(
        self, action: Any, timeout_s: float | None, on_output: Callable[[str, str], None] | None
    ) -> Any:
        """As `EnvironmentAdapter.step`."""
        more = {} if timeout_s is None else {"timeout_s": timeout_s}
        return _sound(await self._call("step", action, given=more))

    async def state(self) -> BaseModel:
        """As `EnvironmentAdapter.state`."""
        looking: Callable[[], BaseModel] = partial(getattr, self.environment, "state")
        bound = getattr(self.environment, "REQUIRES_SINGLE_THREAD_EXECUTOR", False)
        if bound or not _is_asynchronous(type(self.environment), "step"):
            return await self._in_thread(looking)
        return capture_error(looking)

    async def variables(self) -> list[str]:
        """Unsupported."""
        raise unsupported("variables")

    async def follow_up(self, arguments: FollowUpArguments) -> Any:
        """Unsupported."""
        raise unsupported("follow_up")

    async def draft(self) -> Any:
        """Unsupported."""
        raise unsupported("draft")

    async def rollback(self, cells: int) -> Sequence[str]:
        """Unsupported."""
        raise unsupported("rollback")

    async def branch(self, seed: int | None) -> EnvironmentAdapter:
        """Unsupported."""
        raise unsupported("branch")

    @property
    def files(self) -> NoReturn:
        """Unsupported."""
        raise unsupported("files")

    async def interrupt(self) -> bool:
        """As `EnvironmentAdapter.interrupt`: a coroutine can be cancelled, a thread cannot."""
        return _is_asynchronous(type(self.environment), "step")

    @property
    def cpu_seconds(self) -> float | None:
        """None: unknown for a custom environment."""
        return None

    async def cut_off(self) -> None:
        """Does nothing: a thread cannot be killed."""

    async def close(self) -> None:
        """As `EnvironmentAdapter.close`; waits for a call in the thread, which cannot be killed."""
        if not self._closed:
            self._closed = True
            try:
                if self._running is not None:
                    await asyncio.wait([self._running])
                await self._call("close")
            finally:
                self._thread.end()

    async def _call(self, name: str, *args: Any, given: Mapping[str, Any] | None = None) -> Any:
        """Call a method or its asynchronous variant, with those of `given` that it accepts."""
        awaited = _is_asynchronous(type(self.environment), name)
        method = getattr(self.environment, f"{name}_async" if awaited else name)
        calling = partial(method, *args, **(_known(method, given) if given else {}))
        if awaited:
            return await capture_error_async(calling())
        return await self._in_thread(calling)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        running = self._running = self._thread.run(work)
        # A cancelled caller leaves the thread at work; `close` waits for it.
        return await asyncio.shield(running)


def _is_asynchronous(kind: type, name: str) -> bool:
    """Return whether `name_async` is overridden, and no base's wrapper of the blocking method."""
    for each in kind.__mro__:
        if f"{name}_async" in vars(each):
            return True
        if name in vars(each):
            return False
    return False


def _known(method: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(method).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}


def _sound(observation: Any) -> Any:
    if observation.reward is not None and not math.isfinite(observation.reward):
        raise ValueError(f"the reward must be finite, not {observation.reward}")
    return observation


# `EnvironmentFactory`: creates custom environments, within the number that they declare.
#
# A class declares whether several of its environments can exist at once. For a function, the
# first environment that it returns declares it.

_ATTRIBUTE = "SUPPORTS_CONCURRENT_SESSIONS"


class EnvironmentFactory:
    """Creates environments with `factory`, on a server with these settings.

    Attributes:
        exclusive: the process can have only one environment at a time; None before the first one
            has declared it.
        admission: admits one session at a time while `exclusive` is not False.
    """

    def __init__(self, factory: Callable[[], Any], settings: Settings) -> None:
        self._factory = factory
        self._settings = settings
        self.exclusive = _is_exclusive_factory(factory)
        max_open, waiting = settings.max_sessions, settings.max_waiting
        if self.exclusive is None:
            # Sessions that a non-exclusive factory would admit at once must be able to queue, too.
            waiting += max_open - 1
        self.admission = AdmissionControl(
            max_open if self.exclusive is False else 1, waiting, settings.wait_s
        )

    async def make(self) -> tuple[Any, DedicatedThread]:
        """Create an environment, and the thread it belongs to.

        Raises:
            Exception: any error of the factory; TypeError, it returned no environment.
        """
        thread = DedicatedThread("repl-environment")
        making = thread.run(self._factory)
        try:
            environment = await asyncio.shield(making)
            _check(environment)
        except asyncio.CancelledError:
            # The thread goes on; its environment must be closed before the capacity is released.
            await asyncio.wait([asyncio.ensure_future(_discarded(making, thread))])
            raise
        except BaseException:
            thread.end()
            raise
        self._learn(environment)
        return environment, thread

    async def make_or_refuse(self) -> tuple[Any, DedicatedThread]:
        """As `make`, but raises RequestError FACTORY_ERROR."""
        try:
            return await self.make()
        # Boundary: only the operator, in the log, sees the error of a factory.
        except Exception as error:  # noqa: BLE001
            raise factory_error(error) from None

    @asynccontextmanager
    async def briefly(self, *, always_admitted: bool) -> AsyncIterator[tuple[Any, DedicatedThread]]:
        """Provide an environment for a question that needs no session; it is closed afterwards.

        The admission of sessions counts an exclusive environment, and any other one unless it is
        `always_admitted`.

        Raises:
            RequestError: FACTORY_ERROR; CAPACITY_REACHED or DRAINING, it was not admitted.
        """
        async with AsyncExitStack() as undo:
            if self.exclusive is not False or not always_admitted:
                await self.admission.acquire()
                undo.callback(self.admission.release)
            environment, thread = await self.make_or_refuse()
            undo.callback(thread.end)
            undo.push_async_callback(thread.run, environment.close)
            yield environment, thread

    def _learn(self, environment: Any) -> None:
        if self.exclusive is None:
            self.exclusive = _is_exclusive(environment)
            max_open = 1 if self.exclusive else self._settings.max_sessions
            self.admission.resize(max_open, self._settings.max_waiting)


def _check(environment: Any) -> None:
    lacks = [
        name
        for name in ("reset", "step", "close")
        if not (hasattr(environment, name) or hasattr(environment, f"{name}_async"))
    ]
    if lacks:
        kind = type(environment).__name__
        raise TypeError(
            f"the factory returned a {kind}, which is not an environment:"
            f" it lacks {', '.join(lacks)}"
        )


def factory_error(error: Exception) -> RequestError:
    """The error for a factory that failed."""
    return server_fault("FACTORY_ERROR", "the environment could not be created", error)


def _is_exclusive_factory(factory: Callable[[], Any]) -> bool | None:
    while isinstance(factory, partial):
        factory = factory.func
    known = isinstance(factory, type) or hasattr(factory, _ATTRIBUTE)
    return _is_exclusive(factory) if known else None


def _is_exclusive(environment: Any) -> bool:
    return not getattr(environment, _ATTRIBUTE, True)


async def _discarded(making: asyncio.Future[Any], thread: DedicatedThread) -> None:
    # Its request was cancelled, so its errors have no recipient.
    with suppress(Exception):
        await thread.run((await making).close)
    thread.end()


# `MetadataCache`: the metadata of a server's environments.


class MetadataCache:
    """Creates one environment, reads its metadata for all clients, and closes the environment."""

    def __init__(self, factory: EnvironmentFactory) -> None:
        self._factory = factory
        self._pending: asyncio.Task[EnvironmentMetadata] | None = None

    async def metadata(self) -> EnvironmentMetadata:
        """The metadata.

        Raises:
            RequestError: FACTORY_ERROR; EXECUTION_ERROR, the environment raised; CAPACITY_REACHED
                or DRAINING, an exclusive environment is in use.
        """
        pending = self._pending
        if pending is None or (pending.done() and _failed(pending)):
            pending = self._pending = asyncio.create_task(self._fetch())
        return await asyncio.shield(pending)

    async def _fetch(self) -> EnvironmentMetadata:
        async with self._factory.briefly(always_admitted=True) as (environment, thread):
            try:
                found = await thread.run(environment.get_metadata)
                return EnvironmentMetadata(**found.model_dump())
            # Boundary: any error of a custom environment becomes the error of the request.
            except Exception as error:  # noqa: BLE001
                message = (
                    f"the environment's metadata: {type(error).__name__}: {safe_message(error)}"
                )
                raise server_fault("EXECUTION_ERROR", message, error) from None


def _failed(pending: asyncio.Task[Any]) -> bool:
    return pending.cancelled() or pending.exception() is not None


# The tasks that an environment lists: OpenEnv's `TaskProvider`, called for the HTTP routes.


async def found_tasks(
    environment: Any, thread: DedicatedThread, method: str, arguments: Sequence[Any]
) -> Any:
    """Return what `method` of the environment returns; it may be asynchronous.

    Raises:
        RequestError: NOT_SUPPORTED, the environment has no such method; UNKNOWN_TASK; otherwise
            EXECUTION_ERROR.
    """
    function = getattr(environment, method, None)
    if not callable(function):
        raise tasks_unsupported(method)
    try:
        found = await thread.run(partial(function, *arguments))
        return await found if inspect.isawaitable(found) else found
    except NotImplementedError:
        raise tasks_unsupported(method) from None
    except (LookupError, ValueError) as error:
        raise RequestError("UNKNOWN_TASK", safe_message(error)) from None
    # Boundary: any other error of a custom environment becomes the error of the request.
    except Exception as error:  # noqa: BLE001
        message = f"{method}: {type(error).__name__}: {safe_message(error)}"
        raise server_fault("EXECUTION_ERROR", message, error) from None


def tasks_unsupported(method: str) -> RequestError:
    """The error for an environment without tasks."""
    return RequestError("NOT_SUPPORTED", f"this environment lists no tasks: it has no {method}()")


# `REPLAdapter`: serves the episodes of a `REPLEnvironment`.

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
