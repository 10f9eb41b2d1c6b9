"""The corpus of abuse, run in real sessions, and that its harness can fail.

`make test-security` runs every case. Here the group that fills memory and disks is left out, and
for the second user what does not depend on who started the sandbox.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.security.abuse.case import FILES, load
from tests.security.abuse.tiers import TIERS, forbidden
from tests.waiting import LONG, PATIENCE

ROOT = Path(__file__).parents[2]
USERS = ["root", "ordinary"] if os.geteuid() == 0 else ["user"]
LEFT_OUT = {
    "root": ("resources",),
    "user": ("resources",),
    "ordinary": ("resources", "runtime-protocol", "wire", "host-calls", "answers", "output"),
}
# The groups about what holds a session.
WALLS = {
    "cross-session",
    "fs-read",
    "fs-write",
    "host-readback",
    "kernel-surface",
    "network",
    "secrets",
}


def abuse(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the report of a run."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.abuse", "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3 * LONG,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("user", USERS)
def test_every_case_holds_and_the_host_is_unchanged(user: str) -> None:
    verdicts = held("jailed", user, LEFT_OUT[user])
    assert sum(verdict["status"] == "passed" for verdict in verdicts) > 100


@pytest.mark.parametrize("user", USERS)
def test_attacks_that_namespaces_stop_elsewhere_are_stopped_in_confined(user: str) -> None:
    """The worker's messages and code are the same in each tier, and are tested in `jailed`."""
    every = {case.group for file in FILES for case in load(file)}
    verdicts = held("confined", user, every - WALLS)
    assert {verdict["group"] for verdict in verdicts} == WALLS
    assert sum(verdict["status"] == "passed" for verdict in verdicts) > 90


def held(tier: str, user: str, without: Iterable[str]) -> list[dict[str, Any]]:
    """The verdicts of a run in which nothing failed and all was run."""
    status, report = abuse("--tier", tier, "--user", user, *(f"--without={g}" for g in without))
    (column,) = report["columns"]
    verdicts: list[dict[str, Any]] = column["verdicts"]
    if {verdict["status"] for verdict in verdicts} == {"not run"}:
        pytest.skip(verdicts[0]["reason"])  # a system that has no such tier, or no such user
    assert report["changed"] == []
    assert [v for v in verdicts if v["status"] in ("failed", "not run")] == []
    assert status == 0
    return verdicts


def test_tier_process_is_never_attacked_as_root() -> None:
    """The cases would be root's."""
    assert forbidden("process", 0)
    assert not forbidden("process", 1)
    assert not any(forbidden(tier, 0) for tier in TIERS if tier != "process")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_files_of_the_corpus_are_well_formed(file: Path) -> None:
    cases = load(file)
    assert cases
    for case in cases:
        assert set(case.tiers) <= TIERS.keys()
        assert case.expect and case.check.deny
        # An empty cell's reply has no proof.
        for tier in case.tiers:
            assert not re.search(case.check.proof_in(tier), "Finished\n\n\n", re.MULTILINE), case.id
        assert case.check.state in ("kept", "any")


def test_no_two_cases_share_a_name() -> None:
    ids = [case.id for file in FILES for case in load(file)]
    assert len(ids) == len(set(ids))


# ── the harness itself: cases that must not pass ──────────────────────────────────────────────

CHECK = {
    "deny": ["PWNED"],
    "proof": "^(Finished|Raised|TimedOut|Killed)",
    "timeout": 60,
    "reply_within": 10,
    "alive_within": 10,
    "state": "kept",
}
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "deny": ("print('PW' + 'NED')", {}),
    "deny in an error": ("raise ValueError('PW' + 'NED')", {}),
    "deny in a displayed value": ("'PW' + 'NED'", {}),
    "deny from a child": ("import os\nos.system('echo PW\"\"NED')", {}),
    "need": ("print('no')", {"need": ["yes"]}),
    "need_error": ("1 + 1", {"need_error": True}),
    "state": ("import os\nos._exit(0)", {}),
    "proof": ("try: worker._recovery\nexcept Exception: pass", {"proof": "^PROOF"}),
    "proof of an error that ends it early": ("worker._recovery", {"proof": "^PROOF"}),
    "reply_within": ("1", {"reply_within": -PATIENCE}),
    "a reply that hangs": ("import time\ntime.sleep(20)", {"reply_within": 1}),
    "after": ("x = 1", {"after": ["x", "2"]}),
    "max_output": ("print('x' * 1000)", {"max_output": 500}),
    "raw_ok": (r"print('\x1b[2J')", {}),
    "followup": ("pass", {"followup": "1", "followup_timeout": 60}),
    "absent": ("pass", {"host": ["absent:/tmp"]}),
    "rss": ("x = bytearray(b'1') * (300 << 20)", {"host": ["host_rss_growth_mb:-1000"]}),
    "workspace": (
        "import time\nopen('f', 'wb').write(bytes(5 << 20))\ntime.sleep(0.3)",
        {"host": ["ws_cap_mb:4"]},
    ),
    "answer": ("FINAL('X')", {"host": ["final_not:X"]}),
    "another answer": ("FINAL('X')", {"host": ["final_is_or_none:Y"]}),
    "calls": ("llm_query('x'); llm_query('x')", {"host": ["llm_calls_max:1"]}),
    "restart": ("pass", {"host": ["restart_then:6*7=43"]}),
    "checkpoint": ("said = 'PW'; said += 'NED'", {"host": ["checkpoint:."]}),
    "proof of a checkpoint": ("said = 'no'", {"host": ["checkpoint:yes"]}),
    "close": ("pass", {"host": [f"close_within:{-PATIENCE}"]}),
    "sentinel's other name": ("pass", {"host": ["no_such_check"]}),
}


