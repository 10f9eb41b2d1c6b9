"""`/ws` with `repl-env.v1`: the additions to OpenEnv's frames."""

import asyncio
import logging
import threading

import pytest

from repl_env import REPLEnv
from repl_env.errors import ServerError
from repl_sandbox import Limits
from repl_server.tenants import TenantQuota
from tests.server.conftest import peer, serving
from tests.server.toy_environments import Add, Adder, Sum
from tests.waiting import PATIENCE

SLEEP = "import time\nprint('on', flush=True)\ntime.sleep(600)"


@pytest.fixture
def named(server):
    """A socket with a session that was reset."""
    with peer(server, named=True) as one:
        one.open()
        one.reset(max_iterations=1000)
        yield one


def test_a_session_begins_with_its_facts(server):
    with peer(server, named=True) as one:
        assert one.socket.subprotocol == "repl-env.v1"
        facts = one.open()

    assert facts.keys() == {
        "session_id", "token", "resumed", "grace_s", "running", "subcalls", "limits",
    }  # fmt: skip
    assert facts["resumed"] is False
    assert facts["running"] is facts["subcalls"] is None
    assert facts["limits"] == {
        "timeout_s": 60.0,
        "max_timeout_s": 3600.0,
        "message_bytes": 128 << 20,
        "context_bytes": 1 << 30,
        "idle_s": 900.0,
        "undo": 0,  # without snapshots
    }
    assert len(facts["token"]) >= 32 and facts["session_id"] not in facts["token"]


def test_a_step_may_not_have_an_unlimited_timeout(named):
    named.reset()
    too_long = named.ask("step", {"code": "1"}, timeout_s=3600.1)
    assert too_long["data"]["code"] == "VALIDATION_ERROR"
    assert too_long["data"]["message"] == "timeout_s: at most 3600 seconds"
    assert named.run("1", timeout_s=3600)["value"] == "1"


def test_the_first_frame_selects_the_session(server):
    with peer(server, named=True) as one:
        assert one.refusal("reset", {}) == "VALIDATION_ERROR"
        assert one.refusal("cancel", {"request": "x"}) == "VALIDATION_ERROR"
        one.open()
        assert one.refusal("open", {}) == "VALIDATION_ERROR"
        assert one.reset()["done"] is False


def test_a_client_without_a_session_may_close(server, caplog):
    caplog.set_level(logging.INFO, "repl_server")
    with peer(server, named=True) as one:
        one.send("close", id="c")
        assert one.closed() == 1000
    assert "refused" not in caplog.text


def test_replies_carry_the_ids(named):
    assert named.ask("state", id="é")["id"] == "é"
    assert named.ask("step", {"code": "1"}, id="x" * 64)["id"] == "x" * 64
    assert named.ask("nonsense", id="7")["id"] == "7"


def test_metadata_is_not_sent_twice(named):
    assert "metadata" not in named.ask("step", {"code": "1"})["data"]


def test_a_request_sent_again_is_answered_and_not_run_again(named):
    named.run("n = 0")
    first = named.ask("step", {"code": "n += 1; n"}, id="once")
    again = named.ask("step", {"code": "n += 1; n"}, id="once")

    assert again == first
    assert named.run("n")["stdout"] == "1\n"


def test_a_request_sent_again_while_it_runs_is_answered_once(named):
    for _ in range(2):
        named.send("step", {"code": SLEEP}, id="twice", stream=True)
    named.until("on\n")
    assert named.ask("cancel", {"request": "nothing"})["data"]["running"] is False  # both were read
    named.send("cancel", {"request": "twice"}, id="cancel")
    named.send("variables", id="after")

    assert sorted(named.take()["id"] for _ in range(2)) == ["cancel", "twice"]
    assert named.take()["id"] == "after"


def test_a_step_has_its_own_limit(named):
    result = named.run("while True: pass", timeout_s=0.1)

    assert result["success"] is False
    assert result["stderr"].startswith("TimeoutError")


def test_output_comes_while_the_step_runs(named):
    named.send("step", {"code": "print('on', flush=True)\ninput_ = 1"}, id="s", stream=True)
    first = named.take()
    assert (first["type"], first["id"]) == ("output", "s")
    assert first["data"]["stream"] == "stdout" and first["data"]["text"][:2] == "on"
    assert named.replies("s")["s"]["data"]["observation"]["result"]["stdout"] == "on\n"

    named.send("step", {"code": SLEEP}, id="long", stream=True)
    named.until("on\n")  # it still runs
    named.send("cancel", {"request": "long"}, id="c")
    assert named.replies("c", "long")["long"]["type"] == "observation"


