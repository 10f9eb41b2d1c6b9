"""Tier `confined`: no session reaches, by what it may ask for, another's segments, semaphores,
sockets or processes, nor a socket or a process of the host.

The attacker makes the requests itself, with the numbers of its victim. Each attack is made on the
attacker's own things as well, where it succeeds: otherwise its failure would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from repl_sandbox.jail.landlock import kernel_abi
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(not kernel_abi(), reason="this kernel has no Landlock")

# In both sessions: `made` names what each has.
MAKE = """
import ctypes, multiprocessing as mp, os, socket, struct, threading
from multiprocessing import shared_memory
libc = ctypes.CDLL(None, use_errno=True)
libc.sem_open.restype = ctypes.c_void_p
segment = shared_memory.SharedMemory("known-" + NAME, create=True, size=64)
segment.buf[:6] = b"secret"
semaphore = libc.sem_open(b"/known-" + NAME.encode(), os.O_CREAT, 0o666, 1)
listener = socket.socket(socket.AF_UNIX)
listener.bind("listener")
listener.listen()
listener.settimeout(0.2)
child = __import__("subprocess").Popen(["sleep", "600"])
number = struct.unpack("16xQ", open("listener", "rb").read())[0]
made = {"name": NAME, "folder": os.path.dirname(os.getcwd()), "number": number,
        "pids": [os.getpid(), child.pid]}
"""

# `WHOSE`: those of the victim, of the host, or its own. `seen` is "done", or the errno's name.
ATTACK = """
import errno
seen = {}
def attempt(name, call, *args):
    try: call(*args)
    except OSError as error: seen[name] = errno.errorcode.get(error.errno, str(error))
    else: seen[name] = "done"

def ask(*words):
    fd = libc.syscall(ctypes.c_long(DUP), *map(ctypes.c_ulong, (0x7E5E5510, *words, 0)))
    if fd < 0: raise OSError(ctypes.get_errno(), "request")
    return fd

def words(name): return struct.unpack("QQ", name.encode().ljust(16, b"\\0"))

def read_proc(pid, name): os.close(ask(1, pid, *words(name)))

def connect(path):
    with socket.socket(socket.AF_UNIX) as client: client.connect(path)

def forge(path, number):
    with open(path, "wb") as file: file.write(struct.pack("16sQ", b"repl-env socket", number))
    connect(path)

def open_semaphore(name):
    ctypes.set_errno(0)
    if not libc.sem_open(name.encode(), 0): raise OSError(ctypes.get_errno(), name)

def remove(call, name):
    if call(name.encode()): raise OSError(ctypes.get_errno(), name)

their = THEIRS
attempt("segment", shared_memory.SharedMemory, "known-" + their["name"])
attempt("semaphore", open_semaphore, "/known-" + their["name"])
for name in ("known-" + their["name"], "sem.known-" + their["name"]):
    attempt(f"open {name}", open, f"{their['folder']}/tmp/.shm/{name}", "rb")
    attempt(f"write {name}", os.open, f"{their['folder']}/tmp/.shm/{name}", os.O_RDWR)
attempt("socket by path", connect, their["folder"] + "/workspace/listener")
attempt("socket by number", ask, 3, their["number"], 0, 0)
attempt("socket by a forged file", forge, "forged-" + their["name"], their["number"])
for index, pid in enumerate(their["pids"]):
    for name in ("status", "cmdline", "maps", "environ", "fd", "cgroup", "stat"):
        attempt(f"{name} of {index}", read_proc, pid, name)
    for name in ("status", "maps", "cmdline"):
        attempt(f"open {name} of {index}", open, f"/proc/{pid}/{name}")
listed = {*map(int, os.listdir("/proc"))}
seen["listed"] = bool(listed & {*their["pids"]})
"""

# What nobody has a right to.
BEYOND = """
for who, pid in OUTSIDE.items():
    for name in ("status", "cmdline", "environ", "maps", "comm"):
        attempt(f"{name} of {who}", read_proc, pid, name)
for name in ("mem", "mounts", "mountinfo", "root", "cwd", "exe", "ns", "net", "../1/status", "",
             "attr", "oom_score_adj", "fd/0", "task/1"):
    attempt(f"own {name!r}", ask, 1, os.getpid(), *words(name))
for kind, number in ((0, 0), (5, 0), (99, 1), (2**32 + 1, 1)):
    attempt(f"request {kind}", ask, kind, number, 0, 0)
os.symlink(HOST_SOCKET, "link")
attempt("a link to the host's socket", connect, "link")
attempt("the host's socket", connect, HOST_SOCKET)
attempt("the host's socket, renamed", os.rename, HOST_SOCKET, "mine")
attempt("the host's socket, linked", os.link, HOST_SOCKET, "mine")
attempt("an abstract name", socket.socket(socket.AF_UNIX).bind, "\\0squatted")
raw = socket.socketpair()[0]
def raw_connect(path):
    address = struct.pack("H108s", 1, path.encode())
    if libc.syscall(CONNECT, raw.fileno(), address, len(address)):
        raise OSError(ctypes.get_errno(), path)
