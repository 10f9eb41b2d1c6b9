"""`REPLReplyEnv`, by the documented signatures of rLLM, which is not installed here."""

import inspect
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType

import pytest

from tests.training.lost_sessions import lose
from tests.training.replies import code
from tests.training.trainer_internals import environments_of


class BaseEnv(ABC):
    """The documented base class: what is abstract there, and what has a default."""

    def __init__(self):
        self.idx = None

    @abstractmethod
    def reset(self): ...

    @abstractmethod
    def step(self, action): ...

    def close(self):
        return None

    @staticmethod
    @abstractmethod
    def from_dict(info): ...

    @staticmethod
    def is_multithread_safe():
        return True


@dataclass
class Action:
    action: str


@pytest.fixture
def env_class(monkeypatch):
    for name in ("rllm", "rllm.environments", "rllm.environments.base"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    base = ModuleType("rllm.environments.base.base_env")
    base.BaseEnv = BaseEnv  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.delitem(sys.modules, "repl_env.integrations.rllm", raising=False)
    from repl_env.integrations import rllm

    yield rllm.REPLReplyEnv
    sys.modules.pop("repl_env.integrations.rllm", None)


ROW = {"question": "How many words?", "context": "a b c", "ground_truth": "3", "max_turns": 3}


def test_a_row_is_an_episode_stepped_by_replies(env_class):
    env = env_class.from_dict({**ROW, "env_arguments": {"isolation": "auto"}})
    assert env.reset() == ({"question": "How many words?"}, {})
    seen, reward, done, info = env.step(Action(code("n = len(context.split())\nn")))
    assert (seen, reward, done) == ({"observation": "3"}, 0.0, False)
    _, reward, done, info = env.step(code("FINAL(n)"))
    facts = info.pop("episode")
    assert (reward, done, info) == (1.0, True, {"mask": False, "truncated": False})
    assert (facts["answer"], facts["steps"], facts["error_kinds"]) == ("3", 2, [None, None])
    assert env.reset()[0] == {"question": "How many words?"}  # again
    assert "NameError" in env.step(code("n"))[0]["observation"]
    env.close()


def test_a_lost_session_is_masked(env_class):
    env = env_class(ROW)
    env.reset()
    lose(environments_of(env)[0].session)
    _, reward, done, info = env.step(code("FINAL(3)"))
    assert (reward, done, info["mask"]) == (0.0, True, True)
    env.close()


def test_the_signatures_are_those_of_the_base(env_class):
    for name in ("reset", "step", "close", "is_multithread_safe"):
        ours, theirs = (inspect.signature(getattr(each, name)) for each in (env_class, BaseEnv))
        assert list(ours.parameters) == list(theirs.parameters)
    assert env_class(ROW).idx is None and env_class.is_multithread_safe()
