"""`REPLCluster`: real servers as nodes, that fill up, die, drain, join and lie."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from repl_env import AuthenticationFailed, CapacityReached, ServerError, SessionLost
from repl_env.cli.cluster import cluster as command
from repl_env.client.nodes import NodeFile
from repl_env.cluster import REPLCluster
from repl_server.auth import new_key
from tests.server.conftest import serving
from tests.server.serve_process import child
from tests.server.server_internals import set_silence
from tests.waiting import PATIENCE, eventually, until

OPTIONS = ("--require", "confined", "--recovery", "restart", "--pool", "0", "--max-sessions", "30")
KEY = "repl_" + "k" * 40


@contextlib.contextmanager
def nodes(count: int, *options: str) -> Iterator[list[Any]]:
    """Servers in processes of their own."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(child(*OPTIONS, *options)) for _ in range(count)]


@contextlib.contextmanager
def small(*sizes: int) -> Iterator[list[Any]]:
    """Servers in this process, with room for so many sessions each."""
    with contextlib.ExitStack() as stack:
        settings = [{"max_sessions": size, "pool": 0, "wait_s": 1.0} for size in sizes]
        yield [stack.enter_context(serving(each)) for each in settings]


@contextlib.contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[str]:
    """A server that gives the same answer to each GET; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def ready(**changes: Any) -> bytes:
    """The report of a node with room."""
    report = {"ready": True, "sessions": 0, "free": 9, "waiting": 0, "version": version("repl-env")}
    return json.dumps({**report, **changes}).encode()


def words(env: Any) -> float:
    """The reward of a short episode in a client."""
    env.reset(context="one two three", task_prompt="How many words?", expected_answer="3")
    return float(env.execute("FINAL(len(context.split()))").reward)


# ── where sessions are opened ────────────────────────────────────────────────────────────────


def test_sessions_spread_over_the_nodes_and_all_episodes_run() -> None:
    with small(4, 4, 4) as servers, contextlib.ExitStack() as stack:
        cluster = REPLCluster([each.url for each in servers])
        envs = [stack.enter_context(cluster.env().sync()) for _ in range(12)]
        assert [words(env) for env in envs] == [1.0] * 12
        assert Counter(env.base_url for env in envs) == {each.url: 4 for each in servers}


def test_a_full_cluster_says_its_numbers_and_a_free_session_ends_the_wait() -> None:
    with small(1, 1) as (one, other):
        cluster = REPLCluster([one.url, other.url, "http://127.0.0.1:9"], queue_timeout_s=0.5)
        with cluster.env().sync(), cluster.env().sync() as second:
            with pytest.raises(CapacityReached) as caught, cluster.env().sync():
                pass
            message = str(caught.value)
            assert "2 of 3 nodes take sessions, 2 sessions are open, 0 could be" in message
            assert "http://127.0.0.1:9: " in message
            patient = REPLCluster([one.url, other.url], queue_timeout_s=PATIENCE).env().sync()
            waiting = threading.Thread(target=patient.connect)
            waiting.start()
            second.close()
            waiting.join(PATIENCE)
            assert patient.base_url == other.url or patient.base_url == one.url
            assert words(patient) == 1.0
            patient.close()


def test_no_more_resets_wait_than_the_bound() -> None:
    with small(1) as (one,):
        cluster = REPLCluster([one.url], queue_timeout_s=PATIENCE, max_waiting=1)
        with cluster.env().sync():
            patient = cluster.env().sync()
            waiting = threading.Thread(target=patient.connect)
            waiting.start()

            def refused() -> bool:
                try:
                    cluster.env().sync().connect()
                except CapacityReached as error:
                    return "max_waiting" in str(error)
                return False

            eventually(refused)
        waiting.join(PATIENCE)
        assert words(patient) == 1.0
        patient.close()


async def test_equal_large_contexts_lead_to_one_node_until_it_has_its_share() -> None:
    with small(6, 6, 6) as servers:
        cluster = REPLCluster([each.url for each in servers])
        envs = [cluster.env() for _ in range(3)]
        context = "word " * 400_000
        try:
            for env in envs:
                await env.reset(context=context, task_prompt="?")
            assert len({env.base_url for env in envs[:2]}) == 1
            others = [cluster.env() for _ in range(9)]
            envs += others
            await asyncio.gather(*(env.reset(context=context, task_prompt="?") for env in others))
            assert len({env.base_url for env in envs}) == 3
        finally:
            await asyncio.gather(*(env.close() for env in envs))


def test_a_vector_has_its_rows_in_order_on_all_nodes() -> None:
    with small(4, 4) as servers, REPLCluster([each.url for each in servers]).vector(6) as envs:
        requests = [
            {"context": "a " * number, "expected_answer": str(number)} for number in range(6)
        ]
        envs.reset(requests, task_prompt="How many words?")
        assert {env.base_url for env in envs.environments} == {each.url for each in servers}
        results = envs.step(["FINAL(len(context.split()))"] * 5 + [None])
        assert [result and result.reward for result in results] == [1.0] * 5 + [None]
        again = envs.step(["FINAL(0)", *[None] * 4, "FINAL(5)"])
        assert again[0].done and again[0].reward == 0.0
        assert again[5].reward == 1.0
        begun = envs.reset([{"expected_answer": "7"}], only=[2])
        assert [result is not None for result in begun] == [False, False, True, False, False, False]
        assert envs.step([None, None, "FINAL(7)", None, None, None])[2].reward == 1.0
        with pytest.raises(TypeError, match="takes no wrong"):
            envs.reset(wrong=1)


def test_the_rows_of_a_killed_node_are_masked_and_the_others_go_on() -> None:
    with nodes(2) as servers:
        cluster = REPLCluster([each.url for each in servers], reconnect_s=1.0)
        with cluster.vector(8) as envs:
            envs.reset(task_prompt="?", expected_answer="1")
            envs.step(["x = 1"] * 8)
            on_dead = [env.base_url == servers[0].url for env in envs.environments]
            assert 0 < sum(on_dead) < 8
            os.kill(servers[0].process.pid, signal.SIGKILL)
            results = envs.step(["FINAL(x)"] * 8)
            assert all(result.done for result in results)
            assert [bool(result.metadata.get("mask")) for result in results] == on_dead
            assert [result.reward for result in results] == [float(not dead) for dead in on_dead]
            assert envs.masked_share == sum(on_dead) / 8
            lost = [number for number, dead in enumerate(on_dead) if dead]
            envs.reset([{"expected_answer": "2"}] * len(lost), only=lost)
            ends = envs.step(["FINAL(2)" if dead else None for dead in on_dead])
            assert [end.reward for end in ends if end is not None] == [1.0] * len(lost)


# ── nodes that end ───────────────────────────────────────────────────────────────────────────


async def test_clients_of_a_killed_node_lose_their_sessions_and_go_on_elsewhere(
    tmp_path: Path,
) -> None:
    with nodes(3) as servers:
        cluster = REPLCluster([each.url for each in servers], reconnect_s=1.0)
        envs = [cluster.env() for _ in range(60)]
        runs = tmp_path / "runs"
        runs.mkdir()

        async def begin(env: Any) -> None:
            await env.reset(task_prompt="?", expected_answer="3")
            await env.execute("x = 2")

        try:
            await asyncio.gather(*map(begin, envs))
            before = Counter(env.base_url for env in envs)
            assert len(before) == 3
            dead = servers[0]
            os.kill(dead.process.pid, signal.SIGKILL)
            lost = [env for env in envs if env.base_url == dead.url]

            async def finish(env: Any) -> float | SessionLost:
                try:
                    return float((await env.execute("FINAL(x + 1)")).reward)
                except SessionLost as error:
                    return error

            ends = await asyncio.gather(*map(finish, envs))
            failed = [env for env, end in zip(envs, ends, strict=True) if end != 1.0]
            assert failed == lost
            assert all(isinstance(end, (float, SessionLost)) for end in ends)
            await asyncio.gather(*(env.close() for env in envs if env not in failed))
            await asyncio.gather(*map(begin, failed))
            assert {env.base_url for env in failed} <= {each.url for each in servers[1:]}
            assert set(await asyncio.gather(*map(finish, failed))) == {1.0}
        finally:
            await asyncio.gather(*(env.close() for env in envs), return_exceptions=True)


async def test_a_draining_node_gets_no_sessions_and_its_clients_reset_elsewhere() -> None:
    with small(4, 4) as (one, other):
        cluster = REPLCluster([one.url, other.url])
        envs = [cluster.env() for _ in range(4)]
        for env in envs:
            await env.reset(task_prompt="?")
        one.stop()
        await until(lambda: {each.url: each.problem for each in cluster.status()}[one.url])
        for env in envs:
            await env.reset(task_prompt="?", expected_answer="1")
            assert env.base_url == other.url
            assert (await env.execute("FINAL(1)")).reward == 1.0
        for env in envs:
            await env.close()


# ── nodes that join a directory ──────────────────────────────────────────────────────────────


def test_nodes_join_and_leave_a_directory(tmp_path: Path) -> None:
    cluster = REPLCluster(tmp_path)
    assert cluster.status() == []
    with nodes(2, "--join", str(tmp_path)) as (one, other):
        eventually(lambda: {each.url for each in cluster.status()} == {one.url, other.url})
        assert all(not each.problem and each.free == 30 for each in cluster.status())
        with cluster.env().sync() as env:
            assert words(env) == 1.0
        one.process.send_signal(signal.SIGTERM)
        one.process.wait(PATIENCE)
        assert [each.url for each in cluster.status()] == [other.url]
        other.process.kill()
        other.process.wait()
        (left,) = cluster.status()
        assert left.url == other.url
        assert "no answer" in left.problem


def test_files_that_are_no_nodes_are_named_and_harm_nothing(tmp_path: Path) -> None:
    with small(1) as (one,), NodeFile(tmp_path, one.url):
        for name, text in {
            "a": "{",
            "b": "[]",
            "c": '{"url": "ftp://x"}',
            "d": "[" * 60_000,
        }.items():
            (tmp_path / f"{name}.node.json").write_text(text)
        (tmp_path / "large.node.json").write_bytes(b" " * (1 << 17))
        os.mkfifo(tmp_path / "pipe.node.json")
        (tmp_path / "README").write_text("no node")
        statuses = REPLCluster(tmp_path).status()
        assert len(statuses) == 7
        assert [each.url for each in statuses if not each.problem] == [one.url]
        with REPLCluster(str(tmp_path)).env().sync() as env:
            assert words(env) == 1.0


def test_a_directory_that_every_user_can_write_to_is_refused(tmp_path: Path) -> None:
    with small(1) as (one,), NodeFile(tmp_path, one.url):
        cluster = REPLCluster(tmp_path)
        tmp_path.chmod(0o777)
        (only,) = cluster.status()
        assert "every user can write" in only.problem
        with pytest.raises(PermissionError, match="every user can write"):
            REPLCluster(tmp_path)
    with pytest.raises(FileNotFoundError):
        REPLCluster(tmp_path / "gone")
    done = CliRunner().invoke(command, ["status", str(tmp_path / "gone")])
    assert done.exit_code == 2
    assert "No such file" in done.output


def test_a_key_that_no_node_accepts_is_an_error_at_once(tmp_path: Path) -> None:
    settings = {"hashed_keys": (new_key("alice")[1],)}
    with serving(settings) as one, serving(settings) as other:
        cluster = REPLCluster([one.url, other.url], api_key=new_key("alice")[0])
        with pytest.raises(AuthenticationFailed, match="no node accepts the key"):
            cluster.env().sync().connect()


def test_a_node_whose_file_stands_still_gets_no_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_silence(monkeypatch, 0.2)
    with small(1) as (one,):
        (tmp_path / "n.node.json").write_text(json.dumps({"url": one.url}))
        cluster = REPLCluster(tmp_path)
        assert cluster.status()[0].problem == ""
        eventually(lambda: "has not changed" in cluster.status()[0].problem)


def test_a_name_with_many_addresses_is_a_cluster() -> None:
    with small(1) as (one,):
        (status,) = REPLCluster(f"dns://localhost:{one.port}").status()[:1]
        urls = {each.url for each in REPLCluster(f"dns://localhost:{one.port}").status()}
        assert one.url in urls
        assert status.url in urls
    (unknown,) = REPLCluster("dns://no-such-name.invalid:80").status()
    assert "no address" in unknown.problem


# ── nodes that are none ──────────────────────────────────────────────────────────────────────

LIARS = {
    "another version": (ready(version="9.7.1"), 200, "version 9.7.1"),
    "no version": (ready(version=None), 200, "does not say its number"),
    "negative room": (ready(free=-1), 200, "no node of repl-env"),
    "room that is no number": (ready(free="9"), 200, "no node of repl-env"),
    "no JSON": (b"<html>", 200, "no node of repl-env"),
    "deep JSON": (b"[" * 60_000, 200, "no node of repl-env"),
    "an error page": (b"{}", 502, "status 502"),
    "a refusal": (b"{}", 401, "does not accept this key"),
    "control characters": (ready(version="1.\x1b[2J"), 200, "version 1.\\x1b[2J"),
}


@pytest.mark.parametrize("liar", LIARS)
def test_a_server_that_is_no_node_gets_no_session_and_is_named(liar: str) -> None:
    body, status, problem = LIARS[liar]
    with answering(body, status) as url, small(1) as (one,):
        cluster = REPLCluster([url, one.url])
        found = {each.url: each.problem for each in cluster.status()}
        assert problem in found[url]
        with cluster.env().sync() as env:
            assert env.base_url == one.url


def test_a_node_that_promises_room_and_grants_none_is_avoided() -> None:
    with answering(ready()) as url, small(1) as (one,):
        with REPLCluster([url, one.url]).env().sync() as env:
            assert env.base_url == one.url
        with pytest.raises(ServerError), REPLCluster([url], queue_timeout_s=0.2).env().sync():
            pass


@pytest.mark.parametrize(
    ("nodes", "error"),
    [
        ([], ValueError),
        (3, TypeError),
        (["http://"], ValueError),
        (["ftp://host"], ValueError),
        ("dns://", ValueError),
        (["host-without-scheme.example:80"], ValueError),
    ],
)
def test_wrong_sources_are_errors_at_once(nodes: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        REPLCluster(nodes)


# ── the command ──────────────────────────────────────────────────────────────────────────────


def test_the_command_prints_a_table_and_fails_without_a_node() -> None:
    with small(3) as (one,):
        done = CliRunner().invoke(command, ["status", one.url, "http://127.0.0.1:9"])
        assert done.exit_code == 0, done.output
        assert one.url in done.output
        assert "1 of 2 nodes take sessions: 0 are open, 3 could be." in done.output
        listed = json.loads(CliRunner().invoke(command, ["status", one.url, "--json"]).output)
        assert listed[0]["free"] == 3
    assert CliRunner().invoke(command, ["status", "http://127.0.0.1:9"]).exit_code == 1
