"""The same episodes here and on a real server: what they show must be the same."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from repl_env import EpisodeDone, LocalREPLEnv, NotReset, REPLAction, REPLEnv, SessionLost
from repl_env.client.address import Timeouts
from repl_env.common.files import RESULT, normalized
from repl_env.errors import CapacityReached, InvalidRequest, TooLarge
from repl_sandbox import Sandbox
from tests.limits import GROWING, PATIENT
from tests.repl_env.client.connection.relay import Relay
from tests.repl_env.environment_internals import client_session, set_timeouts
from tests.server.conftest import DEFAULTS, serving
from tests.waiting import eventually

FIELDS = ("context_preview", "context_length", "available_variables", "iteration", "max_iterations")
METADATA = (
    "task_prompt",
    "final_answer",
    "answer_value",
    "error_kind",
    "mask",
    "stop_reason",
    "ended",
    "truncated",
    "reward_components",
    "task_reward",
    "message",
    "ignored",
    "total_iterations",
)


@pytest.fixture(scope="module")
def server():
    settings = {"message_bytes": 4 << 20, "max_sessions": 8, "recovery": "snapshot"}
    with serving({**settings, "limits": PATIENT}) as running:
        yield running


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(require=DEFAULTS["require"], limits=PATIENT) as sandbox:
        yield sandbox


def shown(result):
    """Return the parts of a result that must be equal."""
    observation = result.observation
    assert result.metadata == observation.metadata
    return normalized(
        {
            "reward": result.reward,
            "done": result.done,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "task_reward": result.task_reward,
            "result": {name: getattr(observation.result, name) for name in RESULT},
            **{name: getattr(observation, name) for name in FIELDS},
            **{name: result.metadata[name] for name in METADATA if name in result.metadata},
        }
    )


def failure(call):
    """The error of a call, as callers can rely on it locally and remotely."""
    try:
        shown_result = shown(call())
    except EpisodeDone as error:
        return "EpisodeDone", shown(error.result)
    except NotReset:
        return "NotReset"
    except (TypeError, ValueError):
        return "an argument"
    raise AssertionError(f"it went well: {shown_result}")


def an_episode_with_everything(env):
    yield env.reset(
        context="one two three",
        task_prompt="how many words?",
        expected_answer="3",
        max_iterations=7,
        seed=3,
        episode_id="e1",
        files={"a.txt": "text", "b": b"\x00\xff"},
    )
    yield env.execute("words = context.split()\nwords")
    yield env.execute("import sys; print('err', file=sys.stderr); 1 / 0")
    yield env.execute("open('a.txt').read(), open('b', 'rb').read()")
    yield env.get_variable("words")
    yield env.list_variables()
    yield env.draft()
    state = env.state()
    yield state.model_dump(exclude={"usage", "total_execution_time"})
    yield env.execute("answer['content'] = 'three'")
    yield env.draft()
    yield env.execute("FINAL(len(words))")
    yield failure(lambda: env.execute("x"))
    yield failure(lambda: env.submit_final_answer(4))


def several_contexts_of_all_kinds(env):
    contexts = {"text": "é\n", "data": b"\x00\x80", "rows": [{"a": 1}, None, "x"]}
    yield env.reset(contexts=contexts)
    yield env.execute("[type(each).__name__ for each in (text, data, rows)]")
    yield env.execute("text, data, rows")


def large_contexts(env):
    text, data, rows = "aé" * (1 << 20), b"\xff" * (1 << 20), ["word"] * (1 << 18)
    yield env.reset(context=text, contexts={"data": data, "rows": rows})
    yield env.execute(
        "len(context), context[-2:], data == b'\\xff' * (1 << 20), len(rows), rows[7]"
    )
    yield env.execute("context = None")
    yield env.reset(context=text)
    yield env.execute("len(context)")


def a_file_as_a_context(env):
    yield env.reset(context=Path(__file__))
    yield env.execute("type(context).__name__, len(context) > 1000")


def limits_of_time(env):
    for limit in GROWING:
        first = env.reset()
        result = env.execute("x = 1\nwhile True: pass", timeout_s=limit)
        after = env.execute("x")
        if after.observation.result.success:
            break
    yield first
    yield result.observation.error_kind, result.done
    yield after


def an_answer_with_a_schema(env):
    yield env.reset(answer_schema={"type": "array", "items": {"type": "integer"}})
    yield env.submit_final_answer("text")
    yield env.submit_final_answer([1, 2])


def the_last_iteration(env):
    yield env.reset(max_iterations=1)
    yield env.execute("answer['content'] = 7")


def a_follow_up(env):
    yield env.reset(context="abc", task_prompt="one")
    yield env.execute("x = 1; FINAL(x)")
    more = {"y": [1, {"z": None}], "t": "é", "b": b"\x00"}
    yield env.follow_up(task_prompt="two", expected_answer="2", variables=more)
    yield env.execute("x, y, t, b, context")
    yield env.submit_final_answer("2")


def branches(env):
    yield env.reset(context="abc")
    yield env.execute("x = 1")
    with env.branch(seed=1) as other:
        yield other.execute("x += 1; x")
        yield env.execute("x")
        with other.branch() as third:
            yield third.execute("x")
        yield other.submit_final_answer("of the branch")
    yield env.execute("x")


def calls_that_are_wrong(env):
    yield failure(lambda: env.execute("x"))
    yield failure(lambda: env.state())
    yield env.reset(context="kept")
    yield failure(lambda: env.reset(max_iterations=0))
    yield failure(lambda: env.reset(contexts={"not a name": "x"}))
    yield failure(lambda: env.reset(contexts={"answer": "x"}))
    yield failure(lambda: env.reset(files={"../x": "x"}))
    yield failure(lambda: env.reset(answer_schema={"type": "no such type"}))
    yield failure(lambda: env.reset(seed=-1))
    yield failure(lambda: env.execute("x", timeout_s=-1))
    yield failure(lambda: env.get_variable("1 + 1"))
    yield failure(lambda: env.follow_up(task_prompt="x", variables={"answer": 1}))
    yield env.execute("context")
    env.close()
    yield failure(lambda: env.execute("x"))
    yield env.reset(context="again")
    yield env.execute("context")


def output_of_all_sorts(env):
    yield env.reset()
    yield env.execute("print('\\ud800 é \\x00')")
    yield env.execute("print('x' * 100_000)")
    yield env.execute("float('nan'), float('inf')")
    yield env.submit_final_answer({"a": [1.5, None, "é"]})


SCENARIOS = [
    an_episode_with_everything,
    several_contexts_of_all_kinds,
    large_contexts,
    a_file_as_a_context,
    limits_of_time,
    an_answer_with_a_schema,
    the_last_iteration,
    a_follow_up,
    branches,
    calls_that_are_wrong,
    output_of_all_sorts,
]


def played(scenario, env):
    with env:
        steps = scenario(env)
        return [shown(each) if hasattr(each, "observation") else each for each in steps]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_an_episode_is_the_same_locally_and_on_a_server(scenario, server, sandbox):
    here = played(scenario, LocalREPLEnv(sandbox=sandbox))
    there = played(scenario, REPLEnv(server.url).sync())

    assert len(here) > 1
    assert json.loads(json.dumps(there)) == json.loads(json.dumps(here))


def test_output_comes_while_a_step_runs(server):
    with REPLEnv(server.url).sync() as env:
        env.reset()
        for pause in GROWING:  # what waits for a busy machine comes in one piece
            heard = []
            code = f"import time\nprint('one', flush=True)\ntime.sleep({pause})\nprint('two')"
            result = env.execute(code, on_output=lambda _, text: heard.append(text))  # noqa: B023
            if len(heard) > 1:
                break

    assert "".join(heard) == result.observation.result.stdout == "one\ntwo\n"
    assert len(heard) > 1


# ── contexts by hash, on the real server ─────────────────────────────────────────────────────────

TEXT = "a line of some text\n" * (1 << 17)


def test_a_large_context_is_uploaded_once_for_all_sessions(server):
    told = []
    with REPLEnv(server.url).sync() as one, REPLEnv(server.url).sync() as another:
        for env in (one, another):
            env.reset(context=TEXT, on_upload=lambda *far: told.append(far))
            assert env.execute("len(context)").observation.result.value == str(len(TEXT))

    whole = (len(TEXT), len(TEXT))
    assert told[0][0] == 0 and told.count(whole) == 2
    assert told[-2:] == [(0, len(TEXT)), whole]


async def test_an_evicted_context_is_uploaded_again(server):
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    request = Request(f"{server.url}/contexts/{digest}", method="DELETE")
    told = []

    async def forget(there, total):
        told.append(there)
        if there == total and told.count(total) == 1:
            answer = await asyncio.to_thread(urlopen, request)
            assert answer.status == 204

    async with REPLEnv(server.url) as env:
        await env.reset(context=TEXT, on_upload=forget)
        result = await env.execute("len(context)")

    assert result.observation.result.value == str(len(TEXT))
    assert told.count(len(TEXT)) == 2


def test_a_context_over_the_limit_is_an_error_of_its_name_and_size():
    with serving({"context_bytes": 2 << 20}) as small, REPLEnv(small.url).sync() as env:
        env.reset(context="kept")
        with pytest.raises(
            TooLarge, match="context has 2,621,440 bytes; the server takes 2,097,152"
        ):
            env.reset(context=TEXT)
        assert env.execute("context").observation.result.value == "'kept'"


def test_the_example_runs_its_episode(server):
    example = Path(__file__).parents[3] / "examples" / "remote.py"
    for seconds in ("1", "10", "60"):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(example), server.url, seconds],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if "candidate 2: timeout" not in done.stdout:
            break

    assert (done.returncode, done.stderr) == (0, "")
    assert "candidate 2: 149, reward 1.0" in done.stdout


# ── connections that break, on the real server ───────────────────────────────────────────────────


async def test_a_connection_dropped_in_a_long_step_delivers_its_result_exactly_once(server):
    async with Relay(server.port) as network, REPLEnv(network.url) as env:
        await env.reset()
        await env.execute("runs = 0")
        begun = asyncio.Event()
        code = "runs += 1\nprint('begun', flush=True)\nimport time; time.sleep(0.5)\nruns"
        step = asyncio.create_task(env.execute(code, on_output=lambda *_: begun.set()))
        await begun.wait()
        for _ in range(3):
            await network.cut()
        result = await step
        again = await env.execute("runs")

    assert result.observation.result.stdout == "begun\n1\n"
    assert again.observation.result.value == "1"
    assert again.observation.iteration == 3


async def test_steps_on_a_network_that_breaks_again_and_again_are_each_run_once(server):
    chance = random.Random(1)

    async def breaking(network):
        while (
            True
        ):  # bytes that passed, and not the time: otherwise a slow connection carries nothing
            await network.carried(chance.randrange(3, 20))
            network.snap()

    async with Relay(server.port) as network, REPLEnv(network.url) as env:
        await env.reset(max_iterations=100)
        await env.execute("n = 0")
        broken = asyncio.create_task(breaking(network))
        results = [await env.execute("n += 1; n") for _ in range(40)]
        broken.cancel()

    assert [each.observation.result.value for each in results] == [str(n + 1) for n in range(40)]
    assert network.count > 2


async def test_a_connection_dropped_between_steps_is_made_again_at_once(server):
    async with Relay(server.port) as network, REPLEnv(network.url) as env:
        await env.reset()
        await env.execute("x = 1")
        await network.cut()
        result = await env.execute("x")

    assert result.observation.result.value == "1"


async def test_a_cancelled_step_ends_on_the_server_and_the_session_goes_on(server):
    async with REPLEnv(server.url) as env:
        await env.reset()
        begun = asyncio.Event()
        code = "x = 1\nprint('begun', flush=True)\nwhile True: pass"
        step = asyncio.create_task(env.execute(code, on_output=lambda *_: begun.set()))
        await begun.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert (await env.execute("x")).observation.result.value == "1"


async def test_a_time_out_of_the_client_keeps_the_session(server):
    """Defect 6 of OpenEnv's client: it drops its session here, and begins another one silently."""
    async with REPLEnv(server.url) as env:
        await env.reset()
        await env.execute("x = 1")
        set_timeouts(env, Timeouts(message_s=0.5))
        with pytest.raises(TimeoutError):
            await env.execute("while True: pass")
        set_timeouts(env, Timeouts())
        assert (await env.execute("x")).observation.result.value == "1"


