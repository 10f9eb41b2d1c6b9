"""Calls that change nothing: they succeed, because programs make them first of all."""

from __future__ import annotations

from .steps import PROCESSES, Check, Run, shows

# Programs call these to be sure of what is so already. Each is code that raises if it is refused.
_ROWS: tuple[tuple[str, str], ...] = (
    (
        "the stack as large as it may be",
        "import resource\nhard = resource.getrlimit(resource.RLIMIT_STACK)[1]\n"
        "resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))",
    ),
    (
        "a stack of 256 MiB",
        "import resource\nresource.setrlimit(resource.RLIMIT_STACK, (1 << 28, 1 << 28))",
    ),
    (
        "every limit as it is",
        "import resource\n"
        "for name in dir(resource):\n"
        "    if name.startswith('RLIMIT_'):\n"
        "        number = getattr(resource, name)\n"
        "        resource.setrlimit(number, resource.getrlimit(number))",
    ),
    (
        "the ordinary class of the scheduler",
        "import os\nos.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))\n"
        "os.sched_setscheduler(os.getpid(), os.SCHED_OTHER, os.sched_param(0))",
    ),
    ("the priority that there is", "import os\nos.sched_setparam(0, os.sched_param(0))"),
    (
        "the class of a thread",
        "import ctypes\nc = ctypes.CDLL(None)\nc.pthread_self.restype = ctypes.c_ulong\n"
        "zero = ctypes.byref(ctypes.c_int(0))\n"
        "assert c.pthread_setschedparam(ctypes.c_ulong(c.pthread_self()), 0, zero) == 0",
    ),
    ("no more niceness", "import os\nos.nice(0)"),
    (
        "the niceness that there is",
        "import os\nos.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))",
    ),
    (
        "the processors that there are",
        "import os\nos.sched_setaffinity(0, os.sched_getaffinity(0))",
    ),
    (
        "the own user and group",
        "import os\nos.setuid(os.getuid()); os.setgid(os.getgid())\n"
        "os.seteuid(os.geteuid()); os.setegid(os.getegid())\n"
        "os.setreuid(os.getuid(), -1); os.setregid(-1, os.getegid())\n"
        "os.setresuid(*os.getresuid()); os.setresgid(-1, -1, -1)",
    ),
    ("the mask of new files", "import os\nos.umask(os.umask(0o22))"),
    (
        "the owner of a file",
        "import os, shutil\nopen('own', 'w').close()\nos.chown('own', -1, -1)\n"
        "os.chown('own', os.getuid(), os.getgid())\nos.lchown('own', -1, -1)\n"
        "with open('own') as file: os.fchown(file.fileno(), -1, -1)\n"
        "shutil.chown('own', os.getuid())\nos.chmod('own', os.stat('own').st_mode)",
    ),
    (
        "the state of a descriptor",
        "import fcntl, os\nreading, writing = os.pipe()\n"
        "fcntl.fcntl(reading, fcntl.F_SETFL, fcntl.fcntl(reading, fcntl.F_GETFL))\n"
        "fcntl.fcntl(reading, fcntl.F_SETFD, fcntl.fcntl(reading, fcntl.F_GETFD))\n"
        "os.set_blocking(reading, os.get_blocking(reading))",
    ),
    (
        "options of the process",
        "import ctypes\nc = ctypes.CDLL(None)\n"
        "for option, value in ((38, 1), (29, c.prctl(30, 0, 0, 0, 0)), (36, 0), (41, 0), (4, 0)):\n"
        "    assert c.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0, option",
    ),
)


def _unchanged(name: str, code: str) -> Check:
    return Check(f"succeeds: {name}", "unchanged", (Run(f"{code}\n'so'", shows("'so'")),))


UNCHANGED = (
    *(_unchanged(name, code) for name, code in _ROWS),
    Check(
        "succeeds: the stack of a shell",
        "unchanged",
        (
            Run(
                "import subprocess\n"
                "subprocess.check_output(['sh', '-c', 'ulimit -s $(ulimit -Hs) && echo so'])",
                shows("b'so\\n'"),
            ),
        ),
        needs=PROCESSES,
    ),
    Check(
        "deep recursion in a thread with a large stack",
        "unchanged",
        (
            Run(
                "import sys, threading\n"
                "sys.setrecursionlimit(10**6)\nthreading.stack_size(256 << 20)\nfound = []\n"
                "def depth(n):\n    return 0 if n == 0 else 1 + max(map(depth, [n - 1]))\n"
                "thread = threading.Thread(target=lambda: found.append(depth(20_000)))\n"
                "thread.start()\nthread.join()\nfound",
                shows("[20000]"),
            ),
        ),
    ),
)
