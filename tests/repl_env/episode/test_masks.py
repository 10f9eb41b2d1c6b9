"""Every row of the table of masks in docs/rewards.md, and neighbours of its rows.

A policy that could mask its episodes would learn that. So code in a session must not be able to,
and each case here does what its row says: the tests ask the endpoint, or the kernel, whether it
took place.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from repl_env import LLM, LocalREPLEnv
from repl_env.errors import EpisodeAborted, ModelError
from repl_env.rlm import Budget, answerers
from repl_sandbox import Limits, Sandbox
from repl_sandbox.errors import SandboxError
from repl_sandbox.host.watchdog import Watchdog
from tests.internals import session_links, worker_pid
from tests.repl_env.llm.endpoint import Cut, Hang, Reply, Status
from tests.security.cgroups.cgroup_folders import FILL, FOUND
from tests.waiting import PATIENCE, eventually

PAGE = Path(__file__).parents[3] / "docs" / "rewards.md"
# The clock of host calls, where a case uses it up.
SHORT = 1.5
TRY = "try: {}\nexcept Exception: pass"
ASK = TRY.format("llm_query('x')")


def rows() -> dict[str, tuple[str, bool]]:
    """The table of the page: the kind and the mask of each cause."""
    section = PAGE.read_text().partition("## Masks\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.+?) \| (.+?) \| (yes|no) \|$", section, re.MULTILINE)
    return {cause: (kind.strip("`"), masked == "yes") for cause, kind, masked in cells}


class World:
    """What a case needs: environments, endpoints, patches."""

    def __init__(self, sandbox: Sandbox, endpoint: Callable[..., Any], monkeypatch: Any) -> None:
        self.sandbox, self.endpoint, self.monkeypatch = sandbox, endpoint, monkeypatch
        self.opened: list[Any] = []

    def env(self, *, limits: Limits | None = None, **arguments: Any) -> LocalREPLEnv:
        """A new environment with an episode; with these limits in a sandbox of its own."""
        sandbox = self.sandbox
        if limits is not None:
            sandbox = Sandbox(limits=limits)
            self.opened.insert(0, sandbox)
        reset = {"llm": arguments.pop("llm", None), "expected_answer": "right"}
        env = LocalREPLEnv(sandbox=sandbox, **arguments)
        self.opened.insert(0, env)
        env.reset(**reset)
        return env

    def at(self, answers: Any, *, base_url: str | None = None, **arguments: Any) -> LocalREPLEnv:
        """An environment whose sub-calls an endpoint answers so; `served` is the endpoint."""
        self.served = self.endpoint(answers)
        url = self.served.base_url if base_url is None else base_url
        return self.env(llm=LLM("m", base_url=url), **arguments)

    def close(self) -> None:
        for each in self.opened:
            each.close()


@pytest.fixture
def world(
    sandbox: Sandbox, endpoint: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    found = World(sandbox, endpoint, monkeypatch)
    yield found
    found.close()


# ── the rows ─────────────────────────────────────────────────────────────────────────────────────


def refused_request(world: World) -> Any:
    def answer(asked):
        return Status(400, "maximum context length") if len(asked.prompt) > 1000 else "yes"

    step = world.at(answer).execute(TRY.format("llm_query('x' * 5000)"))
    assert len(world.served.requests) == 1
    return step


def named_model(world: World) -> Any:
    def answer(asked):
        return "yes" if asked.body["model"] == "m" else Status(404, "no such model")

    step = world.at(answer).execute(TRY.format("llm_query('x', model='none')"))
    assert [each.body["model"] for each in world.served.requests] == ["none", "m"]
    return step


def no_text(world: World) -> Any:
    env = world.at(lambda asked: "no json" if "schema" in asked.prompt else Reply(None))
    env.execute("a = llm_query('x')")
    return env.execute("b = llm_query('x', schema={'type': 'integer'})\nassert not (a or b.ok)")


def batch_too_large(world: World) -> Any:
    def batch(prompts):
        if len(prompts) > 100:
            raise RuntimeError("at most 100 prompts")
        return prompts

    env = world.env(llm_batch_fn=batch)
    return env.execute("assert not any(a.ok for a in llm_query_batched(['x'] * 200))")


def fails_once(world: World) -> Any:
    answers = iter([Status(401), "yes", Status(401), "yes"])
    env = world.at(lambda asked: next(answers))
    env.execute("assert not llm_query('x').ok and llm_query('x').ok")
    assert len(world.served.requests) == 2
    step = env.execute("assert not llm_query('x').ok")
    assert len(world.served.requests) == 4  # the host's own
    return step


def flood(world: World) -> Any:
    env = world.env(llm_query_fn=failing(ModelError("server", "status 503: overloaded")))
    return env.execute("assert not any(llm_query('x').ok for _ in range(61))")


def rate_limit_of_own(world: World) -> Any:
    env = world.env(llm_query_fn=failing(ModelError("rate_limit", "status 429")))
    return env.execute("assert not any(llm_query('x').ok for _ in range(9))")


def own_timeout(world: World) -> Any:
    env = world.at(lambda asked: Hang() if asked.prompt == "x" else "yes")
    return env.execute("assert 'TimeoutError' in llm_query('x', timeout=0.05).error")


def number_of_calls(world: World) -> Any:
    env = world.env(llm_query_fn=str.upper, limits=Limits(timeout=PATIENCE, host_timeout=SHORT))
    code = "import time\nwhile True:\n  try: llm_query('x' * 99)\n  except BaseException: pass"
    slow = threading.Event()
    env.llm_query_fn = lambda prompt: str(slow.wait(0.05))
    return env.execute(code)


def size_of_call(world: World) -> Any:
    env = world.at(
        lambda asked: Hang() if len(asked.prompt) > 1000 else "yes",
        limits=Limits(timeout=PATIENCE, host_timeout=SHORT),
    )
    step = env.execute(TRY.format("llm_query('x' * 5000)"))
    assert len(world.served.requests) == 2
    return step


def slow_tool(world: World) -> Any:
    never = threading.Event()
    limits = Limits(timeout=PATIENCE, host_timeout=SHORT)
    env = world.env(tools={"wait": lambda: never.wait(PATIENCE)}, limits=limits)
    step = env.execute("wait()")
    never.set()
    return step


def raising_tool(world: World) -> Any:
    return world.env(tools={"look": failing(ConnectionError("no route"))}).execute("look()")


def over_budget(world: World) -> Any:
    env = world.env(llm_query_fn=str.upper, budget=Budget(calls=1))
    env.execute("llm_query('x')")
    return env.execute("llm_query('x')")


def child_breaks(world: World) -> Any:
    def model(asked):
        return "```repl\nimport os\nos.kill(os.getpid(), 9)\n```" if asked.body else ""

    env = world.at(model, rlm_max_depth=2, rlm_max_iterations=2)
    return env.execute("reply = rlm_query('x')")


def ends_worker(world: World) -> Any:
    return world.env().execute("import os\nos._exit(1)")


def thread_ends_worker(world: World) -> Any:
    env = world.env()
    env.execute("import os, threading\ngo = threading.Event()\ny = 1")
    worker = psutil.Process(worker_pid(env.session))
    env.execute("threading.Thread(target=lambda: (go.wait(), os._exit(1))).start()")
    env.execute("threading.Timer(0.05, go.set).start()")
    eventually(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    step = env.execute("1 / 0")
    assert "Not brought back: thread" in step.observation.result.stderr
    return step


def too_much_memory(world: World) -> Any:
    return world.env().execute("x = bytearray(4 * 2**30)")


def damaged_recovery(world: World) -> Any:
    """The helper processes of the session are stopped, as an attack on init does."""
    env = world.env()
    env.execute("x = 1")
    init = session_links(env.session).pid
    os.kill(init, signal.SIGSTOP)
    step = env.execute("import os\nos._exit(1)")
    assert step.done and step.metadata["stop_reason"] == "crash" and step.truncated
    return step


def refused_connections(world: World) -> Any:
    env = world.at("yes")
    world.served.close()
    return env.execute(ASK)


def server_errors(world: World) -> Any:
    return world.at(Status(503, "no upstream", headers={"retry-after": "0"})).execute(ASK)


def unauthorized(world: World) -> Any:
    for status in (401, 403):
        assert world.at(Status(status)).execute(ASK).metadata["mask"]
    return world.at(Status(404)).execute(ASK)


def rate_limit(world: World) -> Any:
    return world.at(Status(429, headers={"retry-after": "0"})).execute(ASK)


def half_answers(world: World) -> Any:
    return world.at(Cut()).execute(ASK)


def never_answers(world: World) -> Any:
    world.monkeypatch.setattr(answerers, "PROBE_SECONDS", SHORT)
    env = world.at(Hang(), limits=Limits(timeout=PATIENCE, host_timeout=SHORT))
    return env.execute("llm_query('x')")


def machine_without_memory(world: World) -> Any:
    """The group around the session is full, and the session far below its limit."""
    if not hasattr(FOUND, "folders"):
        pytest.skip(f"no groups can be made here: {FOUND}")
    world.monkeypatch.setattr(Watchdog, "add", lambda self, core: None)
    env = world.env(limits=Limits(memory="2GiB", timeout=PATIENCE))
    group = session_links(env.session).group
    around = Path(group.folders[0]).parent
    name = {1: "memory.limit_in_bytes", 2: "memory.max"}[group.version]
    used = {1: "memory.usage_in_bytes", 2: "memory.current"}[group.version]
    limit = int((around / used).read_text()) + (128 << 20)
    (around / name).write_text(str(limit))
    return env.execute(f"{FILL}block = fill(512)")


def node_fails(world: World) -> Any:
    env = world.env()
    env.execute("x = 1")
    os.kill(session_links(env.session).pid, signal.SIGSTOP)

    def session(self, *_: Any, **__: Any) -> None:
        raise SandboxError("the zygote did not answer")

    world.monkeypatch.setattr(Sandbox, "session", session)
    with pytest.raises(EpisodeAborted) as aborted:
        env.execute("import os\nos._exit(1)")
    return aborted.value


def ended_from_outside(world: World) -> Any:
    env = world.env()
    env.session.close()
    with pytest.raises(EpisodeAborted) as aborted:
        env.execute("1")
    return aborted.value


def cancelled(world: World) -> Any:
    env = world.env()
    with pytest.raises(KeyboardInterrupt):
        env.execute("print('x')", on_output=failing(KeyboardInterrupt()))
    return env.execute("1")


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


CASES: dict[str, Callable[[World], Any]] = {
    "the endpoint refuses a request: 400, 413, 422, too long a context, a content filter": (
        refused_request
    ),
    "the code names a model that the endpoint does not have": named_model,
    "an answer is empty, or does not fit the code's `schema`": no_text,
    "a function for sub-calls refuses its arguments, such as too large a batch": batch_too_large,
    "a call fails, a later one or the host's own succeeds": fails_once,
    "5xx while the session makes over 60 calls in a minute": flood,
    "a rate limit while the session makes more calls in a minute than `max_concurrent_subcalls`": (
        rate_limit_of_own
    ),
    "a call takes longer than the `timeout` of the code's own": own_timeout,
    "the number of calls uses up the clock of host calls": number_of_calls,
    "the size of a call uses up the clock of host calls": size_of_call,
    "a tool uses up the clock of host calls": slow_tool,
    "a tool raises": raising_tool,
    "a call that the budget does not allow": over_budget,
    "a child run breaks its own session": child_breaks,
    "the code ends the worker": ends_worker,
    "a thread ends the worker between two cells, and the next cell raises": thread_ends_worker,
    "the session uses more memory than its limit": too_much_memory,
    "the code damages the recovery of its session": damaged_recovery,
    "every connection to the endpoint is refused": refused_connections,
    "the endpoint answers 5xx to everybody": server_errors,
    "the endpoint answers 401, 403 or 404 to everybody": unauthorized,
    "the endpoint answers 429 to everybody, and the session has made few calls": rate_limit,
    "the endpoint sends everybody half an answer": half_answers,
    "the endpoint never answers, and the clock of host calls runs out": never_answers,
    "the machine has no memory, and the kernel ends processes of a session below its limit": (
        machine_without_memory
    ),
    "a session is lost, and no other one starts on the node": node_fails,
    "a session is ended from outside": ended_from_outside,
    "the caller cancels a step": cancelled,
}


def test_every_row_of_the_page_has_a_case() -> None:
    assert list(rows()) == list(CASES)


@pytest.mark.parametrize("cause", CASES)
def test_a_row(world: World, cause: str) -> None:
    kind, masked = rows()[cause]
    found = CASES[cause](world)
    if isinstance(found, EpisodeAborted):
        assert (found.kind, True) == (kind, masked)
        return
    expected = None if kind in ("of the cell", "cancelled") else kind
    assert (found.observation.error_kind, found.metadata["mask"]) == (expected, masked)
    if masked and expected is not None:
        assert (found.reward, found.metadata["reward_components"]) == (0.0, {})
    elif expected is not None:
        assert found.reward < 0