attempt("the host's socket by the call itself", raw_connect, HOST_SOCKET)
attempt("its own by the call itself", raw_connect, "listener")
"""

# Left to the end: they use up what a session may have.
FLOOD = """
def listen_all():
    for number in range(1, 200): queues.append(ask(2, number, 0, 0))
def connect_all():
    for _ in range(2000): os.close(ask(3, made["number"], 0, 0))
queues = []
attempt("many queues", listen_all)
attempt("a full queue", connect_all)
flooded = [seen["many queues"], seen["a full queue"], 0 < len(queues) < 100]
"""

LOOK = """
import json, os, platform, socket, tempfile
from repl_sandbox import Limits, Sandbox

def look(python):
    x86 = platform.machine() == "x86_64"
    numbers = f"DUP, CONNECT = {(32, 42) if x86 else (23, 203)}\\n"
    host = socket.socket(socket.AF_UNIX)
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)
    host.bind(folder + "/socket")
    os.chmod(folder + "/socket", 0o777)
    host.listen()
    found = {}
    limits = Limits(timeout=PATIENCE)
    with Sandbox(isolation="confined", python=python, limits=limits) as sandbox:
        with sandbox.session() as victim, sandbox.session() as attacker:
            for session, name in ((victim, "victim"), (attacker, "attacker")):
                session.set("NAME", name)
                outcome = session.run(MAKE)
                assert outcome.ok, outcome
            for whose, session in (("victim", victim), ("own", attacker)):
                attacker.set("THEIRS", session.get("made"))
                outcome = attacker.run(numbers + ATTACK)
                assert outcome.ok, outcome
                found[whose] = attacker.get("seen")
            links = victim._core.links
            attacker.set("OUTSIDE", {"host": os.getpid(), "init": links.pid, "first": 1,
                "zygote": sandbox._zygote.pid, "own init": attacker._core.links.pid})
            attacker.set("HOST_SOCKET", folder + "/socket")
            outcome = attacker.run("seen = {}\\n" + BEYOND)
            assert outcome.ok, outcome
            found["beyond"] = attacker.get("seen")
            outcome = attacker.run(FLOOD)
            assert outcome.ok, outcome
            found["flooded"] = attacker.get("flooded")
            outcome = victim.run("try: listener.accept()\\nexcept OSError as e: seen = repr(e)\\n"
                "seen = [seen, bytes(segment.buf[:6]).decode(), child.poll()]")
            assert outcome.ok, outcome
            found["kept"] = victim.get("seen")
    host.setblocking(False)
    try: host.accept()
    except OSError as error: found["host"] = type(error).__name__
    host.close()
    return found
"""


@pytest.fixture(scope="module", params=["suite", "ordinary"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the results of all attacks, by sessions of each user."""
    texts = {"MAKE": MAKE, "ATTACK": ATTACK, "BEYOND": BEYOND, "FLOOD": FLOOD}
    named = "".join(f"{name} = {text!r}\n" for name, text in texts.items())
    source = f"{named}PATIENCE = {PATIENCE}\n{LOOK}"
    if request.param == "suite":
        scope: dict[str, Any] = {}
        exec(source, scope)
        result: dict[str, Any] = scope["look"](request.getfixturevalue("open_python"))
        return result
    user: Callable[[str], Any] = request.getfixturevalue("user")
    return user(f"{source}\nprint(json.dumps(look(None)))")  # type: ignore[no-any-return]


def test_nothing_of_another_session_is_reached(found: dict[str, Any]) -> None:
    victim = found["victim"]
    assert victim.pop("listed") is False
    assert {name: how for name, how in victim.items() if how == "done"} == {}


def test_the_same_attempts_reach_the_attackers_own(found: dict[str, Any]) -> None:
    own = found["own"]
    assert own.pop("listed") is True
    # A worker hides its memory, which the C library's open makes visible for its own request.
    hidden = {f"{name} of 0" for name in ("maps", "environ", "fd")}
    assert {name: how for name, how in own.items() if how != "done"} == dict.fromkeys(
        hidden, "EACCES"
    )
    assert {name.replace("victim", "attacker") for name in found["victim"]} - {"listed"} <= {*own}


def test_nothing_of_the_host_is_reached(found: dict[str, Any]) -> None:
    done = {name for name, how in found["beyond"].items() if how == "done"}
    assert done == set()
    assert len(found["beyond"]) > 45
    assert found["host"] == "BlockingIOError"  # nobody connected


def test_the_victim_keeps_all_it_has(found: dict[str, Any]) -> None:
    seen, content, child = found["kept"]
    assert seen.startswith("TimeoutError")
    assert (content, child) == ("secret", None)


def test_queues_and_their_connections_are_bounded(found: dict[str, Any]) -> None:
    assert found["flooded"] == ["ENFILE", "ECONNREFUSED", True]
