"""`repl-env serve` as a process: no leftovers however it ends, and clear refusals."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from repl_env.cli.main import build
from repl_env.cli.options import Trial
from repl_sandbox.errors import IsolationError
from repl_sandbox.native import libc
from repl_server.auth import configured_keys
from repl_server.cli_options import of_variables
from repl_server.tenants import ADDRESS_QUOTA, TenantQuota
from tests.server.conftest import ask, peer, serving
from tests.server.serve_process import ADDRESS, Child, child
from tests.server.toy_environments import Add, Adder, Sum
from tests.soak.process_resources import anonymous
from tests.waiting import PATIENCE, eventually


@pytest.fixture(autouse=True)
def as_it_was():
    """Restore the dumpable flag, which `serve` changes: some tests call `serve` in this process."""
    before = libc.prctl(_GET_DUMPABLE)
    yield
    libc.prctl(libc.PR_SET_DUMPABLE, before)


def lives(process: psutil.Process) -> bool:
    """Whether the process runs; a zombie does not, even if its status is read late."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_killing_it_leaves_no_process_behind_and_its_port_free():
    # One of the eight prints: concurrent lines could be mixed.
    code = (
        "import os, time\nfirst = os.getpid()\nfor _ in range(3): os.fork()\n"
        "if os.getpid() != first: time.sleep(600)\nprint('on', flush=True)\nwhile True: pass"
    )
    with child("--recovery", "restart") as server:
        with peer(server, named=True, host=ADDRESS) as one, peer(server, host=ADDRESS) as other:
            one.open()
            one.reset()
            other.reset()
            other.run("import subprocess\nsubprocess.Popen(['sleep', '600'])")
            one.send("step", {"code": code}, id="s", stream=True)
            one.until("on\n")
            left = eventually(lambda: len(found := server.descendants()) > 12 and found)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(60)
            eventually(lambda: not any(map(lives, left)))
    with child("--recovery", "restart", "--port", str(server.port)) as again:
        assert again.port == server.port
        with peer(again, named=True, host=ADDRESS) as one:
            one.open()
            one.reset()
            assert one.run("1")["value"] == "1"
            left = again.descendants()
            code = "import time\nprint('on', flush=True)\ntime.sleep(0.2)\n2"
            one.send("step", {"code": code}, id="s", stream=True)
            one.until("on\n")
            again.process.send_signal(signal.SIGTERM)
            assert one.replies("s")["s"]["data"]["observation"]["result"]["value"] == "2"
            assert one.closed() == 1012
        assert again.process.wait(60) == -signal.SIGTERM  # a shell's 143
        eventually(lambda: not any(map(lives, left)))