def test_streams_are_separate_and_complete(named):
    code = "import sys\nfor i in range(3000): print(i)\nprint('e', file=sys.stderr)"
    named.send("step", {"code": code}, id="s", stream=True)
    seen = {"stdout": "", "stderr": ""}
    while (frame := named.take())["type"] == "output":
        seen[frame["data"]["stream"]] += frame["data"]["text"]

    assert frame["type"] == "observation", frame
    assert frame["data"]["observation"]["result"]["success"] is True
    assert seen["stdout"] == "".join(f"{i}\n" for i in range(3000))
    assert seen["stderr"] == "e\n"


def test_a_step_is_cancelled_and_variables_stay(named):
    named.run("kept = 1")
    named.send("step", {"code": SLEEP}, id="long", stream=True)
    named.until("on\n")
    named.send("cancel", {"request": "long"}, id="c")
    frames = named.replies("c", "long")

    assert frames["c"] == {"type": "cancelled", "id": "c", "data": {"running": True}}
    result = frames["long"]["data"]["observation"]["result"]
    assert "KeyboardInterrupt" in result["stderr"]
    assert named.run("kept")["stdout"] == "1\n"


# It prints when it swallows the interrupt.
STUBBORN = """
import time
said = False
while True:
    try:
        if not said:
            said = True
            print("on", flush=True)
        time.sleep(600)
    except BaseException:
        pass
"""


def test_code_that_ignores_a_cancellation_is_abandoned():
    limits = Limits(memory="512MiB", timeout=60.0, grace=0.3)
    with serving({"limits": limits}) as server, peer(server, named=True) as one:
        one.open()
        one.reset()
        one.send("step", {"code": STUBBORN}, id="long", stream=True)
        one.until("on\n")
        one.send("cancel", {"request": "long"}, id="c")
        frames = one.replies("c", "long")

        assert frames["long"]["data"]["code"] == "EXECUTION_ERROR"
        assert "cancelled" in frames["long"]["data"]["message"]
        assert one.run("1")["stdout"] == "1\n"


def test_a_request_that_waits_can_be_cancelled(named):
    named.send("step", {"code": SLEEP}, id="long", stream=True)
    named.until("on\n")
    named.send("step", {"code": "never = 1"}, id="next")
    named.send("cancel", {"request": "next"}, id="c1")
    assert named.replies("c1")["c1"]["data"]["running"] is True
    named.send("cancel", {"request": "long"}, id="c2")
    frames = named.replies("long", "next", "c2")

    assert frames["next"]["data"]["code"] == "EXECUTION_ERROR"
    assert "NameError" in named.run("never")["stderr"]


def test_nothing_to_cancel(named):
    assert named.ask("cancel", {"request": "gone"})["data"]["running"] is False


def test_variables_draft_and_a_further_question(named):
    named.run("mine = 1; answer['content'] = 'so far'")
    assert "mine" in named.ask("variables")["data"]["names"]
    assert named.ask("draft")["data"] == {"value": "so far"}
    named.ask("step", {"code": "FINAL(1)"})
    follow = {"task_prompt": "And?", "variables": {"more": [1, 2]}, "expected_answer": "3"}
    assert named.ask("follow_up", follow)["data"]["done"] is False
    last = named.ask("step", {"code": "FINAL(mine + len(more))"})["data"]

    assert last["reward"] == 1.0 and last["observation"]["metadata"]["final_answer"] == "3"
    assert named.ask("draft")["data"] == {"value": ""}


def test_arguments_that_a_further_question_may_not_set(named):
    assert named.refusal("follow_up", {"variables": {"FINAL": 1}}) == "VALIDATION_ERROR"
    assert named.refusal("follow_up", {"answer_schema": {"type": 5}}) == "VALIDATION_ERROR"
    assert named.refusal("follow_up", {"answer_schema": "int"}) == "VALIDATION_ERROR"
    assert named.refusal("follow_up", {"task": "?"}) == "VALIDATION_ERROR"
    assert named.run("1")["stdout"] == "1\n"


