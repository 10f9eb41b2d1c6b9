"""The filters: the same answer as the table, in an interpreter of BPF and in the kernel.

Run as a script, this file is the child that takes a filter on and reports what it may still do.
"""

import asyncio
import ctypes
import errno
import json
import mmap
import multiprocessing
import os
import platform
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from errno import EAFNOSUPPORT, ENOSYS, EPERM
from multiprocessing import shared_memory

import pytest

from repl_sandbox.jail import libc, seccomp
from repl_sandbox.jail.syscalls import (
    ALLOW,
    CONFINED,
    REFUSE,
    RULES,
    SETUP,
    NoBits,
    NoneOf,
    OneOf,
    Refuse,
)

# ── what the kernel does with a filter ───────────────────────────────────────────────────────────

ALLOWED = seccomp.SECCOMP_RET_ALLOW
KILLED = seccomp.SECCOMP_RET_KILL_PROCESS
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}
LOAD, AND, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_SET, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
COMPARE = {
    JUMP_EQUAL: lambda a, k: a == k,
    JUMP_GREATER_EQUAL: lambda a, k: a >= k,
    JUMP_SET: lambda a, k: a & k != 0,
}


def decode(program):
    return list(struct.iter_unpack("=HBBI", program))


def interpret(instructions, arch, number, arguments):
    """The action that a decoded program returns; KeyError for an instruction we do not use."""
    words = [a & 0xFFFFFFFF_FFFFFFFF for a in arguments]
    data = struct.pack("<IIQ6Q", number, AUDIT_ARCH[arch], 0, *words)
    at, word = 0, 0
    while True:
        code, yes, no, operand = instructions[at]
        at += 1
        if code == RETURN:
            return operand
        if code == LOAD:
            (word,) = struct.unpack_from("<I", data, operand)
        elif code == AND:
            word &= operand
        else:
            at += yes if COMPARE[code](word, operand) else no


def strictest(newer, older):
    """What two filters come to: seccomp(2), "the first-seen ... highest precedence" wins."""

    def precedence(action):
        return ctypes.c_int32(action & 0xFFFF0000).value

    return newer if precedence(newer) <= precedence(older) else older


# ── what the table says ──────────────────────────────────────────────────────────────────────────


def holds(check, arguments):
    word = arguments[check.argument] & 0xFFFFFFFF
    match check:
        case OneOf(_, values, mask):
            return (word if mask is None else word & mask) in values
        case NoneOf(_, values):
            return word not in values
        case NoBits(_, bits):
            return not word & bits


def from_the_table(arch, number, arguments, tier):
    if arch == "x86_64" and number >= 0x40000000:
        return KILLED
    names = {row.number(arch): row for row in (*ALLOW, *REFUSE)}
    row = names.get(number)
    if row is None:
        return seccomp.SECCOMP_RET_ERRNO | ENOSYS
    stricter = CONFINED if tier == "confined" else ()
    refused = {each.name: each for each in stricter if isinstance(each, Refuse)}
    row = refused.get(row.name, row)
    if isinstance(row, Refuse):
        return seccomp.SECCOMP_RET_ERRNO | row.errno
    rules = {rule.call: rule for rule in RULES}
    rules |= {each.call: each for each in stricter if not isinstance(each, Refuse)}
    for rule in rules.values():
        if rule.call == row.name and not all(holds(check, arguments) for check in rule.checks):
            return seccomp.SECCOMP_RET_ERRNO | rule.errno
    return ALLOWED


