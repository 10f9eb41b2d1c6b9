"""Errors as they come out of another process: a pool hands them on as pickles."""

import copy
import pickle

import pytest

from repl_env import errors
from repl_env.models import StepResult
from repl_env.rlm.model import ModelUsage
from repl_sandbox import HostCallError, IsolationError

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
