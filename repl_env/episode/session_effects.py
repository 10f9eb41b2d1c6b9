"""Effects of an episode on its session: opening it, running code, reading the answer.

Errors of the engine pass unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from repl_env.concurrency.offload import Offload
from repl_env.episode.answers import NO_ANSWER, Verdict
from repl_env.episode.contexts import Context
from repl_env.episode.effects import Effects
from repl_env.episode.rules import Episode, EpisodeConfig
from repl_env.episode.sandbox_provider import SandboxProvider
from repl_env.models import REPLObservation
from repl_sandbox.errors import SandboxError, SessionBusy
from repl_sandbox.types import AnyOutcome

# Called with "stdout" or "stderr" and a piece of text.
OnOutput: TypeAlias = Callable[[str, str], None]


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
) -> Effects[REPLObservation]:
    """Run one cell of the episode; `on_output` receives its output as it is printed.

    `counts`: whether the cell counts as a step, and is not a further cell of one.
    """
    streaming = {} if on_output is None else {"on_output": on_output}
    try:
        outcome = yield CellEffect(session.run, code, timeout=timeout, **streaming)
    except (TypeError, ValueError, SandboxError):
        raise  # refused, or the end of the session: the session counted nothing
    except BaseException:
        episode.cell_cancelled()
        raise
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
