"""Threads and loops: work that blocking calls wait for, and functions of users off the loop."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import inspect
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

# `BackgroundLoop`: an event loop in a thread, for work that blocking calls wait for.
#
# All blocking calls of one kind share a loop, so that connections and sandboxes stay open between
# calls, and so that a blocking call works inside a running loop, as in notebooks. The loop starts
# with the first call and ends with the process.

T = TypeVar("T")

# Seconds that work has to end after Ctrl-C, or at the exit of the process.
_END_TIMEOUT = 5.0
# Seconds between two checks of a waiting thread. Python's signal handlers run between bytecode
# instructions: a signal that arrives just before a wait does not interrupt the wait, and Ctrl-C
# would be noticed only when the work has ended.
_POLL_S = 1.0


class BackgroundLoop:
    """The loop of this process for one kind of work; a forked process starts its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        self._ends_at_exit = False

    def end_at_exit(self) -> None:
        """End at the exit of the process, after everything that registers for its exit from now
        on.
        """
        if not self._ends_at_exit:
            self._ends_at_exit = True
            atexit.register(self._end)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on the loop and return its result; Ctrl-C cancels it and waits for its
        end.

        Raises:
            RuntimeError: the caller runs on the loop itself, which would wait for itself; or the
                process is exiting and the loop has ended.
        """
        work: _Work[T] = _Work(coroutine)
        try:
            self._submit(work)
            return work.result()
        except BaseException as error:  # Ctrl-C may arrive anywhere, and the work may have begun
            self._leave(work, error)
            raise

    def finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine that ends a `with` block, and wait for it; inside a loop, use a thread.

        That loop stands still while a blocking `with` ends, so objects that belong to the loop
        cannot end meanwhile; they end when the loop continues.
        """
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            self.wait_for(coroutine)
            return
        task = here.create_task(coroutine)
        _ENDING.add(task)
        task.add_done_callback(_ENDING.discard)

    def wait_with_callback(
        self,
        start: Callable[[Callable[..., Awaitable[None]]], Coroutine[Any, Any, T]],
        callback: Callable[..., object],
    ) -> T:
        """Return the result of `start(tell)`, and call `callback` in this thread for each `send`.

        `await tell(...)` returns after `callback` has returned, so that a fast sender cannot fill
        the memory. An exception of `callback` cancels the coroutine.
        """
        messages: SimpleQueue[tuple[tuple[Any, ...], Future[None]] | None] = SimpleQueue()

        async def send(*arguments: Any) -> None:
            handled: Future[None] = Future()
            messages.put((arguments, handled))
            await asyncio.wrap_future(handled)

        work: _Work[T] = _Work(start(send))
        work.outcome.add_done_callback(lambda _: messages.put(None))
        try:
            self._submit(work)
            while (each := _next_of(messages)) is not None:
                arguments, handled = each
                callback(*arguments)
                if handled.set_running_or_notify_cancel():
                    handled.set_result(None)
            return work.outcome.result()
        except BaseException as error:
            self._leave(work, error)
            raise

    def _submit(self, work: _Work[Any]) -> None:
        loop = self._of_process()
        if threading.current_thread() is loop.thread:
            work.coroutine.close()
            raise RuntimeError("a plain call would wait for itself here; await the other form")
        if loop.loop.is_closed():
            work.coroutine.close()
            raise RuntimeError("the process is about to end: there are no plain calls any more")
        loop.submit(work)

    def _leave(self, work: _Work[Any], error: BaseException) -> None:
        """Cancel `work`; after Ctrl-C, which may end the process, wait for its end.

        Work closes sessions in threads, and an exiting process starts no threads.
        """
        work.outcome.cancel()
        if isinstance(error, KeyboardInterrupt) and self._loop is not None:
            self._loop.wait_for_end(work)

    def _of_process(self) -> _Loop:
        loop = self._loop
        if loop is not None and loop.process == os.getpid():
            return loop
        if loop is not None:
            self._loop, self._lock = None, threading.Lock()
        with self._lock:
            if self._loop is None:
                self.end_at_exit()
                self._loop = _Loop(self._name)
            return self._loop

    def _end(self) -> None:
        if self._loop is not None:
            self._loop.end()


