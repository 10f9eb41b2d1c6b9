"""Server failures: clients learn what a failure means for them, and nothing about the host."""

import json
import os
import signal

import pytest

from repl_env.errors import EpisodeAborted, NotReset, REPLError
from repl_sandbox.errors import SandboxError
from repl_server.protocol import request_error_of, safe_message
from repl_server.tenants import RequestError
from tests.internals import zygote_pid
from tests.server.conftest import peer, serving
from tests.waiting import eventually


def test_a_session_whose_sandbox_dies_is_aborted_and_a_reset_begins_another():
    with serving() as server:
        with peer(server) as one, peer(server) as other:
            one.reset(max_iterations=100_000)
            one.run("x = 1")
            other.reset(max_iterations=100_000)
            before = server.manager.sandbox_provider.blocking_sandbox()
            os.kill(zygote_pid(before), signal.SIGKILL)
            # Its sessions end with the template, as soon as the kernel has reported it.
            found = lambda each: each.ask("step", {"code": "1"})["data"].get("code")  # noqa: E731
            assert eventually(lambda: found(one)) == "EPISODE_ABORTED"
            assert eventually(lambda: found(other)) == "EPISODE_ABORTED"
            assert one.refusal("step", {"code": "x"}) == "NOT_RESET"
            assert one.reset(context="again")["done"] is False
            assert one.run("context")["value"] == "'again'"
            other.reset()
            assert other.run("1")["value"] == "1"
            assert server.manager.sandbox_provider.blocking_sandbox() is not before
            eventually(lambda: before.statistics().open == 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotReset(), "NOT_RESET"),
        (EpisodeAborted("sandbox", "/a/b gone"), "EPISODE_ABORTED"),
        (REPLError("no"), "EXECUTION_ERROR"),
        (SandboxError("/proc/7 is gone"), "EPISODE_ABORTED"),
        (KeyError("/home/u/x"), "EXECUTION_ERROR"),
        (RequestError("FORBIDDEN", "no"), "FORBIDDEN"),
    ],
)
def test_each_error_has_its_code_and_names_no_path(error, code):
    refusal = request_error_of(error)

    assert refusal.code == code
    told = json.dumps(refusal.data())
    assert "/a/b" not in told and "/proc" not in told and "/home" not in told


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(2, "No such file or directory", "/etc/x"), "No such file or directory"),
        (ValueError("first\nsecond"), "first"),
        (ValueError("x" * 1000), "x" * 500),
        (ValueError("in /usr/lib/python3/a.py, line 3"), "in (a path on the server), line 3"),
        (ValueError("1/2 of http://a/b"), "1/2 of http://a/b"),
    ],
)
def test_the_public_text_of_an_error(error, text):
    assert safe_message(error) == text
