"""The table of system calls: complete, without contradictions, right numbers, a reason each."""

import re
import socket
import sys
from collections import Counter
from pathlib import Path

import pytest

from repl_sandbox.jail.seccomp.syscalls import (
    ALLOW,
    CONFINED,
    REFUSE,
    RULES,
    SETUP,
    SOCKET_OPTIONS,
    Refuse,
)

ROWS = (*ALLOW, *REFUSE)
ALLOWED = {row.name for row in ALLOW}
REFUSED = {row.name for row in REFUSE}

# strace -f of the standard library, numpy, pandas, matplotlib, scipy and torch at work.
MEASURED = """
accept4 access arch_prctl bind brk chdir chmod clock_gettime clock_nanosleep clone clone3 close
close_range connect dup dup2 epoll_create1 epoll_ctl epoll_wait execve fadvise64 fallocate fchown
fcntl fdatasync fstat fstatfs ftruncate futex getcwd getdents64 getegid geteuid getgid getpeername
getpid getppid getrandom getrusage getsockname getsockopt gettid getuid ioctl kill link listen lseek
madvise mbind mkdir mmap mprotect msync munmap newfstatat open openat pipe2 poll prctl pread64
prlimit64 pselect6 pwrite64 read readlink recvfrom recvmsg rename rmdir rseq rt_sigaction
rt_sigprocmask rt_sigreturn sched_getaffinity sched_setaffinity sendfile sendmmsg sendmsg sendto
set_robust_list set_tid_address setitimer setsockopt socket socketpair statfs statx symlink sysinfo
truncate uname unlink unlinkat utimensat vfork wait4 waitid write writev
"""

# Known escapes, or wide entries into the kernel: none may ever move to the other list.
DANGEROUS = """
add_key bpf capset chroot clone3 fsconfig fsopen init_module io_uring_enter io_uring_register
io_uring_setup kexec_load keyctl mount mount_setattr move_mount open_by_handle_at open_tree
perf_event_open personality pidfd_getfd pivot_root process_vm_readv process_vm_writev ptrace
request_key seccomp sendfile setns setresgid setresuid splice tee umount2 unshare userfaultfd
vmsplice
"""

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("row", [*ROWS, *RULES, *SETUP, *CONFINED])
def test_every_row_says_why(row):
    assert re.search(r"[a-z]{2}", row.reason)
    assert row.reason == row.reason.strip()
    assert not row.reason.endswith(".")


def test_no_call_stands_twice():
    for names in (
        [row.name for row in ROWS],
        [rule.call for rule in RULES],
        [s.call for s in SETUP],
    ):
        assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_no_number_stands_twice(arch):
    numbers = Counter(row.number(arch) for row in ROWS if row.number(arch) is not None)
    assert [number for number, count in numbers.items() if count > 1] == []


def test_a_stricter_row_is_of_a_call_that_has_one():
    rows = {row.name: row for row in ROWS}
    for row in CONFINED:
        if isinstance(row, Refuse):
            assert (row.x86_64, row.aarch64) == (rows[row.name].x86_64, rows[row.name].aarch64)
        assert (row.name if isinstance(row, Refuse) else row.call) in ALLOWED


def test_signals_to_all_processes_are_refused_without_a_pid_namespace():
    """Init included, which may be the host's."""
    assert "kill" not in {row.call for row in SETUP if "confined" in row.tiers}


def test_every_call_that_was_measured_is_allowed_or_refused_on_purpose():
    assert set(MEASURED.split()) <= ALLOWED | REFUSED
    # mbind may fail without harm, and so may sendfile, which all replace by read and write; clone3
    # must, because its flags lie behind a pointer.
    assert set(MEASURED.split()) - ALLOWED == {"mbind", "clone3", "sendfile"}


def test_dangerous_calls_are_refused():
    assert set(DANGEROUS.split()) <= REFUSED


# Memory that counts for no process: a session could hold any amount of it. Container engines allow
# these calls, because a cgroup counts that memory; here they are refused on purpose.
UNCOUNTED = """
memfd_create mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget
msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget
"""


def test_calls_that_allocate_unaccounted_memory_are_refused():
    assert set(UNCOUNTED.split()) <= REFUSED


def test_only_clone3_returns_enosys():
    """ENOSYS makes the C library fall back to clone; EPERM would break every thread start."""
    assert {row.name for row in REFUSE if row.errno != 1} == {"clone3"}


def test_rules_are_about_allowed_calls_and_real_arguments():
    for rule in RULES:
        assert rule.call in ALLOWED
        assert all(0 <= check.argument <= 5 for check in rule.checks)


@pytest.mark.skipif(sys.platform != "linux", reason="the numbers are Linux's")
def test_options_of_sockets_are_those_of_the_system() -> None:
    named = {name: number for rows in SOCKET_OPTIONS.values() for name, number in rows.items()}
    known = {name: getattr(socket, name) for name in named if hasattr(socket, name)}
    assert known == {name: named[name] for name in known}
    assert len(known) > 20
    assert set(SOCKET_OPTIONS) == {
        socket.SOL_SOCKET,
        socket.IPPROTO_TCP,
        socket.IPPROTO_IP,
        socket.IPPROTO_IPV6,
    }


def test_the_setup_table_has_only_refused_or_limited_calls():
    limited = {rule.call for rule in RULES}
    assert {row.call for row in SETUP} <= REFUSED | limited


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_numbers_are_those_of_the_kernel_headers(arch):
    """Calls newer than the headers on this machine are not in them; all others must agree."""
    if not HEADERS[arch].exists():
        pytest.skip(f"no {HEADERS[arch]} here")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[arch].read_text())
    header = {name: int(number) for name, number in found if name != "syscalls"}  # their count
    if arch == "aarch64":
        header["newfstatat"] = header.pop("fstatat")  # its name where a long has 64 bits
    newest = max(header.values())
    ours = {row.name: row.number(arch) for row in ROWS}
    assert {
        n: k for n, k in ours.items() if k is not None and k <= newest and header.get(n) != k
    } == ({"uretprobe": 335} if arch == "x86_64" and "uretprobe" not in header else {})
    assert {name for name, number in ours.items() if number is None and name in header} == set()
