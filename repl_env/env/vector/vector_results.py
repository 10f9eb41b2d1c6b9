"""The results of the environments of a `REPLVectorEnv`."""

from __future__ import annotations

from dataclasses import replace

from repl_env.env.local_env import Result
from repl_env.episode.observations import message_result
from repl_env.errors import EpisodeAborted, EpisodeDone, NotReset
from repl_env.models import REPLObservation, result_of


def last_of(previous: Result, outcome: REPLObservation | BaseException) -> Result | None:
    """Return the last result of an environment whose step returned `end`; None for an error."""
    match outcome:
        case REPLObservation():
            return result_of(outcome)
        case EpisodeDone():
            return outcome.result  # the episode may not have recorded its end: scoring failed
        case EpisodeAborted():
            return _lost(previous, outcome)
        case NotReset() if previous.done:
            return previous
        case _:
            return None


def unrewarded(last: Result) -> Result:
    """Return `last` again without a reward: nothing is scored twice."""
    observation = last.observation.model_copy(update={"reward": 0.0})
    return replace(last, reward=0.0, observation=observation)


def _lost(last: Result, error: EpisodeAborted) -> Result:
    """Return the final result of an episode whose session is gone."""
    previous = last.observation
    metadata = {
        **previous.metadata,
        "error_kind": error.kind,
        "mask": True,
        "reward_components": {},
        "task_reward": 0.0,
        "stop_reason": "aborted",
        "ended": "truncated",
    }
    result = message_result("", f"{error}\nThe session is lost; the next reset begins a new one.")
    update = {"result": result, "done": True, "reward": 0.0, "metadata": metadata}
    return result_of(previous.model_copy(update=update))
