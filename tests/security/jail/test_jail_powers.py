"""Operations denied to code in a session, tried from inside with the calls that perform them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from repl_sandbox import Finished, Sandbox, Session

# Defines `names(call)`: the errno's name, or "done". A ctypes call that fails returns -1.
PRELUDE = """
import ctypes, errno, fcntl, os, signal, socket, struct

libc = ctypes.CDLL(None, use_errno=True)

def c(name, *args):
    ctypes.set_errno(0)
    if getattr(libc, name)(*args) == -1:
        raise OSError(ctypes.get_errno(), name)

def named(call):
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

NEWUSER, NEWNS, DETACH, REMOUNT, BIND = 0x10000000, 0x20000, 2, 0x20, 0x1000
"""


def errno_of(session: Session, call: str) -> Any:
    """The name of the error that the expression `call` meets in the session, or "done"."""
    outcome = session.run(f"{PRELUDE}\nseen = named(lambda: {call})")
    assert isinstance(outcome, Finished), outcome
    return session.get("seen")


@pytest.mark.parametrize(
    "call",
    [
        "c('unshare', NEWUSER)",
        "c('unshare', NEWNS)",
        "c('setns', os.open('/proc/self/ns/user', os.O_RDONLY), 0)",
        "c('mount', b'none', b'/tmp', b'tmpfs', 0, None)",
        "c('mount', b'/proc', b'/tmp', None, BIND, None)",
        "c('mount', None, b'/', None, REMOUNT | BIND, None)",
        "c('umount2', b'/proc', DETACH)",
        "c('umount2', b'/usr', DETACH)",
        "c('chroot', b'/workspace')",
        "c('ptrace', 16, 1, None, None)",
        "c('process_vm_readv', 1, None, 0, None, 0, 0)",
        "c('sethostname', b'x', 1)",
        "os.mknod('/workspace/disk', 0o60600, os.makedev(8, 0))",
        "os.mkfifo('/workspace/pipe')",
        "os.setuid(0)",
        "os.setresuid(0, 0, 0)",
        "os.setgroups([0])",
        "os.kill(-1, 9)",
        "os.nice(-5)",
        "fcntl.fcntl(os.open('.', os.O_RDONLY), 1026, 0x8000000F)",  # F_NOTIFY
        "fcntl.fcntl(os.open('mine', os.O_CREAT | os.O_RDONLY), 1024, fcntl.F_RDLCK)",  # F_SETLEASE
        "fcntl.fcntl(os.open('mine', os.O_CREAT | os.O_RDONLY), 1040, fcntl.F_RDLCK)",  # F_SETDELEG
        "fcntl.fcntl(os.pipe()[1], 1031, 8192)",  # F_SETPIPE_SZ
    ],
)
def test_a_call_that_would_open_the_jail_is_refused(session: Session, call: str) -> None:
    assert errno_of(session, call) in ("EPERM", "EACCES")


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("AF_NETLINK", "SOCK_RAW"),
        ("AF_PACKET", "SOCK_RAW"),
        ("AF_VSOCK", "SOCK_STREAM"),
        ("AF_ALG", "SOCK_SEQPACKET"),
        ("AF_INET", "SOCK_RAW"),
        ("AF_UNIX", "SOCK_SEQPACKET"),
    ],
)
def test_rare_sockets_do_not_exist(session: Session, family: str, kind: str) -> None:
    call = f"socket.socket(socket.{family}, socket.{kind})"
    assert errno_of(session, call) in ("EAFNOSUPPORT", "EPERM", "ENOTSUP")


def test_the_networks_of_the_host_are_out_of_reach(session: Session) -> None:
    """Neither its loopback nor its abstract sockets, which have no files to hide."""
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        name = f"\0repl-test-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        port = tcp.getsockname()[1]
        assert errno_of(session, f"socket.create_connection(('127.0.0.1', {port}), 5)") != "done"
        assert errno_of(session, "socket.create_connection(('8.8.8.8', 53), 5)") in (
            "EACCES",  # Landlock
            "ENETUNREACH",  # a kernel without
        )
        connect = f"socket.socket(socket.AF_UNIX).connect({name!r})"
        assert errno_of(session, connect) == "ECONNREFUSED"


def test_file_pages_cannot_be_spliced_into_a_pipe(session: Session) -> None:
    """Some kernels let it be written to, although it is a page of the host's file."""
    call = "os.sendfile(os.pipe()[1], os.open('/usr/bin/env', os.O_RDONLY), 0, 4096)"
    assert errno_of(session, call) == "EPERM"