class _Work(Generic[T]):
    """A coroutine on a loop with its outcome; `task` is set once it has begun."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.coroutine = coroutine
        self.outcome: Future[T] = Future()
        self.task: asyncio.Task[T] | None = None

    def result(self) -> T:
        """Wait for the outcome."""
        # `outcome.result(timeout)` would not do: a TimeoutError may come from the work or from a
        # handler.
        over: SimpleQueue[None] = SimpleQueue()
        self.outcome.add_done_callback(lambda _: over.put(None))
        _next_of(over)
        return self.outcome.result()


def _next_of(queue: SimpleQueue[T]) -> T:
    """Wait for the next item of the queue."""
    while True:
        try:
            return queue.get(timeout=_POLL_S)
        except Empty:
            pass


class _Loop:
    """A loop and its thread."""

    def __init__(self, name: str) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self.thread.start()

    def submit(self, work: _Work[Any]) -> None:
        """Start `work` on the loop, in the context of the caller; `outcome` receives its result.

        Cancelling `outcome` cancels the coroutine, even before it has begun.
        """
        context = contextvars.copy_context()

        def start() -> None:
            work.task = self.loop.create_task(work.coroutine, context=context)
            asyncio.futures._chain_future(work.task, work.outcome)  # type: ignore[attr-defined]

        self.loop.call_soon_threadsafe(start)

    def wait_for_end(self, work: _Work[Any]) -> None:
        """Wait until the cancelled `work` has ended, for a limited time."""
        work_ended = threading.Event()

        def look() -> None:  # queued after the start of the work
            if work.task is None:
                work_ended.set()
            else:
                work.task.add_done_callback(lambda _: work_ended.set())

        if self.process == os.getpid() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(look)
            work_ended.wait(_END_TIMEOUT)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while True:
                try:
                    self.loop.run_forever()
                except (KeyboardInterrupt, SystemExit):
                    continue  # a task's exception belongs to its caller; other tasks go on
                break
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=_END_TIMEOUT))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def end(self) -> None:
        """Cancel all open work and stop."""
        if self.process == os.getpid() and self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(2 * _END_TIMEOUT)


# Ends blocking `with` blocks on loops of callers; a loop itself keeps no reference to its tasks.
_ENDING: set[asyncio.Task[None]] = set()

# Runs of models and their sub-calls.
RUNS = BackgroundLoop("repl-runs")
# Clients of servers. Separate from runs: a tool that a run calls may use a client.
CLIENTS = BackgroundLoop("repl-clients")


# `FairQueue`: a first-come, first-served queue of coroutines from any event loops and threads.
#
# Nobody overtakes, so that large requests do not starve behind small ones: released resources go
# to the first waiter, not to the fastest.

RequestT = TypeVar("RequestT")
GrantT = TypeVar("GrantT")


class _Waiter(Generic[RequestT, GrantT]):
    """A waiter in its own loop."""

    def __init__(self, request: RequestT) -> None:
        self.request = request
        self.grant: GrantT | None = None
        self.loop = asyncio.get_running_loop()
        self.woken: asyncio.Future[None] = self.loop.create_future()

    def wake(self) -> bool:
        """Wake the waiter; False if its loop is closed, so that it never wakes."""
        try:
            self.loop.call_soon_threadsafe(_wake, self.woken)
        except RuntimeError:
            return False
        return True


class FairQueue(Generic[RequestT, GrantT]):
    """A queue of requests for a limited resource.

    Args:
        lock: guards the grants. It must be reentrant: the garbage collector may end a forgotten
            coroutine, which returns its grant, in a thread that holds the lock.
        serve: returns the grant of a request now, or None if it must wait. Called with the lock
            held.
        release: undoes `serve` for a waiter that is gone before it could use its grant. Likewise.
    """

    def __init__(
        self,
        lock: AbstractContextManager[bool],
        serve: Callable[[RequestT], GrantT | None],
        release: Callable[[GrantT], None],
    ) -> None:
        self._lock = lock
        self._serve = serve
        self._release = release
        self._waiters: OrderedDict[_Waiter[RequestT, GrantT], None] = OrderedDict()
        self._serving = self._serve_again = False

    def __len__(self) -> int:
        return len(self._waiters)

    async def get(self, request: RequestT) -> GrantT:
        """Return the grant of `request` once it is its turn. A cancelled caller holds nothing."""
        with self._lock:
            if not self._waiters and (grant := self._serve(request)) is not None:
                return grant
            waiter: _Waiter[RequestT, GrantT] = _Waiter(request)
            self._waiters[waiter] = None
        try:
            await waiter.woken
        except BaseException:  # cancelled, or dropped by a closed loop (GeneratorExit)
            self._remove(waiter)
            raise
        assert waiter.grant is not None
        return waiter.grant

    def serve_waiting(self) -> None:
        """Serve waiters from the front while possible. Called with the lock held, after a
        change.
        """
        self._serve_again = True
        # entered by the garbage collector during a move: the outer move goes round again
        if self._serving:
            return
        self._serving = True
        try:
            while self._serve_again:
                self._serve_again = False
                while self._waiters and self._serve_first():
                    pass
        finally:
            self._serving = False

    def dismiss(self, matches: Callable[[RequestT], bool], grant: Callable[[], GrantT]) -> None:
        """Give each of these waiters `grant`, at any position. Called with the lock held."""
        for waiter in [waiter for waiter in tuple(self._waiters) if matches(waiter.request)]:
            self._give(waiter, grant())
        self.serve_waiting()

    def _serve_first(self) -> bool:
        waiter = next(iter(self._waiters))
        grant = self._serve(waiter.request)
        if grant is None:
            return False
        self._give(waiter, grant)
        return True

    def _give(self, waiter: _Waiter[RequestT, GrantT], grant: GrantT) -> None:
        self._waiters.pop(waiter, None)
        waiter.grant = grant
        if not waiter.wake():
            waiter.grant = None
            self._release(grant)

    def _remove(self, waiter: _Waiter[RequestT, GrantT]) -> None:
        with self._lock:
            self._waiters.pop(waiter, None)
            grant, waiter.grant = waiter.grant, None
            if grant is not None:
                self._release(grant)
            self.serve_waiting()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


# `ThreadPool`: threads that start when work arrives and none is idle.
#
# `capture_error` makes exceptions of a thread safe for an event loop, `capture_error_async` those
# of a task.


def capture_error(work: Callable[[], T]) -> T:
    """Return or raise the outcome of `work()`; exceptions that would harm the waiter become
    RuntimeError.

    An asyncio future cannot carry StopIteration, and up to CPython 3.11 the waiter would never
    wake. An
    exception that is not an `Exception` would do worse: `sys.exit` would end the event loop, and a
    CancelledError would claim that somebody cancelled.
    """
    try:
        return work()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise RuntimeError(_error_text(error)) from error


async def capture_error_async(work: Awaitable[T]) -> T:
    """`capture_error` for an awaitable. Cancellation of this task is not an error of `work`."""
    try:
        return await work
    except BaseException as error:
        check_carried(error)
        raise


def check_carried(error: BaseException) -> None:
    """Raise the replacement of `error`, if `capture_error_async` would replace it."""
    if not (isinstance(error, (Exception, GeneratorExit)) or _is_cancelled(error)):
        raise RuntimeError(_error_text(error)) from error


def _is_cancelled(error: BaseException) -> bool:
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and bool(task and task.cancelling())


def _error_text(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{text}, raised by a function that others wait for"


class ThreadPool:
    """Up to a maximum of threads, whose names begin with `name`. A fork has its own."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._of: dict[int, ThreadPoolExecutor] = {}  # by process: a fork inherits no threads

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` in a thread; if all are busy, after the work that was submitted before."""
        return self.threads().submit(capture_error, work)

    def threads(self) -> Executor:
        """The threads of this process."""
        pool = self._of.get(os.getpid())
        if pool is None:
            new_pool = ThreadPoolExecutor(self._max_threads, thread_name_prefix=self._name)
            pool = self._of.setdefault(os.getpid(), new_pool)
        return pool

    def end(self) -> None:
        """Wait until the threads of this process are idle, and end them; new ones start on
        demand.
        """
        pool = self._of.pop(os.getpid(), None)
        if pool is not None:
            pool.shutdown()


# Threads for blocking functions of users, one for each open call.
#
# A function may start a run and wait for calls of that run: with fewer threads than open calls,
# parents could hold all threads and wait forever. Callers limit the number of open calls.


class DaemonThreads:
    """Up to a maximum of daemon threads, whose names begin with `name`. A fork has its own.

    The process exits without waiting for these threads. It would wait for those of a
    `ThreadPoolExecutor`, so that Ctrl-C in a blocking call would take effect only after the call.
    The threads never end, so they suit objects that live as long as the process. The engine's
    `HostThreads` are similar but closable, and this module may not import the engine.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` in a thread; if all are busy, after the work that was submitted before."""
        future: Future[T] = Future()
        with self._changed:
            # Start the thread first: if no thread can start, no other thread should find the work.
            if len(self._waiting) >= self._idle and self._count < self._max_threads:
                name = f"{self._name}_{self._count}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._count += 1
                self._idle += 1  # busy until it takes its first work
            self._waiting.append(partial(_do, work, future))
            self._changed.notify()
        return future

    def _begin_anew(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._count = 0
        self._idle = 0

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                work = self._waiting.popleft()
                self._idle -= 1
            work()
            del work  # drop references while idle
            with self._changed:
                self._idle += 1


_threads: Final = DaemonThreads(1 << 14, "repl-function")


def start_in_thread(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Start `function(*arguments)` in a thread with the caller's context; return its future."""
    context = contextvars.copy_context()
    return _threads.submit(lambda: context.run(function, *arguments))


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run `function(*arguments)` in a thread with this task's context and return its result."""
    return await asyncio.wrap_future(start_in_thread(function, *arguments))


