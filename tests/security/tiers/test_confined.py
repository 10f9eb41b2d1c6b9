"""Tier `confined`: no namespaces, and still nothing of the host or of another session in reach.

Each question is asked once of a session that the suite's user started, who may be root, and once of
one that an ordinary user started, whose sessions have that user's uid.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from repl_sandbox.jail.landlock import SCOPES, kernel_abi
from repl_sandbox.jail.rlimits import SPARE_FILES
from tests.security.tiers.confined_probe import PROBE, SCRIPT, SECRET
from tests.waiting import LONG

pytestmark = pytest.mark.skipif(not kernel_abi(), reason="this kernel has no Landlock")
scoped = pytest.mark.skipif(kernel_abi() < SCOPES, reason="scopes came with ABI 6")


@pytest.fixture(scope="module", params=["this user", "ordinary user"])
def view(request: pytest.FixtureRequest) -> Any:
    """Return what a session sees, as reported by the probe."""
    script = {"probe": PROBE, "this": os.path.abspath(__file__)}
    if request.param == "this user":
        python = request.getfixturevalue("open_python")
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(python=python, **script)],
            env={**os.environ, "REPL_TEST_SECRET": SECRET},
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    run: Callable[[str], Any] = request.getfixturevalue("user")
    return run(SCRIPT.format(python=None, **script))


REFUSED = {"EACCES", "EPERM"}


def test_the_tier_is_reported_as_confined(view: Any) -> None:
    tier, layers = view["isolation"]
    active = {name for name, active, _ in layers if active}
    assert tier == "confined"
    assert {"uid", "capabilities", "no_new_privs", "seccomp", "landlock"} <= active
    assert not any("namespace" in name for name in active)
    assert ("own uid" in active) == (view["host uid"] == 0)


def test_code_has_a_user_of_its_own_under_root_and_is_never_root(view: Any) -> None:
    users, groups, supplementary = view["ids"]
    assert len({*users, *groups}) == 1
    assert 0 not in users
    assert (users[0] == view["host uid"]) == (view["host uid"] != 0)
    assert set(supplementary) <= {users[0]}


def test_no_capability_and_no_way_to_one(view: Any) -> None:
    sets = ("CapInh", "CapPrm", "CapEff", "CapAmb")
    assert {int(view["status"][name], 16) for name in sets} == {0}
    assert view["status"]["NoNewPrivs"] == "1"
    assert view["status"]["Seccomp"] == "2"
    assert set(view["uid"]) == {"EPERM"}
    assert set(view["namespaces"].values()) == {"EPERM"}


def test_files_of_the_host_cannot_be_opened(view: Any) -> None:
    """Also files that every user may read and write, and files of another session."""
    assert {path: found for path, found in view["read"].items() if found == "done"} == {}
    assert set(view["written"].values()) <= REFUSED
    assert view["host file"] == "host"
    assert view["neighbour"] == "'x'"


def test_directories_of_the_host_cannot_be_listed_or_written_to(view: Any) -> None:
    assert set(view["listed"].values()) <= REFUSED | {"ENOENT"}
    assert set(view["made"].values()) <= REFUSED | {"EROFS", "ENOENT"}


@pytest.mark.parametrize("act", ["linked", "removed", "renamed", "truncated"])
def test_files_of_the_host_cannot_be_linked_or_changed(view: Any, act: str) -> None:
    assert view[act] in REFUSED | {"EXDEV"}


def test_the_own_directory_is_private_and_writable(view: Any) -> None:
    assert set(view["own"].values()) == {"done"}
    assert view["modes"] == [0o700, 0o700]
    assert view["here"] == view["environment"]["HOME"]
    assert view["temporary"] == view["environment"]["TMPDIR"]
    assert os.path.dirname(view["here"]) == os.path.dirname(view["temporary"])


def test_no_setuid_program_can_be_made(view: Any) -> None:
    """The owner is the host's user if that is an ordinary one, and others may reach the file."""
    assert set(view["lent"].values()) == {"EPERM"}


def test_only_pairs_of_stream_sockets_exist(view: Any) -> None:
    assert set(view["sockets"].values()) == {"EAFNOSUPPORT"}
    assert view["pairs"] == {
        "stream": "done",
        "datagram": "EAFNOSUPPORT",
        "seqpacket": "EAFNOSUPPORT",
    }
    assert set(view["on a pair"].values()) == {"EPERM"}


@scoped
@pytest.mark.parametrize("act", ["signals", "group signals", "pidfd signals"])
def test_no_process_outside_can_be_signalled(view: Any, act: str) -> None:
    # A process that leads no group has none of its number.
    assert set(view[act].values()) <= {"EPERM", "ESRCH"}
    assert view[act]["init"] == "EPERM"
    assert view["to all"] == "EPERM"


def test_own_children_can_be_signalled(view: Any) -> None:
    assert view["own child"] == ["done", -15]


@pytest.mark.parametrize(
    "act", ["limits of others", "placed", "traced", "memory of others", "descriptors of others"]
)
def test_no_process_outside_can_be_controlled_or_read(view: Any, act: str) -> None:
    assert set(view[act].values()) <= REFUSED


@pytest.mark.parametrize(
    "name", ["cmdline", "environ", "maps", "mem", "status", "root/etc/passwd", "comm"]
)
def test_proc_shows_no_other_process(view: Any, name: str) -> None:
    assert set(view[f"proc {name}"].values()) <= REFUSED


def test_accesses_of_others_cannot_be_watched(view: Any) -> None:
    assert view["watched"] == "EPERM"
    assert view["doors beside"] == {
        "F_NOTIFY": "EPERM",
        "F_SETLEASE": "EPERM",
        "F_SETPIPE_SZ": "EPERM",
        "RWF_NOWAIT": "ENOTSUP",
    }


def test_the_environment_is_constructed(view: Any) -> None:
    assert SECRET not in str(view)
    assert "REPL_TEST_SECRET" not in view["environment"]


def test_descriptors_are_the_streams_and_two_sockets(view: Any) -> None:
    # The sockets of the worker and of its snapshots, and the descriptor of the listing itself.
    assert len([fd for fd in view["descriptors"] if fd > 2]) == 3


def test_resource_limits_are_set_and_processes_only_where_they_are_the_sessions(view: Any) -> None:
    limits = view["rlimits"]
    assert limits["RLIMIT_NOFILE"] == [256 - SPARE_FILES, 256]
    assert limits["RLIMIT_CPU"] == [500, 501]
    assert limits["RLIMIT_FSIZE"][1] == 256 << 20
    if view["host uid"] == 0:
        assert limits["RLIMIT_NPROC"][1] <= 64 + 8