@pytest.mark.parametrize("flag", [0x08, 0x80], ids=["RWF_NOWAIT", "RWF_DONTCACHE"])
def test_reading_does_not_reveal_which_files_are_cached(session: Session, flag: int) -> None:
    call = "os.preadv(os.open('/usr/bin/env', os.O_RDONLY), [bytearray(9)], 0, {})"
    assert errno_of(session, call.format(flag)) == "ENOTSUP"
    assert errno_of(session, call.format(0)) == "done"


@pytest.mark.parametrize("device", ["null", "zero", "full", "random", "urandom"])
def test_timestamps_of_the_host_s_devices_cannot_be_changed(session: Session, device: str) -> None:
    before = os.stat(f"/dev/{device}").st_mtime_ns
    assert errno_of(session, f"os.utime('/dev/{device}')") == "EROFS"
    assert os.stat(f"/dev/{device}").st_mtime_ns == before
    assert errno_of(session, "open('/dev/null', 'w').write('x')") == "done"


def test_the_page_cache_of_host_files_cannot_be_evicted(session: Session) -> None:
    call = "os.posix_fadvise(os.open('/usr/bin/env', os.O_RDONLY), 0, 0, os.POSIX_FADV_{})"
    assert errno_of(session, call.format("DONTNEED")) == "EPERM"
    assert errno_of(session, call.format("SEQUENTIAL")) == "done"


@pytest.mark.parametrize(
    "call",
    [
        "c('prctl', 62, 1, 0, 0, 0)",  # PR_SCHED_CORE
        "c('prctl', 67, 1, 0, 0, 0)",  # PR_SET_MEMORY_MERGE
        "__import__('mmap').mmap(-1, 4096).madvise(12)",  # MADV_MERGEABLE
    ],
)
def test_scheduling_and_memory_policies_cannot_be_changed(session: Session, call: str) -> None:
    assert errno_of(session, call) == "EPERM"
    assert errno_of(session, "c('prctl', 15, b'name', 0, 0, 0)") == "done"
    assert errno_of(session, "__import__('mmap').mmap(-1, 4096).madvise(4)") == "done"


@pytest.mark.parametrize(
    "call",
    [
        "c('prctl', 22, 2, b'', 0, 0)",  # PR_SET_SECCOMP
        "socket.socketpair()[0].setsockopt(1, 26, bytes(16))",  # SO_ATTACH_FILTER
        "socket.socketpair()[0].setsockopt(1, 50, 3)",  # SO_ATTACH_BPF
        "socket.socketpair()[0].setsockopt(1, 44, 1)",  # SO_LOCK_FILTER
        "socket.socket().setsockopt(1, 51, bytes(16))",  # SO_ATTACH_REUSEPORT_CBPF
    ],
)
def test_bpf_programs_cannot_be_loaded(session: Session, call: str) -> None:
    found = errno_of(session, f"(socket := __import__('socket')) and {call}")
    assert found in ("EPERM", "ENOPROTOOPT")


def test_copying_files_works_without_splice(session: Session) -> None:
    outcome = session.run(
        "import os, shutil, socket, subprocess\n"
        "open('one', 'w').write('1' * 100_000)\n"
        "shutil.copyfile('one', 'two'); subprocess.run(['cp', 'two', 'three'], check=True)\n"
        "a, b = socket.socketpair()\n"
        "sent = a.sendfile(open('three', 'rb'), count=1000)\n"
        "os.path.getsize('three'), sent, b.recv(9)"
    )
    assert outcome.value == "(100000, 1000, b'111111111')"


@pytest.mark.parametrize(
    "path", ["mem", "environ", "maps", "exe", "cwd", "root", "fd/0", "ns/user", "ns/mnt", "stack"]
)
def test_init_cannot_be_inspected(session: Session, path: str) -> None:
    action = "os.readlink" if path in ("exe", "cwd", "root", "fd/0") else "open"
    if path.startswith("ns/"):
        action = "os.stat"
    assert errno_of(session, f"{action}('/proc/1/{path}')") in ("EACCES", "EPERM")


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT", "SIGSEGV"])
def test_init_ignores_signals_of_the_code(session: Session, signal: str) -> None:
    """Root's are refused; an ordinary user's have no effect on a pid 1."""
    errno_of(session, f"os.kill(1, signal.{signal})")
    assert session.run("6 * 7").value == "42"
    # init must also still do its work: start the next worker.
    assert session.run("import os\nos._exit(0)").state == "rolled_back"
    assert session.run("6 * 7").value == "42"