@contextmanager
def hangup(action):
    """Set the SIGHUP action that new children inherit; the test runner may ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_end_of_its_terminal_drains_it():
    code = "import time\nprint('on', flush=True)\ntime.sleep(0.2)\n2"
    with hangup(signal.SIG_DFL), child("--recovery", "restart") as server:
        with peer(server, named=True, host=ADDRESS) as one:
            one.open()
            one.reset()
            one.send("step", {"code": code}, id="s", stream=True)
            one.until("on\n")
            server.process.send_signal(signal.SIGHUP)
            assert one.replies("s")["s"]["data"]["observation"]["result"]["value"] == "2"
            assert one.closed() == 1012
        assert server.process.wait(PATIENCE) == -signal.SIGTERM


def test_a_server_started_under_nohup_ignores_sighup():
    with hangup(signal.SIG_IGN), child("--recovery", "restart") as server:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
    (ignored,) = (line for line in status.splitlines() if line.startswith("SigIgn:"))
    assert int(ignored.split()[1], 16) & 1 << signal.SIGHUP - 1


def test_a_second_ctrl_c_ends_running_requests_with_an_answer():
    def step():
        begun = ask(server, "POST", "/reset", {}, X_Session_Id="new")[1]
        code = "import subprocess; subprocess.run(['sleep', '600'])"
        named = {"X_Session_Id": begun["X-Session-Id"]}
        return ask(server, "POST", "/step", {"action": {"code": code}}, **named)

    with child("--timeout", "600", "--drain", "600", log=subprocess.PIPE) as server:
        with ThreadPoolExecutor(1) as threads:
            stepping = threads.submit(step)
            eventually(lambda: server.runs("sleep"))
            server.process.send_signal(signal.SIGINT)
            eventually(lambda: "server_draining" in server.process.stderr.readline())
            server.process.send_signal(signal.SIGINT)
            status, _, told = stepping.result(PATIENCE)
        log = server.process.stderr.read()

    assert (status, told["code"]) == (503, "DRAINING")
    assert "error" not in [json.loads(line)["level"] for line in log.splitlines()]
    assert server.process.returncode == 130


def test_a_server_runs_though_its_startup_message_is_unread():
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(
        [sys.executable, "-m", "repl_env", "serve", "--port", "0", "--recovery", "restart"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(writer)
        started = json.loads(process.stderr.readline())
        try:
            assert started["event"] == "server_started"
            with urllib.request.urlopen(f"{started['url']}/health", timeout=PATIENCE) as answer:
                assert answer.status == 200
        finally:
            process.send_signal(signal.SIGINT)
            _, log = process.communicate()
    assert process.returncode == 130
    assert {json.loads(line)["level"] for line in log.splitlines()} == {"info"}


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "repl_server.app", raising=False)
    monkeypatch.delattr("repl_server.app", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    done = CliRunner().invoke(build(), ["serve", "--port", "0"])

    assert done.exit_code == 1
    assert "pip install 'repl-env[server]'" in done.stderr


def test_an_unavailable_tier_has_its_own_exit_status(monkeypatch):
    def refuse(**arguments):
        raise IsolationError("jailed", "namespaces", "not allowed", "Ask root.")

    monkeypatch.setattr("repl_env.episode.sandboxes.Sandbox", refuse)
    done = CliRunner().invoke(build(), ["serve", "--port", "0"])

    assert done.exit_code == 3
    assert "Ask root." in done.stderr


@pytest.mark.parametrize(
    ("options", "tier", "works", "hint"),
    [
        ((), "jailed", True, "  repl-env serve --port 0 --require confined\n"),
        (
            ("--isolation", "jailed"),
            "jailed",
            True,
            "--port 0 --isolation jailed --isolation confined --require confined\n",
        ),
        ((), "jailed", False, None),
        (("--require", "confined"), "confined", True, None),
    ],
)
def test_where_tier_confined_works_the_refusal_names_the_command_that_accepts_it(
    monkeypatch, options, tier, works, hint
):
    def refuse(**arguments):
        raise IsolationError(tier, "namespaces", "not allowed", "Ask root.")

    arguments = ["serve", "--port", "0", *options]
    monkeypatch.setattr("repl_env.episode.sandboxes.Sandbox", refuse)
    monkeypatch.setattr("repl_env.cli.options.try_tier", lambda tier: Trial(tier, works))
    monkeypatch.setattr(sys, "argv", ["repl-env", *arguments])
    done = CliRunner().invoke(build(), arguments)

    assert done.exit_code == 3
    if hint is None:
        assert "Tier confined works here" not in done.stderr
    else:
        assert hint in done.stderr


def test_what_fails_in_each_tier_alike_is_no_reason_for_a_weaker_one(monkeypatch):
    def refuse(**arguments):
        raise IsolationError("jailed", "single thread", "preload: x left a thread", "Leave x out.")

    monkeypatch.setattr("repl_env.episode.sandboxes.Sandbox", refuse)
    monkeypatch.setattr("repl_env.cli.options.try_tier", lambda tier: Trial(tier, True))
    done = CliRunner().invoke(build(), ["serve", "--port", "0", "--preload", "x"])
    assert done.exit_code == 3
    assert "Leave x out." in done.stderr
    assert "Tier confined works here" not in done.stderr


def test_a_port_in_use_is_reported(monkeypatch):
    for of_the_process in ("hide_memory", "freeze_gc"):  # of the tests, it would be
        monkeypatch.setattr(f"repl_server.serving.{of_the_process}", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(build(), ["serve", "--port", str(port), "--recovery", "restart"])

    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; --host and --port" in line


def test_garbage_collection_skips_loaded_modules():
    script = (
        "import gc; from repl_server.app import create_app; from repl_server import serving\n"
        "app = create_app(); before = len(gc.get_objects()); serving.freeze_gc()\n"
        "print(before, len(gc.get_objects()))"
    )
    told = subprocess.check_output([sys.executable, "-c", script], text=True)
    before, after = map(int, told.split())

    assert after < before / 100


def test_memory_used_by_many_clients_is_returned():
    with subprocess.Popen(
        [sys.executable, "-m", "tests.server.cli.fragmenting_server"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            server = Child(process)
            assert ask(server, "POST", "/reset", {})[0] == 200
            before = anonymous(str(process.pid))
            assert ask(server, "POST", "/step", {"action": {}})[0] == 200
            eventually(lambda: anonymous(str(process.pid)) < before + (20 << 20))
        finally:
            process.kill()


@pytest.mark.parametrize("where", ["step", "loop", "make"])
def test_a_hanging_environment_does_not_block_shutdown(where):
    """No thread, and no task that ignores cancellation, can be ended. The log names the class."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.server.cli.hanging_server", where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            server = Child(process)
            with peer(server) as one:
                if where != "make":
                    one.reset()
                    one.send("step", {})
                assert process.stdout.readline() == "hangs\n"
                process.send_signal(signal.SIGTERM)
                assert one.closed() == 1012
            assert process.wait(PATIENCE) in (0, -signal.SIGTERM)
            log = [json.loads(line) for line in process.stderr.read().splitlines()]
        finally:
            process.kill()
    events = {line["event"]: line for line in log}
    assert "server_stopped" in events and "fault" not in events
    if where != "make":
        opened, held = events["session_opened"], events["session_leaked"]
        assert held["session"] == opened["session"] and held["level"] == "warning"


