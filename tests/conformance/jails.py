"""Isolation of a session, seen from inside: the least that every isolating tier promises."""

from __future__ import annotations

from .steps import Check, Fresh, Run, Step, shows

_NO_WALL = {"process": "it promises no isolation: code may do what its host may"}


def _refused(name: str, expression: str, prepare: str = "pass") -> Check:
    """`expression` raises OSError."""
    lines = "".join(f"    {line}\n" for line in (*prepare.splitlines(), expression))
    code = f"try:\n{lines}    print('reached')\nexcept OSError:\n    print('refused')"
    return _check(name, Run(code, shows(stdout="refused\n")))


def _check(name: str, *steps: Step) -> Check:
    return Check(name, "isolation", steps, needs=frozenset({"isolation"}), not_for=_NO_WALL)


_SOCKET = "import socket\ns = socket.socket()\ns.settimeout(2)"

JAILS = (
    _refused("files of the host are not there", "open('{SECRET}')"),
    _refused("the host's accounts are not there", "open('/etc/shadow')"),
    _refused("nothing can be added to the system", "open('/usr/new', 'w')"),
    _refused("the interpreter cannot be changed", "open(os.__file__, 'a')", "import os"),
    _refused("no address of the network is reached", "s.connect(('192.0.2.1', 80))", _SOCKET),
    _refused("the host's loopback is not reached", "s.connect(('127.0.0.1', 22))", _SOCKET),
    _refused("no name is resolved", "socket.getaddrinfo('example.org', 80)", "import socket"),
    _refused(
        "no namespace can be made",
        "libc.unshare(0x10000000) == 0 or os.stat('/nowhere')",
        "import ctypes, os\nlibc = ctypes.CDLL(None)",
    ),
    _check(
        "the code has no privileges",
        Run(
            "rows = dict(row.split(':', 1) for row in open('/proc/self/status'))\n"
            "caps = [int(rows[name], 16) for name in ('CapPrm', 'CapEff', 'CapAmb')]\n"
            "caps, rows['NoNewPrivs'].strip()",
            shows("([0, 0, 0], '1')"),
        ),
    ),
    _check("the code is not root", Run("import os\n0 in os.getresuid()", shows("False"))),
    _check(
        "no environment of another process is read",
        Run(
            # If process ids are not listed, guess the nearest ones.
            "import os\nseen, own = 0, os.getpid()\n"
            "try: pids = [int(name) for name in os.listdir('/proc') if name.isdigit()]\n"
            "except OSError: pids = [1, os.getppid(), *range(max(2, own - 2000), own + 100)]\n"
            "for pid in pids:\n    if pid != own:\n"
            "        try: seen += len(open(f'/proc/{pid}/environ', 'rb').read())\n"
            "        except OSError: pass\nseen",
            shows("0"),
        ),
    ),
    _check(
        "files of one session are not another's",
        Run(
            "left = 0\nfor place in ('.', '/tmp', '/dev/shm'):\n"
            "    try: left += open(place + '/left', 'w').write('x')\n"
            "    except OSError: pass\nleft > 0",
            shows("True"),
        ),
        Fresh(),
        Run(
            "import os\nplaces = ('.', '/tmp', '/dev/shm')\n"
            "[place for place in places if os.path.exists(place + '/left')]",
            shows("[]"),
        ),
    ),
)