def corpus(folder: Path, cases: dict[str, tuple[str, dict[str, Any]]], **more: Any) -> str:
    """A corpus file of `cases`: code and what its check has besides."""
    path = folder / "wrong.jsonl"
    rows = [
        {
            "id": f"case-{number}",
            "group": "own",
            "code": code,
            "expect": name,
            "check": {**CHECK, **check},
            "tiers": ["jailed"],
            **more,
        }
        for number, (name, (code, check)) in enumerate(cases.items())
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_a_case_that_does_not_hold_fails(tmp_path: Path) -> None:
    """Each case in turn; the last one kills its supervisor, which is a failure too."""
    status, report = abuse("--user", USERS[0], "--corpus", corpus(tmp_path, WRONG))
    verdicts = {verdict["id"]: verdict["status"] for verdict in report["columns"][0]["verdicts"]}
    passed = [name for n, name in enumerate(WRONG) if verdicts[f"case-{n}"] != "failed"]
    assert passed == []
    assert status == 1


def test_an_unavailable_tier_is_not_run_and_never_passed(tmp_path: Path) -> None:
    """No other tier is used in its place."""
    file = corpus(tmp_path, {"any": ("1", {})})
    _, report = abuse("--user", USERS[0], "--tier", "vm", "--corpus", file)
    (verdict,) = report["columns"][0]["verdicts"]
    assert verdict["status"] == "not run"
    assert "isolation must be one of" in verdict["reason"]


def test_an_unknown_key_of_a_case_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown keys .*alive_withn"):
        load(Path(corpus(tmp_path, {"any": ("1", {"alive_withn": 3})})))


def test_a_corpus_of_another_project_brings_its_own_ports(tmp_path: Path) -> None:
    """Otherwise nothing would listen on its ports. A tier without isolation lets cases connect."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "fixtures.json").write_text(
        json.dumps({"fixtures": {f"127.0.0.1:{port}/tcp": "sends CANARY-TCP"}})
    )
    knock = f"import socket\nsocket.create_connection(('127.0.0.1', {port})).recv(64)"
    file = corpus(tmp_path, {"tcp": (knock, {"deny": ["CANARY-"]})}, tiers=["process"])
    _, report = abuse("--user", USERS[-1], "--tier", "process", "--corpus", file)
    (verdict,) = report["columns"][0]["verdicts"]
    if verdict["status"] == "not run":
        pytest.skip(verdict["reason"])
    assert verdict["status"] == "failed"
    assert report["changed"] == ["tcp listener: 1 hits"]


def test_leftovers_of_a_case_on_the_host_are_found() -> None:
    """The look at the host, not a case: those cannot leave anything."""
    program = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from tests.security.abuse.host import fixtures, host_state\n"
        "host_state.adopt()\n"
        "with fixtures.laid():\n"
        "    before = host_state.look()\n"
        "    (fixtures.WRITABLE / 'pwned').touch()\n"
        "    os.open('/', os.O_RDONLY)\n"
        "    subprocess.run(['sh', '-c', 'sleep 600 & exit'], stdout=subprocess.DEVNULL)\n"
        "    host_state._PATIENCE = 0\n"
        "    print(host_state.changes(before))\n"
        "    for line in host_state.changes(before):\n"
        "        if line.startswith('process'): os.kill(int(line.split()[1]), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "process " in done.stdout
    assert "descriptors" in done.stdout
    assert "writable/pwned" in done.stdout
