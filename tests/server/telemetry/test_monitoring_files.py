"""Alerts, dashboard and unit in docker/ name what the server has, and real tools take them."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from repl_env.client.protocol import CODES
from repl_sandbox.host.isolation import TIERS
from repl_server.auth import new_key
from repl_server.manager import CLOSE_S
from repl_server.settings import Settings
from repl_server.telemetry import CALL_OUTCOMES, ENDINGS, METRICS, STEP_OUTCOMES
from tests.server.conftest import peer
from tests.server.serve_process import ADDRESS, child
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
RULES = yaml.safe_load((DOCKER / "alerts.yml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DOCKER / "grafana.json").read_text(encoding="utf-8"))
PANELS = {
    f"{panel['title']}, {target['legendFormat']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
EXPRESSIONS = {**{rule["alert"]: rule["expr"] for rule in ALERTS}, **PANELS}

# The samples of a metric, by its type.
_SUFFIXES = {
    "counter": ("_total",),
    "info": ("_info",),
    "histogram": ("_bucket", "_sum", "_count"),
    "gauge": ("",),
}
SAMPLES = {
    f"{name}{suffix}" for name, metric in METRICS.items() for suffix in _SUFFIXES[metric.kind]
} | {
    "up",  # Prometheus makes it
    "process_open_fds",
    "process_max_fds",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
}
LABELS = {label for metric in METRICS.values() for label in metric.labels} | {
    "instance",
    "job",
    "le",
}
VALUES = {
    "outcome": STEP_OUTCOMES | CALL_OUTCOMES,
    "code": CODES.keys(),
    "reason": ENDINGS,
    "tier": set(TIERS),
    "job": {"repl-env"},
}
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_KEYWORDS = {"and", "or", "unless", "bool", "offset"}


def named(expression: str) -> tuple[set[str], set[str], list[tuple[str, str]]]:
    """The metrics of an expression, its labels, and the pairs of label and value."""
    pairs = _MATCHER.findall(expression)
    grouped = {label.strip() for part in _GROUPING.findall(expression) for label in part.split(",")}
    rest = re.sub(r'\{[^}]*\}|\[[^\]]*\]|"[^"]*"', "", _GROUPING.sub("", expression))
    metrics = {*re.findall(r"\b[a-zA-Z_:][\w:]*\b(?!\s*\()", rest)} - _KEYWORDS
    return metrics, grouped | {label for label, _ in pairs}, pairs


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_names_metrics_labels_and_values_that_exist(name: str) -> None:
    metrics, labels, pairs = named(EXPRESSIONS[name])

    assert metrics and metrics <= SAMPLES
    assert labels <= LABELS
    for label, values in pairs:
        if label in VALUES and not values.startswith("$"):
            assert set(values.split("|")) <= VALUES[label]


def test_a_name_that_does_not_exist_is_found_out() -> None:
    metrics, labels, pairs = named(
        'sum by (instance, le) (rate(repl_stepz_total{outcom=~"crash"}[5m])) > 0.2 * up'
    )
    assert (metrics, labels) == ({"repl_stepz_total", "up"}, {"instance", "le", "outcom"})
    assert pairs == [("outcom", "crash")]


def test_each_alert_has_a_row_on_the_page_and_a_summary() -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `ReplEnv")]
    listed = [name for row in rows for name in re.findall(r"`(ReplEnv\w+)`", row.split("|")[1])]

    assert sorted(listed) == sorted(rule["alert"] for rule in ALERTS)
    for rule in ALERTS:
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_prometheus_of_compose_loads_the_alerts() -> None:
    config = yaml.safe_load((DOCKER / "prometheus.yml").read_text(encoding="utf-8"))
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))

    assert config["rule_files"] == ["alerts.yml"]
    volumes = compose["services"]["prometheus"]["volumes"]
    assert "./alerts.yml:/etc/prometheus/alerts.yml:ro" in volumes
    assert config["scrape_configs"][0]["job_name"] == "repl-env"


# The tools of Prometheus, where they are (Debian: prometheus).

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool; Debian has it in prometheus"
)
# Series of a server that is full, crashes, and is not isolated; and the alerts that they raise.
SCENARIO = {
    "repl_sessions_open{instance='a'}": "64x60",
    "repl_sessions_max{instance='a'}": "64x60",
    "repl_server_info{instance='a', tier='process'}": "1x60",
    "repl_steps_total{instance='a', outcome='ok'}": "0+60x60",
    "repl_steps_total{instance='a', outcome='crash'}": "0+40x60",
    "repl_steps_total{instance='a', outcome='sandbox'}": "0x60",
    "repl_refusals_total{instance='a', code='SESSION_ERROR'}": "0x50 1x10",
    "repl_refusals_total{instance='a', code='CAPACITY_REACHED'}": "0x60",
    "up{instance='b', job='repl-env'}": "1x50 0x10",
}
RAISED = {
    "ReplEnvNearlyFull",
    "ReplEnvNoIsolation",
    "ReplEnvManyFailedSteps",
    "ReplEnvFaults",
    "ReplEnvDown",
}


def promtool(*arguments: str | Path) -> None:
    """Run it; its output is the error."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_promtool_accepts_the_alerts_and_the_expressions_of_the_dashboard(tmp_path) -> None:
    promtool("check", "rules", DOCKER / "alerts.yml")
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(PANELS.values())
    ]
    made = {"groups": [{"name": "panels", "rules": rules}]}
    (tmp_path / "panels.yml").write_text(yaml.safe_dump(made))
    promtool("check", "rules", tmp_path / "panels.yml")


