"""A process under the filters: refused calls, and calls that still work.

`filtered.py LOADS REPORT...` loads filters, in a process of its own for each report, and prints the
result of each.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import mmap
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from errno import EAFNOSUPPORT, ENOMEM, ENOPROTOOPT, ENOSYS, EOPNOTSUPP, EPERM
from multiprocessing import shared_memory

from repl_sandbox.jail import seccomp
from repl_sandbox.jail.syscalls import ALLOW, REFUSE
from repl_sandbox.native import libc

HIGH = 1 << 32
# For one report; a report that waits for ever is ended.
SECONDS = 60
TIOCSTI = 0x5412
CLONE_FS = 0x200  # with CLONE_NEWUSER it is EINVAL, so a hole in the filter starts no process
AF_VSOCK, AF_NETLINK, AF_ALG = 40, 16, 38
IPPROTO_MPTCP = 262
SO_ATTACH_FILTER, SO_LOCK_FILTER, SO_ATTACH_BPF = 26, 44, 50
SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF = 51, 52
TCP_ULP, UDP_ENCAP, IPT_SO_SET_REPLACE = 31, 100, 64
QUERY_PERSONALITY = 0xFFFFFFFF
GETPID_I386 = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret
GETPID_X32 = 0x40000000 | 39
SYNC = {"x86_64": 162, "aarch64": 81}  # exists in every kernel, has no row in the table
UNKNOWN_NUMBER = 600
PR_FUTEX_HASH, NO_OPTION = 78, 0x7000
NS_GET_USERNS, F_SETOWN, RENAME_WHITEOUT = 0xB701, 8, 4

# name of the probe: the call, its arguments, the errno it must fail with
PROBES = {
    "io_uring": ("io_uring_setup", (0, 0), EPERM),
    "clone3": ("clone3", (0, 0), ENOSYS),
    "unknown number": (UNKNOWN_NUMBER, (), ENOSYS),
    "call without a row": (SYNC, (), ENOSYS),
    "socket of a VM": ("socket", (AF_VSOCK, 1, 0), EAFNOSUPPORT),
    "netlink socket": ("socket", (AF_NETLINK, 3, 0), EOPNOTSUPP),
    "crypto socket": ("socket", (AF_ALG, 5, 0), EAFNOSUPPORT),
    "raw socket": ("socket", (2, 3, 1), EAFNOSUPPORT),
    "multipath socket": ("socket", (2, 1, IPPROTO_MPTCP), EAFNOSUPPORT),
    "foreign socketpair": ("socketpair", (2, 1, 0, 0), EAFNOSUPPORT),
    "program on a socket": ("setsockopt", (-1, 1, SO_ATTACH_FILTER, 0, 0), ENOPROTOOPT),
    "the same with high bits": (
        "setsockopt",
        (-1, HIGH | 1, HIGH | SO_ATTACH_FILTER, 0, 0),
        ENOPROTOOPT,
    ),
    "program of maps on a socket": ("setsockopt", (-1, 1, SO_ATTACH_BPF, 0, 0), ENOPROTOOPT),
    "program for a group": ("setsockopt", (-1, 1, SO_ATTACH_REUSEPORT_CBPF, 0, 0), ENOPROTOOPT),
    "the same of maps": ("setsockopt", (-1, 1, SO_ATTACH_REUSEPORT_EBPF, 0, 0), ENOPROTOOPT),
    "locked program": ("setsockopt", (-1, 1, SO_LOCK_FILTER, 0, 0), ENOPROTOOPT),
    "TLS of the kernel": ("setsockopt", (-1, 6, TCP_ULP, 0, 0), ENOPROTOOPT),
    "IPsec in datagrams": ("setsockopt", (-1, 17, UDP_ENCAP, 0, 0), ENOPROTOOPT),
    "tables of netfilter": ("setsockopt", (-1, 0, IPT_SO_SET_REPLACE, 0, 0), ENOPROTOOPT),
    "a byte out of band": ("sendto", (-1, 0, 0, 1, 0, 0), EOPNOTSUPP),
    "the same in a message": ("sendmsg", (-1, 0, 1), EOPNOTSUPP),
    "the same in several": ("sendmmsg", (-1, 0, 0, 1), EOPNOTSUPP),
    "user namespace": ("clone", (libc.CLONE_NEWUSER | CLONE_FS, 0, 0, 0, 0), EPERM),
    "unshare": ("unshare", (0,), EPERM),
    "typing into a terminal": ("ioctl", (-1, TIOCSTI, 0), EPERM),
    "the same with a high bit": ("ioctl", (-1, HIGH | TIOCSTI, 0), EPERM),
    "signal to everybody": ("kill", (-1, 0), EPERM),
    "the same as unsigned": ("kill", (0xFFFFFFFF, 0), EPERM),
    "mount": ("mount", (0, 0, 0, 0, 0), EPERM),
    "another filter": ("seccomp", (2, 0, 0), EPERM),
    "the same in its old form": ("prctl", (22, 2, 0, 0, 0), EPERM),
    "a hash of futexes": ("prctl", (PR_FUTEX_HASH, 2, 0, 0, 0), EPERM),
    "an option that nobody knows": ("prctl", (NO_OPTION, 0, 0, 0, 0), EPERM),
    "a namespace by its descriptor": ("ioctl", (-1, NS_GET_USERNS, 0), EPERM),
    "signals to a process of choice": ("fcntl", (-1, F_SETOWN, 1), EPERM),
    "a device by a rename": ("renameat2", (-1, 0, -1, 0, RENAME_WHITEOUT), EPERM),
    "huge pages of the host": ("mmap", (0, 1 << 21, 0, 0x40022, -1, 0), ENOMEM),
    "advice to lose pages": ("madvise", (0, 0, 21), EPERM),
    "a class that there is": ("sched_setscheduler", (0, 0, 0), 0),
    "a class of no process": ("sched_setscheduler", (-1, 0, 0), EPERM),
    "a class of real time": ("sched_setscheduler", (0, 1, 0), EPERM),
    "a niceness of others": ("setpriority", (1, 0, 0), EPERM),
    "the class of the disk that there is": ("ioprio_set", (1, 0, 0), 0),
    "a class of the disk": ("ioprio_set", (1, 0, 0x6000), EPERM),
    "tracing": ("ptrace", (0, 0, 0, 0), EPERM),
    "personality": ("personality", (QUERY_PERSONALITY,), EPERM),
    "key ring": ("keyctl", (0, 0, 0), EPERM),
    "splice": ("splice", (-1, 0, -1, 0, 0, 0), EPERM),
}
# Without a filter of the engine these end otherwise, for any user and under common container
# filters.
NOT_BY_THEMSELVES = (
    "call without a row",
    "netlink socket",
    "typing into a terminal",
    "program on a socket",
    "a byte out of band",
)


_kernel = ctypes.CDLL(None, use_errno=True)


def syscall(number, *arguments):
    """syscall(2) with integer arguments; OSError with its errno."""
    result = _kernel.syscall(*[ctypes.c_long(each) for each in (number, *arguments)])
    if result == -1:
        raise OSError(ctypes.get_errno(), f"syscall {number}")
    return result


def probe(call, arguments):
    """The errno that a call fails with, 0 if it succeeds."""
    arch = seccomp.native_arch()
    if isinstance(call, dict):
        call = call[arch]
    numbers = {row.name: row.number(arch) for row in (*ALLOW, *REFUSE)}
    try:
        syscall(numbers.get(call, call), *arguments)
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
    return syscall(GETPID_X32)


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


def ordinary_options():
    """Also an option whose number, at another level, would put a program on the socket."""
    with socket.socket(socket.AF_INET6) as six, socket.socket() as four:
        six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        four.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        four.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))
        four.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        four.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 9)
        return [
            six.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY),
            four.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT),
            four.getsockopt(socket.IPPROTO_IP, socket.IP_TTL),
        ]


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
    "socket options": (ordinary_options, [1, 1, 9]),
    "files": (ordinary_files, [4, ["a", "ab"]]),
    "shared memory": (ordinary_shared_memory, "abc"),
    "signals": (ordinary_signals, "SIGALRM"),
}


def load_beside_a_thread(load):
    """Report the rights of a thread that ran before the filter was loaded."""
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
    "base and seal": (seccomp.base_program, seccomp.final_program),
}
REPORTS = {
    "probes": probe_all,
    "i386": enter_by_i386,
    "x32": enter_by_x32,
    **{name: function for name, (function, _) in ORDINARY.items()},
}


def report(loads, name):
    """Load the filters and write the report's findings, as JSON."""

    def load():
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        for make in LOADS[loads]:
            seccomp.load(make(seccomp.native_arch()))

    if name == "thread":
        result = load_beside_a_thread(load)
    else:
        load()
        result = REPORTS[name]()
    return json.dumps(result)


def reported(loads, name):
    """Return [exit status, output] of a forked process that reports."""
    reading, writing = os.pipe2(os.O_NONBLOCK)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(SECONDS)
            os.write(writing, report(loads, name).encode())
            status = 0
        # Boundary: there is no caller to report to, and the parent's code must not continue here.
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(status)
    # Reading to the end of the pipe would wait for leftover processes that keep it open.
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(writing)
    try:
        written = os.read(reading, 1 << 16).decode()
    except BlockingIOError:
        written = ""
    os.close(reading)
    return ended, written


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # dying by SIGSYS leaves no file behind
    loads, *names = sys.argv[1:]
    sys.stdout.write(json.dumps({name: reported(loads, name) for name in names}))
