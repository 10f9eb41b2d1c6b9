"""Numbers are per server, and no client can make up a label."""

from __future__ import annotations

from repl_server.telemetry import CONTENT_TYPE, Metrics
from repl_server.tenants import Tenant


def lines_of(metrics: Metrics) -> list[str]:
    return metrics.text().decode().splitlines()


def test_events_are_counted() -> None:
    metrics = Metrics()
    metrics.set_gauge("sessions_open", lambda: 3)
    metrics.reset(0.02)
    metrics.step(None, 0.003)
    metrics.step("timeout", 5)
    metrics.refused("RATE_LIMITED")
    metrics.uploaded(100)
    metrics.sub_call("ok", 2)
    metrics.session_closed("idle")
    metrics.cpu(Tenant("key", "alice"), 1.5)
    lines = lines_of(metrics)

    for line in (
        "repl_sessions_open 3.0",
        "repl_resets_total 1.0",
        'repl_steps_total{outcome="ok"} 1.0',
        'repl_steps_total{outcome="timeout"} 1.0',
        'repl_step_seconds_bucket{le="0.005"} 1.0',
        "repl_step_seconds_count 2.0",
        'repl_refusals_total{code="RATE_LIMITED"} 1.0',
        "repl_uploads_bytes_total 100.0",
        'repl_sub_calls_total{outcome="ok"} 2.0',
        'repl_sessions_closed_total{reason="idle"} 1.0',
        'repl_cpu_seconds_total{key="alice"} 1.5',
    ):
        assert line in lines


def test_metrics_contain_no_other_tenant_s_name() -> None:
    metrics = Metrics()
    for name, seconds in (("alice", 1.5), ("bob", 2), ("carol", 3)):
        metrics.cpu(Tenant("key", name), seconds)
    metrics.cpu(Tenant("address", "198.51.100.7"), 4)
    told = metrics.text("bob").decode().splitlines()

    assert sorted(line for line in told if "cpu_seconds_total{" in line) == [
        'repl_cpu_seconds_total{key=""} 8.5',
        'repl_cpu_seconds_total{key="bob"} 2.0',
    ]


def test_two_servers_have_separate_metrics() -> None:
    one, two = Metrics(), Metrics()
    one.reset(0.02)

    assert "repl_resets_total 1.0" in lines_of(one)
    assert "repl_resets_total 0.0" in lines_of(two)


def test_labels_contain_neither_client_values_nor_addresses() -> None:
    metrics = Metrics()
    for number in range(100):
        metrics.step(f"made-up-{number}", 1)
        metrics.refused(f"made-up-{number}")
        metrics.session_closed(f"made-up-{number}")
        metrics.sub_call(f"made-up-{number}")
        metrics.cpu(Tenant("address", f"198.51.100.{number}"), 1)
    text = metrics.text().decode()

    assert "made-up" not in text
    assert "198.51.100" not in text
    assert 'repl_steps_total{outcome="other"} 100.0' in text.splitlines()
    assert 'repl_cpu_seconds_total{key=""} 100.0' in text.splitlines()


def test_process_metrics_are_exported() -> None:
    assert any(line.startswith("process_open_fds ") for line in lines_of(Metrics()))
    assert CONTENT_TYPE.startswith("text/plain")
