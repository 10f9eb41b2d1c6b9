"""Errors as they come out of another process: a pool hands them on as pickles."""

import copy
import pickle

import pytest

from repl_env import LocalREPLEnv, REPLEnv, errors
from repl_env.llm.base import ModelUsage
from repl_env.models import StepResult
from repl_env.rlm import Budget
from repl_sandbox import HostCallError, IsolationError
from tests.server.conftest import serving

RAISED = [
    errors.NotReset(),
    errors.EpisodeDone(StepResult("what was seen", 1.0, True)),
    errors.EpisodeAborted("sandbox", "the session is closed"),
    errors.ModelError("timeout", "no answer", retryable=True, usage=ModelUsage(3, 4)),
    errors.BudgetExceeded("calls", "3 of 3 calls are used up"),
    errors.TooLarge("100 MB", id="a1", details={"limit": 5}),
    errors.ServerUnavailable("refused", retry_after=2.0),
    errors.ReplyTimeout("none in 5 s"),
    errors.SessionLost("gone"),
    IsolationError("jailed", "user namespace", "not permitted", "allow them"),
    HostCallError("ValueError", "no"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy]
)
def test_an_error_is_the_same_in_another_process(error, copied):
    there = copied(error)
    assert type(there) is type(error)
    assert (str(there), vars(there)) == (str(error), vars(error))


ENDS = {
    "iterations": (["1", "2"], r"ended after 2 steps \(max_iterations=2\); pass reset\(max_iter"),
    "answer": (["FINAL(3)"], "ended after 1 step with an answer, and was scored; call reset"),
    "last answer": (["1", "FINAL(3)"], "ended after 2 steps with an answer"),
}


@pytest.mark.parametrize(("codes", "said"), ENDS.values(), ids=ENDS)
def test_an_episode_that_is_over_says_why_and_how_to_go_on(codes, said, sandbox):
    with LocalREPLEnv(sandbox=sandbox) as env:
        env.reset(max_iterations=2)
        for code in codes:
            last = env.execute(code)
        with pytest.raises(errors.EpisodeDone, match=said) as caught:
            env.execute("3")
    assert caught.value.result == last


def test_a_budget_that_is_used_up_is_the_reason(sandbox):
    with LocalREPLEnv(
        sandbox=sandbox, llm_query_fn=lambda prompt: "", budget=Budget(cpu_seconds=1e-6)
    ) as env:
        env.reset()
        env.execute("1")
        with pytest.raises(errors.EpisodeDone, match="after 1 step: its budget is used up"):
            env.execute("2")


def test_a_server_says_the_same():
    with serving() as server, REPLEnv(server.url).sync() as env:
        env.reset(max_iterations=1)
        env.execute("1")
        with pytest.raises(errors.EpisodeDone, match=r"after 1 step \(max_iterations=1\); pass"):
            env.execute("2")


def test_an_observation_of_another_kind_ends_it_too():
    assert "is done" in str(errors.EpisodeDone(StepResult("seen", 1.0, True)))