@pytest.mark.parametrize("limit", ["RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_DATA"])
def test_the_code_cannot_set_the_limits_of_init(session: Session, limit: str) -> None:
    call = f"__import__('resource').prlimit(1, __import__('resource').{limit}, (0, 0))"
    assert errno_of(session, call) == "EPERM"


def test_limits_cannot_be_raised(session: Session) -> None:
    call = "__import__('resource').setrlimit(__import__('resource').RLIMIT_NPROC, (9999, 9999))"
    outcome = session.run(f"{PRELUDE}\n{call}")
    assert outcome.error is not None


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/root/..",
        "/proc/self/cwd/../..",
        "/proc/self/task/1/root",
        "/proc/thread-self/root/..",
        "/../../..",
    ],
)
def test_no_parent_path_leads_out_of_the_root(session: Session, path: str) -> None:
    call = f"__import__('os').stat({path!r} + '/proc/{os.getpid()}')"
    assert errno_of(session, call) in ("ENOENT", "EACCES")


def test_the_proc_of_the_host_stays_hidden(session: Session) -> None:
    """The template's full /proc lies under the session's own."""
    outcome = session.run(
        "import os\n"
        "parent = os.open('/', os.O_PATH)\n"
        "found = {os.stat('/proc').st_dev, os.stat('proc', dir_fd=parent).st_dev}\n"
        "seen = [len(found), sorted(map(int, filter(str.isdigit, os.listdir('/proc'))))]\n"
        "pid = os.getpid()"
    )
    assert isinstance(outcome, Finished), outcome
    assert session.get("seen") == [1, [1, session.get("pid")]]


def test_symbolic_links_in_the_workspace_lead_nowhere_outside(session: Session) -> None:
    session.set("outside", os.path.abspath(__file__))
    outcome = session.run(
        f"{PRELUDE}\nos.symlink(outside, 'link')\nseen = named(lambda: open('link'))"
    )
    assert isinstance(outcome, Finished), outcome
    assert session.get("seen") == "ENOENT"


LEAVE_TRACES = """
import ctypes, os, socket
libc = ctypes.CDLL(None)
made = [libc.shmget(4242, 4096, 0o1666), libc.msgget(4242, 0o1666), libc.semget(4242, 1, 0o1666)]
for folder in ("/tmp", "/workspace", "/dev/shm"):
    open(folder + "/trace", "w").close()
server = socket.socket(socket.AF_UNIX); server.bind("\\0trace"); server.listen()
child = os.fork()
if child == 0:
    while True: __import__("signal").pause()
seen = child
"""

FIND_TRACES = """
import ctypes, os, socket
libc = ctypes.CDLL(None)
seen = [name for name in ("shmget", "msgget") if getattr(libc, name)(4242, 0) != -1]
seen += [name for name in ("semget",) if libc.semget(4242, 0, 0) != -1]
seen += [f for f in ("/tmp", "/workspace", "/dev/shm") if "trace" in os.listdir(f)]
try:
    socket.socket(socket.AF_UNIX).connect("\\0trace"); seen.append("abstract socket")
except OSError: pass
processes = {int(name) for name in os.listdir("/proc") if name.isdigit()}
seen += sorted(processes - {1, os.getpid()})
"""


def test_two_sessions_share_nothing_writable(sandbox: Sandbox, seen: Callable[[str], Any]) -> None:
    """No files, System V objects, abstract sockets or processes of one are there for another."""
    with sandbox.session() as other:
        outcome = other.run(LEAVE_TRACES)
        assert isinstance(outcome, Finished), outcome
        assert seen(FIND_TRACES) == []


def test_two_sessions_of_root_are_two_users_outside(sandbox: Sandbox) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give sessions users of their own")
    with sandbox.session() as one, sandbox.session() as two:
        maps = []
        for session in (one, two):
            session.run("seen = open('/proc/self/uid_map').read().split()")
            row: Any = session.get("seen")
            maps.append({*row[1::3]})
    assert len(maps[0]) == len(maps[1]) == 2
    assert not maps[0] & maps[1]
    assert "0" not in maps[0] | maps[1]
