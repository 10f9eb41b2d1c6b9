"""`SyncREPLEnv`: the same in plain code, and what is different about it."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading

import pytest

from repl_env import EpisodeDone, LocalREPLEnv, NotReset
from repl_env.client.client import REPLEnv
from repl_env.client.requests import LARGE
from repl_env.client.sync_client import SyncREPLEnv
from repl_env.errors import REPLError, SessionLost
from repl_env.local import AsyncLocalREPLEnv
from tests.repl_env.client.scripted_server import Scripted, begun, observation

NOT_FROM_AFAR = {"save", "load", "session", "rubric", "account", "subcalls", "contexts"}
# Constructor arguments of the environment, which the operator chooses.
NOT_FROM_AFAR |= {"max_output_length", "context_preview_length", "rlm_max_depth"}
NOT_FROM_AFAR |= {"rlm_max_iterations", "max_iterations", "llm_query_fn", "llm_batch_fn"}
NOT_FROM_AFAR |= {"max_concurrent_subcalls"}
NOT_FROM_AFAR |= {"subcall_fn", "subcall_batch_fn", "initial_context", "initial_task_prompt"}
# The workspace of an episode is the host's alone as yet: no frame of the wire carries files.
NOT_FROM_AFAR |= {"files"}
OF_A_PROCESS = {"of", "with_provider", "run_after", "end_calls", "give_up"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("remote", "local"), [(REPLEnv, AsyncLocalREPLEnv), (SyncREPLEnv, LocalREPLEnv)]
)
def test_the_methods_are_those_of_a_local_environment(remote, local):
    here = public(local) - NOT_FROM_AFAR - OF_A_PROCESS

    assert here <= public(remote)
    for name in here:
        theirs = inspect.signature(getattr(local, name)).parameters
        assert theirs.keys() <= inspect.signature(getattr(remote, name)).parameters.keys(), name


def test_both_clients_have_the_same_methods():
    assert public(SyncREPLEnv) - public(REPLEnv) == {"async_client"}
    assert public(REPLEnv) - public(SyncREPLEnv) == {"from_docker_image", "from_env"}
    for name in public(SyncREPLEnv) & public(REPLEnv):
        ours, theirs = getattr(SyncREPLEnv, name), getattr(REPLEnv, name)
        assert isinstance(ours, property) == isinstance(theirs, property), name
        if not isinstance(ours, property):
            parameters = inspect.signature(theirs).parameters
            assert inspect.signature(ours).parameters.keys() == parameters.keys(), name


def test_an_episode_in_plain_code():
    async def story(peer):
        await peer.session()
        await peer.reply(await peer.next("reset"), observation())
        await peer.reply(await peer.next("step"), observation("6\n"))
        await peer.reply(await peer.next("variables"), {"names": ["x"]})
        await peer.reply(await peer.next("state"), {"episode_id": "e"})
        await peer.reply(await peer.next("draft"), {"value": [1]})
        await peer.reply(await peer.next("follow_up"), observation("again"))
        last = observation(done=True)
        await peer.reply(await peer.next("step"), last)
        await peer.refuse(await peer.next("step"), "EPISODE_DONE", result=last)
        await peer.gone()

    with Scripted(story) as server, REPLEnv(server.url).sync() as env:
        assert env.session_id == "s1"
        env.reset(context="abc")
        assert env.get_variable("x").observation.result.stdout == "6\n"
        assert env.list_variables() == ["x"]
        assert env.state().episode_id == "e"
        assert env.draft() == [1]
        more = env.follow_up(task_prompt="more", variables={"y": b"\x00"})
        assert more.observation.result.stdout == "again"
        assert env.submit_final_answer(6).done
        with pytest.raises(EpisodeDone):
            env.execute("x")

    assert server.frames[2]["data"] == {"code": "print(repr(x))"}
    assert server.frames[6]["data"]["variables"] == {"y": {"$bytes": "AA=="}}


def test_a_client_in_plain_code_is_used_again_after_it_was_closed():
    with Scripted() as server:
        env = REPLEnv(server.url).sync()
        env.reset()
        env.close()
        env.close()
        with pytest.raises(NotReset):
            env.execute("x")
        env.reset()
        env.disconnect()

    assert server.kinds == ["open", "reset", "close"] * 2


async def test_the_sync_client_works_within_a_running_loop():
    with Scripted() as server, REPLEnv(server.url).sync() as env:
        env.reset()
        env.execute("x")

    assert server.kinds == ["open", "reset", "step", "close"]


async def test_a_client_belongs_to_one_loop():
    with Scripted() as server:
        async with REPLEnv(server.url) as env:
            with pytest.raises(REPLError, match="another event loop"):
                env.sync().reset()
            await env.reset()


def test_a_client_may_be_used_in_one_loop_after_the_other():
    async def episode(env):
        async with env:
            await env.reset()

    with Scripted() as server:
        env = REPLEnv(server.url)
        asyncio.run(episode(env))
        asyncio.run(episode(env))
        env.sync().reset()
        env.sync().close()

    assert server.kinds == ["open", "reset", "close"] * 3


def test_a_client_whose_loop_has_ended_is_used_again_in_another():
    async def reset(env):
        await env.reset()

    async def step(env):
        await env.execute("x")

    with Scripted() as server:
        env = REPLEnv(server.url)
        asyncio.run(reset(env))
        for _ in range(2):
            with pytest.raises(SessionLost, match="event loop"):
                asyncio.run(step(env))
        asyncio.run(reset(env))
        asyncio.run(env.close())

    assert server.kinds == ["open", "reset", "close"] * 2


def test_with_on_the_asynchronous_client_says_what_to_write():
    with pytest.raises(TypeError, match=r"\.sync\(\) as env"):
        with REPLEnv("http://host"):
            pass


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: REPLEnv.from_docker_image("image:latest"), "docker run -p 8000:8000 image"),
        (lambda: REPLEnv.from_env("Org/my_space"), r"https://org-my-space\.hf\.space"),
    ],
)
def test_openenv_s_from_docker_image_is_refused_with_the_alternative(make, advice):
    with pytest.raises(NotImplementedError, match=advice):
        make()


def test_output_callbacks_run_in_the_thread_of_the_caller():
    heard, begun_to_hear = [], threading.Event()

    def hear(*told):
        heard.append((*told, threading.get_ident()))
        begun_to_hear.set()

    async def story(peer):
        await peer.session()
        await peer.reply(await peer.next("reset"), observation())
        request = await peer.next("step")
        await peer.output(request, "a")
        await asyncio.to_thread(begun_to_hear.wait, 60)
        await peer.reply(request, observation("a"))
        await peer.gone()

    with Scripted(story) as server, REPLEnv(server.url).sync() as env:
        env.reset()
        env.execute("x", on_output=hear)

    assert heard == [("stdout", "a", threading.get_ident())]


def test_a_callback_that_calls_its_own_client_is_refused_and_another_client_is_not():
    asked = []

    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        await peer.output(request, "a")
        await peer.next("cancel")
        await peer.reply(request, observation("of the cancelled"))
        await peer.serve("the next")

    def hear(stream, text):
        with REPLEnv(other.url).sync() as another:
            asked.append(another.reset().done)
        env.state()

    with Scripted() as other, Scripted(story) as server, REPLEnv(server.url).sync() as env:
        env.reset()
        with pytest.raises(RuntimeError, match="on_output cannot ask its own client"):
            env.execute("x", on_output=hear)
        assert env.execute("y").observation.result.stdout == "the next"

    assert asked == [False]


def test_ctrl_c_cancels_the_step_and_keeps_the_session():
    async def story(peer):
        await peer.session()
        await peer.reply(await peer.next("reset"), observation())
        await peer.output(await peer.next("step"), "a")
        cancel = await peer.next("cancel")
        await peer.send({"type": "cancelled", "id": cancel["id"], "data": {"running": False}})
        await peer.serve("the next")

    def interrupt(stream, text):
        raise KeyboardInterrupt

    with Scripted(story) as server, REPLEnv(server.url).sync() as env:
        env.reset()
        with pytest.raises(KeyboardInterrupt):
            env.execute("x", on_output=interrupt)
        assert env.execute("y").observation.result.stdout == "the next"


def test_a_signal_cancels_the_step_that_is_waited_for():
    started = threading.Event()

    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        assert await asyncio.to_thread(started.wait, 60)
        program.send_signal(signal.SIGINT)
        cancel = await peer.next("cancel")
        await peer.send({"type": "cancelled", "id": cancel["id"], "data": {"running": True}})
        await peer.reply(request, observation("of the cancelled"))
        await peer.serve("the next")

    code = (
        "import sys\nfrom repl_env.client.client import REPLEnv\n"
        "with REPLEnv(sys.argv[1]).sync() as env:\n"
        "    env.reset()\n"
        "    try: env.execute('x')\n"
        "    except KeyboardInterrupt: print(env.execute('y').observation.result.stdout)\n"
    )
    with Scripted(story) as server:
        program = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.set()
        told = program.communicate(timeout=120)

    assert (program.returncode, *told) == (0, "the next\n", "")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda env, hear: env.execute("x", on_output=hear), "on_output"),
        (lambda env, hear: env.reset(context="x" * LARGE, on_upload=hear), "on_upload"),
    ],
)
def test_a_callback_that_would_have_to_be_awaited_is_refused(call, name):
    async def story(peer):
        await begun(peer)
        request = await peer.next()
        if request["type"] == "step":
            await peer.output(request, "a")
        await peer.gone()

    async def hear(*told):
        raise AssertionError("nobody awaits it")

    with Scripted(story) as server, REPLEnv(server.url).sync() as env:
        env.reset()
        with pytest.raises(TypeError, match=f"{name} must not be asynchronous"):
            call(env, hear)


def test_clients_of_several_threads_do_not_wait_for_each_other():
    together = threading.Barrier(4)

    async def story(peer):
        await peer.session()
        await peer.reply(await peer.next("reset"), observation())
        request = await peer.next("step")
        await asyncio.to_thread(together.wait, 60)
        await peer.reply(request, observation("together"))
        await peer.gone()

    def episode():
        with REPLEnv(server.url).sync() as env:
            env.reset()
            texts.append(env.execute("x").observation.result.stdout)

    texts = []
    with Scripted(story) as server:
        threads = [threading.Thread(target=episode) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)

    assert texts == ["together"] * 4


def test_a_branch_of_the_sync_client_is_synchronous():
    async def branch(peer):
        await peer.session()
        await peer.serve("of the branch")

    async def story(peer):
        await peer.session()
        await peer.reply(await peer.next("reset"), observation())
        await peer.reply(await peer.next("branch"), {"session_id": "s2", "token": "t2"})
        await peer.gone()

    with Scripted(story, branch) as server, REPLEnv(server.url).sync() as env:
        env.reset()
        with env.branch() as other:
            assert isinstance(other, SyncREPLEnv)
            assert other.execute("x").observation.result.stdout == "of the branch"


def test_a_program_that_closes_nothing_still_ends():
    program = (
        "import sys\nfrom repl_env.client.client import REPLEnv\n"
        "env = REPLEnv(sys.argv[1]).sync()\nenv.reset()\nprint(env.execute('x').done)\n"
    )
    with Scripted() as server:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program, server.url],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


@pytest.mark.parametrize("registered", ["before it is used", "after it was used"])
def test_a_client_may_be_closed_at_the_exit_of_the_process(registered):
    lines = ["env = REPLEnv(sys.argv[1]).sync()", "env.reset()"]
    lines.insert(1 if registered.startswith("before") else 2, "atexit.register(env.close)")
    program = "\n".join(
        ["import atexit, sys", "from repl_env.client.client import REPLEnv", *lines]
    )
    with Scripted() as server:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program, server.url],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert (done.returncode, done.stderr) == (0, "")
    assert server.kinds == ["open", "reset", "close"]


def test_a_session_that_is_lost_is_an_error_in_plain_code_too():
    async def story(peer):
        await peer.session()
        await peer.reply(await peer.next("reset"), observation())
        await peer.close(4408)

    with Scripted(story) as server, REPLEnv(server.url).sync() as env:
        env.reset()
        with pytest.raises(SessionLost):
            env.execute("x")
