"""A program that asks, inside a confined session, what of the host can be reached."""

from __future__ import annotations

SECRET = "a-secret-of-the-host"

# In the session: `attempt(call, ...)` is the errno's name, or "done".
PROBE = """
import ctypes, errno, fcntl, os, resource, signal, socket, stat, subprocess, sys, tempfile

libc = ctypes.CDLL(None, use_errno=True)
# Attackers do without the functions that replace the C library's: the kernel itself answers.
os.environ.pop("REPL_SESSION_TMP", None)

def attempt(call, *args):
    try:
        call(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def c(name, *args):
    if getattr(libc, name)(*args) == -1:
        raise OSError(ctypes.get_errno(), name)

def entry(path):
    with open(path) as file:
        return file.read()

def others(act):
    return {name: attempt(act, pid) for name, pid in PIDS.items()}

def files_of(name):
    return {who: attempt(entry, f"/proc/{pid}/{name}") for who, pid in PIDS.items()}

here = os.getcwd()
seen = {
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
    "status": dict(line.split(":\\t") for line in entry("/proc/self/status").splitlines()
                   if ":\\t" in line),
    "environment": dict(os.environ),
    "here": here,
    "temporary": tempfile.gettempdir(),
    "descriptors": [int(name) for name in os.listdir("/proc/self/fd")],
    "modes": [stat.S_IMODE(os.stat(path).st_mode) for path in (here, os.path.dirname(here))],
    "read": {path: attempt(entry, path) for path in HOST_FILES},
    "listed": {path: attempt(os.listdir, path) for path in
               ["/", "/etc", "/proc", "/home", "/root", "/tmp", "/var/tmp", "/dev", "/dev/shm",
                os.path.dirname(os.path.dirname(here))]},
    "made": {path: attempt(os.mkdir, path + "/new") for path in
             ["/", "/etc", "/tmp", "/var/tmp", "/dev/shm", "/usr", "/run", "/root",
              os.path.dirname(os.path.dirname(here))]},
    "written": {path: attempt(open, path, "w") for path in
                [os.__file__, sys.executable, "/dev/random", "/proc/self/comm", *HOST_FILES]},
    "linked": attempt(os.link, os.__file__, "stolen"),
    "removed": attempt(os.unlink, HOST_FILES[0]),
    "renamed": attempt(os.rename, HOST_FILES[0], "mine"),
    "truncated": attempt(os.truncate, HOST_FILES[0], 0),
    "own": {
        "file": attempt(open, "file", "w"),
        "directory": attempt(os.makedirs, "a/b/c"),
        "moved": attempt(os.rename, "file", "a/b/file"),
        "temporary": attempt(tempfile.TemporaryFile),
        "null": attempt(open, "/dev/null", "w"),
        "random": attempt(entry, "/proc/self/status"),
        "mode": attempt(os.chmod, "a", 0o755),
    },
    "lent": {
        "by path": attempt(os.chmod, "a", 0o4755),
        "group": attempt(os.chmod, "a", 0o2755),
        "by descriptor": attempt(os.chmod, os.open("a", os.O_RDONLY), 0o4755),
        "by directory": attempt(lambda: os.chmod("a", 0o4755, dir_fd=os.open(".", os.O_RDONLY))),
        "made": attempt(os.open, "lent", os.O_CREAT | os.O_WRONLY, 0o4755),
        "unnamed": attempt(os.open, ".", os.O_TMPFILE | os.O_WRONLY, 0o4755),
    },
    "sockets": {
        f"{family}-{kind}": attempt(socket.socket, family, kind)
        for family in (1, 2, 10, 16, 17, 38, 40) for kind in (1, 2, 3, 5)
    },
    "pairs": {kind: attempt(socket.socketpair, socket.AF_UNIX, number)
              for kind, number in (("stream", 1), ("datagram", 2), ("seqpacket", 5))},
    "on a pair": {
        "connect": attempt(socket.socketpair()[0].connect, UNIX_PATH),
        "bind": attempt(socket.socketpair()[0].bind, "\\0squatted"),
        "listen": attempt(socket.socketpair()[0].listen),
    },
    "signals": others(lambda pid: os.kill(pid, 0)),
    "group signals": others(lambda pid: os.killpg(pid, 0)),
    "pidfd signals": others(lambda pid: signal.pidfd_send_signal(os.pidfd_open(pid), 0)),
    "to all": attempt(os.kill, -1, 0),
    "limits of others": others(lambda pid: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0))),
    "placed": others(lambda pid: os.sched_setaffinity(pid, [0])),
    "traced": others(lambda pid: c("ptrace", 16, pid, None, None)),
    "memory of others": others(lambda pid: c("process_vm_readv", pid, None, 0, None, 0, 0)),
    **{f"proc {name}": files_of(name) for name in
       ("cmdline", "environ", "maps", "mem", "status", "root/etc/passwd", "comm")},
    "descriptors of others": others(lambda pid: os.listdir(f"/proc/{pid}/fd")),
    "watched": attempt(c, "inotify_add_watch", libc.inotify_init(), b"/tmp", 0xFFF),
    "doors beside": {
        "F_NOTIFY": attempt(fcntl.fcntl, os.open("/usr", os.O_RDONLY), 1026, 0x8000000F),
        "F_SETLEASE": attempt(fcntl.fcntl, os.open(os.__file__, os.O_RDONLY), 1024, fcntl.F_RDLCK),
        "F_SETPIPE_SZ": attempt(fcntl.fcntl, os.pipe()[1], 1031, 8192),
        "RWF_NOWAIT": attempt(os.preadv, os.open(os.__file__, os.O_RDONLY), [bytearray(9)], 0, 8),
    },
    "namespaces": {hex(flag): attempt(c, "unshare", flag) for flag in (0x10000000, 0x20000)},
    "uid": [attempt(os.setuid, 0), attempt(os.setgroups, [0])],
    "rlimits": {name: resource.getrlimit(number) for name, number in vars(resource).items()
                if name.startswith("RLIMIT_")},
}
child = subprocess.Popen(["sleep", "60"])
seen["own child"] = [attempt(child.terminate), child.wait()]
"""

