"""Effects: the work of one call on an environment, written once for blocking and async drivers.

An effect generator yields functions without arguments, which the driver calls outside, and receives
their results. `run_blocking` calls them directly; `run_async` also awaits them. The blocking driver
uses no event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from time import perf_counter
from types import CoroutineType
from typing import Any, Generic, TypeAlias, TypeVar

from repl_env.common.threads import BlockingCall, Offload, offload, run_in_thread
from repl_env.episode.answers import NO_ANSWER, Verdict
from repl_env.episode.contexts import Context
from repl_env.episode.rules import Episode, EpisodeConfig
from repl_env.episode.sandboxes import SandboxProvider
from repl_env.models import REPLObservation
from repl_sandbox.errors import (
    SandboxClosed,
    SandboxError,
    SessionBusy,
    SessionClosed,
    SessionDamaged,
)
from repl_sandbox.session.batch import SessionBatch
from repl_sandbox.types import AnyOutcome

T = TypeVar("T")
Effects: TypeAlias = Generator[Callable[[], Any], Any, T]


def run_blocking(effects: Effects[T]) -> T:
    """Perform all effects of the generator and return its result."""
    try:
        request = next(effects)
        while True:
            try:
                reply = request()
            # Any exception belongs to the generator, which handles or reraises it.
            except BaseException as error:  # noqa: BLE001
                request = effects.throw(error)
            else:
                request = effects.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_async(effects: Effects[T]) -> T:
    """Perform all effects; await awaitables and offloaded work."""
    try:
        request = next(effects)
        while True:
            try:
                if isinstance(request, Offload):
                    reply = offload(request)
                else:
                    reply = (
                        run_in_thread(request) if isinstance(request, BlockingCall) else request()
                    )
                if type(reply) is CoroutineType or inspect.isawaitable(reply):
                    reply = await reply
            except BaseException as error:  # noqa: BLE001 - as above; cancellation too
                request = effects.throw(error)
            else:
                request = effects.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


# Effects of an episode on its session: opening it, running code, reading the answer.
#
# Errors of the engine pass unchanged.

# Called with "stdout" or "stderr" and a piece of text.
OnOutput: TypeAlias = Callable[[str, str], None]


# Seconds for an empty cell in a new session, on a node that works.
_NODE_SECONDS = 10.0


class CellEffect(partial[Any]):
    """The effect of running a cell: `session.run` with its arguments.

    Its own class lets the batch driver recognise effects that can run concurrently.
    """

    def parts(self) -> tuple[Any, str, float | None]:
        """Return the session, the code, and the time limit in seconds."""
        run: Any = self.func
        return run.__self__, self.args[0], self.keywords["timeout"]


def make_session(
    sandbox_provider: SandboxProvider, operation: Callable[[Any], Any], *, plain: bool
) -> Effects[Any]:
    """Make a session with `operation` on the sandbox of `sandbox_provider`."""
    return (
        yield partial(sandbox_provider.make if plain else sandbox_provider.make_async, operation)
    )


def start_session(
    sandbox_provider: SandboxProvider, *, plain: bool, config: EpisodeConfig, **arguments: Any
) -> Effects[Any]:
    """Start the session of an episode with this configuration, with its context and files."""
    session = yield from make_session(
        sandbox_provider, lambda sandbox: sandbox.session(**arguments), plain=plain
    )
    try:
        yield from load_context(session, config.context)
        yield from put_files(session, config.files)
    except BaseException:
        yield session.close
        raise
    return session


def lost_by_code(
    sandbox_provider: SandboxProvider, error: SandboxError, *, plain: bool
) -> Effects[bool]:
    """Return whether the code of a session is to blame for `error`, which made it unusable.

    The host looks at itself: a new session on the same sandbox runs a cell, so the node works.
    """
    if isinstance(error, (SandboxClosed, SessionClosed)):
        return False  # ended from outside
    if isinstance(error, SessionDamaged):
        return True
    try:
        session = yield from make_session(
            sandbox_provider, lambda sandbox: sandbox.session(), plain=plain
        )
    except (SandboxError, OSError):
        return False
    try:
        outcome = yield partial(session.run, "None", timeout=_NODE_SECONDS)
    except SandboxError:
        return False
    finally:
        yield session.close
    works: bool = outcome.ok
    return works


def branch_session(session: Any, **arguments: Any) -> Effects[Any]:
    """Make a branch of a session, with these arguments."""
    return (yield partial(session.branch, **arguments))


def roll_back(session: Any, episode: Episode, cells: int) -> Effects[tuple[str, ...]]:
    """Undo the last `cells` cells of a session; return what could not be restored.

    Raises:
        SandboxError: no snapshot of that state exists.
        ValueError: so many cells cannot be undone.
    """
    try:
        lost: tuple[str, ...] = yield partial(session.rollback, cells)
    except SandboxError:
        # A snapshot that ended as it was activated leaves an empty session.
        yield from _know_names(session, episode)
        raise
    yield from _know_names(session, episode)
    return lost


def _know_names(session: Any, episode: Episode) -> Effects[None]:
    """Read the names in the session, and load the context if it is missing."""
    found = yield session.variables
    context_names = {part.name for part in episode.config.context.parts}
    if context_names - {variable.name for variable in found}:
        yield from load_context(session, episode.config.context)
        found = yield session.variables
    episode.reset_names(found)


def load_context(session: Any, context: Context) -> Effects[None]:
    """Load the context into a session, except for the parts that its sandbox already holds."""
    already_set = {} if context.sandbox_provider is None else context.sandbox_provider.shared
    for part in context.parts:
        if part.name not in already_set:
            yield partial(session.set, part.name, part.value)


def put_files(session: Any, files: dict[str, bytes]) -> Effects[None]:
    """Put an episode's files into the workspace.

    Raises:
        OSError: there is no space for a file; names its path.
    """
    if files:
        yield partial(session.files.put_all, files)


def run_cell(
    session: Any,
    episode: Episode,
    code: str,
    timeout: float | None,
    on_output: OnOutput | None = None,
    counts: bool = True,
    on_outcome: Callable[[AnyOutcome], Effects[None]] | None = None,
) -> Effects[REPLObservation]:
    """Run one cell of the episode; `on_output` receives its output as it is printed.

    `counts`: whether the cell counts as a step, and is not a further cell of one. `on_outcome`:
    effects of the outcome, before it is observed.
    """
    streaming = {} if on_output is None else {"on_output": on_output}
    try:
        outcome = yield CellEffect(session.run, code, timeout=timeout, **streaming)
    except (TypeError, ValueError, SandboxError):
        raise  # refused, or the end of the session: the session counted nothing
    except BaseException:
        episode.cell_cancelled()
        raise
    if on_outcome is not None:
        yield from on_outcome(outcome)
    verdict = (
        (yield from judge_answer(episode, outcome))
        if episode.answer_sheet.has_offers
        else NO_ANSWER
    )
    if outcome.state == "restarted":
        # The policy may lose its own variables, but not the context.
        yield from load_context(session, episode.config.context)
    observation = episode.cell_observation(outcome, verdict, counts=counts)
    if not episode.names_are_known:
        episode.reset_names((yield session.variables))
        observation.available_variables = list(episode.names)
    return observation


def judge_answer(episode: Episode, outcome: AnyOutcome) -> Effects[Verdict]:
    """Judge the answers of a cell that has ended."""
    try:
        verdict: Verdict = yield Offload(episode.answer_sheet.verdict, outcome.stdout)
    except BaseException as error:
        episode.cell_cancelled()
        if isinstance(error, Exception):  # a fault of the caller's validator would repeat itself
            episode.answer_sheet.clear()
        raise
    return verdict


def give_up(
    session: Any, episode: Episode, observation: REPLObservation, used_up: str | None = None
) -> Effects[REPLObservation]:
    """End the episode without an answer; the content of the answer dict counts if it is valid."""
    draft = yield from read_content(session)
    answer = None
    if draft not in (None, "", [], {}):
        answer = yield Offload(episode.judge_answer, draft)
    return episode.give_up(observation, answer, used_up)


def read_content(session: Any) -> Effects[Any]:
    """Return `answer["content"]` of the session at the end of an episode, or None."""
    try:
        return (yield from read_draft(session))
    except SessionBusy:
        return None  # the episode ends here in any case


def read_draft(session: Any) -> Effects[Any]:
    """Return the present `answer["content"]`, or None; SessionBusy while a cell runs."""
    try:
        answer = yield partial(session.get, "answer", as_answer=True)
    except SessionBusy:
        raise
    except (KeyError, TypeError, ValueError, SandboxError):
        # The policy deleted the dict, stored an invalid value, or made it a trap, which must not
        # keep an episode from being scored.
        return None
    return answer.get("content") if isinstance(answer, dict) else None


# The batch driver: effects of many environments, performed concurrently by one thread.
#
# Cells of blocking sessions run as one batch of the engine. Other effects run one after another,
# until one takes long enough to be a wait; the rest then goes to threads.

# Seconds. A handover to a thread and back costs a tenth of this.
_WAIT_S = 0.001


def run_batch(
    effects: Sequence[Effects[T]], batch: SessionBatch, threads: Callable[[], Executor]
) -> list[T | Exception]:
    """Return the result of each generator, or the error that ended it.

    `threads` supplies threads.
    """
    return _RunningBatch(effects, batch, threads).run()


class _RunningBatch(Generic[T]):
    """Running generators with their pending effects."""

    def __init__(
        self, effects: Sequence[Effects[T]], batch: SessionBatch, threads: Callable[[], Executor]
    ) -> None:
        self._effects = effects
        self._batch = batch
        self._threads = threads
        self._requests: dict[int, Callable[[], Any]] = {}
        self._ended: dict[int, T | Exception] = {}

    def run(self) -> list[T | Exception]:
        try:
            for index in range(len(self._effects)):
                self._resume(index, None)
            while self._requests:
                requests = list(self._requests.items())
                self._run([(i, each) for i, each in requests if isinstance(each, CellEffect)])
                self._do([(i, each) for i, each in requests if not isinstance(each, CellEffect)])
        except BaseException as error:
            # Ctrl-C: each generator receives it and cleans up, including one whose effect was not
            # recorded.
            for index, generator in enumerate(self._effects):
                if index not in self._ended:
                    self._abandon(generator, error)
            raise
        return [self._ended[index] for index in range(len(self._effects))]

    def _resume(self, index: int, reply: Any) -> None:
        generator = self._effects[index]
        self._requests.pop(index, None)
        try:
            failed = isinstance(reply, Exception)
            self._requests[index] = generator.throw(reply) if failed else generator.send(reply)
        except StopIteration as end:
            self._ended[index] = end.value
        except Exception as error:  # noqa: BLE001 - one environment's; the others go on
            self._ended[index] = error

    def _run(self, cells: list[tuple[int, CellEffect]]) -> None:
        """Run cells concurrently."""
        replies = self._batch.run([each.parts() for _, each in cells]) if cells else []
        for (index, _), reply in zip(cells, replies, strict=True):
            self._resume(index, reply)

    def _do(self, others: list[tuple[int, Callable[[], Any]]]) -> None:
        """Perform all other effects."""
        for done, (index, request) in enumerate(others, 1):
            start = perf_counter()
            self._resume(index, _attempt(request))
            if perf_counter() - start > _WAIT_S and done < len(others):
                self._do_in_threads(others[done:])
                return

    def _do_in_threads(self, others: list[tuple[int, Callable[[], Any]]]) -> None:
        threads = self._threads()
        futures = {index: threads.submit(_attempt, request) for index, request in others}
        try:
            while futures:
                index = next(iter(futures))
                self._resume(index, futures[index].result())
                del futures[index]
        except BaseException:
            # Work that has begun completes in its generator, which may have a session to close
            # again.
            for index, each in futures.items():
                # otherwise it was delivered already
                if not each.cancel() and index in self._requests:
                    self._resume(index, each.result())
            raise

    def _abandon(self, generator: Effects[T], error: BaseException) -> None:
        with suppress(BaseException):
            request = generator.throw(error)
            while True:
                request = generator.send(_attempt(request))


def _attempt(request: Callable[[], Any]) -> Any:
    try:
        return request()
    except Exception as error:  # noqa: BLE001 - the turn's, which handles it or ends by it
        return error
