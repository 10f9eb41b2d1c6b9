"""The table of system calls: complete, without contradictions, right numbers, a reason each."""

import fcntl
import mmap
import os
import re
import socket
import sys
import termios
from collections import Counter
from errno import ENOSYS, EPERM
from pathlib import Path

import pytest

from repl_sandbox.jail.call_options import (
    FCNTL_COMMANDS,
    IOCTL_REQUESTS,
    MEMORY_ADVICE,
    PRCTL_OPTIONS,
    SOCKET_OPTIONS,
    TABLES,
)
from repl_sandbox.jail.syscalls import (
    ALLOW,
    CONFINED,
    PAST_FILTERS,
    REFUSE,
    RULES,
    SETUP,
    UNCHANGED,
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
request_key seccomp sendfile setns splice tee umount2 unshare userfaultfd vmsplice
"""

PRCTL_HEADER = Path("/usr/include/linux/prctl.h")
KALLSYMS = Path("/proc/kallsyms")
# Names of the header that stand for no call of the architecture, or for another row's number.
ABSENT = {
    "x86_64": "",
    "aarch64": """
        arch_specific_syscall sync_file_range2
        clock_adjtime64 clock_getres_time64 clock_gettime64 clock_nanosleep_time64 clock_settime64
        futex_time64 io_pgetevents_time64 mq_timedreceive_time64 mq_timedsend_time64 ppoll_time64
        pselect6_time64 recvmmsg_time64 rt_sigtimedwait_time64 sched_rr_get_interval_time64
        semtimedop_time64 timer_gettime64 timer_settime64 timerfd_gettime64 timerfd_settime64
        utimensat_time64
    """,
}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize(
    "row",
    [
        *ROWS,
        *RULES,
        *SETUP,
        *CONFINED,
        *UNCHANGED,
        *(o for table in TABLES.values() for o in table),
    ],
)
def test_every_row_says_why(row):
    assert re.search(r"[a-z]{2}", row.reason)
    assert row.reason == row.reason.strip()
    assert not row.reason.endswith(".")


def test_no_call_stands_twice():
    for names in (
        [row.name for row in ROWS],
        [rule.call for rule in RULES],
        [s.call for s in SETUP],
        [row.call for row in UNCHANGED],
        *([option.name for option in table] for table in TABLES.values()),
        *([str(option.number) for option in table] for table in TABLES.values()),
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


def test_clone3_does_not_exist():
    """ENOSYS makes the C library fall back to clone; EPERM would break every thread start."""
    assert {row.errno for row in REFUSE if row.name == "clone3"} == {ENOSYS}
    assert {row.errno for row in REFUSE} == {EPERM, ENOSYS}


def test_calls_that_change_nothing_are_refused_otherwise():
    assert {row.call for row in UNCHANGED} <= REFUSED


def test_rules_are_about_allowed_calls_and_real_arguments():
    for rule in RULES:
        assert rule.call in ALLOWED
        assert all(0 <= check.argument <= 5 for check in rule.checks)


@pytest.mark.skipif(sys.platform != "linux", reason="the numbers are Linux's")
def test_options_of_sockets_are_those_of_the_system() -> None:
    named = {row.name: row.number for rows in SOCKET_OPTIONS.values() for row in rows}
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


@pytest.mark.skipif(sys.platform != "linux", reason="the numbers are Linux's")
@pytest.mark.parametrize(
    ("options", "modules", "least"),
    [
        (IOCTL_REQUESTS, (termios, fcntl), 15),
        (FCNTL_COMMANDS, (fcntl,), 12),
        (MEMORY_ADVICE, (mmap,), 12),
    ],
    ids=["ioctl", "fcntl", "madvise"],
)
def test_options_are_those_that_python_knows(options, modules, least) -> None:
    known = {
        row.name: getattr(module, row.name)
        for row in options
        for module in modules
        if hasattr(module, row.name)
    }
    assert known == {row.name: row.number for row in options if row.name in known}
    assert len(known) >= least


@pytest.mark.skipif(not PRCTL_HEADER.exists(), reason="no header of prctl here")
def test_options_of_prctl_are_those_of_the_kernel_headers() -> None:
    found = re.findall(r"#\s*define\s+(PR_\w+)\s+(0x\w+|\d+)\b", PRCTL_HEADER.read_text())
    header = {name: int(number, 0) for name, number in found}
    ours = {row.name: row.number for row in PRCTL_OPTIONS}
    known = {name: header[name] for name in ours if name in header}
    assert known == {name: ours[name] for name in known}
    assert len(known) > 20


# Names in the kernel's symbols of calls that one machine lacks: those of 32-bit entries, and of
# other architectures.
OF_32_BITS = re.compile(r"(ia32|compat|old|s390|spu|pciconfig|x32)_?|.*(16|32|time32)$|\w+64_64$")
OTHERS = """
fstatfs64 gethostname ipc llseek mmap_pgoff newfstat newlstat newstat newuname ni_syscall nice recv
rtas send sendfile64 sgetmask signal sigpending sigprocmask sigsuspend socketcall ssetmask statfs64
subpage_prot sync_file_range2 umount waitpid
"""


def test_every_call_that_this_kernel_knows_has_a_row() -> None:
    """The kernel's own list: the symbols of its functions for system calls."""
    arch = {"x86_64": "x64", "aarch64": "arm64"}.get(os.uname().machine)
    symbols = KALLSYMS.read_text() if KALLSYMS.exists() else ""
    known = set(re.findall(rf"\b__{arch}_sys_(\w+)", symbols))
    if not known:
        pytest.skip("this kernel does not show its symbols")
    assert len(known) > 300
    known = {name for name in known if not OF_32_BITS.match(name)}
    assert sorted(known - ALLOWED - REFUSED - set(OTHERS.split())) == []


def test_calls_that_no_filter_sees_are_refused_and_named() -> None:
    assert set(PAST_FILTERS) <= REFUSED


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
    other = {n for n, k in ours.items() if k is not None and k <= newest and header.get(n) != k}
    assert other <= set(PAST_FILTERS) - set(header)
    absent = ABSENT[arch].split()
    assert sorted(set(header) - set(ours) - set(absent)) == []
    assert {name for name, number in ours.items() if number is None and name in header} == set()