SCRIPT = """
import json, os, socket, tempfile
from dataclasses import astuple
from repl_sandbox import Limits, Sandbox

with tempfile.TemporaryDirectory() as folder:
    path = folder + "/host-file"
    with open(path, "w") as file:
        file.write("host")
    os.chmod(folder, 0o755)
    os.chmod(path, 0o666)
    server = socket.socket(socket.AF_UNIX)
    server.bind(folder + "/socket")
    server.listen()
    os.chmod(folder + "/socket", 0o777)
    limits = Limits(cpu_seconds=500)
    with Sandbox(isolation="confined", limits=limits, python={python!r}) as sandbox:
        with sandbox.session() as session, sandbox.session() as neighbour:
            neighbour.run("open('mine', 'w').write('x')")
            links, beside = session._core.links, neighbour._core.links
            session.set("PIDS", {{
                "host": os.getpid(), "zygote": sandbox._zygote.pid, "init": links.pid,
                "neighbour": beside.worker_pid, "neighbour's init": beside.pid, "first": 1,
            }})
            session.set("HOST_FILES", [
                path, beside.folder + "/workspace/mine", "/etc/passwd", "/etc/hostname",
                "/etc/resolv.conf", "/etc/shadow", "/proc/1/cmdline", "/proc/net/tcp",
                "/proc/version", "/proc/mounts", {this!r},
            ])
            session.set("UNIX_PATH", folder + "/socket")
            outcome = session.run({probe!r})
            assert outcome.ok, outcome
            seen = session.get("seen")
            neighbour.run("pass")
            seen["neighbour"] = neighbour.run("open('mine').read()").value
            isolation = session.isolation
            seen["isolation"] = [isolation.tier, [astuple(each) for each in isolation.layers]]
            seen["host uid"] = os.geteuid()
            with open(path) as file:
                seen["host file"] = file.read()
print(json.dumps(seen))
"""