def _do(work: Callable[[], T], future: Future[T]) -> None:
    """Run `work` for `future`, unless the future was cancelled meanwhile."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = capture_error(work)
    # Boundary: `capture_error` turns any exception into an `Exception` for the waiting caller.
    except Exception as error:  # noqa: BLE001
        future.set_exception(error)
    else:
        future.set_result(result)


# Internal work of unknown length: on the event loop if it is short, else in a thread.
#
# A schema and the value that it checks may come from strangers, and the event loop serves others
# too. Such work watches the clock: on a loop it stops after `AT_ONCE_S` and starts again in a
# thread. The threads are few, because they share one interpreter with the loop; most work never
# needs one.
#
# Functions of users, such as rubrics, do not watch the clock and may wait: see `run_in_thread`.

# CPU seconds on a loop: many times the cost of a common answer, and less than the switch interval
# of the interpreter, which a loop has to wait for in any case.
AT_ONCE_S = 0.005
# Values, and characters of text, that take less than that.
_MAX_VALUES, _MAX_CHARACTERS = 2_000, 200_000

_aside_threads: Final = DaemonThreads(2, "repl-aside")
_until: ContextVar[float | None] = ContextVar("_until", default=None)


class OffloadRequired(Exception):
    """Raised by work that is too long for the event loop; the caller repeats it in a thread."""


class BlockingCall(partial[T]):
    """A blocking call of a user's function, requested by an effect: drivers of loops use a
    thread.
    """


class Offload(partial[T]):
    """Repeatable internal work without side effects, requested by an effect."""


async def offload(work: Callable[[], T]) -> T:
    """Return the result of `work()`, which has no side effects and restarts in a thread if it is
    long.

    A cancelled caller still waits until the thread is done, so that nobody can occupy several
    threads by cancelling.
    """
    token = _until.set(time.thread_time() + AT_ONCE_S)
    try:
        return work()
    except OffloadRequired:
        pass
    finally:
        _until.reset(token)
    return await _to_its_end(_aside_threads.submit(work))


async def run_in_thread(work: Callable[[], T]) -> T:
    """Return the result of a user's `work()`, called in a thread with this context.

    A cancelled caller waits as in `offload`: the state that the work uses belongs to it meanwhile.
    """
    return await _to_its_end(start_in_thread(work))


async def _to_its_end(doing: Future[T]) -> T:
    try:
        return await asyncio.shield(asyncio.wrap_future(doing))
    except asyncio.CancelledError:
        if not doing.cancel():
            await _end(doing)
        raise


async def _end(doing: Future[Any]) -> None:
    future = asyncio.wrap_future(doing)
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue  # cancelled again; the caller of `offload` gets the cancellation at the end
    future.exception()


def check_deadline(*, long: bool = False) -> None:
    """Check the clock; called by such work at intervals, and before a step that is `long`.

    Raises:
        OffloadRequired: the work has to run in a thread.
    """
    until = _until.get()
    if until is not None and (long or time.thread_time() > until):
        raise OffloadRequired


def check_size(value: Any) -> None:
    """Check the size of the JSON `value` before a traversal; raises as `check_deadline`."""
    if _until.get() is not None and _is_large(value):
        raise OffloadRequired


def _is_large(value: Any) -> bool:
    waiting, values_left, characters_left = [value], _MAX_VALUES, _MAX_CHARACTERS
    while waiting:
        each = waiting.pop()
        values_left -= 1
        if isinstance(each, str):
            characters_left -= len(each)
        elif isinstance(each, dict):
            values_left -= len(each)
            if values_left > 0:
                waiting += (*each.keys(), *each.values())
        elif isinstance(each, (list, tuple)) and len(each) < values_left:
            waiting += each
        elif isinstance(each, (list, tuple)):
            return True
        if values_left <= 0 or characters_left <= 0:
            return True
    return False


# Functions of users, plain or async: accepted arguments, and calls.


def accepts(function: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether the signature of `function` accepts `arguments`; False without a signature."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def check_takes(function: Callable[..., Any], what: str, name: str) -> None:
    """Raise TypeError if neither `(what)` nor `(what, model)` fits; functions without a signature
    pass.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    if not any(accepts(function, *arguments) for arguments in ((None,), (None, None))):
        raise TypeError(f"{name} must take ({what}) or ({what}, model), not {signature}")


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether `function(...)` returns a coroutine."""
    call = getattr(function, "__call__", function)  # noqa: B004 (its kind, not whether it is)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def call_user_function(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `function(*arguments)`; a plain function runs in a thread, as it may
    block.

    The thread is not one of the loop's executor: a loop waits for those before it ends.
    """
    if is_async(function):
        return await _awaited(function(*arguments))
    answer = await in_thread(function, *arguments)
    return await _awaited(answer) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Awaitable[Any]) -> Any:
    """Await `answer`. A `sys.exit` inside must not end the loop that others share."""
    try:
        return await answer
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}, raised by a function of the user's") from error