HIGH = 1 << 32
NUMBERS = [*range(601), 0x3FFFFFFF, 0x40000000, 0x40000027, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
ARGUMENTS = [
    (0, 0, 0, 0, 0, 0),
    (-1, -1, -1, -1, -1, -1),
    (-1, 9, 0, 0, 0, 0),
    (0xFFFFFFFF, 9, 0, 0, 0, 0),
    (HIGH, 9, 0, 0, 0, 0),
    *((1 << bit, 0, 0, 0, 0, 0) for bit in range(40)),
    (0x3D0F00, 0, 0, 0, 0, 0),  # the flags of pthread_create
    *((0, 0x5412 + i, 0, 0, 0, 0) for i in range(-2, 20)),
    *((0, HIGH | request, 0, 0, 0, 0) for request in (0x5412, 0x541C, 0x541D, 0x5423, 0x5413)),
    *((family, 1, 0, 0, 0, 0) for family in range(48)),
    *((family, kind, 0, 0, 0, 0) for family in (1, 2, 10) for kind in range(16)),
    *((2, 0o2004001, protocol, 0, 0, 0) for protocol in (0, 1, 6, 17, 132, 136, 255, 262)),
    (HIGH | 16, 3, 0, 0, 0, 0),
    (HIGH | 2, HIGH | 1, HIGH | 6, 0, 0, 0),
]
RULED = {rule.call for rule in RULES} | {row.call for row in SETUP}
RULED |= {row.name if isinstance(row, Refuse) else row.call for row in CONFINED}


def cases(arch):
    """Every number; all arguments for the calls that are looked at closer, two for the rest."""
    close = {row.number(arch) for row in ALLOW if row.name in RULED}
    for number in NUMBERS:
        for arguments in ARGUMENTS if number in close else ARGUMENTS[:2]:
            yield number, arguments


# ── filters and table agree ──────────────────────────────────────────────────────────────────────

both_architectures = pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
both_tiers = pytest.mark.parametrize("tier", ["jailed", "confined"])


@both_tiers
@both_architectures
def test_the_filter_says_what_the_table_says(arch, tier):
    program = decode(seccomp.program(arch, tier))
    for number, arguments in cases(arch):
        expected = from_the_table(arch, number, arguments, tier)
        assert interpret(program, arch, number, arguments) == expected, (number, arguments)


@both_tiers
@both_architectures
def test_base_and_seal_together_are_the_filter(arch, tier):
    program, base, seal = (
        decode(make(arch, tier))
        for make in (seccomp.program, seccomp.base_program, seccomp.seal_program)
    )
    for number, arguments in cases(arch):
        call = (arch, number, arguments)
        together = strictest(interpret(seal, *call), interpret(base, *call))
        assert together == interpret(program, *call), call


@both_tiers
@both_architectures
def test_the_base_opens_the_setup_and_nothing_else(arch, tier):
    program, base = decode(seccomp.program(arch, tier)), decode(seccomp.base_program(arch, tier))
    names = {row.number(arch): row.name for row in (*ALLOW, *REFUSE)}
    opened = set()
    for number, arguments in cases(arch):
        loose = interpret(base, arch, number, arguments)
        if loose != interpret(program, arch, number, arguments):
            assert loose == ALLOWED
            opened.add(names[number])
    assert opened == {row.call for row in SETUP if tier in row.tiers}


@pytest.mark.parametrize(
    ("arch", "foreign"), [("x86_64", "i386"), ("x86_64", "aarch64"), ("aarch64", "arm")]
)
@pytest.mark.parametrize("make", [seccomp.program, seccomp.base_program])
def test_entries_of_another_architecture_end_the_process(make, arch, foreign):
    program = decode(make(arch))
    assert {interpret(program, foreign, n, ARGUMENTS[0]) for n in NUMBERS} == {KILLED}


@both_architectures
def test_filters_are_short(arch):
    """Loading costs by length; one comparison per row would make over 700 instructions."""
    assert len(decode(seccomp.program(arch))) <= 128
    assert len(decode(seccomp.seal_program(arch))) < 50
    # Eight calls more that are looked into; this one the template loads, once for all sessions.
    assert len(decode(seccomp.program(arch, "confined"))) <= 144


def test_filters_do_not_depend_on_the_hash_seed():
    print_it = (
        "from repl_sandbox.jail import seccomp as s\n"
        "for make in (s.program, s.base_program, s.seal_program): print(make('x86_64').hex())"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", print_it],
            env=child_environment() | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1


@pytest.mark.parametrize("make", [seccomp.program, seccomp.base_program, seccomp.seal_program])
def test_an_unknown_architecture_is_refused(make):
    with pytest.raises(ValueError, match="riscv64"):
        make("riscv64")


def test_the_kernel_s_refusal_of_a_program_is_an_error():
    with pytest.raises(OSError) as caught:
        seccomp.load(b"")
    assert caught.value.errno == errno.EINVAL


# ── in the kernel: what a child under the filter finds ───────────────────────────────────────────

TIOCSTI = 0x5412
CLONE_FS = 0x200  # with CLONE_NEWUSER it is EINVAL, so a hole in the filter starts no process
AF_VSOCK, AF_NETLINK, AF_ALG = 40, 16, 38
IPPROTO_MPTCP = 262
KEEP = -1  # setresuid: leave as it is
QUERY_PERSONALITY = 0xFFFFFFFF
GETPID_I386 = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret
GETPID_X32 = 0x40000000 | 39
SYNC = {"x86_64": 162, "aarch64": 81}  # exists in every kernel, has no row in the table
UNKNOWN_NUMBER = 600

# name of the probe: the call, its arguments, the errno it must fail with
PROBES = {
    "io_uring": ("io_uring_setup", (0, 0), EPERM),
    "clone3": ("clone3", (0, 0), ENOSYS),
    "unknown number": (UNKNOWN_NUMBER, (), ENOSYS),
    "call without a row": (SYNC, (), ENOSYS),
    "socket of a VM": ("socket", (AF_VSOCK, 1, 0), EAFNOSUPPORT),
    "netlink socket": ("socket", (AF_NETLINK, 3, 0), EAFNOSUPPORT),
    "crypto socket": ("socket", (AF_ALG, 5, 0), EAFNOSUPPORT),
    "raw socket": ("socket", (2, 3, 1), EAFNOSUPPORT),
    "multipath socket": ("socket", (2, 1, IPPROTO_MPTCP), EAFNOSUPPORT),
    "foreign socketpair": ("socketpair", (2, 1, 0, 0), EAFNOSUPPORT),
    "user namespace": ("clone", (libc.CLONE_NEWUSER | CLONE_FS, 0, 0, 0, 0), EPERM),
    "unshare": ("unshare", (0,), EPERM),
    "typing into a terminal": ("ioctl", (-1, TIOCSTI, 0), EPERM),
    "the same with a high bit": ("ioctl", (-1, HIGH | TIOCSTI, 0), EPERM),
    "signal to everybody": ("kill", (-1, 0), EPERM),
    "the same as unsigned": ("kill", (0xFFFFFFFF, 0), EPERM),
    "mount": ("mount", (0, 0, 0, 0, 0), EPERM),
    "another uid": ("setresuid", (KEEP, KEEP, KEEP), EPERM),
    "another filter": ("seccomp", (2, 0, 0), EPERM),
    "tracing": ("ptrace", (0, 0, 0, 0), EPERM),
    "personality": ("personality", (QUERY_PERSONALITY,), EPERM),
    "key ring": ("keyctl", (0, 0, 0), EPERM),
    "splice": ("splice", (-1, 0, -1, 0, 0, 0), EPERM),
}
# Without a filter of ours these end otherwise, for any user and under common container filters.
NOT_BY_THEMSELVES = (
    "call without a row",
    "netlink socket",
    "typing into a terminal",
    "another uid",
)


def probe(call, arguments):
    """The errno that a call fails with, 0 if it succeeds."""
    arch = seccomp.native_arch()
    if isinstance(call, dict):
        call = call[arch]
    numbers = {row.name: row.number(arch) for row in (*ALLOW, *REFUSE)}
    try:
        libc.syscall(numbers.get(call, call), *arguments)
    except OSError as error:
        return error.errno
    return 0


def probe_all():
    return {name: probe(call, arguments) for name, (call, arguments, _) in PROBES.items()}


def enter_by_i386():
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(GETPID_I386)
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


def enter_by_x32():
    return libc.syscall(GETPID_X32)


def count_up(counter, lock):
    for _ in range(100):
        with lock:
            counter.value += 1


def run_processes(start_method):
    context = multiprocessing.get_context(start_method)
    counter, lock = context.Value("i", 0, lock=False), context.Lock()
    processes = [context.Process(target=count_up, args=(counter, lock)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return counter.value


def ordinary_threads():
    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(lambda n: n * n, range(100)))


def ordinary_subprocess():
    command = [sys.executable, "-c", "print(6 * 7)"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def ordinary_asyncio():
    async def main():
        process = await asyncio.create_subprocess_exec("true")
        return [await process.wait(), await asyncio.to_thread(lambda: 42)]

    return asyncio.run(main())


def ordinary_sockets():
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"over a pair")
        return right.recv(64).decode()


def ordinary_server():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as connection,
    ):
        client.sendall(b"over loopback")
        return connection.recv(64).decode()


def ordinary_files():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a")
        with open(path, "w") as file:
            file.write("text")
        os.rename(path, path + "b")
        os.symlink(path + "b", path)
        os.utime(path)
        return [os.stat(path).st_size, sorted(os.listdir(folder))]


def ordinary_shared_memory():
    block = shared_memory.SharedMemory(create=True, size=64)
    again = shared_memory.SharedMemory(block.name)
    assert block.buf is not None
    assert again.buf is not None
    block.buf[:3] = b"abc"
    text = bytes(again.buf[:3]).decode()
    again.close()
    block.close()
    block.unlink()
    return text


def ordinary_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    return signal.Signals(signal.sigwait([signal.SIGALRM])).name


ORDINARY = {
    "threads": (ordinary_threads, 328350),
    "subprocess": (ordinary_subprocess, "42\n"),
    "fork": (lambda: run_processes("fork"), 200),
    "spawn": (lambda: run_processes("spawn"), 200),
    "forkserver": (lambda: run_processes("forkserver"), 200),
    "asyncio": (ordinary_asyncio, [0, 42]),
    "socketpair": (ordinary_sockets, "over a pair"),
    "server": (ordinary_server, "over loopback"),
    "files": (ordinary_files, [4, ["a", "ab"]]),
    "shared memory": (ordinary_shared_memory, "abc"),
    "signals": (ordinary_signals, "SIGALRM"),
}


def load_beside_a_thread(load):
    """What a thread that ran before the filter was loaded may do afterwards."""
    loaded = threading.Event()
    found = []

    def work():
        loaded.wait()
        found.append(probe("unshare", (0,)))

    thread = threading.Thread(target=work)
    thread.start()
    load()
    loaded.set()
    thread.join()
    return found


LOADS = {
    "nothing": (),
    "program": (seccomp.program,),
    "base and seal": (seccomp.base_program, seccomp.seal_program),
}
REPORTS = {
    "probes": probe_all,
    "i386": enter_by_i386,
    "x32": enter_by_x32,
    **{name: function for name, (function, _) in ORDINARY.items()},
}


def child(loads, report):
    """Take the filters on and print what `report` finds, as JSON."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # dying by SIGSYS leaves no file behind

    def load():
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        for make in LOADS[loads]:
            seccomp.load(make(seccomp.native_arch()))

    if report == "thread":
        result = load_beside_a_thread(load)
    else:
        load()
        result = REPORTS[report]()
    sys.stdout.write(json.dumps(result))


def child_environment():
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run_child(loads, report):
    return subprocess.run(
        [sys.executable, __file__, loads, report],
        env=child_environment(),
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )


linux = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="loads a filter into the kernel",
)
x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="entries of x86-64")
under_both = pytest.mark.parametrize("loads", ["program", "base and seal"])


@linux
@under_both
def test_calls_fail_with_the_documented_errno(loads):
    done = run_child(loads, "probes")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {name: expected for name, (_, _, expected) in PROBES.items()}


@linux
def test_it_is_the_filter_that_refuses():
    found = json.loads(run_child("nothing", "probes").stdout)
    assert [name for name in NOT_BY_THEMSELVES if found[name] == PROBES[name][2]] == []


@linux
@x86_64
@under_both
@pytest.mark.parametrize("entry", ["i386", "x32"])
def test_foreign_entries_kill_the_process(loads, entry):
    assert run_child(loads, entry).returncode == -signal.SIGSYS


@linux
@under_both
def test_threads_that_ran_before_are_under_the_filter(loads):
    assert json.loads(run_child(loads, "thread").stdout) == [EPERM]


@linux
@under_both
@pytest.mark.parametrize("work", ORDINARY)
def test_ordinary_python_works_under_the_filter(loads, work):
    done = run_child(loads, work)
    assert done.returncode == 0
    assert json.loads(done.stdout) == ORDINARY[work][1]


if __name__ == "__main__":
    child(*sys.argv[1:])
