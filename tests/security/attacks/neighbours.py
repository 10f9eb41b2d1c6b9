"""Two concurrent sessions of one sandbox: one does ordinary work, the other attacks it.

`look` is run by the suite's own user and, as text, by an ordinary one. It returns the result of
each attempt of the attacker, and the final state of the victim.
"""

import json  # noqa: F401 - what the ordinary user's script prints with
from typing import Any

from repl_sandbox import Limits, Sandbox
from tests.internals import session_links

SECRET = "CANARY-NEIGHBOUR-6d1f"

VICTIM = """
import ctypes, os, signal, socket, subprocess, tempfile
libc = ctypes.CDLL(None)
caught = []
signal.signal(signal.SIGWINCH, lambda number, frame: caught.append(number))
os.environ["SECRET"] = SECRET
os.umask(0)
made = []
for place in (os.getcwd(), tempfile.gettempdir(), "/dev/shm"):
    try:
        with open(f"{place}/secret.txt", "w") as file: file.write(SECRET)
        made.append(place)
    except OSError: pass
try:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\\0neighbour")
    listener.listen()
except OSError: pass
segment = libc.shmget(4242, 4096, 0o1666)
child = subprocess.Popen(["sleep", "600"])
"""

# `attempt` is "done" or the error. Signals are of a kind that does no harm where it arrives.
ATTACKER = """
import ctypes, errno, os, resource, signal, socket, tempfile
from multiprocessing import shared_memory
libc = ctypes.CDLL(None, use_errno=True)
# The kernel itself answers, and not the functions that replace the C library's in tier confined.
os.environ.pop("REPL_SESSION_TMP", None)
signal.signal(signal.SIGWINCH, signal.SIG_IGN)

def c(name, *args):
    if getattr(libc, name)(*args) == -1: raise OSError(ctypes.get_errno(), name)

def read(path):
    with open(path, "rb") as file: file.read(64)

def trace(pid):
    # By PTRACE_SEIZE, in a child: what it traces goes on when it ends.
    child = os.fork()
    if child == 0:
        failed = libc.ptrace(0x4206, pid, None, None)
        os._exit(ctypes.get_errno() if failed else 0)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number: raise OSError(number, "ptrace")

def connect(address):
    with socket.socket(socket.AF_UNIX) as sock: sock.connect(address)

seen = {}
def attempt(name, call, *args):
    try: call(*args)
    except OSError as error: seen[name] = errno.errorcode.get(error.errno, str(error))
    else: seen[name] = "done"

for who, pid in PIDS.items():
    attempt(f"signal to {who}", os.kill, pid, signal.SIGWINCH)
    attempt(f"signal to the group of {who}", os.killpg, pid, signal.SIGWINCH)
    attempt(f"signal by pidfd to {who}",
            lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGWINCH))
    attempt(f"trace {who}", trace, pid)
    attempt(f"memory of {who}", c, "process_vm_readv", pid, None, 0, None, 0, 0)
    attempt(f"limits of {who}", resource.prlimit, pid, resource.RLIMIT_CPU)
    attempt(f"priority of {who}", os.setpriority, os.PRIO_PROCESS, pid, 19)
    attempt(f"processor of {who}", os.sched_setaffinity, pid, [0])
    for name in ("environ", "mem", "maps", "cmdline", "status", "stat", "root/etc/passwd",
                 "cwd/secret.txt", "task"):
        attempt(f"{name} of {who}", read, f"/proc/{pid}/{name}")
    attempt(f"descriptors of {who}", os.listdir, f"/proc/{pid}/fd")
# It may reach processes of its own; whether the neighbour caught it is asked there.
try: os.kill(-1, signal.SIGWINCH)
except OSError: pass
for place in MADE:
    path = f"{place}/secret.txt"
    attempt(f"read {path}", read, path)
    attempt(f"write {path}", os.open, path, os.O_WRONLY)
    attempt(f"remove {path}", os.unlink, path)
    attempt(f"move {path}", os.rename, path, f"{place}/mine")
    attempt(f"link {path}", os.link, path, "stolen")
    if place != os.getcwd() and place != tempfile.gettempdir() and place != "/dev/shm":
        attempt(f"list {place}", os.listdir, place)
        attempt(f"remove {place}", os.rmdir, place)
attempt("shared memory by name", shared_memory.SharedMemory, "secret.txt")
attempt("System V shared memory", c, "shmget", 4242, 0, 0)
attempt("abstract socket", connect, "\\0neighbour")
attempt("a higher priority", os.setpriority, os.PRIO_PROCESS, 0, -5)
attempt("a real-time priority", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
"""

