"""Code in a session sees its own resources, and nothing of the host's.

Every fact is checked for a sandbox of the user who runs the suite (often root) and for one of an
ordinary user.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import repl_sandbox
from repl_sandbox.jail.landlock import kernel_abi
from repl_sandbox.jail.rlimits import SPARE_FILES
from tests.waiting import LONG

SECRET = "kept-by-the-host"
OURS = (sys.prefix, repl_sandbox.__path__[0])

LIMITS = {
    "processes": 40,
    "open_files": 200,
    "file_size": 3 << 20,
    "workspace": 2 << 20,
    "cpu_seconds": 90,
}

PROBE = r"""
import errno, fcntl, json, os, resource, socket, stat, struct

def attempt(action, *args):
    try:
        action(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def kind(fd):
    try:
        return stat.S_IFMT(os.fstat(fd).st_mode)
    except OSError:
        return None

def flags(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", interface.encode(), 0)
        return struct.unpack("16xH14x", fcntl.ioctl(sock, 0x8913, request))[0]  # SIOCGIFFLAGS

def fill(path):
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while True:
                written += file.write(b"x" * 65536)
    except OSError as error:
        name = errno.errorcode[error.errno]
    os.unlink(path)
    return [written, name]

with open("/proc/self/status") as file:
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
with open("/proc/self/mountinfo") as file:
    mounts = [[row[4], row[5].split(","), row[row.index("-") + 1]] for row in map(str.split, file)]
with open("/proc/net/dev") as file:
    interfaces = [line.split(":")[0].strip() for line in file.readlines()[2:]]
with open("/proc/net/route") as file:
    routes = file.readlines()[1:]
network = os.readlink("/proc/self/ns/net")
with open("/proc/self/uid_map") as file:
    uid_map = [list(map(int, line.split())) for line in file]
with open("/proc/self/gid_map") as file:
    gid_map = [list(map(int, line.split())) for line in file]
with open("/proc/self/stat") as file:
    terminal = int(file.read().rpartition(")")[2].split()[4])

import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

seen = {
    "status": status,
    "mounts": mounts,
    "interfaces": {name: flags(name) for name in interfaces},
    "routes": routes,
    "network": network,
    "uid_map": uid_map,
    "gid_map": gid_map,
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
    "terminal": terminal,
    "ttys": [os.isatty(fd) for fd in range(3)],
    "descriptors": {str(fd): kind(fd) for fd in range(65536) if kind(fd) is not None},
    "leads": [os.readlink(f"/proc/self/fd/{fd}") for fd in range(65536) if kind(fd) is not None],
    "stdin": os.fstat(0).st_rdev == os.stat("/dev/null").st_rdev,
    "environment": dict(os.environ),
    "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()],
    "pid": [os.getpid(), os.getppid()],
    "tops": os.listdir("/"),
    "listed": {path: os.listdir(path) for path in ("/etc", "/dev", "/home", "/root", "/var")},
    "private": {path: os.listdir(path) for path in ("/tmp", "/workspace", "/dev/shm")},
    "var_tmp": os.path.samestat(os.stat("/tmp"), os.stat("/var/tmp")),
    "cwd": os.getcwd(),
    "hostname": [os.uname().nodename, open("/etc/hostname").read().strip()],
    "rlimits": {
        name: resource.getrlimit(number)
        for name, number in vars(resource).items() if name.startswith("RLIMIT_")
    },
    "writes": {
        path: attempt(os.open, path + "/new", os.O_CREAT | os.O_WRONLY)
        for path in ["/", "/etc", "/dev", "/usr", "/usr/bin", "/var", "/home", "/root"]
    },
    "touched": attempt(os.utime, os.__file__),
    "removed": attempt(os.unlink, os.__file__),
    "opened for writing": attempt(os.open, os.__file__, os.O_WRONLY),
    "filled": {path: fill(path + "/full") for path in ("/tmp", "/workspace", "/dev/shm")},
    "exists": {path: os.path.lexists(path) for path in HOST_PATHS},
}
"""

# Run as a script by an ordinary user, and here.
SCRIPT = """
import json
from contextlib import suppress
from dataclasses import astuple
import psutil
from repl_sandbox import Limits, Sandbox

with Sandbox(limits=Limits(**{limits!r})) as sandbox, sandbox.session() as session:
    session.set("HOST_PATHS", {paths!r})
    outcome = session.run({probe!r})
    assert outcome.ok, outcome
    seen = session.get("seen")
    isolation = session.isolation
    seen["outer uids"] = []
    for process in psutil.Process(sandbox._zygote.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a copy that was replaced
            seen["outer uids"].append(process.uids().real)
seen["isolation"] = [isolation.tier, [astuple(layer) for layer in isolation.layers]]
print(json.dumps(seen))
"""

HOST_PATHS = [
    *("/sys", "/run", "/boot", "/host", "/old_root", "/var/lib", "/var/log", "/etc/shadow"),
    *("/etc/machine-id", "/etc/resolv.conf", "/etc/ssh", "/dev/tty", "/dev/pts/0"),
    *("/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/vda", "/dev/sda", os.path.abspath(__file__)),
]


def _here() -> Any:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(limits=LIMITS, paths=HOST_PATHS, probe=PROBE)],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=["this user", "ordinary user"])
def view(request: pytest.FixtureRequest) -> Any:
    """Return what a session sees, as reported by the probe."""
    os.environ["REPL_TEST_SECRET"] = SECRET
    try:
        if request.param == "this user":
            return _here()
        run: Callable[[str], Any] = request.getfixturevalue("user")
        return run(SCRIPT.format(limits=LIMITS, paths=HOST_PATHS, probe=PROBE))
    finally:
        del os.environ["REPL_TEST_SECRET"]


def test_no_capability_is_in_any_set(view: Any) -> None:
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    assert {name: int(view["status"][name], 16) for name in sets} == dict.fromkeys(sets, 0)


def test_a_filter_is_loaded_and_privileges_cannot_be_gained(view: Any) -> None:
    assert view["status"]["Seccomp"] == "2"
    assert view["status"]["NoNewPrivs"] == "1"


def test_the_only_interface_is_a_loopback_of_its_own(view: Any) -> None:
    assert list(view["interfaces"]) == ["lo"]
    assert view["interfaces"]["lo"] & 9 == 9  # IFF_UP, IFF_LOOPBACK
    assert view["routes"] == []
    assert view["network"] != os.readlink("/proc/self/ns/net")


def test_every_mount_is_read_only_but_the_private_ones(view: Any) -> None:
    writable = {path for path, options, _ in view["mounts"] if "ro" not in options}
    assert writable == {"/tmp", "/var/tmp", "/workspace", "/dev/shm", "/dev/pts", "/proc"}


def test_no_mount_honours_setuid_or_devices(view: Any) -> None:
    """Device nodes are exceptions, bound one by one; only the topmost mount of a path counts."""
    on_top = {path: set(options) for path, options, _ in view["mounts"]}
    plain = {path for path in on_top if not path.startswith("/dev/")} | {"/dev/shm"}
    assert {path for path in plain if not {"nosuid", "nodev"} <= on_top[path]} == set()


def in_tmp(view: Any) -> list[str]:
    """The paths of the engine and its interpreter that the private mounts cover."""
    user = [path for path, _, _ in view["mounts"] if path.startswith("/var/tmp/repl-user-")]
    return [path for path in (*OURS, *user) if path.startswith(("/tmp/", "/var/tmp/"))]


def test_nothing_can_be_written_outside_the_private_places(view: Any) -> None:
    assert set(view["writes"].values()) <= {"EROFS", "EACCES"}
    assert view["writes"]["/usr"] == view["writes"]["/"] == "EROFS"
    assert view["opened for writing"] in ("EROFS", "EACCES")
    assert view["touched"] == "EROFS"
    assert view["removed"] == "EROFS"


def test_the_private_folders_are_empty_and_the_workspace_is_home(view: Any) -> None:
    # A checkout or an environment that itself lies under /tmp has to be shown there.
    shown = view["private"].pop("/tmp")
    assert set(shown) <= {path.removeprefix("/var").split("/")[2] for path in in_tmp(view)}
    assert view["private"] == {"/workspace": [], "/dev/shm": []}
    assert view["cwd"] == view["environment"]["HOME"] == "/workspace"


def test_the_private_folders_have_size_limits(view: Any) -> None:
    """/dev/shm is larger than the limit of a file's size, which is met first there."""
    for path in ("/tmp", "/workspace"):
        written, error = view["filled"][path]
        assert error == "ENOSPC"
        assert written <= LIMITS["workspace"]
    assert view["filled"]["/dev/shm"] == [LIMITS["file_size"], "EFBIG"]


def test_host_files_are_not_visible(view: Any) -> None:
    aside = ["/run"] if in_tmp(view) else []
    assert [path for path, exists in view["exists"].items() if exists] in ([], aside)
    assert view["listed"]["/home"] == []
    assert view["listed"]["/var"] == ["tmp"]
    assert view["var_tmp"]
    assert set(view["listed"]["/dev"]) == {
        *("null", "zero", "full", "random", "urandom"),
        *("fd", "stdin", "stdout", "stderr", "shm", "pts", "ptmx"),
    }


def test_the_environment_is_constructed(view: Any) -> None:
    assert SECRET not in str(view)
    assert not set(view["environment"]) & {
        "REPL_TEST_SECRET",
        "PYTHONPATH",
        "SSH_AUTH_SOCK",
        "LOGNAME",
    }


def test_only_the_sessions_own_processes_are_visible(view: Any) -> None:
    pid, parent = view["pid"]
    assert parent == 1
    # And a snapshot of the worker, if a cell ran before this one.
    assert len(set(view["processes"]) - {1, pid}) <= 1


def test_descriptors_are_the_streams_and_the_worker_s(view: Any) -> None:
    kinds = {int(fd): kind for fd, kind in view["descriptors"].items()}
    assert [kinds.pop(fd) for fd in (0, 1, 2)] == [stat.S_IFCHR, stat.S_IFIFO, stat.S_IFIFO]
    # Its own, and that of its snapshots.
    assert list(kinds.values()) == [stat.S_IFSOCK] * 2
    assert view["stdin"]


def test_the_session_has_no_terminal(view: Any) -> None:
    assert view["terminal"] == 0
    assert view["ttys"] == [False, False, False]


def test_the_host_name_is_hidden(view: Any) -> None:
    assert view["hostname"] == ["repl", "repl"]
    assert socket.gethostname() not in view["hostname"]


def test_code_is_an_ordinary_user_without_groups(view: Any) -> None:
    users, groups, supplementary = view["ids"]
    assert set(users) == set(groups) == {1000}
    assert set(supplementary) <= {
        1000,
        65534,
    }  # 65534: a group of the host, which means nothing here


def test_no_user_of_the_session_is_root_outside(view: Any) -> None:
    """Seen from outside: the map that a session reads is relative to its template's users."""
    assert 1 <= len(set(view["outer uids"])) <= 2  # of init, and of the code
    assert 0 not in view["outer uids"]
    assert {count for _, _, count in view["uid_map"] + view["gid_map"]} == {1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FSIZE", LIMITS["file_size"]),
        ("MEMLOCK", 0),
        ("MSGQUEUE", 0),
        ("NICE", 0),
        ("RTPRIO", 0),
    ],
)
def test_a_resource_limit_is_hard(view: Any, name: str, value: int) -> None:
    assert view["rlimits"][f"RLIMIT_{name}"] == [value, value]


def test_some_file_descriptors_are_reserved_for_a_recovery(view: Any) -> None:
    most = LIMITS["open_files"]
    assert view["rlimits"]["RLIMIT_NOFILE"] == [most - SPARE_FILES, most]


def test_the_limits_of_processes_memory_time_and_cores_are_set(view: Any) -> None:
    limits = view["rlimits"]
    assert LIMITS["processes"] <= limits["RLIMIT_NPROC"][1] <= LIMITS["processes"] + 8
    assert limits["RLIMIT_DATA"][1] != resource.RLIM_INFINITY
    assert limits["RLIMIT_CPU"] == [LIMITS["cpu_seconds"], LIMITS["cpu_seconds"] + 1]
    # 1, not 0, also stops a core_pattern that is a pipe to a program of the host (core(5)).
    assert limits["RLIMIT_CORE"][1] <= 1


def test_isolation_reports_every_layer_active(view: Any) -> None:
    tier, layers = view["isolation"]
    assert tier == "jailed"
    # A cgroup is of the tier only where this process may make one (test_cgroups).
    inactive = {name for name, active, _ in layers if not active and name != "cgroup"}
    # An ordinary user has no other uid to give.
    assert inactive - {"own uid"} == (set() if kernel_abi() else {"landlock"})
    spaces = {f"{name} namespace" for name in ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")}
    expected = spaces | {"root", "uid", "capabilities", "no_new_privs", "seccomp", "landlock"}
    assert expected <= {name for name, _, _ in layers}