def test_a_rollback_undoes_cells_and_no_more():
    with serving({"recovery": "snapshot", "history": 2}) as server, peer(server, named=True) as one:
        one.open()
        assert one.refusal("rollback") == "NOT_RESET"
        one.reset(context="abc", max_iterations=9)
        one.run("x = 1\nopen('f', 'w').write('1')")
        one.run("x = 2; y = 1\nopen('f', 'w').write('2')")
        undone = one.ask("rollback")["data"]
        assert undone["lost"] == [] and "y" not in undone["names"]
        assert one.run("x, open('f').read(), context")["value"] == "(1, '1', 'abc')"
        assert "x" not in one.ask("rollback", {"cells": 2})["data"]["names"]
        assert one.run("context")["value"] == "'abc'"
        assert one.ask("state")["data"]["iteration"] == 4
        error = one.ask("rollback", {"cells": 3})["data"]
        assert error["code"] == "EXECUTION_ERROR" and "2 earlier states" in error["message"]


def test_a_client_undoes_cells():
    with serving({"recovery": "snapshot"}) as server, REPLEnv(server.url).sync() as env:
        env.reset()
        env.execute("x = 1")
        env.execute("x = 2")
        assert env.rollback() == ()
        assert env.execute("x").observation.result.value == "1"
        with pytest.raises(ServerError, match="earlier states"):
            env.rollback(9)


def test_an_answer_stays_after_a_rollback():
    with serving({"recovery": "snapshot"}) as server, peer(server, named=True) as one:
        one.open()
        one.reset(expected_answer="2")
        assert one.ask("step", {"code": "x = 1; FINAL(x)"})["data"]["done"]
        assert "x" not in one.ask("rollback")["data"]["names"]
        assert one.refusal("step", {"code": "FINAL(2)"}) == "EPISODE_DONE"
        one.ask("follow_up", {"task_prompt": "again"})
        assert not one.run("x")["success"]


def test_a_branch_needs_snapshots(named):
    error = named.ask("branch", {})["data"]

    assert error["code"] == "EXECUTION_ERROR" and "recovery" in error["message"]
    assert named.run("1")["stdout"] == "1\n"


def test_a_branch_is_a_session_of_its_own():
    with serving({"recovery": "snapshot", "max_sessions": 2}) as server:
        with peer(server, named=True) as one, peer(server, named=True) as other:
            one.open()
            one.reset(expected_answer="2")
            one.run("x = 1")
            branch = one.ask("branch", {"seed": 5})["data"]
            assert branch.keys() == {"session_id", "token"}
            assert one.refusal("branch", {}) == "CAPACITY_REACHED"
            facts = other.resume(branch["token"])
            assert facts["session_id"] == branch["session_id"] and facts["resumed"] is True
            other.run("x += 1")
            assert one.run("x")["stdout"] == "1\n"
            assert other.ask("step", {"code": "FINAL(x)"})["data"]["reward"] == 1.0


def test_a_closed_branch_makes_room_for_the_next():
    """Under a quota, although its end takes a while."""
    begun, gate = threading.Event(), threading.Event()
    settings = {"recovery": "snapshot", "quota": TenantQuota(sessions=2)}
    with serving(settings) as server, peer(server, named=True) as one:
        one.open()
        one.reset()
        token = one.ask("branch", {})["data"]["token"]
        (branch,) = (each for each in server.manager.sessions if each.token == token)
        close = branch.adapter.close

        async def slowly():
            begun.set()
            await asyncio.to_thread(gate.wait, PATIENCE)
            await close()

        branch.adapter.close = slowly
        with peer(server, named=True) as other:
            other.resume(token)
            other.send("close", id="c")
        assert begun.wait(PATIENCE)
        one.send("branch", {}, id="next")
        one.send("cancel", {"request": "none"}, id="read")
        assert one.replies("read")  # so that the branch was read, too
        gate.set()
        assert one.replies("next")["next"]["type"] == "branch"


def test_custom_environments_have_fewer_features():
    with serving(environment=Adder, action=Add, observation=Sum) as server:
        with peer(server, named=True) as one:
            one.open()
            one.reset(start=1)
            for name in ("variables", "draft", "follow_up", "branch"):
                assert one.refusal(name, {}) == "UNKNOWN_TYPE"
            done = one.ask("step", {"number": 1}, timeout_s=3, stream=True)
            assert done["data"]["observation"]["total"] == 2