# Resources that are taken stay taken: files, children and memory outlive the cells that took them.
FILLERS = {
    "files": """
import errno, tempfile, time
full = False
for place in (".", tempfile.gettempdir(), "/dev/shm"):
    try:
        with open(f"{place}/filler", "wb", buffering=0) as file:
            for _ in range(128): file.write(bytes(1 << 20))
    except OSError as error:
        print(place, error)
        full |= error.errno == errno.ENOSPC
if not full: time.sleep(60)  # without a mount of its own, the watchdog ends the cell
""",
    "processes": """
import os, signal, time
try:
    for _ in range(60):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
except OSError as error: print(error)
""",
    "memory": """
blocks = []
try:
    while True: blocks.append(bytearray(b"x") * (8 << 20))
except MemoryError as error: print("no memory")
""",
    "processors": """
import os, signal, time
for _ in range(6):
    if os.fork() == 0:
        signal.alarm(15)
        while True: pass
print("all busy")
""",
}

WORK = """
import subprocess, tempfile
with open("work", "wb") as file: file.write(bytes(4 << 20))
with open(tempfile.gettempdir() + "/work", "wb") as file: file.write(bytes(2 << 20))
os.unlink("work"); os.unlink(tempfile.gettempdir() + "/work")
block = bytearray(b"y") * (48 << 20)
del block
children = [subprocess.Popen(["true"]) for _ in range(8)]
codes = [each.wait() for each in children]
assert codes == [0] * 8 and sum(range(1_000_000)) == 499999500000
"""

LAST = """
def is_there(path):
    return os.path.exists(path) and open(path).read() == SECRET

whole = bool(made) and all(is_there(f"{place}/secret.txt") for place in made)
kept = {"files": whole, "signals": caught,
        "child": child.poll() is None, "priority": os.getpriority(os.PRIO_PROCESS, 0)}
# Where there is no wall, these are the host's.
libc.shmctl(segment, 0, None)
for name in ("secret.txt", "mine"):
    if os.path.exists(f"/dev/shm/{name}"): os.unlink(f"/dev/shm/{name}")
"""


def look(tier: str, python: str | None, *, fill: bool = True) -> dict[str, Any]:
    """Return the second session's `attempts`, and the first's state after them: `works`, `kept`.

    `fill`: whether the second takes all it can; not where that would be the host's.
    """
    # So much memory that 24 processes come first: shared pages may count for each of them.
    limits = Limits(memory="512MiB", processes=24, workspace="16MiB", timeout=60, grace=0.5)
    with Sandbox(isolation=tier, python=python, limits=limits) as sandbox:
        # The last has what the second has used up: processes to be busy with.
        opened = (sandbox.session(), sandbox.session(), sandbox.session())
        with opened[0] as victim, opened[1] as attacker, opened[2] as busy:
            victim.set("SECRET", SECRET)
            begun = victim.run(VICTIM)
            assert begun.ok, begun
            links = session_links(victim)
            pids = {
                "init": links.pid,
                "worker": links.worker_pid,
                "child": _child(links.worker_pid),
            }
            attacker.set("PIDS", pids)
            attacker.set("MADE", victim.get("made"))
            attacked = attacker.run(ATTACKER)
            assert attacked.ok, attacked
            found: dict[str, Any] = {"attempts": attacker.get("seen"), "works": {}}
            found["full"] = {}
            for name, code in FILLERS.items() if fill else ():
                outcome = (busy if name == "processors" else attacker).run(code)
                found["full"][name] = outcome.stdout + str(getattr(outcome, "reason", ""))
                found["works"][name] = str(victim.run(WORK).error)
            last = victim.run(LAST)
            assert last.ok, last
            found["kept"] = victim.get("kept")
            found["tier"] = victim.isolation.tier
    return found


def _child(pid: int) -> int:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read().split()[0])
