"""A server in a process of its own, as an operator sees it: its start, its numbers, its log."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import InvalidStatus

import repl_env
from repl_server.auth import new_key
from repl_server.telemetry import EVENTS, FIELDS, METRICS, STEP_OUTCOMES
from tests.server.conftest import ask, peer
from tests.server.serve_process import ADDRESS, child
from tests.waiting import PATIENCE

MIB = 1 << 20
QUICK = ("--recovery", "restart")


def numbers_of(server, **headers) -> dict[tuple[str, frozenset], float]:
    """The samples of one scrape, by name and labels."""
    status, _, text = ask(server, "GET", "/metrics", **headers)
    assert status == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


@contextmanager
def logged(*options):
    """A server, and a list that has the lines of its log once SIGTERM has ended the server."""
    lines: list[dict] = []
    with child(*QUICK, *options, log=subprocess.PIPE) as server:
        yield server, lines
        server.process.send_signal(signal.SIGTERM)
        _, log = server.process.communicate(timeout=PATIENCE)
        assert server.process.returncode == -signal.SIGTERM
        lines += [json.loads(line) for line in log.splitlines()]


def fail_in_three_ways(server) -> None:
    """Have one session end a step by a crash, one by a time-out, and one by an exception."""
    with peer(server, host=ADDRESS, named=True) as one:
        one.open()
        one.reset()
        one.run("import os; os._exit(3)")
        one.run("while True: pass", timeout_s=0.5)
        one.run("1 / 0")
        one.send("close", {}, id="last")
        one.closed()


def test_a_scrape_has_each_metric_with_its_type_and_its_labels() -> None:
    with child(*QUICK) as server:
        fail_in_three_ways(server)
        with pytest.raises(InvalidStatus), peer(server, host=ADDRESS, path="/nowhere"):
            pass
        text = ask(server, "GET", "/metrics")[2].decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    ours = {name for name in families if name[:5] == "repl_" and not name.endswith("_created")}

    kinds = {"info": "gauge"}  # the text format has no type for it
    expected = {f"{n}_info" if m.kind == "info" else n: m for n, m in METRICS.items()}
    assert ours == expected.keys()
    for name, metric in expected.items():
        assert families[name].type == kinds.get(metric.kind, metric.kind), name
        assert families[name].documentation == metric.text
        labels = {label for sample in families[name].samples for label in sample.labels}
        assert labels - {"le"} == set(metric.labels if families[name].samples else ()), name
    assert "process_resident_memory_bytes" in families


def test_a_scrape_says_what_the_server_is_how_much_it_takes_and_how_fast_it_opens() -> None:
    with child(*QUICK, "--max-sessions", "3", "--connections", "50") as server:
        with peer(server, host=ADDRESS) as one:
            tier = one.reset()["observation"]["metadata"]["isolation"]["tier"]
            one.run(f"block = b'x' * {200 * MIB}")
            numbers = numbers_of(server)

    server_labels = {"version": repl_env.__version__, "python": platform.python_version()}
    assert numbers["repl_server_info", frozenset({**server_labels, "tier": tier}.items())] == 1
    plain = {name: value for (name, labels), value in numbers.items() if not labels}
    assert (plain["repl_sessions_open"], plain["repl_sessions_max"]) == (1, 3)
    assert plain["repl_connections_max"] == 50
    assert plain["repl_session_open_seconds_count"] == plain["repl_reset_seconds_count"] == 1
    assert plain["repl_session_open_seconds_sum"] > 0 < plain["repl_reset_seconds_sum"]
    assert 200 * MIB < plain["repl_sessions_memory_bytes"] < 600 * MIB


def test_counters_begin_at_zero_so_that_a_rate_sees_the_first_crash() -> None:
    with child(*QUICK) as server:
        before = numbers_of(server)
        fail_in_three_ways(server)
        after = numbers_of(server)

    steps = {
        outcome: ("repl_steps_total", frozenset({("outcome", outcome)}))
        for outcome in STEP_OUTCOMES
    }
    assert {before[each] for each in steps.values()} == {0}
    failed = {outcome for outcome, each in steps.items() if after[each] == 1}
    assert failed == {"crash", "timeout", "exception"}


def test_the_start_names_address_pages_tier_and_access() -> None:
    with child(*QUICK, "--max-sessions", "3", log=subprocess.PIPE) as server:
        lines = dict(server.process.stdout.readline().split(maxsplit=1) for _ in range(4))
        started = json.loads(server.process.stderr.readline())
        page, routes = ask(server, "GET", "/"), ask(server, "GET", "/docs")
        with peer(server, host=ADDRESS) as one:
            tier = one.reset()["observation"]["metadata"]["isolation"]["tier"]

    assert lines == {
        "playground": f"{server.url}/\n",
        "routes": f"{server.url}/docs\n",
        "sessions": f"tier {tier}, 3 at most\n",
        "access": "no key is needed\n",
    }
    assert (page[0], routes[0]) == (200, 200)
    about = {"url": server.url, "tier": tier, "version": repl_env.__version__}
    assert {name: started[name] for name in about} == about
    assert (started["playground"], started["keys"], started["max_sessions"]) == (True, False, 3)


def test_the_start_says_that_there_is_no_playground_and_that_keys_are_needed(tmp_path) -> None:
    (tmp_path / "keys").write_text(new_key("alice")[1])
    with child(*QUICK, "--no-web", "--api-keys", str(tmp_path / "keys")) as server:
        lines = [server.process.stdout.readline() for _ in range(4)]

    assert lines[0].split() == ["playground", "off;", "--web", "turns", "it", "on"]
    assert lines[3].split(maxsplit=1)[1] == "every request needs a key\n"


def test_the_log_has_failed_steps_and_sockets_and_neither_scrapes_nor_probes() -> None:
    with logged() as (server, lines):
        fail_in_three_ways(server)
        with pytest.raises(InvalidStatus), peer(server, host=ADDRESS, path="/nowhere"):
            pass
        for path in ("/metrics", "/ready", "/health", "/accepting", "/metadata"):
            assert ask(server, "GET", path)[0] == 200

    failed = [line for line in lines if line["event"] == "step_failed"]
    assert [line["outcome"] for line in failed] == ["crash", "timeout"]
    assert {line["level"] for line in failed} == {"warning"}
    assert {line["session"] for line in failed} == {
        line["session"] for line in lines if line["event"] == "session_opened"
    }
    requests = [line for line in lines if line["event"] == "request"]
    assert {(line["method"], line["path"], line["status"]) for line in requests} == {
        ("WebSocket", "/ws", 101),
        ("WebSocket", "/nowhere", 404),
        ("GET", "/metadata", 200),
    }
    assert not any(line["event"] == "step" for line in lines)


def test_a_refused_scrape_is_in_the_log(tmp_path) -> None:
    (tmp_path / "keys").write_text(new_key("alice")[1])
    with logged("--api-keys", str(tmp_path / "keys")) as (server, lines):
        assert ask(server, "GET", "/metrics")[0] == 401

    (refused,) = (line for line in lines if line["event"] == "refused")
    assert (refused["path"], refused["code"]) == ("/metrics", "UNAUTHENTICATED")
    assert refused["tenant"] == "address 127.0.0.1"  # an operator can block it


@pytest.mark.parametrize(
    ("level", "events"),
    [
        ("debug", {"step", "step_failed", "reset", "server_started"}),
        ("warning", {"step_failed"}),
        ("error", set()),
    ],
)
def test_the_log_has_lines_of_its_level_and_above(level, events) -> None:
    with logged("--log-level", level) as (server, lines):
        fail_in_three_ways(server)

    assert {line["event"] for line in lines} >= events
    ranks = ["debug", "info", "warning", "error"]
    assert all(ranks.index(line["level"]) >= ranks.index(level) for line in lines)
    assert not any("code" in line for line in lines)  # contents only with --log-contents


def test_each_field_of_a_line_is_described_and_no_other_is() -> None:
    used = {name for event in EVENTS.values() for name in event.fields | event.contents}

    assert FIELDS.keys() == used | {"time", "level", "event", "suppressed"}
