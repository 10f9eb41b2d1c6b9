"""The turns of an episode that need its session: opening it, running code, reading the answer.

Errors of the engine leave these turns unchanged.
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
    """The request to run a cell: `session.run` with its arguments.

    Of a class of its own, so that who plays many turns at once knows what can run side by side.
    """

    def taken_apart(self) -> tuple[Any, str, float | None]:
        """The session, the code, and the seconds that it may execute."""
        run: Any = self.func
        return run.__self__, self.args[0], self.keywords["timeout"]


def make_session(
    source: SandboxProvider, make: Callable[[Any], Any], *, plain: bool
) -> Effects[Any]:
    """A session that `make` makes on the sandbox that `source` has."""
    return (yield partial(source.make if plain else source.make_async, make))


def start_session(
    source: SandboxProvider, *, plain: bool, terms: EpisodeConfig, **arguments: Any
) -> Effects[Any]:
    """A session as an episode of these terms begins in: with its context and its files."""
    session = yield from make_session(
        source, lambda sandbox: sandbox.session(**arguments), plain=plain
    )
    try:
        yield from load_context(session, terms.context)
        yield from put_files(session, terms.files)
    except BaseException:
        yield session.close
        raise
    return session


def branch_session(session: Any, **arguments: Any) -> Effects[Any]:
    """A branch of a session, with these arguments."""
    return (yield partial(session.branch, **arguments))


def load_context(session: Any, context: Context) -> Effects[None]:
    """Put the context into a session, but for what its sandbox has already."""
    there = {} if context.source is None else context.source.shared
    for part in context.parts:
        if part.name not in there:
            yield partial(session.set, part.name, part.value)


def put_files(session: Any, files: dict[str, bytes]) -> Effects[None]:
    """Put an episode's files into the workspace.

    Raises:
        OSError: there is no room for one; has its path.
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
    """Run one cell of the episode; `on_output` is told of what it prints, as it prints.

    `counts`: whether it is a step, and not a further cell of one.
    """
    streaming = {} if on_output is None else {"on_output": on_output}
    try:
        outcome = yield CellEffect(session.run, code, timeout=timeout, **streaming)
    except (TypeError, ValueError, SandboxError):
        raise  # refused, or the end of the session: nothing that the session counts
    except BaseException:
        episode.cell_cancelled()
        raise
    verdict = (yield from judge_answer(episode, outcome)) if episode.sheet.told else NO_ANSWER
    if outcome.state == "restarted":
        # The variables were the policy's to lose; what the episode is about was not.
        yield from load_context(session, episode.terms.context)
    observation = episode.ran(outcome, verdict, counts=counts)
    if not episode.names_are_known:
        episode.restart_names((yield session.variables))
        observation.available_variables = list(episode.names)
    return observation


def judge_answer(episode: Episode, outcome: AnyOutcome) -> Effects[Verdict]:
    """What the answers of a cell that has ended came to."""
    try:
        verdict: Verdict = yield Offload(episode.sheet.verdict, outcome.stdout)
    except BaseException as error:
        episode.cell_cancelled()
        if isinstance(error, Exception):  # a fault of the caller's validator would come again
            episode.sheet.clear()
        raise
    return verdict


def give_up(
    session: Any, episode: Episode, observation: REPLObservation, used_up: str | None = None
) -> Effects[REPLObservation]:
    """End the episode without an answer; what the answer dict holds counts if it is any."""
    held = yield from read_content(session)
    weighed = None
    if held not in (None, "", [], {}):
        weighed = yield Offload(episode.weighed, held)
    return episode.give_up(observation, weighed, used_up)


def read_content(session: Any) -> Effects[Any]:
    """What `answer["content"]` holds in the session at the end of an episode, or None."""
    try:
        return (yield from read_draft(session))
    except SessionBusy:
        return None  # the episode ends here in any case


def read_draft(session: Any) -> Effects[Any]:
    """What `answer["content"]` holds so far, or None; SessionBusy while a cell runs."""
    try:
        answer = yield partial(session.get, "answer", as_answer=True)
    except SessionBusy:
        raise
    except (KeyError, TypeError, ValueError, SandboxError):
        # The policy deleted it, put in what no answer may be, or made a trap of it, which may not
        # keep an episode from being scored.
        return None
    return answer.get("content") if isinstance(answer, dict) else None
