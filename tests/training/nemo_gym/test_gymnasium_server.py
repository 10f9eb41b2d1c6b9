"""Servers of NeMo Gym over our episodes, by its documented signatures: it is not installed here."""

import inspect
import sys
from abc import abstractmethod
from types import ModuleType, SimpleNamespace

import pytest
from pydantic import BaseModel, ConfigDict, Field

import repl_env
from tests.training.lost_sessions import lose
from tests.training.replies import code


class GymnasiumServer(BaseModel):
    """The documented base class, without its web server."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    session_state: dict = Field(default_factory=dict)

    async def reset(self, metadata: dict, session_id=None):
        return None, {}

    @abstractmethod
    async def step(self, action, metadata: dict, session_id=None): ...

    async def close_session(self, session_id):
        self.session_state.pop(session_id, None)


def extract_text(response):
    """All text of a response."""
    return "".join(part.text for item in response.output for part in item.content)


def response(text):
    part = SimpleNamespace(type="output_text", text=text)
    return SimpleNamespace(output=[SimpleNamespace(type="message", content=[part])])


@pytest.fixture
def server_class(monkeypatch):
    package, base = (
        ModuleType(f"resources_servers.base_gymnasium{name}") for name in ("", ".base")
    )
    package.GymnasiumServer = base.GymnasiumServer = GymnasiumServer  # type: ignore[attr-defined]
    base.extract_text = extract_text  # type: ignore[attr-defined]
    for module in (ModuleType("resources_servers"), package, base):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    ours = "repl_env.integrations.nemo_gym"
    monkeypatch.delitem(sys.modules, ours, raising=False)
    from repl_env.integrations import nemo_gym

    yield nemo_gym.REPLGymnasiumServer
    sys.modules.pop(ours, None)


ROW = {"verifier_metadata": {"context": "a b c", "expected_answer": 3, "max_iterations": 3}}


async def play(server, replies, session="s", row=ROW):
    """The steps of an episode, as `gymnasium_agent` and the base's endpoint make them."""
    assert await server.reset(row, session) == (None, {})
    steps = []
    for reply in replies:
        steps.append(await server.step(response(reply), row, session))
        if steps[-1][2] or steps[-1][3]:
            await server.close_session(session)
            break
    return steps


async def test_a_rollout_is_an_episode_stepped_by_responses(server_class):
    server = server_class()
    first, last = await play(server, [code("n = len(context.split())\nn"), code("FINAL(n)")])
    assert first == ("3", 0.0, False, False, {"mask": False})
    assert last == (None, 1.0, True, False, {"mask": False})
    steps = await play(server, ["no code"] * 4, row=ROW["verifier_metadata"])
    assert [step[1] for step in steps] == pytest.approx([-0.05, -0.05, -0.15])
    assert steps[-1][0] is None and steps[-1][2:4] == (False, True)
    assert not server.session_state


async def test_rollouts_have_sessions_of_their_own_and_a_lost_one_is_masked(server_class):
    server = server_class()
    await play(server, [code("n = 1")], "one")
    await play(server, [code("n = 2")], "two")
    lose(server.session_state["one"][0].session)
    assert (await server.step(response(code("n")), ROW, "one"))[1:4] == (0.0, False, True)
    assert (await server.step(response(code("n")), ROW, "two"))[0] == "2"
    for session in ("one", "two"):
        await server.close_session(session)


def test_the_signatures_are_those_of_the_base(server_class):
    for name in ("reset", "step", "close_session"):
        ours, theirs = getattr(server_class, name), getattr(GymnasiumServer, name)
        assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters]


def test_the_server_of_openenv_environments_accepts_repl_environment():
    """It makes the class without arguments, resets by a dict, and sums rewards of steps."""
    env = repl_env.REPLEnvironment()
    first = env.reset(context="a b c", task_prompt="How many words?", expected_answer=3)
    total, done = float(first.reward or 0.0), first.done
    for body in ({"code": "n = len(context.split())"}, {"code": "FINAL(n)"}):
        seen = env.step(repl_env.REPLAction(**body))
        assert isinstance(seen.model_dump(), dict)
        total, done = total + float(seen.reward or 0.0), seen.done
    env.close()
    assert (total, done) == (1.0, True)