@needs_prometheus
def test_the_alerts_that_a_bad_hour_raises_are_those_that_it_should(tmp_path) -> None:
    series = [{"series": name, "values": values} for name, values in SCENARIO.items()]
    query = "count by (alertname) (ALERTS{alertstate='firing'})"
    samples = [{"labels": f"{{alertname='{name}'}}", "value": 1} for name in sorted(RAISED)]
    test = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [{"expr": query, "eval_time": "55m", "exp_samples": samples}],
    }
    made = {"rule_files": [str(DOCKER / "alerts.yml")], "tests": [test]}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(made))

    promtool("test", "rules", tmp_path / "tests.yml")


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **query: str) -> dict:
        """The data of a request to its API."""
        url = f"{self._url}/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            data: dict = json.load(answer)["data"]
            return data


@contextmanager
def prometheus(folder: Path, target: str, key: str) -> Iterator[Prometheus]:
    """The configuration of docker/ in a real Prometheus, with `target` and `key`."""
    config = yaml.safe_load((DOCKER / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    (folder / "key").write_text(key)
    job["authorization"]["credentials_file"] = str(folder / "key")
    job["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(DOCKER / "alerts.yml", folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield Prometheus(port)
        finally:
            process.terminate()


def answers(running: Prometheus) -> bool:
    """Return whether Prometheus has scraped the server twice."""
    try:
        found = running.get("query", query='count_over_time(up{job="repl-env"}[1m]) > 1')
    except OSError:
        return False
    return bool(found["result"])


@needs_prometheus
def test_a_real_prometheus_scrapes_a_real_server_for_each_panel(tmp_path) -> None:
    (key, line), (own, scrapes) = new_key("alice"), new_key("prometheus")
    (tmp_path / "keys").write_text(f"{line}\n{scrapes}\n")
    options = ("--recovery", "restart", "--api-keys", str(tmp_path / "keys"))
    headers = {"additional_headers": {"X-API-Key": key}}
    with child(*options, "--metrics-key", "prometheus") as server:
        target = server.url.removeprefix("http://")
        with (
            prometheus(tmp_path, target, own) as running,
            peer(server, host=ADDRESS, **headers) as one,
        ):
            one.reset()
            one.run("1 + 1")
            eventually(lambda: answers(running))
            variables = {"$__rate_interval": "1m", "$instance": ".*"}
            found = {}
            for name, expression in PANELS.items():
                for variable, value in variables.items():
                    expression = expression.replace(variable, value)
                found[name] = running.get("query", query=expression)["result"]
            alerts = {rule["name"]: rule for rule in running.get("rules")["groups"][0]["rules"]}

    empty = {name for name, result in found.items() if not result}
    # Rates above zero need an event between two scrapes, and refusals of connections need some.
    assert empty <= {
        "Steps, by outcome, {{outcome}}",
        "Requests refused, by code, {{code}}",
        "Connections, refused per second: {{reason}}",
    }
    (about,) = found["Versions, "]
    assert about["metric"]["tier"] in TIERS
    assert {rule["health"] for rule in alerts.values()} == {"ok"}


# The unit of systemd.


def unit() -> configparser.RawConfigParser:
    """The unit, with its last value where a name is repeated."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DOCKER / "repl-env.service", encoding="utf-8")
    return parser


def test_the_unit_counts_the_end_by_sigterm_as_success_and_waits_for_the_drain() -> None:
    service = unit()["Service"]

    assert service["SuccessExitStatus"] == "143"
    assert service["KillSignal"] == "SIGTERM"
    assert int(service["TimeoutStopSec"]) > Settings().drain_s + CLOSE_S
    assert service["ExecStart"].split()[1:] == ["serve"]
    assert set(service["Delegate"].split()) == {"cpu", "memory", "pids"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_accepts_the_unit(tmp_path) -> None:
    text = (DOCKER / "repl-env.service").read_text(encoding="utf-8")
    text = text.replace("/opt/repl-env/bin/repl-env", "/bin/true")  # it must exist here
    (tmp_path / "repl-env.service").write_text(
        re.sub("^User=.*", "User=root", text, flags=re.MULTILINE)
    )
    command = ["systemd-analyze", "verify", str(tmp_path / "repl-env.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
