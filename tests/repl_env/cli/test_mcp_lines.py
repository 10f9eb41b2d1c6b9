"""`repl-env mcp`: raw lines to the real command, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from repl_env.cli.main import build

ROOT = Path(__file__).parents[3]

HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}


@pytest.fixture(scope="module")
def raw():
    """The command with pipes to it, after the handshake of older clients."""
    with subprocess.Popen(
        [sys.executable, "-m", "repl_env", "mcp", "--memory", "512MiB"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert asked(process, json.dumps(HELLO))["result"]["protocolVersion"] == "2025-06-18"
        tell(process, '{"jsonrpc": "2.0", "method": "notifications/initialized"}')
        yield process
        process.kill()


def tell(process, line):
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()


def asked(process, line):
    tell(process, line)
    return json.loads(process.stdout.readline())


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        ("{", -32700, None),
        ('{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": NaN}}', -32700, None),
        ("7", -32600, None),
        ("{}", -32600, None),
        ('[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', -32600, None),
        ('{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600, 1),
        ('{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600, None),
        ('{"jsonrpc": "2.0", "id": "a", "method": 5}', -32600, "a"),
        ('{"jsonrpc": "2.0", "id": 2, "method": "ping", "params": [1]}', -32602, 2),
        ('{"jsonrpc": "2.0", "id": 3, "method": "no/such"}', -32601, 3),
        ('{"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {}}', -32602, 4),
        ('{"jsonrpc": "2.0", "id": 5, "method": "ping", "params": {"a": 1e999}}', -32600, 5),
        ('{"jsonrpc": "2.0", "id": 6, "a": ' + "[" * 70 + "]" * 70 + "}", -32600, 6),
        ("[" * 100_000, -32700, None),
    ],
)
def test_a_message_that_is_no_request_is_answered_by_an_error(raw, line, code, request_id):
    answer = asked(raw, line)

    assert (answer["jsonrpc"], answer["id"], answer["error"]["code"]) == ("2.0", request_id, code)
    assert len(answer["error"]["message"]) < 300


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_timeout_argument_must_be_a_number_of_seconds(seconds):
    done = CliRunner().invoke(build(), ["mcp", "--max-timeout", seconds])

    assert done.exit_code == 2
    assert "--max-timeout" in done.stderr


def test_the_maximum_timeout_is_at_least_the_default():
    done = CliRunner().invoke(build(), ["mcp", "--max-timeout", "10", "--timeout", "20"])

    assert done.exit_code == 2
    assert "--max-timeout" in done.stderr and "--timeout 20" in " ".join(done.stderr.split())


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_the_last_line_is_answered_however_it_ends(end):
    done = subprocess.run(
        [sys.executable, "-m", "repl_env", "mcp"],
        input=json.dumps(HELLO) + end,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    (answer,) = map(json.loads, done.stdout.splitlines())
    assert answer["id"] == HELLO["id"] and "result" in answer


NO_SDK = "sys.modules['mcp'] = None"
# The environment of OpenEnv has no `mcp_types`.
OLD_SDK = (
    "sys.modules['mcp_types'] = None\n"
    "for name in ('mcp', 'mcp.server', 'mcp.server.lowlevel'):\n"
    "    sys.modules[name] = types.ModuleType(name)"
)


@pytest.mark.parametrize("sdk", [NO_SDK, OLD_SDK])
def test_without_the_extra_or_with_an_older_sdk_it_says_what_to_install(sdk):
    program = f"import sys, types\n{sdk}\nfrom repl_env.cli.main import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", program, "mcp"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("repl-env mcp: ") and len(done.stderr.splitlines()) == 1
    assert "pip install 'repl-env[mcp]'" in done.stderr


def test_a_signal_ends_the_session_during_a_cell(raw):
    """Last of the raw lines: nothing is left of the process, and it says that it ended well."""
    code = "import time\nprint('on', flush=True)\nwhile True: time.sleep(1)"
    request = {
        "jsonrpc": "2.0",
        "id": 9,
        "method": "tools/call",
        "params": {
            "name": "execute",
            "arguments": {"code": code},
            "_meta": {"progressToken": "t"},
        },
    }
    told = asked(raw, json.dumps(request))
    children = psutil.Process(raw.pid).children(recursive=True)
    raw.send_signal(signal.SIGTERM)

    assert told["params"]["message"].startswith("on")
    assert raw.wait(60) == 0
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert b"Traceback" not in raw.stderr.read()
