"""docker/nginx.conf when a server ends: the first reset of its tenants goes to the other server."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from repl_env import REPLEnv
from tests.server.conftest import ask, peer
from tests.server.nginx_proxy import needs_nginx, nginx
from tests.server.serve_process import ADDRESS, child
from tests.waiting import PATIENCE, eventually

pytestmark = needs_nginx

OPTIONS = (
    "--recovery",
    "restart",
    "--require",
    "confined",
    "--pool",
    "0",
    "--drain",
    "600",
    "--timeout",
    "600",
)
# Each kind of first request meets an nginx that has not seen the failure yet.
KINDS = ("a client that was there", "a new client", "HTTP")


def remote(proxy):
    # Pings find a server that hangs; by default they take 80 s.
    return REPLEnv(proxy.url, connect_timeout_s=PATIENCE, ping_s=1).sync()


def sessions(server):
    return ask(server, "GET", "/ready")[2]["sessions"]


@contextmanager
def ending(server, how):
    """Have `server` end in this way, or begin to."""
    process = server.process
    if how == "drain":
        with peer(server, host=ADDRESS) as one:
            one.reset()
            one.send("step", {"code": "while True: pass"})
            process.terminate()
            eventually(lambda: ask(server, "GET", "/ready")[0] == 503)
            yield
    elif how == "hang":
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        yield
    else:
        process.send_signal({"stop": signal.SIGTERM, "kill": signal.SIGKILL}[how])
        process.wait(PATIENCE)
        yield


@pytest.mark.parametrize("how", ["stop", "drain", "kill", "hang"])
def test_the_first_reset_after_a_server_ended_succeeds(how, tmp_path):
    with ExitStack() as stack:
        servers = [stack.enter_context(child(*OPTIONS)) for _ in range(2)]
        proxies = {
            kind: stack.enter_context(nginx(tmp_path / str(number), *servers))
            for number, kind in enumerate(KINDS)
        }
        there = stack.enter_context(remote(proxies[KINDS[0]]))
        there.reset(context="before")
        (ended,) = [server for server in servers if sessions(server)]
        threads = stack.enter_context(ThreadPoolExecutor(len(KINDS)))
        stack.enter_context(ending(ended, how))

        new, body = remote(proxies["a new client"]), {"context": "after"}
        stack.callback(new.close)
        asked = [
            threads.submit(there.reset, context="after"),
            threads.submit(new.reset, context="after"),
            threads.submit(ask, proxies["HTTP"], "POST", "/reset", body, X_Session_Id="new"),
        ]
        *_, (status, headers, body) = [each.result(PATIENCE) for each in asked]
        assert status == 200, body
        assert [
            each.execute("print(context)").observation.result.stdout for each in (there, new)
        ] == ["after\n"] * 2
        step = {"action": {"code": "print(context)"}}
        token = headers["X-Session-Id"]
        status, _, body = ask(proxies["HTTP"], "POST", "/step", step, X_Session_Id=token)
        assert (status, body["observation"]["result"]["stdout"]) == (200, "after\n")