def test_garbage_of_ended_sessions_is_collected_when_the_server_is_idle():
    left = []

    class Circular(Adder):
        def __init__(self):
            super().__init__()
            self.circle = [self, *([] for _ in range(6_000))]
            left.append(weakref.ref(self))

        def close(self):
            """Leave the environment unreferenced."""

    gc.disable()
    try:
        with serving(environment=Circular, action=Add, observation=Sum) as server:
            assert ask(server, "POST", "/reset", {})[0] == 200
            eventually(lambda: left and not any(each() for each in left))
    finally:
        gc.enable()


def test_options_are_variables_of_the_environment_too(monkeypatch):
    monkeypatch.setenv("REPL_ENV_MAX_SESSIONS", "5")
    monkeypatch.setenv("REPL_ENV_PRELOAD", "json re")
    monkeypatch.setenv("REPL_ENV_LLM_URL", "http://a/v1 http://b/v1")
    monkeypatch.setenv("REPL_ENV_API_KEYS", f"# the first\none:{'0' * 64}, two: {'1' * 64}")
    monkeypatch.setenv("REPL_ENV_QUOTA", "sessions=8 steps_per_second=0.5")
    monkeypatch.setenv("REPL_ENV_MAX_MESSAGE", "1MiB")
    monkeypatch.setenv("REPL_ENV_FAIR_SHARE", "0")
    settings = of_variables("0.0.0.0")

    assert (settings.host, settings.max_sessions) == ("0.0.0.0", 5)
    assert settings.preload == ("json", "re")
    assert settings.llm_urls == ("http://a/v1", "http://b/v1")
    assert settings.quota == TenantQuota(sessions=8, steps_per_second=0.5)
    assert settings.message_bytes == 1 << 20
    assert settings.fair_share is False
    assert len(configured_keys(settings)) == 2


def test_a_quota_for_anonymous_clients_keeps_the_limits_that_it_does_not_name(monkeypatch):
    monkeypatch.setenv("REPL_ENV_QUOTA", "sessions=2")
    monkeypatch.setenv("REPL_ENV_NO_AUTH", "1")

    assert of_variables("0.0.0.0").quota == replace(ADDRESS_QUOTA, sessions=2)
    assert of_variables("127.0.0.1").quota == TenantQuota(sessions=2)


def test_the_application_for_other_servers_asks_for_keys(monkeypatch):
    from repl_server import asgi

    # It is created once per process, by the first access, from the environment variables at that
    # time.
    vars(asgi).pop("app", None)
    for name in [name for name in os.environ if name.startswith("REPL_ENV_")]:
        monkeypatch.delenv(name)
    with pytest.raises(ValueError, match="REPL_ENV_API_KEYS_FILE"):
        asgi.app
    monkeypatch.setenv("REPL_ENV_NO_AUTH", "1")
    assert asgi.app.state.manager.settings.no_auth is True
    del vars(asgi)["app"]
    with pytest.raises(AttributeError):
        asgi.application


def test_with_the_smallest_messages_an_episode_can_be_played(monkeypatch):
    monkeypatch.setenv("REPL_ENV_MAX_MESSAGE", "4KiB")
    settings = replace(of_variables("127.0.0.1"), port=0, require="confined")
    with serving(settings) as server, peer(server) as one:
        one.reset(task_prompt="How many?" * 100, context="x" * 1024)
        assert one.run("len(context)")["value"] == "1024"


def test_the_memory_of_the_server_is_protected(monkeypatch):
    """Keys of models are in it. Seen in this process."""
    seen = []

    class Idle:
        def run(self):
            seen.append(libc.prctl(_GET_DUMPABLE))

    monkeypatch.setattr("repl_server.serving.server", lambda app, listening: Idle())
    monkeypatch.setattr("repl_server.manager.SessionManager.prepare", lambda host: None)
    assert libc.prctl(_GET_DUMPABLE) == 1
    assert CliRunner().invoke(build(), ["serve"]).exit_code == 0

    assert seen == [0]


_GET_DUMPABLE = 3  # linux/prctl.h: PR_GET_DUMPABLE


def test_anonymous_clients_may_send_less_at_once(monkeypatch):
    monkeypatch.setenv("REPL_ENV_API_KEYS", f"one:{'0' * 64}")
    assert of_variables("127.0.0.1").largest_message == 128 << 20
    assert of_variables("0.0.0.0").largest_message == 128 << 20
    monkeypatch.delenv("REPL_ENV_API_KEYS")
    monkeypatch.setenv("REPL_ENV_NO_AUTH", "1")
    assert of_variables("127.0.0.1").largest_message == 128 << 20
    assert of_variables("0.0.0.0").largest_message == 32 << 20
    monkeypatch.setenv("REPL_ENV_MAX_MESSAGE", "1MiB")
    assert of_variables("0.0.0.0").largest_message == 1 << 20