def test_a_session_that_was_idle_for_too_long_is_lost_until_a_reset():
    def begin(env):
        """However often it was idle for too long before it had begun."""
        while True:
            try:
                return env.reset()
            except SessionLost:
                continue

    with serving({"idle_s": 0.1}) as impatient, REPLEnv(impatient.url).sync() as env:
        begin(env)
        eventually(lambda: not impatient.manager.sessions)
        with pytest.raises(SessionLost, match="idle"):
            env.execute("x")
        assert begin(env).observation.iteration == 0


async def test_a_resumed_session_is_taken_from_its_former_client(server):
    async with REPLEnv(server.url) as env:
        await env.reset()
        session = client_session(env)
        other = await session.new_sibling(session.require_pipeline().handshake.token)
        with pytest.raises(SessionLost, match="another client"):
            await env.execute("x")
        await other.close()


# ── refusals of the real server ──────────────────────────────────────────────────────────────────


def test_a_message_over_the_limit_names_it(server):
    with REPLEnv(server.url).sync() as env:
        env.reset()
        with pytest.raises(TooLarge, match="4,194,304"):
            env.execute("#" * (4 << 20))
        with pytest.raises(TooLarge, match="1 MiB"):
            env.reset(files={str(number): b"x" * (900 << 10) for number in range(4)})
        with pytest.raises(TooLarge, match="4,194,304"):
            env.follow_up(task_prompt="x", variables={"a": "x" * (4 << 20)})
        env.step(REPLAction(code="x = 1"))


def test_arguments_that_the_server_refuses_are_named(server):
    with REPLEnv(server.url).sync() as env:
        with pytest.raises(InvalidRequest, match="max_iterations") as caught:
            env.reset(max_iterations=0)

    assert caught.value.code == "VALIDATION_ERROR"
    assert caught.value.id


def test_a_full_server_says_so():
    with serving({"max_sessions": 1, "max_waiting": 1, "wait_s": 0.01}) as full:
        with REPLEnv(full.url).sync():
            with pytest.raises(CapacityReached) as caught:
                REPLEnv(full.url).sync().connect()

    assert caught.value.details["max_sessions"] == 1


def test_a_server_that_stops_says_so():
    with serving() as stopping:
        env = REPLEnv(stopping.url).sync().connect()
        env.reset()
    with pytest.raises(SessionLost, match="stopped"):
        env.execute("x")
    env.close()
